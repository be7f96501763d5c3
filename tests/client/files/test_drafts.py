"""A file or directory has its name when it is complete, and nothing else does before."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import stat
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.client.errors import UnsafeNameError
from restante.client.files import draft
from restante.client.files.draft import OpenDraft, check_target, draft_directory, draft_file, free_path
from restante.client.files.names import MAX_NAME_BYTES, file_name, quoted, unportable_names
from restante.common.errors import Misuse, StoreError
from support.isolation import unavailable
from support.processes import run

both = pytest.mark.parametrize("kind", ["file", "directory"])
whatever_is_there = pytest.mark.parametrize("there", ["file", "directory", "empty", "dangling"])


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "name"


def draft_of_a(kind: str, target: Path, *, replace: bool = False) -> AbstractContextManager[OpenDraft | Path]:
    return draft_file(target, replace=replace) if kind == "file" else draft_directory(target, replace=replace)


def fill(unfinished: OpenDraft | Path) -> None:
    if isinstance(unfinished, Path):
        (unfinished / "inside").write_text("new")
    else:
        unfinished.write(b"new")


def make(target: Path, kind: str) -> None:
    if kind == "file":
        target.write_text("file")
    elif kind == "dangling":
        target.symlink_to("nowhere")
    else:
        target.mkdir()
        if kind == "directory":
            (target / "old").write_text("directory")


def content(target: Path) -> str:
    if target.is_symlink():
        return "dangling"
    if target.is_file():
        return target.read_text()
    return next((path.read_text() for path in target.iterdir()), "empty")


def contents(folder: Path) -> dict[str, str]:
    return {path.name: content(path) for path in folder.iterdir()}


def is_refused(kind: str, target: Path, why: str, error: type[Exception] = Misuse, *, replace: bool = True) -> None:
    with pytest.raises(error, match=why), draft_of_a(kind, target, replace=replace):
        pytest.fail("it began")


@both
@pytest.mark.parametrize("name", ["name", "x" * 255, "é" * 127, "-", "…" * 85])
def test_it_has_its_name_only_when_it_is_complete(tmp_path: Path, kind: str, name: str) -> None:
    with draft_of_a(kind, tmp_path / name) as unfinished:
        fill(unfinished)
        (hidden,) = contents(tmp_path)
        assert hidden.startswith(".")
        assert ".part-" in hidden
        assert len(hidden.encode()) <= 255  # a character that was cut would be a surrogate
    assert contents(tmp_path) == {name: "new"}


@both
def test_the_working_directory_may_change_or_go(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    with draft_of_a(kind, Path("name")) as unfinished:
        fill(unfinished)
        monkeypatch.chdir("gone")
    assert content(tmp_path / "name") == "new"
    (tmp_path / "gone").rmdir()
    with draft_of_a(kind, tmp_path / "name", replace=True) as unfinished:
        fill(unfinished)
    assert content(tmp_path / "name") == "new"


@both
@whatever_is_there
def test_what_is_there_is_not_overwritten(target: Path, kind: str, there: str) -> None:
    with pytest.raises(Misuse, match="exists already"), draft_of_a(kind, target) as unfinished:  # noqa: PT012
        fill(unfinished)
        make(target, there)
    is_refused(kind, target, "exists already", replace=False)
    assert contents(target.parent) == {"name": there}


@both
@whatever_is_there
def test_what_is_there_is_replaced_if_told(target: Path, kind: str, there: str) -> None:
    make(target, there)
    if kind == "file" and there in {"directory", "empty"}:
        is_refused(kind, target, "a file does not replace it")
        return
    with draft_of_a(kind, target, replace=True) as unfinished:
        assert content(target) == there
        fill(unfinished)
    assert contents(target.parent) == {"name": "new"}


def test_a_directory_is_replaced_whose_path_leads_through_itself(target: Path) -> None:
    make(target, "directory")
    with draft_directory(target / "../name", replace=True) as new:
        fill(new)
    assert contents(target.parent) == {"name": "new"}


@both
@pytest.mark.parametrize("there", ["pipe", "link to a pipe", "link as /dev/stdout"])
def test_a_device_or_pipe_is_never_replaced(tmp_path: Path, kind: str, there: str) -> None:
    """As root `receive --replace -o /dev/stdout` would take the device from all programs."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe" if there == "link to a pipe" else "/proc/self/fd/1")
    with pytest.raises(Misuse, match="leads to a device, a pipe or a socket"):
        check_target(tmp_path / ("pipe" if there == "pipe" else "link"), replace=True, directory=kind == "directory")


