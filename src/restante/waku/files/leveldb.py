"""Archives of status-go: LevelDB databases with keys derived from the values (mailserver/db_key.go).

    key = sent(4) ‖ hash(32) ‖ topic(4)        value = the envelope's RLP

Before May 2019 keys had no topic (status-go pull request 1459).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from restante.common.errors import InUse, Misuse, StoreError, plain
from restante.common.extras import how_to_install
from restante.waku import files

KEY_ID_BYTES: Final = 36
"""Bytes of a key that identify the envelope. The topic after them repeats the envelope's topic, or is wrong."""
KEY_SIZES: Final = {KEY_ID_BYTES, KEY_ID_BYTES + 4}

_TABLE_SUFFIXES: Final = {".ldb", ".sst"}
"""Suffixes of files that LevelDB never changes after it has written them."""


def read(folder: Path) -> files.FileItems:
    """Yield each value as an envelope, or as an unreadable item if the key is not the envelope's.

    The directory is only read. Raises Misuse if plyvel is not installed, InUse if another program uses it, StoreError
    if it is not a LevelDB database.
    """
    try:
        import plyvel
    except ModuleNotFoundError:
        raise Misuse(f"a LevelDB archive needs the extra 'leveldb': {how_to_install('leveldb')}") from None
    if not (folder / "CURRENT").is_file():
        raise StoreError(f"{folder} is not a LevelDB database: it has no file CURRENT")
    with _copy(folder) as copied:
        try:
            database = plyvel.DB(str(copied), create_if_missing=False)
        except (plyvel.Error, OSError) as error:
            raise StoreError(
                f"{folder} cannot be opened as a LevelDB database: {_message(error, copied, folder)}"
            ) from error
        last_key = b""
        with closing(database):
            try:
                for key, value in database.iterator(verify_checksums=True, fill_cache=False):
                    yield _parse_item(key, value)
                    last_key = key
            except (plyvel.Error, OSError) as error:
                yield files.UnreadableItem(
                    f"after key {last_key.hex()}", f"the rest cannot be read: {_message(error, copied, folder)}"
                )


def _message(error: Exception, copy: Path, folder: Path) -> str:
    """Return the library's message as text, with the original directory instead of the copy."""
    argument = error.args[0] if error.args else ""
    text = argument.decode(errors="replace") if isinstance(argument, bytes) else str(error)
    return text.replace(str(copy), str(folder)).replace("\n", " ")


def _parse_item(key: bytes, value: bytes) -> files.FileItem:
    where = f"key {key.hex()}"
    if len(key) not in KEY_SIZES:
        return files.UnreadableItem(where, "a key has 36 or 40 bytes")
    item = files.parse_item(value, where)
    if not isinstance(item, files.UnreadableItem) and item.sent.to_bytes(4) + item.hash != key[:KEY_ID_BYTES]:
        return files.UnreadableItem(where, "the key does not match")
    return item


@contextmanager
def _copy(folder: Path) -> Iterator[Path]:
    """Yield a copy of the directory, because opening a LevelDB database changes it.

    Tables, which are most of the data, are hard-linked if possible.
    """
    with _locked(folder), ExitStack() as stack:
        try:
            copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent)))
            for file in folder.iterdir():
                if file.name != "LOCK" and file.is_file():
                    _link_or_copy(file, copy / file.name)
        except OSError as error:
            raise StoreError(f"cannot make a copy of {folder} beside it: {plain(error)}") from error
        yield copy


def _link_or_copy(file: Path, to: Path) -> None:
    if file.suffix in _TABLE_SUFFIXES:
        with suppress(OSError):
            to.hardlink_to(file)
            return
    shutil.copyfile(file, to)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the database's locks, or raise InUse if another program has it open.

    status-go's goleveldb locks with flock(2), LevelDB with fcntl(2).
    """
    try:
        lock_file = os.open(folder / "LOCK", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock_file)
        raise InUse(f"a program is using {folder}: stop it, or import a copy of the directory") from None
    try:
        yield
    finally:
        os.close(lock_file)
