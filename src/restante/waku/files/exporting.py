"""`restante waku export`: write an archive to a file, even while the server runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from restante.common.atomic_file import new_file
from restante.common.errors import Misuse, StoreError
from restante.common.progress import Advance, progress
from restante.common.texts import counted
from restante.waku.archive import statements
from restante.waku.archive.records import Archived
from restante.waku.archive.schema import SCHEMA
from restante.waku.envelope.rlp import RlpError
from restante.waku.files import rlp_file


def export(data: Path, file: Path) -> int:
    """Write all envelopes to a new file, in order of arrival. Return their number.

    The file appears when it is complete. Raises Misuse if the file exists, its suffix is unknown, or there is no
    archive; StoreError if the file or the archive cannot be used.
    """
    write = _writer(file)
    with SCHEMA.reading(data) as database, new_file(file) as unfinished:
        database.execute("BEGIN")  # so that all reads see the archive at one moment
        counts = statements.read_counts(database)
        with progress("export", counts.envelopes) as advance:
            pages = _Pages(database, advance)
            try:
                write(unfinished, pages)
            except RlpError as error:
                raise StoreError(
                    f"the archive is damaged ({error}): run `restante waku check` for details"
                ) from error
        if pages.count != counts.envelopes:
            raise StoreError(
                f"the archive is damaged: it counts {counted(counts.envelopes, 'envelope')}, and"
                f" {pages.count:,} of them can be found: run `restante waku check` for details"
            )
    return pages.count


class _Pages:
    """The pages of all envelopes, and the number of envelopes yielded so far."""

    def __init__(self, database: sqlite3.Connection, advance: Advance) -> None:
        self.count = 0
        self._database = database
        self._advance = advance

    def __iter__(self) -> Iterator[list[Archived]]:
        for page in statements.read_all(self._database):
            yield page
            self.count += len(page)
            self._advance(len(page))


def _writer(file: Path) -> Callable[[Path, _Pages], None]:
    if file.suffix == ".rlp":
        return rlp_file.write
    if file.suffix == ".parquet":
        from restante.waku.files import parquet

        return parquet.write
    raise Misuse(f"{file}: the name must end in .rlp or .parquet, which decides the format")
