"""What a run takes from sources, what it leaves, and what is in the lake when it was cut off."""

from __future__ import annotations

import shutil
import threading
from datetime import date
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from restante.mailbox.core import model
from restante.pipeline.build import run as build_run
from restante.pipeline.lake.commit_info import Ledger
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.sources.source import Span
from restante.pipeline.sources.usage import OpenedUsage
from restante.pipeline.spark import small_jobs
from restante.pipeline.tables import BUILDS
from support.mailbox.reference_sources import Their
from support.pipeline.relays import our_relay, transfer
from support.pipeline.runs import LakeWorld, no_spark
from support.pipeline.servers import T0, Ours, client, current, mailbox, nameplate, older_schema, ours
from support.pipeline.source_reads import SourceRead, read_source
from support.pipeline.tables import collected, frame, rows
from support.sqlite import alter

SECONDS_PER_DAY = 86_400.0


def test_rows_go_to_the_lake_and_a_second_run_reads_new_ones(world: LakeWorld, tmp_path: Path) -> None:
    specs = [f"mailbox={tmp_path / 'a'}", f"west={tmp_path / 'b'}"]
    with (
        ours(tmp_path / "a", nameplate(1), nameplate(2), mailbox(2), client(3), current(None)) as server,
        ours(tmp_path / "b", nameplate(2, blur_time=60.0), current(None)),
    ):
        results = world.ingest(*specs)
        tables = ("live", "nameplates", "mailboxes", "client_versions")
        assert [(done.source, done.table) for done in results] == [
            (n, t) for n in ("mailbox", "west") for t in tables
        ]
        clean = [done.ledger and done.ledger.clean for done in results]
        assert clean == [1, 2, 1, 1, 1, 1, None, None]
        server.write(nameplate(0, started=T0 - 3 * SECONDS_PER_DAY), nameplate(4))
        second = world.ledger("nameplates", *specs)
        world.spark = no_spark
        assert {(result.span, result.ledger) for result in world.ingest(*specs)} == {(None, None)}
    assert [ledger.read for ledger in (results[1].ledger, second) if ledger] == [2, 2]
    [row] = world.rows("mailboxes")
    columns = ("id", "app_id", "waiting_us", "total_us", "result", "source")
    assert [row[name] for name in columns] == [1, "x", None, 9_000_000, "lonely", "mailbox"]
    assert (row["started"].timestamp(), row["day"]) == (T0 + 2, date(2023, 11, 14))
    assert sorted((r["source"], r["id"], r["day"].day, r["blur_us"]) for r in world.rows("nameplates")) == [
        *(
            ("mailbox", number, 11 if number == 3 else 14, None) for number in range(1, 5)
        ),  # a late row has its own day
        ("west", 1, 14, 60_000_000),
    ]
    assert world.infos("nameplates")[0].days == ["2023-11-11", "2023-11-14"]


def a_torn_file(folder: Path) -> Path:
    """The reference server's, with a row that makes no sense."""
    their = Their(folder / "their")
    for number in range(3):
        box = their.claim("s", str(number), T0 + number)
        their.release("s", str(number), T0 + number + 1)
        their.close("s", box, "happy", T0 + number + 2)
    their.prune(T0 + 60)
    their.stop()
    alter(their.usage, "UPDATE nameplates SET result = 'canary' WHERE rowid = 2", "DELETE FROM mailboxes")
    return their.usage


def cut_off(table: LakeTable, *staged: Any, properly: Any = LakeTable.commit, **others: Any) -> Any:
    if table.table.name == "nameplates":
        raise KeyboardInterrupt
    return properly(table, *staged, **others)