@both
@pytest.mark.parametrize("path", ["", ".", "..", "/", "folder/.."])
def test_a_nameless_path_is_refused(tmp_path: Path, path: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "folder", "directory")
    monkeypatch.chdir(tmp_path / "folder")
    is_refused(kind, Path(path), "does not end with a name")
    assert contents(tmp_path) == {"folder": "directory"}


CONTAINS = "leads to a directory that contains it"
WORKING, HOME = (f"leads to the {kind} directory, or to one that contains it" for kind in ("working", "home"))
LINKS = {
    "desk": ("folder/desk", WORKING),
    "to desk": ("folder/desk/inside/..", WORKING),
    "user": ("users/user", HOME),
    "to user": ("users/../users/user", HOME),
    "folder/desk/here": (".", CONTAINS),
    "folder/desk/above": ("../..", CONTAINS),
}


@both
@pytest.mark.parametrize("path", ["folder", "users", *LINKS])
def test_what_others_need_is_kept(tmp_path: Path, path: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever agrees to replace something means what came under this name before."""
    for folder in ("folder/desk/inside", "users/user"):
        (tmp_path / folder).mkdir(parents=True)
    for link, (target, _) in LINKS.items():
        (tmp_path / link).symlink_to(target)
    monkeypatch.chdir(tmp_path / "folder/desk")
    monkeypatch.setenv("HOME", str(tmp_path / "users/user"))
    before = sorted(tmp_path.rglob("*"))
    why = LINKS[path][1] if path in LINKS else WORKING if path == "folder" else HOME
    is_refused(kind, tmp_path / path, why)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_home_is_never_replaced_whatever_variables_say(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(target, "directory")
    monkeypatch.setenv("HOME", "")
    account = pwd.struct_passwd(("user", "", os.getuid(), 0, "", str(target), ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: account)
    is_refused("directory", target, "leads to the home directory")


@pytest.mark.parametrize("before", ["nothing", "file", "empty"])
def test_a_directory_that_came_meanwhile_is_never_replaced(target: Path, before: str) -> None:
    """A file system may give a new directory the inode of one that was removed."""
    if before != "nothing":
        make(target, before)
    with pytest.raises(StoreError, match="File exists"), draft_directory(target, replace=True):  # noqa: PT012
        if before == "empty":
            target.rmdir()
        target.unlink(missing_ok=True)
        make(target, "directory")
    assert contents(target.parent) == {"name": "directory"}


@pytest.mark.parametrize("there", ["file", "directory"])
def test_what_came_after_the_check_is_not_replaced(target: Path, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(target: Path, **_: bool) -> None:
        if any(target.parent.iterdir()):  # the draft is there, so it is the last check
            make(target, there)

    monkeypatch.setattr(draft, "check_target", checked)
    with pytest.raises(StoreError), draft_directory(target):
        pass
    assert content(target) == there


def fails(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "")


def too_deep(*_: object, **__: object) -> None:
    raise RecursionError


@pytest.mark.parametrize(
    ("there", "module", "name", "fake", "raised"),
    [
        ("directory", draft, "_has_mount_point", lambda path: ".old-" in path.name, nullcontext()),
        ("directory", draft, "flush", fails, pytest.raises(StoreError)),
        ("directory", os, "unlink", fails, nullcontext()),
        ("file", os, "unlink", fails, nullcontext()),
        ("directory", shutil, "rmtree", too_deep, nullcontext()),
    ],
    ids=["it was mounted after the check", "the new is not safe", "it cannot be removed", "nor a file", "it is deep"],
)
def test_what_was_replaced_stays_aside_if(
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: str,
    module: object,
    name: str,
    fake: object,
    raised: AbstractContextManager[object],
) -> None:
    make(target, there)
    with raised, draft_directory(target, replace=True) as new:
        fill(new)
        monkeypatch.setattr(module, name, fake)
    old, stored = sorted(target.parent.iterdir())
    assert old.name.startswith(".name.old-")
    assert (content(old), stored.name, content(stored)) == (there, "name", "new")


@pytest.mark.parametrize("there", ["directory", "file of another program"])
def test_what_was_moved_aside_comes_back_unless_another_program_has_taken_the_name(
    target: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    make(target, "directory")
    rename = Path.rename

    def fails_for_drafts(self: Path, new: Path) -> Path:
        if ".part-" in self.name:
            if there != "directory":
                new.write_text(there)
            fails()
        return rename(self, new)

    monkeypatch.setattr(Path, "rename", fails_for_drafts)
    with pytest.raises(StoreError, match="Input/output") as raised, draft_directory(target, replace=True) as new:
        fill(new)
    *old, name = sorted(target.parent.iterdir())
    assert (name.name, content(name)) == ("name", there)
    assert [content(path) for path in old] == ([] if there == "directory" else ["directory"])
    for path in old:
        assert str(raised.value).endswith(f"; what was there before is '{path}' now")


@pytest.mark.parametrize("comes", [False, True])
def test_disks_without_links_give_names_as_safely(target: Path, monkeypatch: pytest.MonkeyPatch, comes: bool) -> None:
    def no_links(*_: object) -> None:
        if comes:
            make(target, "file")
        raise PermissionError(errno.EPERM, "")

    monkeypatch.setattr(os, "link", no_links)
    refused = pytest.raises(StoreError, match="File exists") if comes else nullcontext()
    with refused, draft_file(target) as unfinished:
        fill(unfinished)
    assert contents(target.parent) == {"name": "file" if comes else "new"}


def test_the_umask_decides_the_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with draft_file(tmp_path / "file"), draft_directory(tmp_path / "directory"):
            pass
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"file": 0o640, "directory": 0o750}


unshares = pytest.mark.skipif(bool(unavailable()), reason=f"disks and users of their own: {unavailable()}")
IMPORTS = """\
from pathlib import Path
from restante.client.files.draft import draft_directory, draft_file, abandoned_drafts, remove_abandoned_draft
"""


@unshares
def test_what_is_stored_in_a_folder_that_may_not_be_read_is_no_error(tmp_path: Path) -> None:
    """A drop box. Otherwise the sender is told that nothing was stored, when it has its name."""
    (tmp_path / "box").mkdir(0o300)
    script = f"{IMPORTS}with draft_file(Path('box/file')), draft_directory(Path('box/folder')): pass"
    ended = run("unshare", "--user", sys.executable, "-c", script, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    (tmp_path / "box").chmod(0o700)
    assert sorted(contents(tmp_path / "box")) == ["file", "folder"]


@unshares
def test_a_draft_with_a_mounted_disk_in_it_is_not_offered_nor_removed(tmp_path: Path) -> None:
    draft = f".x.part-{'0' * 16}"
    (tmp_path / draft / "disk").mkdir(parents=True)
    script = f"{IMPORTS}print(abandoned_drafts(Path())); remove_abandoned_draft(Path('{draft}'))"
    line = f'mount -t tmpfs none {draft}/disk && touch {draft}/disk/mine && "$@" && ls {draft}/disk'
    unshared = ("unshare", "--user", "--mount", "--map-root-user", "sh", "-c", line, "sh")
    ended = run(*unshared, sys.executable, "-c", script, cwd=tmp_path)
    assert ended.stdout == "[]\nmine\n", ended.stderr


@both
def test_a_folder_in_which_nothing_can_be_created_is_one_sentence(tmp_path: Path, kind: str) -> None:
    is_refused(kind, Path("/proc/self/name"), r"^cannot \w+ '/proc/self/name': ", StoreError, replace=False)
    is_refused(kind, tmp_path / "none" / "name", "no directory", replace=False)


LEGAL = [
    *("a", "notes.txt", "-rf", ".bashrc", "...", "trailing ", "trailing.", "50%", "a:b", "C:", "console", "~"),
    *("$HOME", "Übung", "Отчёт.pdf", "年度報告.docx", "گزارش\u200cها", "דוח\u200f.txt"),  # noqa: RUF001
    *("รายงาน", "👩\u200d🚀.png", "e\u0301", "a\u00a0b", "com10", "auxiliary", "con-text", "\ue000"),
    *("a" * MAX_NAME_BYTES, "é" * 127, "..\\x", "C:\\x", "\\\\host\\share", "a\\"),
    *(DEVICES := ("CON", "nul", "NUL.txt", "aux.tar.gz", "Com1", "LPT9.", "COM\xb9", "con ", "CONIN$")),
]

PATHS = ("/etc/passwd", "a/b", "../x", "a/", "~/.ssh/authorized_keys")
CONTROLS = "\0\a\n\r\t\x1b\x7f\x85\x9b\u2028\u2029\u202a\u202e\u2066\u2069"
INVISIBLE = (" ", "\u00a0\u2003", "\u200b", "\U000e0001", "\u3164", "\u2800 \u115f")

UNSAFE = [
    ("", "is empty"),
    *((name, "means a directory") for name in (".", "..")),
    *((name, "is a path") for name in PATHS),
    *((f"a{control}b", "control") for control in CONTROLS),
    *((name, "control") for name in ("\x1b[2J\x1b]0;owned\a", "invoice\u202efdp.exe")),
    *((name, "no visible character") for name in INVISIBLE),
    *((name, "longer than 255 bytes") for name in ("a" * 256, "é" * 128)),
    *((name, "not UTF-8") for name in ("\udcff", "\ud83d")),
]


@pytest.mark.parametrize("name", LEGAL)
def test_a_name_in_any_script_is_used_as_it_is(name: str) -> None:
    assert file_name(name) == name


@pytest.mark.parametrize(("name", "why"), UNSAFE)
def test_an_unsafe_name_is_refused_in_one_printable_sentence(name: str, why: str) -> None:
    with pytest.raises(UnsafeNameError, match=why) as refused:
        file_name(name)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("names", "doubtful"),
    [
        (["a", "b.txt", "Übung", "con-text", "com10"], []),
        ([*DEVICES, "a\\b", "a:b", "what?", "trailing.", "trailing "], None),
        (["README", "Readme", "readme.md"], ["Readme"]),
        (["e\u0301", "\u00c9"], ["\u00c9"]),
        (["straße", "STRASSE"], ["STRASSE"]),
    ],
)
def test_a_name_that_other_systems_cannot_store_is_known(names: list[str], doubtful: list[str] | None) -> None:
    assert [name for name, _ in unportable_names(names)] == (names if doubtful is None else doubtful)


@pytest.mark.parametrize(
    ("name", "numbered"),
    [
        ("letter.txt", "letter (2).txt"),
        ("x.tar.gz", "x (2).tar.gz"),
        (".bashrc", ".bashrc (2)"),
        ("é" * 125 + ".txt", "é" * 123 + " (2).txt"),
        ("a." + "x" * 253, "a." + "x" * 249 + " (2)"),
    ],
)
def test_a_number_is_put_before_the_suffix_of_a_name_that_is_taken(tmp_path: Path, name: str, numbered: str) -> None:
    (tmp_path / name).touch()
    free_path(tmp_path / name, directory=False).touch()
    assert free_path(tmp_path / name, directory=False).name == numbered


@given(st.text(st.characters()))
def test_every_text_is_a_name_or_refused(text: str) -> None:
    try:
        assert file_name(text) == text
    except UnsafeNameError as error:
        assert str(error).isprintable()  # noqa: PT017 - not every text is refused
    else:
        assert 0 < len(text.encode()) <= MAX_NAME_BYTES
        assert not set("/\0\n\x1b") & set(text)


def test_a_name_is_shown_with_escapes_and_not_at_any_length() -> None:
    assert quoted("a\x1b[0m\u202e\udcffé") == r"'a\x1b[0m\u202e\udcffé'"
    assert quoted("x" * 5000) == f"'{'x' * 80}…'"
