"""Key files: a private key in 64 hexadecimal digits, readable only by its owner, like geth's `nodekey`."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from restante.common.atomic_file import draft_of
from restante.common.dice import SystemDice
from restante.common.errors import Misuse, plain
from restante.waku.envelope.keys import Key, new_key


def load_key(path: Path, flag: str = "--key") -> Key:
    """Read a key. `flag` is the flag that named the file, for errors.

    Raises Misuse if the file contains no key, or if other users may read it.
    """
    try:
        with path.open() as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(200).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = plain(error) if isinstance(error, OSError) else error
        raise Misuse(f"cannot read the key file {path}: {reason} ({flag})") from error
    if stat.S_IMODE(mode) & 0o077:
        raise Misuse(f"other users may read the private key in {path}: run chmod 600 {path}")
    try:
        return Key(bytes.fromhex(text.removeprefix("0x")))
    except ValueError:
        raise Misuse(f"{path} contains no private key, which has 64 hexadecimal digits ({flag})") from None


def load_or_make(path: Path) -> Key:
    """Read the key, or create the file with a new key if it does not exist. Raises Misuse."""
    if path.exists():
        return load_key(path)  # nothing is written, because the directory may be read-only
    key = new_key(SystemDice())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft_of(path, replace=False) as draft:
            draft.write_text(key.secret.hex() + "\n")
    except FileExistsError:
        return load_key(path)  # another process created it first
    except OSError as error:
        raise Misuse(f"cannot write the key file {path}: {plain(error)} (--key)") from error
    return key
