"""The node's key: made once, read by its owner alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from restante.errors import Misuse
from restante.waku import keyfile
from restante.waku.keys import Key

DIGITS = "ab" * 32


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_is_made_where_there_is_none_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "node.key"
    before = os.umask(0)
    try:
        key = keyfile.load_or_make(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == key.secret.hex() + "\n"
    assert list(path.parent.iterdir()) == [path], "the draft is gone"


def test_a_key_that_is_there_is_read_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    made = keyfile.load_or_make(path)
    before = path.stat()
    assert keyfile.load_or_make(path).secret == keyfile.load(path).secret == made.secret
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", [DIGITS, f"0x{DIGITS}", f"  {DIGITS.upper()}\n\n"])
def test_keys_are_read_as_geth_writes_them(tmp_path: Path, text: str) -> None:
    assert keyfile.load(written(tmp_path / "node.key", text)).secret == Key(bytes.fromhex(DIGITS)).secret


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o666, 0o602])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "node.key", DIGITS, mode)
    for read in (keyfile.load, keyfile.load_or_make):
        with pytest.raises(Misuse, match=f"chmod 600 {path}"):
            read(path)


@pytest.mark.parametrize("text", ["", "ab", "zz" * 32, "00" * 32, "ff" * 32, DIGITS + "ab", DIGITS * 10])
def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    with pytest.raises(Misuse, match="64 hexadecimal digits") as refused:
        keyfile.load(written(tmp_path / "node.key", text))
    assert len(text) < 3 or text not in str(refused.value)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="No such file"):
        keyfile.load(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff" * 40)
    with pytest.raises(Misuse, match="cannot read the key file"):
        keyfile.load(tmp_path / "binary")
    with pytest.raises(Misuse, match=r"directory.*--key"):
        keyfile.load_or_make(tmp_path)
    with pytest.raises(Misuse, match=r"Not a directory.*--key"):
        keyfile.load_or_make(tmp_path / "binary" / "node.key")
