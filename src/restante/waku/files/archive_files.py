"""`restante waku export` and `import`: envelopes from an archive to a file, and from files to an archive.

The archive's server may run during an export. During an import it must be stopped.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from restante.common.atomic_file import new_file
from restante.common.errors import Misuse, StoreError, plain
from restante.common.progress import progress
from restante.common.texts import counted
from restante.waku.archive import statements
from restante.waku.archive.records import Archived
from restante.waku.archive.schema import SCHEMA
from restante.waku.archive.sqlite import Archive, open_archive
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.rlp import RlpError
from restante.waku.files import FileItems, UnreadableItem, rlp_file
from restante.waku.files.reading import read_items
from restante.waku.protocol.packets import MAX_ENVELOPE_BYTES
from restante.waku.settings import DEFAULT_RETENTION_DAYS, SECONDS_PER_DAY


def export(data: Path, file: Path) -> int:
    """Write all envelopes to a new file, in order of arrival. Return their number.

    The file appears when it is complete. Raises Misuse if the file exists, its suffix is unknown, or there is no
    archive; StoreError if the file or the archive cannot be used.
    """
    if file.suffix == ".rlp":
        write = rlp_file.write
    elif file.suffix == ".parquet":
        from restante.waku.files import parquet

        write = parquet.write
    else:
        raise Misuse(f"{file}: the name must end in .rlp or .parquet, which decides the format")
    exported = 0
    with SCHEMA.reading(data) as database, new_file(file) as unfinished:
        database.execute("BEGIN")  # so that all reads see the archive at one moment
        count = statements.read_counts(database).envelopes
        with progress("export", count) as advance:

            def pages() -> Iterator[list[Archived]]:
                nonlocal exported
                for page in statements.read_all(database):
                    yield page
                    exported += len(page)
                    advance(len(page))

            try:
                write(unfinished, pages())
            except RlpError as error:
                raise StoreError(
                    f"the archive is damaged ({error}): run `restante waku check` for details"
                ) from error
        if exported != count:
            raise StoreError(
                f"the archive is damaged: it counts {counted(count, 'envelope')}, and"
                f" {exported:,} of them can be found: run `restante waku check` for details"
            )
    return exported


# ── import ────────────────────────────────────────────────────────────────────────────────────────

BATCH_ENVELOPES: Final = 1000
BATCH_BYTES: Final = 8 << 20
"""Approximate number and bytes of envelopes that are saved in one transaction."""

MAX_LISTED_ITEMS: Final = 20
"""Maximum number of unreadable items in a report."""


class ImportReport(msgspec.Struct):
    """The result of an import. Every item read counts once: as new, as already stored, or as refused."""

    read: int = 0
    new: int = 0
    already_stored: int = 0
    """Stored before, or repeated in the files."""
    refused: Counter[str] = msgspec.field(default_factory=Counter)
    """Number of refused items by reason."""
    old: int = 0
    """Number of envelopes so old that a server with the default retention removes them."""
    unreadable: list[str] = msgspec.field(default_factory=list)
    """The positions of the first unreadable items."""


def import_files(data: Path, paths: list[Path]) -> ImportReport:
    """Save the envelopes of all files. A repeated import changes nothing.

    Raises Misuse before any change if a file does not exist or its type is unknown; StoreError if a file or the
    archive cannot be used. Envelopes that were saved before a StoreError stay saved.
    """
    for path in paths:
        read_items(path)
    return asyncio.run(_import_files(data, paths))


async def _import_files(data: Path, paths: list[Path]) -> ImportReport:
    archive = open_archive(data)
    try:
        report = ImportReport()
        first_arrival = (await archive.counts()).next_arrival
        for path in paths:
            await _import_file(archive, path, report)
        report.new = (await archive.counts()).next_arrival - first_arrival
        report.already_stored = report.read - report.new - report.refused.total()
        return report
    finally:
        await archive.close()


async def _import_file(archive: Archive, path: Path, report: ImportReport) -> None:
    batch: list[Envelope] = []
    size = 0
    old = time.time() - DEFAULT_RETENTION_DAYS * SECONDS_PER_DAY
    with progress(f"import {path.name}") as advance:
        for item in _read_items(path):
            report.read += 1
            if isinstance(item, UnreadableItem):
                report.refused[item.reason] += 1
                if len(report.unreadable) < MAX_LISTED_ITEMS:
                    report.unreadable.append(f"{path}, {item.where}: {item.reason}")
                continue
            report.old += item.sent < old
            batch.append(item)
            size += len(item.raw)
            if len(batch) >= BATCH_ENVELOPES or size >= BATCH_BYTES:
                await archive.save(batch, int(time.time()))
                advance(len(batch))
                batch, size = [], 0
        await archive.save(batch, int(time.time()))


def _read_items(path: Path) -> FileItems:
    try:
        for item in read_items(path):
            if isinstance(item, Envelope) and len(item.raw) > MAX_ENVELOPE_BYTES:
                yield UnreadableItem(f"envelope {item.hash.hex()}", "too large for a packet of 1 MiB")
            else:
                yield item
    except OSError as error:
        raise StoreError(f"cannot read {path}: {plain(error)}") from error


def render_report(report: ImportReport) -> str:
    """Return a report as a few lines of text."""
    rows = [
        ("read", report.read),
        ("new", report.new),
        ("already stored", report.already_stored),
        ("refused", report.refused.total()),
    ]
    lines = [f"{name:<14} {number:>12,}" for name, number in rows]
    lines += [f"  {number:,}: {reason}" for reason, number in report.refused.most_common()]
    return "\n".join(lines)


def warning(report: ImportReport) -> str | None:
    """Return a warning if a server will remove old envelopes, otherwise None."""
    if not report.old:
        return None
    return (
        f"{counted(report.old, 'envelope')} sent more than {DEFAULT_RETENTION_DAYS:g} days ago: `restante waku serve`"
        " removes these ten minutes after its start, unless --retention is 0 or more days"
    )
