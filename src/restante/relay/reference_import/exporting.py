"""`restante relay export`: writes usage records to a usage database of the reference relay."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

from restante.common.reference_database import export_database, snapshot
from restante.relay.store.schema import SCHEMA

_SELECTS: Final = {
    "usage": "SELECT started, total_time, waiting_time, total_bytes, result FROM transfers ORDER BY id",
    "current": "SELECT rebooted, updated, connected, waiting, incomplete_bytes FROM current",
}


def export_usage(data: Path, file: Path) -> int:
    """Write all usage records, also imported ones, to a new file, as `export_database` does. Return how many."""
    script = (resources.files("restante.relay.reference_import") / "usage-1.sql").read_text()
    return export_database(snapshot(SCHEMA, data), file, script, _SELECTS)["usage"]
