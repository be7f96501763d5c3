"""`restante export`: writes usage records to a usage database of the reference server, for programs that read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Final

from restante.common.reference_database import Select, export_database, snapshot
from restante.mailbox.reference_import.translation import USAGE
from restante.mailbox.store.schema import SCHEMA
from restante.mailbox.store.status import Where

_CURRENT: Final = "SELECT rebooted, updated, blur_time, connections_websocket FROM usage_current"


def export_usage(where: Where, file: Path) -> dict[str, int]:
    """Write all usage records, also imported ones, to a new file, as `export_database` does.

    A server may be running. Return how many of each kind. Raises Misuse if there is no database, StoreError.
    """
    source = snapshot(SCHEMA, where) if isinstance(where, Path) else _snapshot_at(where)
    script = (resources.files("restante.mailbox.reference_import") / "usage-2.sql").read_text()
    # This server's tables have the prefix `usage_` and the same columns.
    selects = {
        table: f"SELECT {', '.join(columns)} FROM usage_{table} ORDER BY id"  # noqa: S608
        for table, columns in USAGE.columns.items()
    }
    counts = export_database(source, file, script, selects | {"current": _CURRENT})
    return {table: counts[table] for table in USAGE.tables}


@contextmanager
def _snapshot_at(url: str) -> Iterator[Select]:
    from restante.mailbox.store import postgres  # it needs the extra

    with postgres.reading(url) as database, database.snapshot():
        yield database.stream
