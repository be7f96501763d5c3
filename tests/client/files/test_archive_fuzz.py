"""Whatever a peer makes of an archive: nothing outside is touched, no bound exceeded, and the error has a name."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.files.archives import Room, files_in, tar_of, unpacked, zip64_of, zip_of
from restante.client.errors import ArchiveError, UnsafeNameError

FILES = {"a": b"1" * 700, "../b": b"22", "/tmp/c": b"3", "d/e": b"4" * 10, "d/../../f": b"5", "x" * 120: b"6"}
NAMES = list(FILES)
BUDGET: Room = {"max_files": 3, "max_bytes": 800}

SEEDS = [
    zip_of({name: FILES[name] for name in ("a", "d/e")}),
    zip_of({name: FILES[name] for name in ("a", "x" * 120)}, 0),
    zip64_of(FILES["a"]),
    tar_of({name: FILES[name] for name in ("a", "x" * 120, "d/e")}),
    tar_of({name: FILES[name] for name in ("a", "x" * 120)}, form=tarfile.PAX_FORMAT),
]

Patch = tuple[int, bytes]


def mutated(seed: bytes, patches: list[Patch], cut: int, checked: bool) -> bytes:
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


interesting = st.sampled_from(
    [
        b"\0",
        b"\xff" * 2,
        b"\xff" * 4,
        b"\xff" * 8,
        b"/",
        b"../",
        b"PK\1\2",
        b"PK\3\4",
        b"\x80",
        b"1",
        b"2",
        b"L",
        b"x",
        b"S",
    ]
)
patches = st.lists(st.tuples(st.integers(0, 1 << 16), interesting | st.binary(min_size=1, max_size=8)), max_size=6)


@given(st.sampled_from(SEEDS), patches, st.just(0) | st.integers(0, 600), st.booleans())
def test_a_mutated_archive_stays_inside_and_within_its_bounds(
    tmp_path_factory: pytest.TempPathFactory, seed: bytes, changes: list[Patch], cut: int, checked: bool
) -> None:
    check(mutated(seed, changes, cut, checked), tmp_path_factory.mktemp("fuzz"))


@given(
    st.lists(st.sampled_from(NAMES) | st.text("./a\\\x1b", min_size=1, max_size=6), unique=True, max_size=6),
    st.booleans(),
)
def test_any_names_stay_inside_and_within_the_bounds(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], is_zip: bool
) -> None:
    files = {name: FILES.get(name, b"x" * 90) for name in names}
    check(zip_of(files) if is_zip else tar_of(files), tmp_path_factory.mktemp("fuzz"))


@given(st.binary(max_size=2000), st.sampled_from([b"", b"PK", b"PK\5\6"]))
def test_any_bytes_are_refused_or_unpacked(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, start: bytes
) -> None:
    check(start + data, tmp_path_factory.mktemp("fuzz"))


def check(data: bytes, world: Path) -> None:
    inside = world / "deep" / "into"
    inside.parent.mkdir()
    (world / "b").write_bytes(b"before")
    try:
        unpacked(data, inside, **BUDGET)
    except (ArchiveError, UnsafeNameError) as error:
        assert str(error).isprintable()  # noqa: PT017 - not every archive is refused
    found = files_in(inside)
    assert len(found) <= BUDGET["max_files"]
    assert sum(map(len, found.values())) <= BUDGET["max_bytes"]
    assert not any(each.is_symlink() for each in world.rglob("*"))
    outside = {name: data for name, data in files_in(world).items() if not name.startswith("deep/into/")}
    assert outside == {"b": b"before"}
    shutil.rmtree(world)
