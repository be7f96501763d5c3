"""A file or directory has its name when it is complete, and nothing else does before."""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from restante.client.files import draft
from restante.client.files.draft import (
    OpenDraft,
    check_free_space,
    check_place,
    draft_directory,
    draft_file,
    scratch_file,
)
from restante.common.errors import Misuse, StoreError


class Broken(Exception):  # noqa: N818
    """What ends a transfer."""


@pytest.fixture
def umask() -> Iterator[int]:
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def draft_of_a(kind: str, place: Path, *, replace: bool = False) -> AbstractContextManager[OpenDraft | Path]:
    return draft_file(place, replace=replace) if kind == "file" else draft_directory(place, replace=replace)


def fill(unfinished: OpenDraft | Path) -> None:
    if isinstance(unfinished, Path):
        (unfinished / "inside").write_text("new")
    else:
        unfinished.write(b"new")


def content(place: Path) -> str:
    return (place / "inside" if place.is_dir() else place).read_text()


both = pytest.mark.parametrize("kind", ["file", "directory"])
everything = pytest.mark.parametrize("there", ["file", "directory", "empty", "dangling"])


def replaced(place: Path, there: str, new: str = "new") -> None:
    """Check that what was there is aside, and the new directory at its place."""
    old, name = sorted(place.parent.iterdir())
    assert name == place
    assert old.name.startswith(f".{place.name}.old-")
    assert (content_of(old), content(name)) == (there, new)


@both
def test_it_has_its_name_only_when_it_is_complete(tmp_path: Path, kind: str) -> None:
    with draft_of_a(kind, tmp_path / "name") as unfinished:
        fill(unfinished)
        (draft,) = names(tmp_path)
        assert draft.startswith(".name.part-")
    assert names(tmp_path) == ["name"]
    assert content(tmp_path / "name") == "new"


@both
def test_nothing_is_left_after_an_error(tmp_path: Path, kind: str) -> None:
    with pytest.raises(Broken), draft_of_a(kind, tmp_path / "name") as unfinished:  # noqa: PT012 - it is the block's
        fill(unfinished)
        raise Broken
    assert not list(tmp_path.iterdir())


@both
@everything
def test_what_is_there_is_not_overwritten(tmp_path: Path, kind: str, there: str) -> None:
    make(tmp_path / "name", there)
    before = listing(tmp_path)
    with pytest.raises(Misuse, match="exists already"), draft_of_a(kind, tmp_path / "name"):
        pytest.fail("it began")
    assert listing(tmp_path) == before


@both
@everything
def test_what_came_meanwhile_is_not_overwritten(tmp_path: Path, kind: str, there: str) -> None:
    with pytest.raises(Misuse, match="exists already"), draft_of_a(kind, tmp_path / "name") as unfinished:  # noqa: PT012
        fill(unfinished)
        make(tmp_path / "name", there)
        before = listing(tmp_path)
    assert set(listing(tmp_path)) < set(before)
    assert content_of(tmp_path / "name") == there


@both
@everything
def test_what_is_there_is_replaced_if_told(tmp_path: Path, kind: str, there: str) -> None:
    make(tmp_path / "name", there)
    if kind == "file" and there in {"directory", "empty"}:
        with (
            pytest.raises(Misuse, match="a file does not replace it"),
            draft_file(tmp_path / "name", replace=True),
        ):
            pytest.fail("it began")
        return
    with draft_of_a(kind, tmp_path / "name", replace=True) as unfinished:
        assert content_of(tmp_path / "name") == there
        fill(unfinished)
    assert names(tmp_path) == ["name"]
    assert content(tmp_path / "name") == "new"


