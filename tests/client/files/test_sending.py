"""Files and directories to send: a zip file whose size is known before, and what cannot be sent as it is."""

from __future__ import annotations

import io
import os
import shutil
import socket
import stat
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path

import pytest
import zipstream  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from restante.client.errors import UnsendableFileError
from restante.client.files import walk, zip_stream
from restante.client.files.walk import FileEntry, Walk
from restante.client.files.zip_layout import FULL_16, FULL_32
from restante.client.files.zip_reader import zip_members
from restante.client.files.zip_stream import ZipPlan, plan_directory, plan_paths
from restante.client.transfer.sending import outgoing_file
from restante.common.errors import Misuse

NAMES = ["a", "-rf", ".hidden", "Übung", "年度報告", "👩\u200d🚀", "x" * 255, "back\\slash", " ", "aux.c"]


FILE, DIRECTORY = stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in NAMES:
        (root / name / "deeper").mkdir(parents=True)
        (root / name / "file").write_bytes(name.encode() * 100)
    (root / "empty file").touch()
    (root / "large").write_bytes(os.urandom(1_000_000))
    (root / "script").write_text("#!/bin/sh")
    (root / "script").chmod(0o750)
    (root / "a").chmod(0o2700)
    (root / "old").touch()
    os.utime(root / "old", (0, 0))  # before 1980
    (root / "link to a file").symlink_to("large")
    (root / "link to a directory").symlink_to("a")
    return root


def zipped(plan: ZipPlan) -> zipfile.ZipFile:
    data = b"".join(plan.chunks())
    assert len(data) == plan.size
    read = zipfile.ZipFile(io.BytesIO(data))
    assert read.testzip() is None
    return read


def contents(read: zipfile.ZipFile) -> dict[str, bytes]:
    return {info.filename: read.read(info) for info in read.infolist()}


def on_disk(root: Path) -> dict[str, bytes]:
    contents = {}
    for path, directories, files in os.walk(root, followlinks=True):
        for name in files:
            contents[str((Path(path) / name).relative_to(root))] = (Path(path) / name).read_bytes()
        if not directories and not files and Path(path) != root:
            contents[f"{Path(path).relative_to(root)}/"] = b""
    return contents


def test_the_size_is_exact_and_everything_is_in_it(tree: Path) -> None:
    plan = plan_directory(tree)
    files = {name: data for name, data in on_disk(tree).items() if not name.endswith("/")}
    assert contents(zipped(plan)) == on_disk(tree)
    assert plan.number_of_files == len(files)
    assert plan.number_of_bytes == sum(map(len, files.values()))
    assert plan.left_out == []


def test_the_zip_is_as_large_as_the_python_client_s_and_says_the_same(tree: Path) -> None:
    (tree / "link to a directory").unlink()  # the Python client leaves out a directory that it has visited
    theirs = zipstream.ZipStream(sized=True)
    for path in zipstream.walk(str(tree), preserve_empty=True, followlinks=True):
        theirs.add_path(path, arcname=os.path.relpath(path, tree), recurse=False)
    data = b"".join(theirs)
    ours = plan_directory(tree)
    parents = sum(4 + 2 * len(member.parents) for member in zip_members(io.BytesIO(b"".join(ours.chunks()))))
    assert ours.size == len(data) + parents  # its modes of directories

    fields = attrgetter("filename", "external_attr", "date_time", "CRC", "flag_bits", "create_system")
    members, expected = zipped(ours).infolist(), zipfile.ZipFile(io.BytesIO(data)).infolist()
    assert sorted(map(fields, members)) == sorted(map(fields, expected))


sizes = st.sampled_from([0, 1, FULL_32 - 1, FULL_32, FULL_32 + 1]) | st.integers(0, 1 << 36)


@given(st.lists(st.tuples(st.sampled_from(["a", "é", "d/"]), sizes), max_size=6))
def test_the_size_is_exact_for_files_and_archives_above_4_gib(
    tmp_path_factory: pytest.TempPathFactory, members: list[tuple[str, int]]
) -> None:
    expected = {f"{number}{name}": 0 if name == "d/" else size for number, (name, size) in enumerate(members)}
    plan = ZipPlan(
        [FileEntry(name, 0, size, DIRECTORY if name.endswith("/") else FILE, 1e9) for name, size in expected.items()],
        Walk(ignore_unsendable=False),
    )
    folder = tmp_path_factory.mktemp("large")
    with pytest.MonkeyPatch.context() as patched, (folder / "sparse.zip").open("w+b") as archive:
        # A range has as many items as the file has bytes, and nobody has to hold them.
        patched.setattr(zip_stream, "_contents", lambda member: [range(member.size)])
        patched.setattr("zlib.crc32", lambda *_: 0)
        for piece in plan._pieces():  # `chunks` joins them
            if isinstance(piece, range):
                archive.seek(len(piece), os.SEEK_CUR)
            else:
                archive.write(piece)
        assert archive.tell() == plan.size
        assert {info.filename: info.file_size for info in zipfile.ZipFile(archive).infolist()} == expected
        assert {member.name: member.size for member in zip_members(archive)} == expected
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "count", [FULL_16, *(pytest.param(count, marks=pytest.mark.thorough) for count in (FULL_16 - 1, FULL_16 + 1))]
)
def test_an_archive_may_have_more_than_65_535_members(count: int) -> None:
    plan = ZipPlan(
        [FileEntry(f"{number}/", 0, 0, DIRECTORY, 1e9) for number in range(count)], Walk(ignore_unsendable=False)
    )
    data = b"".join(plan.chunks())
    assert len(data) == plan.size
    assert len(zipfile.ZipFile(io.BytesIO(data)).namelist()) == count
    assert sum(1 for _ in zip_members(io.BytesIO(data))) == count


