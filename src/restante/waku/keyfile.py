"""The node's key in a file: 64 hexadecimal digits, read by its owner alone; as geth writes its `nodekey`."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from restante.errors import Misuse
from restante.waku.dice import SystemDice
from restante.waku.keys import Key


def load(path: Path) -> Key:
    """Read a key. Raises Misuse where there is none, or others may read it."""
    try:
        with path.open() as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(200).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(
            f"cannot read the key file {path}: {getattr(error, 'strerror', None) or error} (--key)"
        ) from error
    if stat.S_IMODE(mode) & 0o077:
        raise Misuse(f"{path} holds a private key, and others may read it: chmod 600 {path}")
    try:
        return Key(bytes.fromhex(text.removeprefix("0x")))
    except ValueError:
        raise Misuse(f"{path} holds no key: it must have 64 hexadecimal digits (--key)") from None


def load_or_make(path: Path) -> Key:
    """Read a key, or make one where there is no file. Raises Misuse."""
    key = SystemDice().key()
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(key.secret.hex() + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, path)  # whole, or not at all; and never over one that is there
        finally:
            draft.unlink()
    except FileExistsError:
        return load(path)
    except OSError as error:
        raise Misuse(f"cannot write the key file {path}: {error.strerror} (--key)") from error
    return key