def test_a_faulty_row_is_in_quarantine_once_and_without_content(world: LakeWorld, tmp_path: Path) -> None:
    file = a_torn_file(tmp_path)
    with patch.object(LakeTable, "commit", cut_off), pytest.raises(KeyboardInterrupt):
        world.ingest(f"old={file}")
    assert [len(world.rows(name)) for name in ("quarantine", "nameplates")] == [1, 0]
    ledger = world.ledger("nameplates", f"old={file}")
    assert (ledger.read, ledger.clean, ledger.quarantined) == (3, 2, 1)
    [row] = world.rows("quarantine")
    assert (row["table"], row["identity"], row["source"]) == ("nameplates", "2", "old")
    assert len(row["digest"]) == 64
    assert b"canary" not in world.bytes()
    assert not list(world.path.glob("quarantine/run-*")), "what was there already is not left lying about"
    assert len(world.rows("nameplates")) == 2


def test_transfers_of_a_relay_go_to_the_lake_and_faulty_ones_to_quarantine(world: LakeWorld, tmp_path: Path) -> None:
    file = our_relay(tmp_path / "relay", transfer(1), transfer(2), transfer(3))
    alter(file, "UPDATE transfers SET total_bytes = 9223372036854775807 WHERE id = 2")
    ledger = world.ledger("relay_transfers", f"relay={tmp_path / 'relay'}")
    assert (ledger.read, ledger.clean, ledger.quarantined) == (3, 2, 1)
    assert [(row["id"], row["total_bytes"], row["day"]) for row in world.rows("relay_transfers")] == [
        (1, 1_000, date(2023, 11, 14)),
        (3, 1_000, date(2023, 11, 14)),
    ]
    [rejected] = world.rows("quarantine")
    assert (rejected["table"], rejected["identity"], rejected["reason"]) == ("relay_transfers", "2", "out of range")


