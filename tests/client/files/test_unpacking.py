"""What shipped clients send is unpacked; what a hostile peer sends is refused, and touches nothing outside."""

from __future__ import annotations

import io
import os
import shutil
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zipstream  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from restante.client.errors import ArchiveError, UnsafeNameError
from restante.client.files import unpacking, zip_stream
from restante.client.files.unpacking import ArchiveLimits, unpack
from restante.client.files.walk import FileEntry, Walk
from restante.client.files.zip_stream import ZipPlan
from restante.common.errors import StoreError
from support.disk import no_file_beyond
from support.effort import examples

CONTENTS = {"a": b"1" * 3000, "d/b": b"22", "d/e/ü": b"", "年": bytes(range(256)) * 4}

OFFERED = len(CONTENTS), sum(map(len, CONTENTS.values()))

Make = Callable[[dict[str, bytes]], bytes]


def zip_of(
    files: dict[str, bytes] | Iterable[tuple[str | zipfile.ZipInfo, bytes]], method: int = zipfile.ZIP_DEFLATED
) -> bytes:
    """Return a zip as Go's client and older Python clients make it: deflated, without directories."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, data in files.items() if isinstance(files, dict) else files:
            archive.writestr(name, data)
    return made.getvalue()


def zip64_of(data: bytes, offset: int = 0) -> bytes:
    """Return a zip with one stored file `a`, whose sizes and offset are in a ZIP64 record."""
    head, end = zip_of({"a": data}, zipfile.ZIP_STORED)[:-22].split(b"PK\1\2")
    extra = struct.pack("<HHQQQ", 1, 24, len(data), len(data), offset)
    central = bytearray(b"PK\1\2" + end + extra)
    central[20:28], central[30:32], central[42:46] = b"\xff" * 8, struct.pack("<H", len(extra)), b"\xff" * 4
    return head + central + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(central), len(head), 0)


def zip_of_one(mode: int) -> bytes:
    info = zipfile.ZipInfo("x")
    info.external_attr = mode << 16
    return zip_of([(info, b"1")])


def tar_of(files: dict[str, bytes], form: int = tarfile.GNU_FORMAT, **fields: Any) -> bytes:
    """Return a tar as Rust's client makes it: GNU's format. The first member has these fields."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            while fields:
                setattr(info, *fields.popitem())
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


def unpacked(
    data: bytes,
    into: Path,
    offered: tuple[int, ...] = (100, 1 << 20, 1000),
    top: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
    check_counts: Callable[[int, int], None] | None = None,
) -> dict[str, bytes]:
    into.mkdir(exist_ok=True)
    files, size, directories = (*offered, offered[0])[:3]
    unpack(io.BytesIO(data), into, ArchiveLimits(files, directories, size, top), progress, check_counts)
    return files_in(into)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


both = pytest.mark.parametrize("make", [zip_of, tar_of])


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "into"


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_as_go_and_older_python_clients_send_it_is_unpacked(into: Path, method: int) -> None:
    progress: list[int] = []
    assert unpacked(zip_of(CONTENTS, method), into, OFFERED, progress=progress.append) == CONTENTS
    assert sum(progress) == OFFERED[1]
    assert progress.count(0) == len(CONTENTS)


def test_a_zip_of_the_python_client_is_unpacked(tmp_path: Path, into: Path) -> None:
    folder = tmp_path / "from"
    unpacked(zip_of(CONTENTS), folder)
    (folder / "empty").mkdir()
    theirs = zipstream.ZipStream(sized=True)
    for path in zipstream.walk(str(folder), preserve_empty=True, followlinks=True):
        theirs.add_path(path, arcname=os.path.relpath(path, folder), recurse=False)
    assert unpacked(b"".join(theirs), into, OFFERED) == CONTENTS
    assert (into / "empty").is_dir()


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_a_tar_as_the_rust_client_sends_it_is_unpacked_without_its_folder(into: Path, form: int) -> None:
    contents = CONTENTS | {f"{'long/' * 19}file": b"deep"}
    if form != tarfile.USTAR_FORMAT:
        contents |= {f"{'é' * 120}/{'ü' * 120}": b"1"}
    files = {f"NAME/{name}": data for name, data in contents.items()}
    assert unpacked(tar_of(files, form=form), into, top="NAME") == contents


@pytest.mark.parametrize("name", ["C:\\x", "C:/x", "a\\..\\..\\x", "\\\\host\\x", "aux.c", "-rf", "~/x", "x ", "x."])
def test_a_name_that_is_ordinary_on_linux_stays_inside(tmp_path: Path, into: Path, name: str) -> None:
    assert unpacked(zip_of({name: b"1"}), into) == {name: b"1"}
    assert [path.name for path in tmp_path.iterdir()] == ["into"]


