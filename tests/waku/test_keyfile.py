"""The node's key: made once, read by its owner alone."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from restante.common.errors import Misuse
from restante.waku import key_file

DIGITS = "ab" * 32


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_missing_key_is_created_readable_by_its_owner_only_and_then_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "node.key"
    umask = os.umask(0)
    try:
        key = key_file.load_or_make(path)
    finally:
        os.umask(umask)
    made = path.stat()
    assert stat.S_IMODE(made.st_mode) == 0o600
    assert path.read_text() == key.secret.hex() + "\n"
    assert key_file.load_or_make(path).secret == key_file.load(path).secret == key.secret
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (made.st_mtime_ns, made.st_ino)
    assert list(path.parent.iterdir()) == [path], "the draft is gone"


def test_an_existing_key_is_read_from_a_read_only_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = key_file.load_or_make(tmp_path / "node.key")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)  # who runs the tests may be root, whom no mode stops
    assert key_file.load_or_make(tmp_path / "node.key").secret == made.secret
    with pytest.raises(Misuse, match=r"cannot write .*another: Read-only file system \(--key\)"):
        key_file.load_or_make(tmp_path / "another")


def test_files_of_a_killed_start_do_not_hinder_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "node.key"
    with monkeypatch.context() as end:
        end.setattr(os, "link", killed)
        end.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            key_file.load_or_make(path)
    [left] = tmp_path.iterdir()
    assert stat.S_IMODE(left.stat().st_mode) == 0o600
    path.with_name(f"node.key.{os.getpid()}").touch()
    assert key_file.load_or_make(path).secret == key_file.load(path).secret


def test_of_two_processes_the_faster_one_creates_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "node.key", os.link

    def late(draft: str, to: Path) -> None:
        written(path, DIGITS)
        link(draft, to)

    monkeypatch.setattr(os, "link", late)
    assert key_file.load_or_make(path).secret == bytes.fromhex(DIGITS)
    assert list(tmp_path.iterdir()) == [path]


def test_keys_are_read_as_geth_writes_them(tmp_path: Path) -> None:
    for text in (DIGITS, f"0x{DIGITS}", f"  {DIGITS.upper()}\n\n"):
        assert key_file.load(written(tmp_path / "node.key", text)).secret == bytes.fromhex(DIGITS)


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    for mode in (0o640, 0o604, 0o610, 0o602):
        path = written(tmp_path / "node.key", DIGITS, mode)
        for read in (key_file.load, key_file.load_or_make):
            with pytest.raises(Misuse, match=f"chmod 600 {path}"):
                read(path)


def test_an_invalid_key_is_refused_and_not_printed(tmp_path: Path) -> None:
    for text in ("", "zz" * 32, "00" * 32, "ff" * 32, DIGITS + "ab"):
        with pytest.raises(Misuse, match="64 hexadecimal digits") as refused:
            key_file.load(written(tmp_path / "node.key", text))
        assert not text or text not in str(refused.value)


def test_an_unreadable_key_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="No such file"):
        key_file.load(tmp_path / "missing")
    with pytest.raises(Misuse, match=r"No such file or directory \(--sign\)"):
        key_file.load(tmp_path / "missing", "--sign")
    (tmp_path / "binary").write_bytes(b"\xff" * 40)
    with pytest.raises(Misuse, match="cannot read the key file"):
        key_file.load(tmp_path / "binary")
    with pytest.raises(Misuse, match=r"directory.*--key"):
        key_file.load_or_make(tmp_path)
    with pytest.raises(Misuse, match=r"Not a directory.*--key"):
        key_file.load_or_make(tmp_path / "binary" / "node.key")
