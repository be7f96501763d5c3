"""What a requester keeps from one run to the next, in a file: JSON, replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from restante.errors import Misuse, StoreError
from restante.waku.gaps import State


def load(path: Path) -> State:
    """Read a state; where there is no file, nothing is known. Raises Misuse where it is no state."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return State()
    except OSError as error:
        raise Misuse(f"cannot read {path}: {error.strerror} (--state)") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Misuse(f"{path} is no state of a requester: {error} (--state)") from None


def save(path: Path, state: State) -> None:
    """Write a state, so that there is this one or the one before, whatever happens. Raises StoreError."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(state)))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StoreError(f"cannot write {path}: {error.strerror} (--state)") from error