MODES = {0o755: 0o755, 0o640: 0o640, 0o444: 0o444, 0o000: 0o400, 0o7777: 0o755, 0o666: 0o644}
"""A mode in the archive, and what becomes of it with a umask of 022."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["zip", "zip of another system", "tar"])
def test_permissions_are_kept_but_no_special_bits_and_nothing_unreadable(into: Path, mode: int, kind: str) -> None:
    before = os.umask(0o022)
    try:
        file = stat.S_IFREG if kind == "zip" else 0
        unpacked(tar_of({"x": b"1"}, mode=mode) if kind == "tar" else zip_of_one(file | mode), into)
    finally:
        os.umask(before)
    modes = MODES if kind == "zip" else MODES | {0: 0o644 if kind == "tar" else 0o600}  # there 0 is an empty field
    assert stat.S_IMODE((into / "x").stat().st_mode) == modes[mode]


@pytest.mark.parametrize(
    ("root", "inner", "stored"),
    [
        (0o700, 0o700, (0o700, 0o700)),
        (0o7777, 0o1777, (0o755, 0o755)),
        (0o555, 0o550, (0o555, 0o550)),
        (0, 0, (0o500, 0o500)),
    ],
)
@pytest.mark.parametrize("last", ["d/e/", "d/e/file"])
def test_directories_have_their_modes_when_all_is_there(
    tmp_path: Path, root: int, inner: int, stored: tuple[int, int], last: str
) -> None:
    """Files come into a directory after one has come that its owner may not write in; the umask is 022."""
    kind, path = stat.S_IFDIR, "" if last.endswith("/") else last
    parents = (kind | root, kind | inner, kind | inner)
    members = [FileEntry("d/", 0, 0, kind | inner, 0, parents[:1])] if not path else []
    members += [FileEntry(last, 0, 0, kind | inner if not path else stat.S_IFREG | 0o6600, 0, parents)]
    members += [FileEntry("d/file", 0, 0, stat.S_IFREG | 0o6600, 0, parents[:2])]
    before = os.umask(0o022)
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(zip_stream, "_contents", lambda _: [])  # there are no such files
            data = b"".join(ZipPlan(members, Walk(ignore_unsendable=False)).chunks())
        unpacked(data, tmp_path / "into")
    finally:
        os.umask(before)
    made = (tmp_path / "into", tmp_path / "into/d", tmp_path / "into/d/e", tmp_path / "into/d/file")
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [*stored, stored[1], 0o600]


def test_what_is_unpacked_for_a_group_stays_the_group_s(into: Path) -> None:
    """Whoever shares a directory with a group gives it the set-group-ID bit, which new directories inherit."""
    into.mkdir()
    into.chmod(0o2775)
    unpacked(zip_of({"d/e": b""}), into)
    assert all(stat.S_IMODE(path.stat().st_mode) & stat.S_ISGID for path in (into, into / "d"))


def test_nothing_is_written_through_links_that_are_there(tmp_path: Path, into: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "link").symlink_to("outside")
    with pytest.raises(StoreError, match="cannot unpack"):
        unpacked(zip_of(CONTENTS), tmp_path / "link")
    into.mkdir()
    (into / "d").symlink_to(tmp_path / "outside")
    (into / "a").symlink_to(tmp_path / "outside" / "new")
    for name in ("a", "d/e/x", "d/"):
        with pytest.raises(StoreError, match="another program has changed the unfinished directory"):
            unpacked(zip_of({name: b""}), into)
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("planted", ["file", "directory", "owner"])
def test_a_directory_to_which_another_user_had_access_is_not_unpacked_into(
    into: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that is shared with a group, others may write in new directories, or put their own in the place."""
    into.mkdir()
    if planted == "owner":
        real = os.fstat
        monkeypatch.setattr(os, "geteuid", lambda: 1 << 20)
        unpacked(zip_of({}), into)  # the file system gives new files the same owner
        monkeypatch.setattr(os, "fstat", lambda file: SimpleNamespace(st_uid=file, st_mode=real(file).st_mode))
    else:
        (into / "d").touch() if planted == "file" else (into / "d").mkdir()
    with pytest.raises(StoreError, match="another program has changed the unfinished directory"):
        unpacked(zip_of({"d/e": b"1"}), into)
    assert not [path for path in into.rglob("*") if path.name != "d"]


