"""Envelopes from files and archives, without a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from restante.common.errors import Misuse, StoreError, plain
from restante.waku.archive import statements
from restante.waku.archive.schema import ARCHIVE_FILE, SCHEMA
from restante.waku.envelope.envelope import Envelope
from restante.waku.files import FileItems, UnreadableItem, leveldb, parse_item, rlp_file


def read_envelopes(
    path: Path | str, *, on_unreadable: Callable[[UnreadableItem], None] | None = None
) -> Iterator[Envelope]:
    """Yield the envelopes of a file or an archive, in its order. It is only read.

    `path` is an RLP file (.rlp), a Parquet file (.parquet), the data directory of `restante waku serve`, which may be
    running, or the LevelDB directory of a status-go node that is stopped. `on_unreadable` is called with each item
    that is not an envelope; without it, the first one raises StoreError.

    The iteration raises Misuse if there is no such file, its type is unknown, or a status-go node uses it; StoreError
    if it cannot be read. Iterate in one thread.
    """
    path = Path(path)
    try:
        for item in _read_archive(path) if (path / ARCHIVE_FILE).exists() else read_items(path):
            if isinstance(item, Envelope):
                yield item
            elif on_unreadable is None:
                raise StoreError(f"{path}, {item.where}: {item.reason}")
            else:
                on_unreadable(item)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {plain(error)}") from error


def read_items(path: Path) -> FileItems:
    """Return the items of a file, or of a LevelDB directory. Raises Misuse if its type is unknown."""
    if not path.exists():
        raise Misuse(f"there is no {path}")
    if path.is_dir():
        return leveldb.read(path)
    if path.suffix == ".rlp":
        return rlp_file.read(path)
    if path.suffix == ".parquet":
        from restante.waku.files import parquet

        return parquet.read(path)
    raise Misuse(f"{path} is not an .rlp or .parquet file, nor the directory of a LevelDB archive")


def _read_archive(data: Path) -> FileItems:
    """Yield the items of a data directory, as they are at the first of them."""
    with SCHEMA.reading(data) as database:
        database.execute("BEGIN")
        for page in statements.read_all(database):
            for row in page:
                yield parse_item(row.raw, f"arrival {row.arrival}")