@pytest.mark.parametrize("there", ["pipe", "link to a pipe", "link as /dev/stdout"])
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_device_or_pipe_is_never_replaced(tmp_path: Path, kind: str, there: str) -> None:
    """As root `receive --replace -o /dev/stdout` would take the device from all programs."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe" if there == "link to a pipe" else "/proc/self/fd/1")
    place = tmp_path / ("pipe" if there == "pipe" else "link")
    with pytest.raises(Misuse, match="leads to a device, a pipe or a socket"):
        check_place(place, replace=True, directory=kind == "directory")


@both
@pytest.mark.parametrize("place", ["", ".", "..", "/", "folder/.."])
def test_a_path_that_ends_without_a_name_is_refused(
    tmp_path: Path, place: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "folder", "directory")
    monkeypatch.chdir(tmp_path / "folder")
    with pytest.raises(Misuse, match="does not end with a name"), draft_of_a(kind, Path(place), replace=True):
        pytest.fail("it began")
    assert content_of(tmp_path / "folder") == "directory"


WORKING, HOME = (
    f"leads to the {directory} directory, or to one that contains it" for directory in ("working", "home")
)
LINKS = {
    "desk": ("folder/desk", WORKING),
    "to desk": ("folder/desk/inside/..", WORKING),
    "user": ("users/user", HOME),
    "to user": ("users/../users/user", HOME),
    "folder/desk/here": (".", "leads to a directory that contains it"),
    "folder/desk/above": ("../..", "leads to a directory that contains it"),
}


@both
@pytest.mark.parametrize(
    ("place", "why"), [*((link, why) for link, (_, why) in LINKS.items()), ("folder", WORKING), ("users", HOME)]
)
def test_what_others_need_is_never_replaced(
    tmp_path: Path, place: str, why: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever agrees to replace something means what came under this name before."""
    for folder in ("folder/desk/inside", "users/user"):
        (tmp_path / folder).mkdir(parents=True)
    for link, (target, _) in LINKS.items():
        (tmp_path / link).symlink_to(target)
    monkeypatch.chdir(tmp_path / "folder/desk")
    monkeypatch.setenv("HOME", str(tmp_path / "users/user"))
    before = listing(tmp_path)
    with pytest.raises(Misuse, match=why), draft_of_a(kind, tmp_path / place, replace=True):
        pytest.fail("it began")
    assert listing(tmp_path) == before


def test_the_home_of_the_account_is_never_replaced_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "user", "directory")
    monkeypatch.setenv("HOME", "")
    account = pwd.struct_passwd(("user", "", os.getuid(), 0, "", str(tmp_path / "user"), ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: account)
    with pytest.raises(Misuse, match="leads to the home directory"), draft_directory(tmp_path / "user", replace=True):
        pytest.fail("it began")


@pytest.mark.parametrize("before", ["nothing", "file", "empty"])
def test_a_directory_that_came_meanwhile_is_never_replaced(tmp_path: Path, before: str) -> None:
    """A file system may give a new directory the inode of one that was removed."""
    place = tmp_path / "name"
    if before != "nothing":
        make(place, before)
    with pytest.raises(StoreError, match="File exists"), draft_directory(place, replace=True):  # noqa: PT012
        if before == "empty":
            place.rmdir()
        place.unlink(missing_ok=True)
        make(place, "directory")
    assert names(tmp_path) == ["name"]
    assert content_of(place) == "directory"


@pytest.mark.parametrize("there", ["file", "directory"])
def test_what_came_after_the_last_check_is_not_replaced_without_consent(
    tmp_path: Path, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checked(place: Path, **_: bool) -> None:
        if any(tmp_path.iterdir()):  # the draft is there, so it is the last check
            make(place, there)

    monkeypatch.setattr(draft, "check_place", checked)
    with pytest.raises(StoreError), draft_directory(tmp_path / "name"):
        pass
    assert content_of(tmp_path / "name") == there


def test_a_directory_is_replaced_whose_path_leads_through_itself(tmp_path: Path) -> None:
    make(tmp_path / "name", "directory")
    with draft_directory(tmp_path / "name/../name", replace=True) as new:
        fill(new)
    assert content(tmp_path / "name") == "new"


@both
def test_a_relative_path_is_the_same_after_the_program_changed_its_directory(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with draft_of_a(kind, Path("name")) as unfinished:
        fill(unfinished)
        monkeypatch.chdir("other")
    assert content(tmp_path / "name") == "new"


@pytest.mark.parametrize("writes", [True, False])
def test_what_was_moved_aside_comes_back_unless_another_program_has_taken_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    place = tmp_path / "name"
    make(place, "directory")
    rename = Path.rename

    def fails_for_drafts(self: Path, target: Path) -> Path:
        if ".part-" in self.name:
            if writes:
                target.write_text("of another program")
            raise OSError(errno.EIO, "")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails_for_drafts)
    with pytest.raises(StoreError, match="Input/output") as raised, draft_directory(place, replace=True) as new:
        fill(new)
    if writes:
        old, name = sorted(tmp_path.iterdir())
        assert (content_of(old), content_of(name)) == ("directory", "of another program")
        assert str(raised.value).endswith(f"; what was there before is '{old}' now")
    else:
        assert names(tmp_path) == ["name"]
        assert content_of(place) == "directory"


def test_what_was_mounted_after_the_check_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "name", "directory")
    monkeypatch.setattr(draft, "_has_mount_point", lambda path: ".old-" in path.name)
    with draft_directory(tmp_path / "name", replace=True) as new:
        fill(new)
    replaced(tmp_path / "name", "directory")


@both
def test_a_working_directory_that_was_removed_is_no_obstacle_to_an_absolute_path(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    make(tmp_path / "name", "file")
    with draft_of_a(kind, tmp_path / "name", replace=True) as unfinished:
        fill(unfinished)
    assert content(tmp_path / "name") == "new"


def test_what_a_directory_replaces_stays_until_the_new_name_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "name", "directory")

    def fails(_: Path) -> None:
        raise OSError(errno.EIO, "")

    monkeypatch.setattr(draft, "flush", fails)
    with pytest.raises(StoreError), draft_directory(tmp_path / "name", replace=True) as new:
        fill(new)
    replaced(tmp_path / "name", "directory")


@pytest.mark.parametrize("there", ["directory", "file"])
def test_a_directory_is_stored_though_what_it_replaces_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    make(tmp_path / "name", there)

    def fails(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "")

    with draft_directory(tmp_path / "name", replace=True) as new:
        fill(new)
        monkeypatch.setattr(os, "unlink", fails)
    replaced(tmp_path / "name", there)


@pytest.mark.parametrize("there", [False, True])
def test_a_disk_without_hard_links_gives_the_name_as_safely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    def no_links(*_: object) -> None:
        if there:
            make(tmp_path / "name", "file")
        raise PermissionError(errno.EPERM, "")

    monkeypatch.setattr(os, "link", no_links)
    if there:
        with pytest.raises(StoreError, match="File exists"), draft_file(tmp_path / "name") as unfinished:
            fill(unfinished)
        assert content_of(tmp_path / "name") == "file"
    else:
        with draft_file(tmp_path / "name") as unfinished:
            fill(unfinished)
        assert content(tmp_path / "name") == "new"
    assert names(tmp_path) == ["name"]


def test_the_umask_decides_the_mode(tmp_path: Path, umask: int) -> None:
    with draft_file(tmp_path / "file"), draft_directory(tmp_path / "directory"):
        pass
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE((tmp_path / "directory").stat().st_mode) == 0o777 & ~umask


@both
@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "-", "…" * 85])
def test_every_name_has_a_draft(tmp_path: Path, kind: str, name: str) -> None:
    with draft_of_a(kind, tmp_path / name) as unfinished:
        fill(unfinished)
        (draft,) = names(tmp_path)
        assert len(draft.encode()) <= 255  # a character that was cut would be a surrogate
    assert content(tmp_path / name) == "new"


