"""What shipped clients send is unpacked; what a hostile peer sends is refused, and touches nothing outside."""

from __future__ import annotations

import io
import os
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zipstream  # type: ignore[import-untyped]

from client.files.archives import CONTENTS, ROOM, files_in, member, tar_of, unpacked, zip64_of, zip_of
from restante.client.errors import ArchiveError, UnsafeNameError
from restante.client.files import unpacking
from restante.client.files.unpacking import unpack
from restante.client.files.zip_stream import plan_directory
from restante.common.errors import StoreError
from support.disk import no_file_beyond


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "into"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_as_go_and_older_python_clients_send_it_is_unpacked(into: Path, method: int) -> None:
    assert unpacked(zip_of(CONTENTS, method), into, **ROOM) == CONTENTS


def test_a_zip_as_the_python_client_sends_it_is_unpacked(tmp_path: Path, into: Path) -> None:
    for name, data in CONTENTS.items():
        (tmp_path / "from" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "from" / name).write_bytes(data)
    (tmp_path / "from" / "empty").mkdir()
    theirs = zipstream.ZipStream(sized=True)
    for path in zipstream.walk(str(tmp_path / "from"), preserve_empty=True, followlinks=True):
        theirs.add_path(path, arcname=os.path.relpath(path, tmp_path / "from"), recurse=False)
    assert unpacked(b"".join(theirs), into, **ROOM) == CONTENTS
    assert (into / "empty").is_dir()


def test_our_own_zip_is_unpacked(tmp_path: Path, into: Path) -> None:
    unpacked(zip_of(CONTENTS), tmp_path / "from")
    (tmp_path / "from" / "empty").mkdir()
    assert unpacked(b"".join(plan_directory(tmp_path / "from").chunks()), into, **ROOM) == CONTENTS
    assert (into / "empty").is_dir()