def test_several_paths_are_members_under_their_own_names_which_differ(tree: Path) -> None:
    names = zipped(plan_paths([tree / "a", tree / "script", tree / "Übung" / "deeper"])).namelist()
    assert names == ["a/deeper/", "a/file", "script", "deeper/"]
    with pytest.raises(Misuse, match="same name"):
        plan_paths([tree / "a" / "file", tree / "Übung" / "file"])


def make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path is at most 108 bytes long
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)
    os.chdir(here)


UNSENDABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "dangling": (lambda path: path.symlink_to("nowhere"), "No such file"),
    "endless": (lambda path: path.symlink_to(path), "Too many levels"),
    "loop": (lambda path: path.symlink_to(path.parent.parent), "a link to a directory that it is in"),
    "pipe": (os.mkfifo, "it is a named pipe"),
    "socket": (make_socket, "it is a socket"),
    "device": (lambda path: path.symlink_to("/dev/null"), "it is a device"),
    "escape\x1b[2J": (Path.touch, "its name has control characters"),
    "surrogate\udcff": (Path.touch, "its name is not UTF-8"),
}


@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_cannot_be_sent_is_named_in_one_sentence_or_left_out(tree: Path, name: str) -> None:
    make, why = UNSENDABLE[name]
    before = on_disk(tree)
    make(tree / "a" / name)
    with pytest.raises(UnsendableFileError, match=why) as refused:
        plan_directory(tree)
    assert str(refused.value).isprintable()
    plan = plan_directory(tree, ignore_unsendable=True)
    assert set(plan.left_out) == {str(refused.value), str(refused.value).replace("/a/", "/link to a directory/")}
    assert contents(zipped(plan)) == before


def test_a_directory_is_sent_as_deep_as_it_can_be_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "MAX_DEPTH", 3)
    (tmp_path / "1" / "2" / "3").mkdir(parents=True)
    assert zipped(plan_directory(tmp_path)).namelist() == ["1/2/3/"]
    (tmp_path / "1" / "2" / "3" / "4").mkdir()
    with pytest.raises(UnsendableFileError, match="directories deep"):
        plan_directory(tmp_path)


def test_links_that_multiply_a_directory_end_at_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "MAX_ENTRIES", 1000)
    (tmp_path / "0").mkdir()
    for number in range(30):  # 2**30 directories
        (tmp_path / f"{number + 1}").mkdir()
        for name in "ab":
            (tmp_path / f"{number + 1}" / name).symlink_to(tmp_path / f"{number}")
    with pytest.raises(UnsendableFileError, match="more than 1,000 files"):
        plan_directory(tmp_path)


def chunks(kind: str, path: Path) -> Iterator[bytes | memoryview]:
    return iter(outgoing_file(path).chunks() if kind == "file" else plan_directory(path.parent).chunks())


both = pytest.mark.parametrize("kind", ["file", "directory"])
CHANGES: dict[str, Callable[[Path], object]] = {
    "grows": lambda file: file.write_bytes(b"12345"),
    "shrinks": lambda file: file.write_bytes(b"123"),
    "is emptied": lambda file: file.write_bytes(b""),
    "vanishes": Path.unlink,
    "becomes a pipe": lambda file: (file.unlink(), os.mkfifo(file)),  # type: ignore[func-returns-value]
    "becomes a directory": lambda file: (file.unlink(), file.mkdir()),  # type: ignore[func-returns-value]
}


@both
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_sent_is_an_error(tmp_path: Path, kind: str, change: str) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    sent = chunks(kind, tmp_path / "file")
    CHANGES[change](tmp_path / "file")
    reasons = "changed while|became (shorter|longer) while it was sent|No such file|Is a directory"
    with pytest.raises(UnsendableFileError, match=f"file'.* ({reasons})"):
        list(sent)


@both
def test_a_file_that_is_overwritten_while_it_is_read_is_an_error(tmp_path: Path, kind: str) -> None:
    """The receiver would have the beginning of one content and the end of another."""
    file = tmp_path / "file"
    file.touch()
    os.truncate(file, 8 << 20)
    os.utime(file, ns=(0, 0))
    sent = chunks(kind, file)
    sizes = [len(next(sent))]
    with file.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        opened.write(b"x")
    with pytest.raises(UnsendableFileError, match="changed while it was sent"):
        sizes += map(len, sent)
    assert kind == "directory" or sum(sizes) < 8 << 20  # an archive lacks its end


def test_what_is_no_file_is_misuse_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    make_socket(tmp_path / "socket")
    for path in ("pipe", "socket", ".", "nothing", "/dev/full", "x" * 300):
        with pytest.raises(Misuse):
            outgoing_file(Path(path))
    with pytest.raises(UnsendableFileError, match="No such file"):
        plan_directory(tmp_path / "nothing")


@pytest.mark.parametrize("name", [b"\xff", b"a\nb", b"\x1b[2J", "\u202eexe".encode()])
def test_a_name_that_no_receiver_stores_is_not_offered(tmp_path: Path, name: bytes) -> None:
    path = tmp_path / os.fsdecode(name)
    path.touch()
    with pytest.raises(UnsendableFileError, match=r"cannot send '.*': its name ") as refused:
        outgoing_file(path)
    assert str(refused.value).isprintable()
    assert outgoing_file(path, "parcel").name == "parcel"


def test_a_large_file_is_not_held_in_memory(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as large:
        large.truncate(64 << 20)
    plan = plan_directory(tmp_path)
    tracemalloc.start()
    assert sum(map(len, plan.chunks())) == plan.size
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()