def test_what_is_unpacked_goes_into_the_directory_and_not_to_its_path(tmp_path: Path, into: Path) -> None:
    (tmp_path / "elsewhere").mkdir()

    def swap(_: int) -> None:
        if not into.is_symlink():
            into.rename(tmp_path / "moved")
            into.symlink_to("elsewhere")

    unpacked(zip_of(CONTENTS), into, OFFERED, progress=swap)
    assert files_in(tmp_path / "moved") == CONTENTS
    assert not list((tmp_path / "elsewhere").iterdir())


OUTSIDE = ["/x", "//x", "../x", "a/../../x", "a/..", "..", "/etc/passwd", "a/../b", "./../x"]
ODD = ["a\nb", "\x1b[2J", "a/\x7f", "a\u202eb", "x" * 256, "d/" * 200 + "x"]


@both
@pytest.mark.parametrize("name", [*OUTSIDE, *ODD])
def test_a_name_that_is_unsafe_is_refused(tmp_path: Path, into: Path, name: str, make: Make) -> None:
    with pytest.raises((UnsafeNameError, ArchiveError)) as refused:
        unpacked(make({"first": b"", name: b"1"}), into)
    assert str(refused.value).isprintable()
    assert set(files_in(tmp_path)) <= {"into/first"}


@pytest.mark.parametrize("top", ["NAME", "..", ""])
def test_what_is_outside_of_the_top_folder_is_refused(into: Path, top: str) -> None:
    with pytest.raises(UnsafeNameError, match="outside of"):
        unpacked(tar_of({"NAMEX/a": b"1"}), into, top=top)


@pytest.mark.parametrize("names", [("a", "a"), ("d/a", "d/./a"), ("a", "a/b"), ("a/b", "a"), ("a", "a/")])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_clashes_with_another_is_refused(into: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(ArchiveError, match="twice"):
        unpacked(zip_of([(name, b"" if name.endswith("/") else b"1") for name in names]), into)


ZIP_KINDS = (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK, stat.S_IFDIR)
TAR_KINDS = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"S", b"V")


@pytest.mark.parametrize("kind", [*ZIP_KINDS, *TAR_KINDS])
def test_a_member_that_is_not_a_file_is_refused(into: Path, kind: int | bytes) -> None:
    data = zip_of_one(kind | 0o777) if isinstance(kind, int) else tar_of({"x": b""}, type=kind, linkname="/etc")
    with pytest.raises(ArchiveError, match=r"neither a file nor a directory|the archive has 'x', which is "):
        unpacked(data, into)
    assert not list(into.iterdir())


@both
@pytest.mark.parametrize("offered", [(2, 100), (3, 99), (0, 0)])
def test_more_than_was_offered_is_refused(into: Path, make: Make, offered: tuple[int, int]) -> None:
    with pytest.raises(ArchiveError, match="more than was offered"):
        unpacked(make({"a": b"x" * 50, "b": b"", "c": b"y" * 50}), into, offered)
    assert len(files_in(into)) <= offered[0]
    assert sum(map(len, files_in(into).values())) <= offered[1]


@both
def test_more_directories_than_were_offered_are_refused(into: Path, make: Make) -> None:
    files = {"a/x": b"", "a/b/": b"", "a/c/d/": b""}
    assert unpacked(make(files), into, (1, 0, 4)) == {"a/x": b""}
    with pytest.raises(ArchiveError, match="more directories than were offered"):
        unpacked(make(files), into.parent / "other", (1, 0, 3))


@both
def test_each_directory_is_counted_once_before_anything_is_unpacked(into: Path, make: Make) -> None:
    def check(files: int, directories: int) -> None:
        assert not list(into.iterdir())
        counts.append((files, directories))

    counts: list[tuple[int, int]] = []
    unpacked(make({"a/b/1": b"", "c/": b"", "a/2": b"", "./a//d/e/": b"", "c/f/3": b""}), into, check_counts=check)
    assert counts == [(3, 6)]
    assert sum(path.is_dir() for path in into.rglob("*")) == 6


