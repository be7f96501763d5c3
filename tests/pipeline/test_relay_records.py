"""Usage records of transit relays: what is read, what is new, and what leaves the copy."""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from restante.pipeline.sources.recognise import recognise
from restante.pipeline.sources.source import SourceError
from restante.relay.reference_import.importing import import_usage
from restante.relay.store.backup import back_up
from support.mailbox.reference_sources import Their
from support.pipeline.relays import our_relay, reference_relay, transfer
from support.pipeline.servers import NOW, T0, context_of
from support.pipeline.source_reads import Marks, SourceRead, read
from support.sqlite import alter


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


def read_transfers(spec: str, scratch: Path, marks: Marks | None = None, **options: Any) -> SourceRead:
    [(name, found)] = read(spec, scratch, marks, **options).items()
    assert name == "relay_transfers"
    return found


def faults(found: SourceRead) -> Counter[str | None]:
    return Counter(row["fault"] for row in found.rows)


HAPPY = {
    "id": 1,
    "origin": "",
    "result": "happy",
    "blur_us": None,
    "day": date(2023, 11, 14),
    "source": "a",
    "fault": None,
    "identity": None,
    "digest": None,
}


def test_the_records_of_our_relay_are_read_as_it_wrote_them(tmp_path: Path, scratch: Path) -> None:
    lonely = transfer(2, waiting_time=None, total_time=86_400.0, total_bytes=0, result="lonely")
    blurred = transfer(-20, total_bytes=10**9, blur_time=60.0)
    our_relay(tmp_path / "relay", transfer(0.5), lonely, blurred)
    first, second, third = read_transfers(f"a={tmp_path / 'relay'}", scratch).clean
    assert {**first, "started": first["started"].timestamp()} == {
        **HAPPY,
        "started": T0 + 0.5,
        "waiting_us": 1_500_000,
        "total_us": 4_250_000,
        "total_bytes": 1_000,
    }
    columns = ("id", "waiting_us", "total_us", "total_bytes", "result", "blur_us")
    assert [[row[name] for name in columns] for row in (second, third)] == [
        [2, None, 86_400_000_000, 0, "lonely", None],
        [3, 1_500_000, 4_250_000, 10**9, "happy", 60_000_000],
    ]


def test_the_records_of_the_reference_relay_are_read_as_it_wrote_them(tmp_path: Path, scratch: Path) -> None:
    happy, lonely, errory = read_transfers(f"a={reference_relay(tmp_path / 'usage.sqlite')}", scratch).clean
    assert {**happy, "started": happy["started"].timestamp()} == {
        **HAPPY,
        "started": T0 + 2.75,
        "waiting_us": 2_500_000,
        "total_us": 60_000_000,
        "total_bytes": 1_234_656,
    }
    assert [(row["id"], row["waiting_us"], row["total_us"], row["result"]) for row in (lonely, errory)] == [
        (2, None, 55_000_000, "lonely"),
        (3, None, 54_000_000, "errory"),
    ]
    blurred = read_transfers(f"a={reference_relay(tmp_path / 'blurred.sqlite', blur=60)}", scratch).clean
    assert [(row["started"].timestamp() % 60, row["total_bytes"], row["blur_us"]) for row in blurred] == [
        (0, 2_000_000, 60_000_000),
        *[(0, 0, 60_000_000)] * 2,
    ]


def test_a_run_reads_what_is_new_and_counts_what_was_deleted_before(tmp_path: Path, scratch: Path) -> None:
    marks: Marks = {}
    spec = f"a={tmp_path / 'relay'}"
    our_relay(tmp_path / "relay", transfer(1), transfer(2))
    assert read_transfers(spec, scratch, marks).ids == [1, 2]
    assert read(spec, scratch, marks) == {}
    our_relay(tmp_path / "relay", transfer(3), transfer(4), transfer(5), forget=T0 + 4)
    found = read_transfers(spec, scratch, marks)
    assert (found.ids, found.span.missed, found.span.replace) == ([4, 5], 1, False)


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_another_database_at_the_same_path_replaces_the_rows(kind: str, tmp_path: Path, scratch: Path) -> None:
    marks: Marks = {}

    def write(start: float) -> Path:
        if kind == "theirs":
            return reference_relay(tmp_path / "usage.sqlite", start=T0 + start)
        return our_relay(tmp_path / "relay", *(transfer(start + number) for number in range(3)))

    read(f"a={write(0)}", scratch, marks)
    file = write(1_000)
    assert read_transfers(f"a={file}", scratch, marks).ids == [4, 5, 6]
    file.unlink()
    write(500)
    found = read_transfers(f"a={file}", scratch, marks)
    assert (found.ids, found.span.replace) == ([1, 2, 3], True)