@pytest.mark.parametrize(
    "small",
    [pytest.param(True, id="a small job"), pytest.param(False, id="a large job", marks=pytest.mark.thorough)],
)
def test_faulty_rows_of_a_source_go_to_quarantine(
    world: LakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    if not small:
        monkeypatch.setattr(small_jobs, "MAX_SMALL_JOB_ROWS", -1)
    rows = [nameplate(number, result="canary" if number % 2 else "happy") for number in range(9)]
    with ours(tmp_path / "a", *rows, current(None)):
        ledger = world.ledger("nameplates", f"mailbox={tmp_path / 'a'}")
    assert (ledger.read, ledger.clean, ledger.quarantined) == (9, 5, 4)
    rejected = world.rows("quarantine")
    assert sorted(row["identity"] for row in rejected) == ["2", "4", "6", "8"]
    assert {(row["table"], row["source"], len(row["digest"])) for row in rejected} == {("nameplates", "mailbox", 64)}


def test_a_source_that_fails_or_miscounts_holds_up_no_other(world: LakeWorld, tmp_path: Path) -> None:
    find_new = OpenedUsage.find_new

    def miscounted(usage: OpenedUsage, *arguments: Any) -> Span | None:
        span = find_new(usage, *arguments)
        return span and (span._replace(counted=2) if usage._name == "odd" else span)  # a span names no source

    names = ("torn", "odd", "whole")
    for name in names:
        with ours(tmp_path / name, nameplate(1), current(None)) as server:
            if name == "torn":
                alter(server.file, "ALTER TABLE usage_nameplates RENAME COLUMN result TO outcome")
    with patch.object(OpenedUsage, "find_new", miscounted):
        results = world.ingest(*(f"{name}={tmp_path / name}" for name in names))
    first, second = [result.failure for result in results if result.failure]
    assert first == "source torn: table usage_nameplates has no column result"
    assert "counts 2 rows, but 1 could be read; none was taken" in second
    assert [row["source"] for row in world.rows("nameplates")] == ["whole"]
    assert len(list((world.path / "nameplates").rglob("*.parquet"))) == 1
    world.ingest(f"odd={tmp_path / 'odd'}")
    assert sorted(row["source"] for row in world.rows("nameplates")) == ["odd", "whole"]


def test_a_source_restored_from_a_copy_is_read_again_and_reported(world: LakeWorld, tmp_path: Path) -> None:
    with ours(tmp_path / "a", nameplate(1), current(None)):
        pass
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    with ours(tmp_path / "a", nameplate(2, started=T0 - SECONDS_PER_DAY), nameplate(3)):
        world.ingest(f"mailbox={tmp_path / 'a'}", f"other={tmp_path / 'copy'}")
    shutil.rmtree(tmp_path / "a")
    shutil.copytree(tmp_path / "copy", tmp_path / "a")
    with ours(tmp_path / "a", nameplate(9, app_id="new")):
        ledger = world.ledger("nameplates", f"mailbox={tmp_path / 'a'}")
    assert ledger.replaced
    assert "mailbox: nameplates is read again from the beginning, and its rows replaced" in "\n".join(world.messages)
    assert sorted((row["source"], row["id"], row["app_id"]) for row in world.rows("nameplates")) == [
        ("mailbox", 1, "x"),
        ("mailbox", 2, "new"),
        ("other", 1, "x"),
    ]
    assert world.infos("nameplates")[0].days == ["2023-11-13", "2023-11-14"], "the day that lost a row is touched too"
    shutil.rmtree(tmp_path / "a")
    with ours(tmp_path / "a", current(None)):
        assert world.ledger("nameplates", f"mailbox={tmp_path / 'a'}") == Ledger(replaced=True)
    assert [row["source"] for row in world.rows("nameplates")] == ["other"]


def test_a_copy_of_a_database_under_another_name_is_reported_and_another_database_is_not(tmp_path: Path) -> None:
    world = LakeWorld(None, tmp_path)
    with ours(tmp_path / "a", nameplate(1), current(None)):
        world.take(f"mailbox={tmp_path / 'a'}", "nameplates")
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    with ours(tmp_path / "copy", nameplate(2)) as copy, ours(tmp_path / "b", nameplate(1, started=T0 + 500)) as new:
        world.ingest(f"backup={copy.data}", f"new={new.data}", plan=True)
    [line] = [line for line in world.messages if "begins with the same row" in line]
    assert line.startswith("source backup: nameplates begins with the same row as that of source mailbox in the lake")


def test_spark_is_started_by_the_thread_that_handles_signals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def begin() -> Any:
        threads.append(threading.current_thread())
        return object()

    world = LakeWorld(None, tmp_path)
    world.spark = begin
    # The session that begins here can build nothing.
    monkeypatch.setattr(build_run, "_build_days", lambda *_, **_others: 1)
    world.lived("2023-11-14")
    world.build(only="outcomes")
    assert threads[0] is threading.main_thread()


MINUTE_US: Final = 60_000_000


def claimed(key: int, *added: float) -> model.Nameplate:
    sides = [model.NameplateSide(f"side-{number}", T0 + at) for number, at in enumerate(added)]
    return model.Nameplate(key, "app", str(key), f"mailbox-{key}", sides)


def opened(key: int, *added: float) -> model.Mailbox:
    sides = [model.MailboxSide(f"side-{number}", T0 + at) for number, at in enumerate(added)]
    return model.Mailbox(key, "app", f"mailbox-{key}", True, 0.0, sides)


def add(server: Ours, *things: model.Nameplate | model.Mailbox) -> None:
    for thing in things:
        if isinstance(thing, model.Nameplate):
            server.write(model.NameplateMade(thing), *(model.NameplateSideSet(thing, side) for side in thing.sides))
        else:
            server.write(model.MailboxMade(thing), *(model.MailboxSideSet(thing, side) for side in thing.sides))


def saved_at(server: Ours, seconds: float) -> None:
    alter(server.file, f"UPDATE service SET saved = {T0 + seconds}")


def live(path: Path, before: SourceRead | None = None) -> SourceRead:
    scratch = path.parent / "scratch"
    return read_source(f"mailbox={path}", "live", scratch, before.marks if before else None)


def summed(result: SourceRead) -> list[tuple[str, float | None, int, float]]:
    rows = [(row["started"] and row["started"].timestamp() - T0, row) for row in result.clean]
    return [(row["kind"], started, row["count"], row["as_of"].timestamp() - T0) for started, row in rows]


def test_what_is_live_started_with_its_first_side_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    with ours(tmp_path / "data", current(None)) as server:
        add(server, claimed(1, 10.0), claimed(2, 70.5, 20.25), claimed(3, 10.0), opened(1, 10.0), opened(2))
        saved_at(server, 100)
        snapshot = live(tmp_path / "data")
        assert summed(snapshot) == [
            ("listener", None, 2, 0.0),  # as of the prune
            ("mailbox", 10.0, 1, 100.0),
            ("nameplate", 10.0, 2, 100.0),
            ("nameplate", 20.25, 1, 100.0),
        ]
        assert {(row["blur_us"], str(row["day"]), row["source"]) for row in snapshot.clean} == {
            (None, "2023-11-14", "mailbox")
        }
        server.write(replace(current(None), updated=T0 + 500, connections_websocket=9))
        saved_at(server, 600)
        assert live(tmp_path / "data", snapshot).span is None, "only time has passed"
        server.write(client(5))
        second = live(tmp_path / "data", snapshot)
        assert summed(second)[0] == ("listener", None, 9, 500.0)
        assert {row[3] for row in summed(second)[1:]} == {600.0}
        assert second.span.replace
        add(server, claimed(4, 20.0))
        third = live(tmp_path / "data", second)
        assert [row[:2] for row in summed(third)][2:] == [("nameplate", at) for at in (10.0, 20.0, 20.25)]
        assert live(tmp_path / "data", third).span is None


def test_times_of_what_is_live_are_rounded_like_those_of_what_has_ended(tmp_path: Path) -> None:
    """T0 is 20 seconds after a whole minute."""
    with ours(tmp_path / "data", replace(current(60), updated=T0 + 50)) as server:
        add(server, claimed(1, 41.5), claimed(2, 99.0), claimed(3, 39.0))
        saved_at(server, 170)
        new = live(tmp_path / "data")
    assert summed(new) == [("listener", None, 2, 40.0), ("nameplate", -20.0, 1, 160.0), ("nameplate", 40.0, 2, 160.0)]
    assert {row["blur_us"] for row in new.clean} == {60_000_000}
    with ours(tmp_path / "later", current(None), client(0, blur_time=60.0)) as server:
        add(server, claimed(1, 41.5))
        new = live(tmp_path / "later")
    assert [row["blur_us"] for row in new.clean] == [60_000_000] * 2, "it was started so since the last prune"


def test_nothing_is_read_of_a_server_whose_blur_is_not_known(tmp_path: Path) -> None:
    for name, change in (("data", client(0, blur_time=None)), ("nothing", nameplate(1))):
        with ours(tmp_path / name, change) as server:
            add(server, claimed(1, 41.5))
            assert live(tmp_path / name).span is None
    assert live(older_schema(tmp_path / "older")).span is None


def test_the_reference_server_tells_how_many_connections_have_a_mailbox_open(tmp_path: Path) -> None:
    their = Their(tmp_path / "their", blur=60)
    their.claim("side", "1", T0)
    their.prune(T0 + 45)
    assert summed(live(their.usage)) == [("listener", None, 0, 40.0)]


def test_rows_without_sense_are_faults_and_only_times_and_counts_leave_the_copy(tmp_path: Path) -> None:
    with ours(tmp_path / "data", current(None)) as server:
        add(server, *(claimed(key, 10.0 * key) for key in range(1, 9)), opened(1, 20.0))
        values = ('[{"added": "canary"}]', '[{"added": 5}]', "canary", "[]", '["canary"]', "{}")
        canary = '[{"side": "canary", "added": 1700000070.0, "mood": "canary"}]'
        alter(
            server.file,
            "UPDATE nameplates SET app_id = 'canary', name = 'canary', mailbox_id = 'canary'",
            f"UPDATE mailboxes SET app_id = 'canary', mailbox_id = 'canary', sides = '{canary}'",
            *(f"UPDATE nameplates SET sides = '{value}' WHERE key = {key}" for key, value in enumerate(values, 1)),
            f"UPDATE nameplates SET sides = '{canary}' WHERE key = 7",
        )
        result = live(tmp_path / "data")
    expected = [("listener", None), ("mailbox", 70.0), ("nameplate", 70.0), ("nameplate", 80.0)]
    assert [row[:2] for row in summed(result)] == expected
    assert sorted(result.faults) == [("nameplate", "out of range"), ("nameplate", "wrong type")]
    assert "canary" not in repr(result)


def test_a_nameplate_is_counted_while_it_is_live_and_once_when_it_has_ended(world: LakeWorld, tmp_path: Path) -> None:
    """T0 is 22:13:20."""
    spec = f"mailbox={tmp_path / 'a'}"
    with ours(tmp_path / "a", current(None), nameplate(0, total_time=60.0)) as server:
        waiting = claimed(1, 400.0)
        add(server, waiting)
        saved_at(server, 1600)
        world.ingest(spec)
        assert sorted(row["kind"] for row in world.rows("live")) == ["listener", "nameplate"]
        server.write(model.NameplateGone(waiting), nameplate(400, total_time=3600.0), nameplate(500, total_time=60.0))
        with patch.object(LakeTable, "commit", cut_off), pytest.raises(KeyboardInterrupt):
            world.ingest(spec)
        assert [row["kind"] for row in world.rows("live")] == ["listener"], "it is in neither table for now"
        world.ingest(spec)
        world.build(only="pressure")
    columns = ("hour", "started", "peak", "live_us", "day")
    assert sorted(tuple(row[name] for name in columns) for row in world.rows("pressure")) == [
        (22, 3, 2, (1 + 40 + 1) * MINUTE_US, date(2023, 11, 14)),
        (23, 0, 1, 20 * MINUTE_US, date(2023, 11, 14)),
    ]


def test_what_ended_before_the_days_to_build_is_left_out(spark: SparkSession) -> None:
    hour = 3_600_000_000
    nameplates = [
        {"started": "2026-03-09T10:00:00", "total_us": hour},
        {"started": "2026-03-09T23:00:00", "total_us": hour},
        {"started": "2026-03-09T23:00:00", "total_us": 30 * hour},
        {"started": "2026-03-03T12:00:00", "total_us": 1000 * hour},
        {"started": "2026-03-10T00:00:00", "total_us": 0},
        {"started": "2026-03-10T10:00:00", "total_us": hour},
        {"started": "2026-03-09T12:00:00", "total_us": hour, "blur_us": 24 * hour},
        {"started": "2026-03-10T12:00:00", "total_us": hour, "blur_us": 24 * hour},
        {"started": "2026-03-09T12:00:00", "total_us": -hour},
    ]
    live = [
        {"kind": "nameplate", "started": "2026-03-09T01:00:00", "as_of": "2026-03-09T20:00:00"},
        {"kind": "nameplate", "started": "2026-03-09T02:00:00", "as_of": "2026-03-10T01:30:00"},
    ]
    build, days = BUILDS["pressure"], [date(2026, 3, 10), date(2026, 3, 11)]
    inputs = {name: frame(spark, name, rows(name, of)) for name, of in (("nameplates", nameplates), ("live", live))}
    every = collected(build._replace(relevant_rows=None).rows_to_write(inputs, days))
    assert collected(build.rows_to_write(inputs, days)) == every
    assert len(every) > 24
    assert build.relevant_rows is not None
    counts = {name: build.relevant_rows(name, table, days[0]).count() for name, table in inputs.items()}
    assert counts == {"nameplates": 6, "live": 1}, "those that end at midnight are kept, too"
