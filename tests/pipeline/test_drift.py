"""Databases that are not as we know them: others' columns, missing tables, damage, and files that are none."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from restante.common.errors import Misuse
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.sources.source import SourceError, origins, parse
from support.mailbox.reference_sources import Their
from support.pipeline.servers import T0, alter, nameplate, ours
from support.pipeline.source_reads import read

CASES = json.loads((Path(__file__).parent / "drift.json").read_text())["cases"]


def made(kind: str, folder: Path) -> Path:
    """A database with three nameplates."""
    if kind == "ours":
        with ours(folder / "data", *map(nameplate, range(3))) as server:
            return server.file
    folder.mkdir(exist_ok=True)
    their = Their(folder / "their")
    for number in range(3):
        their.claim("a", str(number), T0)
        their.release("a", str(number), T0 + 1)
    their.stop()
    return their.usage


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['database']}: {case['did'][-1][:60]}")
def test_every_deviation_of_a_database_is_reported(case: dict[str, Any], tmp_path: Path) -> None:
    file = made(case["database"], tmp_path)
    alter(file, *case["did"])
    said: list[str] = []
    if "fails" in case:
        with pytest.raises(SourceError) as failure:
            read(f"a={file}", tmp_path / "scratch", said=said)
        assert str(failure.value).replace(str(file), "FILE") == case["fails"]
        assert said == []
    else:
        found = read(f"a={file}", tmp_path / "scratch", said=said)
        assert said == case["says"]
        assert [row["id"] for row in found["nameplates"].clean] == case["ids"]
        faults = Counter(row["fault"] for row in found["nameplates"].rows if row["fault"])
        assert faults == case.get("faults", {})
    assert list((tmp_path / "scratch").iterdir()) == []


def refused(spec: str, tmp_path: Path) -> str:
    """Name a source that cannot be read; gives what is said of it."""
    with pytest.raises(SourceError) as failure:
        read(spec, tmp_path / "scratch")
    said = str(failure.value)
    assert "\n" not in said
    assert not (tmp_path / "scratch").exists() or list((tmp_path / "scratch").iterdir()) == []
    return said


@pytest.mark.parametrize(
    ("kind", "place"), [("ours", 16), ("ours", 4096 + 3), ("theirs", 100), ("theirs", -4096 + 3)]
)
def test_a_damaged_database_is_reported_as_damaged(kind: str, place: int, tmp_path: Path) -> None:
    file = made(kind, tmp_path)
    content = bytearray(file.read_bytes())
    place %= len(content)
    content[place : place + 64] = b"\xa5" * 64
    file.write_bytes(content)
    assert "damaged" in refused(f"a={file}", tmp_path)


def test_a_file_that_is_no_database_is_not_taken_for_one(tmp_path: Path) -> None:
    file = tmp_path / "usage.sqlite"
    for content in (b"\xa5" * 8192, b"SQLite format 2", b"hello"):
        file.write_bytes(content)
        assert refused(f"a={file}", tmp_path).startswith(f"source a: {file} is not a source of usage records")
    file.write_bytes(b"SQLite format 3\0" + b"\xa5" * 8192)
    assert "damaged or encrypted" in refused(f"a={file}", tmp_path)


def test_an_interrupted_commit_is_left_to_its_server(tmp_path: Path) -> None:
    file, cut = made("theirs", tmp_path), tmp_path / "usage.sqlite"
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("PRAGMA cache_size = 1")
        database.execute("BEGIN")
        database.executemany("INSERT INTO nameplates VALUES (?, 1, 1, 1, 'happy')", [("x" * 5000,)] * 50)
        for name in ("usage.sqlite", "usage.sqlite-journal"):
            (tmp_path / name).write_bytes(file.with_name(name).read_bytes())
    content = cut.read_bytes()
    assert refused(f"a={cut}", tmp_path) == (
        f"source a: {cut} was left in the middle of a commit: start its server, which repairs that, then try again"
    )
    assert cut.read_bytes() == content


@pytest.mark.parametrize(
    "spec", ["", "x", "=x", "a=", "A=x", "a b=x", "-a=x", "a/b=x", "a@=x", "a@B=x", "@b=x", f"{'a' * 64}=x"]
)
def test_a_source_has_a_name_that_a_folder_can_have(spec: str) -> None:
    with pytest.raises(Misuse, match="--source"):
        parse(spec)


def test_a_name_ends_at_the_first_equals_sign_and_what_it_names_is_no_url() -> None:
    assert parse("a.b-c_1@north=x=y@z") == ("a.b-c_1", "north", Path("x=y@z"))
    for url in ("s3://bucket/folder", "https://host/file.rlp", "file:///folder"):
        with pytest.raises(Misuse, match=f"--source a={url}: this is a URL; name a file or folder of this machine"):
            parse(f"a={url}")


def test_a_server_is_named_by_its_directory_or_its_file(tmp_path: Path) -> None:
    file = made("ours", tmp_path)
    ours = [recognise(f"a={path}") for path in (file, file.parent)]
    assert [(each.path, each.kind, each.origins) for each in ours] == [(file, "mailbox server's database", ())] * 2
    theirs = [recognise(f"{name}={made('theirs', tmp_path / name)}") for name in ("a", "b")]
    assert origins([*theirs, *ours]) == {"usage.sqlite": [source.path for source in theirs]}