def test_directories_are_bounded_though_nobody_counts_them(into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MAX_ENTRIES", 50)
    with pytest.raises(ArchiveError, match="more than 50 files"):
        unpacked(zip_of({f"{number}/a/b/": b"" for number in range(100)}), into)
    assert len(list(into.rglob("*"))) <= 50


def test_a_deflate_bomb_ends_at_the_size_that_it_says(into: Path) -> None:
    bomb = altered(zip_of({"bomb": bytes(64 << 20)}), b"PK\1\2", 24, "<I", 1000)
    with little_memory(), pytest.raises(ArchiveError, match="other contents"):
        unpacked(bomb, into)
    assert (into / "bomb").stat().st_size <= 1000


def test_members_that_overlap_are_refused(into: Path) -> None:
    """The zip bomb of David Fifield: many members of one content."""
    data = altered(zip_of({"a": b"1" * 1000, "b": b"1" * 1000}), b"PK\1\2", 42, "<I", 0)
    with pytest.raises(ArchiveError, match="'b' overlaps"):
        unpacked(data, into)


def test_a_large_central_directory_is_read_in_flat_memory(into: Path) -> None:
    data = zip_of({f"{number}/x": b"" for number in range(50_000)}, zipfile.ZIP_STORED)
    into.mkdir()
    (into.parent / "archive").write_bytes(data)
    counts: list[tuple[int, int]] = []
    with little_memory(), (into.parent / "archive").open("rb") as archive, pytest.raises(ArchiveError, match="more"):
        unpack(archive, into, ArchiveLimits(0, 0, 0), lambda _: None, lambda *found: counts.append(found))
    assert counts == [(50_000, 50_000)]


def altered(data: bytes, mark: bytes, at: int, form: str, value: int) -> bytes:
    changed = bytearray(data)
    start = data.rindex(mark) + at
    changed[start : start + struct.calcsize(form)] = struct.pack(form, value)
    return bytes(changed)


MEMBER, END = b"PK\1\2", b"PK\5\6"


@pytest.mark.parametrize(
    ("mark", "at", "form", "value", "reason"),
    [
        (MEMBER, 8, "<H", 1, "encrypted"),
        (MEMBER, 8, "<H", 1 << 6, "encrypted"),
        (MEMBER, 10, "<H", 12, "unknown way"),
        (MEMBER, 16, "<I", 1, "other contents"),  # another CRC
        (MEMBER, 20, "<I", 1 << 20, "is not in it"),
        (MEMBER, 20, "<I", 2, "cannot be expanded"),
        (MEMBER, 24, "<I", 5000, "other contents"),
        (MEMBER, 24, "<I", 5, "other contents"),
        (MEMBER, 28, "<H", 60000, "ends too early"),
        (MEMBER, 34, "<H", 1, "something else"),  # another disk
        (MEMBER, 42, "<I", 1, "not where it says"),
        (MEMBER, 42, "<I", 1 << 30, "is not in it"),
        (MEMBER, 24, "<I", 0xFFFFFFFF, "a size is missing"),
        (MEMBER, 0, "<I", 0, "something else"),  # no record
        *((END, at, "<H", value, ".") for at, value in ((4, 1), (10, 2), (20, 5))),  # the disk, the count, a comment
        *((END, at, "<I", 10, ".") for at in (12, 16)),  # the size and the offset
        *(
            (END, at, "<I", value, ".") for at, value in ((8, 2 << 16 | 2), (16, 0xFFFFFFFF))
        ),  # it has no ZIP64 record
    ],
)
def test_an_archive_s_lie_is_refused(into: Path, mark: bytes, at: int, form: str, value: int, reason: str) -> None:
    with pytest.raises(ArchiveError, match=reason):
        unpacked(altered(zip_of({"a": b"1" * 1000}), mark, at, form, value), into)


@pytest.mark.parametrize("offset", [1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1])
def test_an_offset_of_64_bits_that_no_file_has_is_refused(tmp_path: Path, into: Path, offset: int) -> None:
    """Neither of a member nor of the record itself. A file seeks to fewer places than BytesIO."""
    assert unpacked(zip64_of(b"1" * 100), tmp_path / "read") == {"a": b"1" * 100}
    data = zip_of({"a": b"1"})
    locator = bytes(56) + struct.pack("<4sIQI", b"PK\6\7", 0, offset, 1)
    into.mkdir()
    for archive, reason in (
        (zip64_of(b"1", offset), "'a' is not in it"),
        (data[:-22] + locator + data[-22:], "not where it says"),
    ):
        (tmp_path / "archive").write_bytes(archive)
        with (tmp_path / "archive").open("rb") as file, pytest.raises(ArchiveError, match=reason):
            unpack(file, into, ArchiveLimits(1, 1, 1), lambda _: None)


NO_HEADERS = [
    *(b"9 size=-1\n", b"12 size=1e3\n", b"99 path=x\n", b"0 path=x\n", b"x", b"7 path\n", b"22 GNU.sparse.major=1\n")
]
NO_ARCHIVES = (b"", b"P", b"PK", b"PK\3\4", bytes(100), b"x" * 1000, b"\x1f\x8b" + bytes(600))


@pytest.mark.parametrize(
    "data", [*NO_ARCHIVES, *(tar_of({"header": record, "x": b"1"}, type=b"x") for record in NO_HEADERS)]
)
def test_what_is_not_an_archive_or_has_an_extended_header_that_lies_is_refused(into: Path, data: bytes) -> None:
    with pytest.raises(ArchiveError):
        unpacked(data, into)


@both
def test_an_archive_that_is_cut_at_any_point_is_refused(tmp_path: Path, make: Make) -> None:
    data = make({"a": b"1" * 40})[: 1024 + 511]
    for cut in range(len(data)):
        with pytest.raises(ArchiveError):
            unpacked(data[:cut], tmp_path / str(cut))


@pytest.mark.parametrize("kind", [b"L", b"x", b"g"])
def test_a_tar_s_huge_header_is_refused_before_it_is_read(into: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("x")
    header.size, header.type = 1 << 40, kind
    with pytest.raises(ArchiveError, match="too long"):
        unpacked(header.tobuf(tarfile.GNU_FORMAT) + bytes(1024), into)


FILES = {"a": b"1" * 700, "../b": b"22", "/tmp/c": b"3", "d/e": b"4" * 10, "d/../../f": b"5", "x" * 120: b"6"}
SEEDS = [
    zip_of({name: FILES[name] for name in ("a", "d/e")}),
    zip_of({name: FILES[name] for name in ("a", "x" * 120)}, 0),
    zip64_of(FILES["a"]),
    tar_of({name: FILES[name] for name in ("a", "x" * 120, "d/e")}),
    tar_of({name: FILES[name] for name in ("a", "x" * 120)}, form=tarfile.PAX_FORMAT),
]
MARKS = [
    *(b"\0", b"\xff" * 2, b"\xff" * 4, b"\xff" * 8, b"\x80", b"/", b"../", b"PK\1\2", b"PK\3\4"),
    *(b"1", b"2", b"L", b"x", b"S"),
]
PIECES = st.sampled_from(MARKS) | st.binary(min_size=1, max_size=8)
PATCHES = st.lists(st.tuples(st.integers(0, 1 << 16), PIECES), max_size=6)


def mutated(seed: bytes, patches: list[tuple[int, bytes]], cut: int, checked: bool) -> bytes:
    """Return an archive with patches; `checked` gives the headers of a tar the checksums that they need."""
    data = bytearray(seed)
    for where, new in patches:
        at = where % len(data)
        data[at : at + len(new)] = new
    if checked and data[257:262] == b"ustar":
        for at in range(0, len(data) - 511, 512):
            if data[at + 257 : at + 262] == b"ustar":
                data[at + 148 : at + 156] = b" " * 8
                data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data[: len(data) - cut])


ARCHIVES = st.one_of(
    st.builds(mutated, st.sampled_from(SEEDS), PATCHES, st.just(0) | st.integers(0, 600), st.booleans()),
    st.builds(lambda start, data: start + data, st.sampled_from([b"", b"PK", b"PK\5\6"]), st.binary(max_size=2000)),
    st.builds(
        lambda make, names: make({name: FILES.get(name, b"x" * 90) for name in names}),
        st.sampled_from([zip_of, tar_of]),
        st.lists(st.sampled_from(list(FILES)) | st.text("./a\\\x1b", min_size=1, max_size=6), max_size=6),
    ),
)


@examples(200)
@given(ARCHIVES)
def test_any_archive_stays_inside_and_within_bounds(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    world = tmp_path_factory.mktemp("fuzz")
    inside = world / "deep" / "into"
    inside.parent.mkdir()
    (world / "b").write_bytes(b"before")
    try:
        unpacked(data, inside, (3, 800))
    except (ArchiveError, UnsafeNameError) as error:
        assert str(error).isprintable()  # noqa: PT017 - not every archive is refused
    contents = files_in(inside)
    assert len(contents) <= 3
    assert sum(map(len, contents.values())) <= 800
    assert not any(path.is_symlink() for path in world.rglob("*"))
    outside = {name: content for name, content in files_in(world).items() if not name.startswith("deep/into/")}
    assert outside == {"b": b"before"}
    shutil.rmtree(world)


def test_a_full_disk_is_one_sentence(into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with no_file_beyond(1000), pytest.raises(StoreError, match="cannot write 'a': File too large"):
        unpacked(zip_of({"a": b"1" * 3000}), into)
    monkeypatch.setattr(os, "listdir", lambda _: [])
    with pytest.raises(StoreError, match="cannot write 'a': "):
        unpacked(zip_of({"a": b"1"}), Path("/proc/self").resolve())  # nothing can be created there
