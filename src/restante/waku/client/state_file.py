"""The state file of a requester: JSON, replaced as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from restante.common.atomic_file import draft_of
from restante.common.errors import InUse, Misuse, StoreError
from restante.common.lock_file import lock_file
from restante.waku.client.ranges import FetchState


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Lock a state file for this process during the block. Raises InUse if another process has locked it.

    The lock is on a file next to it, because the state file itself is replaced. The lock file is removed at the end.
    Other programs have a FILE.lock, too, so it has a name that no other program uses.
    """
    try:
        is_directory = path.is_dir()
    except OSError as error:
        raise Misuse(f"cannot read {path}: {error.strerror} (--state)") from error
    if is_directory:
        raise Misuse(f"cannot read {path}: it is a directory (--state)")
    beside = path.with_name(f".{path.name}.restante-lock")
    try:
        lock = _lock(beside)
    except BlockingIOError:
        raise InUse(f"another process is using {path}: wait for it (--state)") from None
    except OSError as error:
        raise Misuse(f"cannot write {beside}: {error.strerror} (--state)") from error
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(lock)


def _lock(beside: Path) -> int:
    """Lock a file and return its descriptor. Retry if the process that had locked it has removed it."""
    while True:
        lock = lock_file(beside)
        try:
            if os.path.samestat(os.fstat(lock), beside.stat()):
                return lock
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def load(path: Path) -> FetchState:
    """Read and return a state. Without a file, nothing is known. Raises Misuse if the file contains no state."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=FetchState)
    except FileNotFoundError:
        return FetchState()
    except OSError as error:
        raise Misuse(f"cannot read {path}: {error.strerror} (--state)") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Misuse(f"{path} is not a state file: {error} (--state)") from None


def save(path: Path, state: FetchState) -> None:
    """Write a state atomically: after a crash, the file contains this state or the one before. Raises StoreError."""
    try:
        with draft_of(path) as draft:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror} (--state)") from error