def test_a_data_directory_its_database_and_a_backup_are_sources(tmp_path: Path, scratch: Path) -> None:
    file = our_relay(tmp_path / "relay", transfer(1))
    back_up(tmp_path / "relay", tmp_path / "backup", lambda _: None)
    for path in (tmp_path / "relay", file, tmp_path / "backup"):
        source = recognise(f"a={path}")
        assert (source.kind, source.origins) == ("transit relay's database", ())
        assert read_transfers(f"a={path}", scratch).ids == [1]
    theirs = recognise(f"a={reference_relay(tmp_path / 'usage.sqlite')}")
    assert (theirs.kind, theirs.origins) == ("reference relay's usage database", ("usage.sqlite",))
    Their(tmp_path / "mailbox").stop()  # its channel database has the name of ours
    with pytest.raises(SourceError, match="is the reference server's channel database, which contains users'"):
        recognise(f"a={tmp_path / 'mailbox'}")


def test_imported_rows_are_duplicates_if_their_file_is_a_source_itself(tmp_path: Path, scratch: Path) -> None:
    theirs = reference_relay(tmp_path / "usage.sqlite")
    import_usage(tmp_path / "relay", theirs, merge=False)
    our_relay(tmp_path / "relay", transfer(500))
    new, old = f"new={tmp_path / 'relay'}", f"old={theirs}"
    others = context_of(recognise(new), recognise(old))
    assert faults(read_transfers(new, scratch)) == {None: 4}
    assert faults(read_transfers(new, scratch, context=others)) == {"duplicate": 3, None: 1}
    assert faults(read_transfers(old, scratch, context=others)) == {None: 3}
    Their(tmp_path / "mailbox").stop()  # it has a file of the same name
    mailbox = context_of(recognise(new), recognise(f"mailbox={tmp_path / 'mailbox' / 'usage.sqlite'}"))
    assert faults(read_transfers(new, scratch, context=mailbox)) == {None: 4}


def test_no_address_and_no_key_leaves_the_copy_and_faulty_rows_have_no_content(tmp_path: Path, scratch: Path) -> None:
    file = our_relay(tmp_path / "relay", *map(transfer, range(5)))
    alter(
        file,
        "UPDATE transfers SET result = 'canary' WHERE id = 1",
        "UPDATE transfers SET total_bytes = -1 WHERE id = 2",
        "UPDATE transfers SET total_bytes = 9223372036854775807 WHERE id = 3",
        f"UPDATE transfers SET started = {NOW + 200_000} WHERE id = 4",
        "ALTER TABLE transfers ADD COLUMN token TEXT DEFAULT 'canary'",
    )
    marks: Marks = {}
    messages: list[str] = []
    found = read_transfers(f"a={file}", scratch, marks, messages=messages)
    assert found.faults == [
        ("1", "unknown result"),
        ("2", "out of range"),
        ("3", "out of range"),
        ("4", "out of range"),
    ]
    assert messages == []
    assert "canary" not in repr(found) + repr(marks)


def test_a_database_of_a_newer_schema_is_refused(tmp_path: Path, scratch: Path) -> None:
    file = our_relay(tmp_path / "relay", transfer(1))
    alter(file, "PRAGMA user_version = 2")
    with pytest.raises(SourceError, match="it has schema 2, this program knows up to 1: use a newer restante"):
        read(f"a={file}", scratch)