def test_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("r+b", buffering=0) as full, pytest.raises(StoreError, match="No space left") as said:
        OpenDraft(full, Path("/there/name\x1b")).write(b"x")
    assert str(said.value) == r"cannot write '/there/name\x1b': No space left on device"


@both
@pytest.mark.parametrize(
    ("folder", "error", "words"),
    [("/proc/self", StoreError, r"^cannot \w+ '/proc/self/name': "), ("none", Misuse, "no directory")],
)
def test_a_folder_in_which_nothing_can_be_created_is_one_sentence(
    tmp_path: Path, kind: str, folder: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words), draft_of_a(kind, tmp_path / folder / "name"):
        pytest.fail("it began")


def test_more_than_the_disk_has_room_for_is_refused_before(tmp_path: Path) -> None:
    check_free_space(tmp_path, 1)
    check_free_space(Path("/proc"), 1 << 60)  # a disk that does not know its size
    with pytest.raises(StoreError, match=r"has room for .* and 1,152,921,504,606,846,976 are offered"):
        check_free_space(tmp_path, 1 << 60)


def test_a_scratch_file_has_no_name_and_can_be_read_again(tmp_path: Path) -> None:
    with scratch_file(tmp_path) as scratch:
        scratch.write(b"abc")
        scratch.write(memoryview(b"def"))
        assert not list(tmp_path.iterdir())
        scratch.file.seek(1)
        assert scratch.file.read() == b"bcdef"


def make(place: Path, kind: str) -> None:
    if kind == "file":
        place.write_text("file")
    elif kind == "dangling":
        place.symlink_to("nowhere")
    else:
        place.mkdir()
        if kind == "directory":
            (place / "old").write_text("directory")


def content_of(place: Path) -> str:
    if place.is_symlink():
        return "dangling"
    if place.is_file():
        return place.read_text()
    return (place / "old").read_text() if any(place.iterdir()) else "empty"


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def listing(folder: Path) -> list[str]:
    return sorted(str(each) for each in folder.rglob("*"))