def test_nothing_is_written_through_a_link_that_another_program_put_there(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(StoreError, match="cannot unpack"):
        unpack(io.BytesIO(zip_of(CONTENTS)), tmp_path / "link", **ROOM, progress=lambda _: None)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_is_unpacked_goes_into_the_directory_and_not_to_its_path(tmp_path: Path, into: Path) -> None:
    into.mkdir()
    (tmp_path / "elsewhere").mkdir()

    def swap(_: int) -> None:
        if not into.is_symlink():
            into.rename(tmp_path / "moved")
            into.symlink_to("elsewhere")

    unpack(io.BytesIO(zip_of(CONTENTS)), into, **ROOM, progress=swap)
    assert files_in(tmp_path / "moved") == CONTENTS
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_a_tar_as_the_rust_client_sends_it_is_unpacked_without_its_folder(into: Path, form: int) -> None:
    files = {f"NAME/{name}": data for name, data in CONTENTS.items()} | {f"NAME/{'long/' * 19}file": b"deep"}
    assert unpacked(tar_of(files, form=form), into, top="NAME") == CONTENTS | {f"{'long/' * 19}file": b"deep"}


def test_a_tar_with_very_long_names_is_unpacked(into: Path) -> None:
    name = f"{'é' * 120}/{'ü' * 120}"
    assert unpacked(tar_of({name: b"1"}), into) == {name: b"1"}


def test_progress_is_told_every_byte(into: Path) -> None:
    into.mkdir()
    told: list[int] = []
    unpack(io.BytesIO(zip_of(CONTENTS)), into, **ROOM, progress=told.append)
    assert sum(told) == ROOM["max_bytes"]
    assert told.count(0) == len(CONTENTS)


MODES = {0o755: 0o755, 0o640: 0o640, 0o444: 0o444, 0o000: 0o400, 0o7777: 0o755, 0o666: 0o644}
"""A mode in the archive, and what becomes of it with a umask of 022."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_permissions_are_kept_but_no_special_bits_and_nothing_unreadable(into: Path, mode: int, kind: str) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(member("x", stat.S_IFREG | mode), b"1")
    before = os.umask(0o022)
    try:
        unpacked(
            made.getvalue() if kind == "zip" else tar_of({"x": b"1"}, lambda info: setattr(info, "mode", mode)), into
        )
    finally:
        os.umask(before)
    expected = 0o644 if kind == "tar" and not mode else MODES[mode]  # there 0 is an empty field
    assert stat.S_IMODE((into / "x").stat().st_mode) == expected


def test_a_zip_of_another_system_has_ordinary_permissions(into: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(member("x", 0), b"1")
    unpacked(made.getvalue(), into)
    assert stat.S_IMODE((into / "x").stat().st_mode) & 0o600 == 0o600


OUTSIDE = ["/x", "//x", "../x", "a/../../x", "a/..", "..", "/etc/passwd", "a/../b", "./../x"]
ODD = ["a\nb", "\x1b[2J", "a/\x7f", "a\u202eb", "x" * 256, "d/" * 200 + "x"]


@pytest.mark.parametrize("name", [*OUTSIDE, *ODD])
@pytest.mark.parametrize("kind", [zip_of, tar_of])
def test_a_name_that_is_unsafe_is_refused(tmp_path: Path, into: Path, name: str, kind: object) -> None:
    data = zip_of({"first": b"", name: b"1"}) if kind is zip_of else tar_of({"first": b"", name: b"1"})
    with pytest.raises((UnsafeNameError, ArchiveError)) as refused:
        unpacked(data, into)
    assert str(refused.value).isprintable()
    assert set(files_in(tmp_path)) <= {"into/first"}


@pytest.mark.parametrize("name", ["C:\\x", "C:/x", "a\\..\\..\\x", "\\\\host\\x", "aux.c", "-rf", "~/x", "x ", "x."])
def test_a_name_that_is_ordinary_on_linux_stays_inside(tmp_path: Path, into: Path, name: str) -> None:
    assert unpacked(zip_of({name: b"1"}), into) == {name: b"1"}
    assert [each.name for each in tmp_path.iterdir()] == ["into"]


@pytest.mark.parametrize("top", ["NAME", "..", ""])
def test_what_is_outside_of_the_top_folder_is_refused(into: Path, top: str) -> None:
    with pytest.raises(UnsafeNameError, match="outside of"):
        unpacked(tar_of({"NAMEX/a": b"1"}), into, top=top)


CLASHES = {
    "twice": ["a", "a"],
    "twice, spelt otherwise": ["d/a", "d/./a"],
    "a file, then a directory": ["a", "a/b"],
    "a directory, then a file": ["a/b", "a"],
    "a file, then an empty directory": ["a", "a/"],
}


@pytest.mark.parametrize("names", CLASHES.values(), ids=CLASHES)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_clashes_with_another_is_refused(into: Path, names: list[str]) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in names:
            archive.writestr(name, b"" if name.endswith("/") else name)
    with pytest.raises(ArchiveError, match="twice"):
        unpacked(made.getvalue(), into)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK, stat.S_IFDIR])
def test_a_zip_s_member_that_is_not_a_file_is_refused(into: Path, kind: int) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(member("x", kind | 0o777), b"/etc/passwd")
    with pytest.raises(ArchiveError, match="neither a file nor a directory"):
        unpacked(made.getvalue(), into)
    assert not list(into.iterdir())


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.GNUTYPE_SPARSE,
        b"V",
    ],
)
def test_a_tar_s_member_that_is_not_a_file_is_refused(into: Path, kind: bytes) -> None:
    def changed(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = kind, "/etc", 0

    with pytest.raises(ArchiveError, match="the archive has 'x', which is "):
        unpacked(tar_of({"x": b""}, changed), into)
    assert not list(into.iterdir())


def test_no_link_that_is_there_is_written_through(tmp_path: Path, into: Path) -> None:
    (tmp_path / "outside").mkdir()
    into.mkdir()
    (into / "d").symlink_to(tmp_path / "outside")
    (into / "a").symlink_to(tmp_path / "outside" / "new")
    for name in ("a", "d/e/x", "d/"):
        with pytest.raises(ArchiveError):
            unpack(io.BytesIO(zip_of({name: b""})), into, **ROOM, progress=lambda _: None)
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("kind", [zip_of, tar_of])
@pytest.mark.parametrize(("files", "size"), [(2, 100), (3, 99), (0, 0)])
def test_more_than_was_offered_is_refused(into: Path, kind: object, files: int, size: int) -> None:
    contents = {"a": b"x" * 50, "b": b"", "c": b"y" * 50}
    with pytest.raises(ArchiveError, match="more than was offered"):
        unpacked(zip_of(contents) if kind is zip_of else tar_of(contents), into, max_files=files, max_bytes=size)
    assert sum(map(len, files_in(into).values())) <= size
    assert len(files_in(into)) <= files


def test_directories_are_bounded_though_nobody_offers_their_number(
    into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "MAX_ENTRIES", 50)
    with pytest.raises(ArchiveError, match="more than 50 files"):
        unpacked(zip_of({f"{number}/a/b/": b"" for number in range(100)}), into)
    assert len(list(into.rglob("*"))) <= 50


def test_a_deflate_bomb_ends_at_the_size_that_it_says(into: Path) -> None:
    bomb = bytearray(zip_of({"bomb": bytes(64 << 20)}))
    at = bomb.rindex(b"PK\1\2")
    bomb[at + 24 : at + 28] = struct.pack("<I", 1000)
    tracemalloc.start()
    with pytest.raises(ArchiveError, match="other contents"):
        unpacked(bytes(bomb), into)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert (into / "bomb").stat().st_size <= 1000


def test_members_that_overlap_are_refused(into: Path) -> None:
    """The zip bomb of David Fifield: many members of one content."""
    data = bytearray(zip_of({"a": b"1" * 1000, "b": b"1" * 1000}))
    second = data.rindex(b"PK\1\2")
    data[second + 42 : second + 46] = struct.pack("<I", 0)
    with pytest.raises(ArchiveError, match="'b' overlaps"):
        unpacked(bytes(data), into)


CENTRAL_LIES = {
    "encrypted": (8, "<H", 1, "encrypted"),
    "strongly encrypted": (8, "<H", 1 << 6, "encrypted"),
    "an unknown method": (10, "<H", 12, "unknown way"),
    "another CRC": (16, "<I", 1, "other contents"),
    "a longer member": (20, "<I", 1 << 20, "is not in it"),
    "a shorter member": (20, "<I", 2, "cannot be expanded"),
    "a larger file": (24, "<I", 5000, "other contents"),
    "a smaller file": (24, "<I", 5, "other contents"),
    "a longer name": (28, "<H", 60000, "ends too early"),
    "another disk": (34, "<H", 1, "something else"),
    "another place": (42, "<I", 1, "not where it says"),
    "a place behind the end": (42, "<I", 1 << 30, "is not in it"),
    "a size that is missing": (24, "<I", 0xFFFFFFFF, "a size is missing"),
    "no record": (0, "<I", 0, "something else"),
}


@pytest.mark.parametrize("lie", CENTRAL_LIES)
def test_a_member_s_lie_is_refused(into: Path, lie: str) -> None:
    at, form, value, said = CENTRAL_LIES[lie]
    data = bytearray(zip_of({"a": b"1" * 1000}))
    place = data.rindex(b"PK\1\2") + at
    data[place : place + struct.calcsize(form)] = struct.pack(form, value)
    with pytest.raises(ArchiveError, match=said):
        unpacked(bytes(data), into)


END_LIES = {
    "another disk": (4, "<H", 1),
    "another count": (10, "<H", 2),
    "both counts": (8, "<HH", (2, 2)),
    "another size": (12, "<I", 10),
    "another place": (16, "<I", 10),
    "a comment": (20, "<H", 5),
    "zip64 without its record": (16, "<I", 0xFFFFFFFF),
}


@pytest.mark.parametrize("lie", END_LIES)
def test_a_lie_of_the_end_is_refused(into: Path, lie: str) -> None:
    at, form, value = END_LIES[lie]
    data = bytearray(zip_of({"a": b"1" * 1000}))
    place = len(data) - 22 + at
    data[place : place + struct.calcsize(form)] = struct.pack(
        form, *(value if isinstance(value, tuple) else (value,))
    )
    with pytest.raises(ArchiveError):
        unpacked(bytes(data), into)


@pytest.mark.parametrize("offset", [0, 1, 1 << 62])
def test_a_zip64_record_that_is_elsewhere_is_refused(into: Path, offset: int) -> None:
    data = zip_of({"a": b"1"})
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, offset, 1)
    with pytest.raises(ArchiveError, match="not where it says"):
        unpacked(data[:-22] + bytes(56) + locator + data[-22:], into)


def test_sizes_and_an_offset_of_64_bits_are_read(into: Path) -> None:
    assert unpacked(zip64_of(b"1" * 100), into) == {"a": b"1" * 100}


@pytest.mark.parametrize("offset", [1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1])
def test_an_offset_of_64_bits_that_no_file_has_is_refused(tmp_path: Path, into: Path, offset: int) -> None:
    """A file seeks to fewer places than BytesIO."""
    into.mkdir()
    (tmp_path / "archive").write_bytes(zip64_of(b"1", offset))
    with (tmp_path / "archive").open("rb") as archive, pytest.raises(ArchiveError, match="'a' is not in it"):
        unpack(archive, into, max_files=1, max_bytes=1, progress=lambda _: None)


@pytest.mark.parametrize("data", [b"", b"P", b"PK", b"PK\3\4", bytes(100), b"x" * 1000, b"\x1f\x8b" + bytes(600)])
def test_what_is_not_an_archive_is_refused(into: Path, data: bytes) -> None:
    with pytest.raises(ArchiveError):
        unpacked(data, into)


@pytest.mark.parametrize("kind", [zip_of, tar_of])
def test_an_archive_that_is_cut_at_any_point_is_refused(tmp_path: Path, kind: object) -> None:
    data = zip_of({"a": b"1" * 40}) if kind is zip_of else tar_of({"a": b"1" * 40})[: 1024 + 511]
    for cut in range(len(data)):
        with pytest.raises(ArchiveError):
            unpacked(data[:cut], tmp_path / str(cut))


@pytest.mark.parametrize(
    "record",
    [b"9 size=-1\n", b"12 size=1e3\n", b"99 path=x\n", b"0 path=x\n", b"x", b"7 path\n", b"22 GNU.sparse.major=1\n"],
)
def test_a_tar_s_extended_header_that_lies_is_refused(into: Path, record: bytes) -> None:
    def as_header(info: tarfile.TarInfo) -> None:
        if info.name == "header":
            info.type = b"x"

    data = tar_of({"header": record, "x": b"1"}, as_header)
    with pytest.raises(ArchiveError):
        unpacked(data, into)


@pytest.mark.parametrize("kind", [b"L", b"x", b"g"])
def test_a_tar_s_huge_header_is_refused_before_it_is_read(into: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("x")
    header.size, header.type = 1 << 40, kind
    with pytest.raises(ArchiveError, match="too long"):
        unpacked(header.tobuf(tarfile.GNU_FORMAT) + bytes(1024), into)


def test_a_large_central_directory_is_read_in_flat_memory(into: Path) -> None:
    data = io.BytesIO(b"".join(many_members(50_000)))
    into.mkdir()
    tracemalloc.start()
    with pytest.raises(ArchiveError, match="more than was offered"):
        unpack(data, into, max_files=0, max_bytes=0, progress=lambda _: None)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def many_members(count: int) -> Iterator[bytes]:
    return iter([zip_of({f"{number}": b"" for number in range(count)}, zipfile.ZIP_STORED)])


def test_a_full_disk_is_one_sentence(into: Path) -> None:
    with no_file_beyond(1000), pytest.raises(StoreError, match="cannot write 'a': File too large"):
        unpacked(zip_of({"a": b"1" * 3000}), into)


def test_a_disk_that_nothing_can_be_created_on_is_one_sentence() -> None:
    with pytest.raises(StoreError, match="cannot write 'a': "):
        unpack(io.BytesIO(zip_of({"a": b"1"})), Path("/proc/self").resolve(), **ROOM, progress=lambda _: None)
