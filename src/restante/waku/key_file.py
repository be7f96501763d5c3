"""The node's key in a file: 64 hexadecimal digits, read by its owner alone; as geth writes its `nodekey`."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from restante.common.errors import Misuse, plain
from restante.waku.dice import SystemDice
from restante.waku.envelope.keys import Key


def load(path: Path, flag: str = "--key") -> Key:
    """Read a key; `flag` is what named it. Raises Misuse where there is none, or others may read it."""
    try:
        with path.open() as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(200).strip()
    except (OSError, UnicodeDecodeError) as error:
        words = plain(error) if isinstance(error, OSError) else error
        raise Misuse(f"cannot read the key file {path}: {words} ({flag})") from error
    if stat.S_IMODE(mode) & 0o077:
        raise Misuse(f"{path} holds a private key, and others may read it: chmod 600 {path}")
    try:
        return Key(bytes.fromhex(text.removeprefix("0x")))
    except ValueError:
        raise Misuse(f"{path} holds no key: it must have 64 hexadecimal digits ({flag})") from None


def load_or_make(path: Path) -> Key:
    """Read a key, or make one where there is no file. Raises Misuse."""
    if path.exists():
        return load(path)  # nothing is written: it may be in a place where nothing can be
    key = SystemDice().key()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, key.secret.hex() + "\n")
    except FileExistsError:
        return load(path)  # somebody was faster
    except OSError as error:
        raise Misuse(f"cannot write the key file {path}: {plain(error)} (--key)") from error
    return key


def _write(path: Path, text: str) -> None:
    """Have a file appear whole and on the disk, or not at all, and never over one that is there. Raises OSError."""
    descriptor, draft = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)  # for its owner alone
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    finally:
        Path(draft).unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
