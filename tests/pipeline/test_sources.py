"""The table of sources: beside plain Python, and after runs of ingest on real sources."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from restante.pipeline.build import freshness
from restante.pipeline.build import run as build_run
from restante.pipeline.build import sources as build_module
from restante.pipeline.build.freshness import TableWithInputs
from restante.pipeline.build.run import BuildResult, info_of
from restante.pipeline.build.sources import build_sources
from restante.pipeline.lake import commit_info, delta_log
from restante.pipeline.lake.commit_info import Ledger
from restante.pipeline.lake.compact import compact
from restante.pipeline.schemas import NAMEPLATES
from restante.pipeline.tables import sources
from restante.pipeline.tables.sources import LEDGERS, SOURCES_TABLE
from support.pipeline.archives import keeping
from support.pipeline.busy_week import TODAY, busy_week
from support.pipeline.lakes import add_foreign, held
from support.pipeline.oracle_helpers import Inputs
from support.pipeline.report_oracles import sources as sources_oracle
from support.pipeline.runs import LakeWorld, command, no_spark
from support.pipeline.servers import NOW, T0, alter, client, current, mailbox, nameplate, ours
from support.pipeline.tables import Values, collected, dicts, frame
from support.pipeline.tables import rows as written
from support.waku.envelopes import T0 as SENT
from support.waku.envelopes import envelope

DAY = 86_400.0
SECOND = 1_000_000


def build(world: LakeWorld, *, plan: bool = False, first: str = "") -> BuildResult:
    with world.run() as run:
        return build_sources(run, first, plan=plan)


def table(world: LakeWorld) -> dict[str, dict[str, Any]]:
    """Return the rows by source."""
    return {row["source"]: row for row in world.rows("sources")}


def counts(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row[name] for name in ("read", "clean", "duplicate", "quarantined", "missed", "in_quarantine"))


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


# ── the rows ─────────────────────────────────────────────────────────────────────────────────────


def ledgers(dice: Random, names: Sequence[str]) -> list[Values]:
    """Return one to three rows for each source."""
    found: list[Values] = []
    for name in names:
        for _ in range(dice.choice((1, 2, 3))):
            since = TODAY + timedelta(microseconds=dice.randrange(10**12))
            last = since + timedelta(microseconds=dice.choice((0, dice.randrange(10**12))))
            parts = [dice.randrange(100) for _ in range(4)]
            found.append((name, "usage", last, since, sum(parts[:3]), *parts))
    return found


def week(dice: Random) -> Inputs:
    """Return rows of the clean tables, of sources with and without a ledger, and of sources without rows."""
    inputs = dict(busy_week(dice, rows=150))
    rejected = [{"table": "nameplates", "identity": str(number), "reason": "wrong type"} for number in range(20)]
    inputs["quarantine"] = written(
        "quarantine",
        [
            {**row, "digest": "", "day": "2026-03-10", "source": dice.choice(("main", "killed", "torn"))}
            for row in rejected
        ],
    )
    return inputs | {LEDGERS.name: ledgers(dice, ("main", "second", "logs", "one", "three", "torn"))}


def test_rows_are_as_plain_python_has_them(spark: SparkSession) -> None:
    inputs = week(Random(2))
    frames = {name: frame(spark, name, inputs[name]) for name in (*sources.BUILD.inputs, LEDGERS.name)}
    made = collected(sources.BUILD.rows(frames))
    assert made == sources_oracle(inputs)
    assert {row[0] for row in made} == {"main", "second", "logs", "one", "three", "torn"}


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_source_has_one_row_with_what_all_runs_read_of_it(world: LakeWorld, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(json.dumps([{"name": "exit", "start": T0, "stop": None, "details": {}}]))
    specs = [f"relay={tmp_path / 'a'}", f"logs={tmp_path / 'log'}"]
    with ours(tmp_path / "a", nameplate(1), nameplate(2), mailbox(2), client(3), current(None)) as server:
        world.ingest(*specs)
        assert [str(day) for day in build(world, plan=True).days] == ["2023-11-15"]
        assert (world.version("sources"), build(world).rows) == (None, 2)
        first = table(world)
        world.now += DAY
        server.write(nameplate(DAY / 2))
        alter(server.file, "UPDATE usage_nameplates SET result = 'canary' WHERE id = 3")
        server.write(nameplate(4))
        world.ingest(*specs)
    assert first["relay"] == {
        "source": "relay",
        "kind": "usage",
        "last_row": moment(T0 + 3),
        "last_ingest": moment(NOW),
        "lag_us": int(DAY - 3) * SECOND,
        "counted_since": moment(NOW),
        "day": moment(NOW).date(),
        "read": 4,
        "clean": 4,
        "duplicate": 0,
        "quarantined": 0,
        "missed": 0,
        "in_quarantine": 0,
    }
    assert (first["logs"]["kind"], first["logs"]["last_row"], first["logs"]["read"]) == ("logs", moment(T0), 1)
    assert build(world).rows == 2
    second = table(world)
    assert second["logs"] == first["logs"], "nothing new was read of it"
    assert counts(second["relay"]) == (6, 5, 0, 1, 0, 1)
    assert (second["relay"]["last_ingest"], second["relay"]["counted_since"]) == (moment(NOW + DAY), moment(NOW))
    assert second["relay"]["last_row"] == moment(T0 + 4)
    world.spark = no_spark
    assert build(world) == BuildResult("sources", ())


def test_the_last_row_is_found_in_files_of_many_sources(world: LakeWorld, tmp_path: Path) -> None:
    """The last day of a file is not that of each source in it."""
    world.now += 60 * DAY
    ended = {"a": 1.0, "b": 2 * DAY, "c": 40 * DAY}
    for name, last in ended.items():
        with ours(tmp_path / name, nameplate(0), nameplate(last), current(None)):
            world.ingest(f"{name}={tmp_path / name}")
    with world.run() as run:
        assert compact(run.lake.table(NAMEPLATES), "r", run.now) != []
    build(world)
    assert {name: row["last_row"] for name, row in table(world).items()} == {
        name: moment(T0 + last) for name, last in ended.items()
    }


def test_a_run_after_compact_that_finds_nothing_new_does_not_start_spark(world: LakeWorld, tmp_path: Path) -> None:
    spec = f"relay={tmp_path / 'a'}"
    with ours(tmp_path / "a", nameplate(1), mailbox(2), current(None)) as server:
        for number in (3, 4):
            server.write(nameplate(number))
            world.ingest(spec)
        world.build()
        assert build(world).rows == 1
        merged = command("compact", "--lake", world.path).stdout.splitlines()
        assert "nameplates: 2 files merged into 1" in merged
        for _ in range(2):
            said = command("run", "--lake", world.path, "--source", spec)
            assert "sources: 0 days built, 0 rows" in said.stdout.splitlines()
            assert "Spark" not in said.stderr


def test_counts_begin_again_when_the_rows_of_a_source_are_replaced(world: LakeWorld, tmp_path: Path) -> None:
    with ours(tmp_path / "a", *(nameplate(number) for number in range(5)), current(None)) as server:
        world.ingest(f"relay={tmp_path / 'a'}")
        world.now += DAY
        alter(server.file, "UPDATE usage_nameplates SET total_time = 3 WHERE id = 5")
        server.write(nameplate(9))
        world.ingest(f"relay={tmp_path / 'a'}")
    build(world)
    row = table(world)["relay"]
    assert counts(row)[:2] == (6, 6)
    assert row["counted_since"] == row["last_ingest"] == moment(NOW + DAY)


def test_archives_and_files_are_told_apart_though_none_of_their_rows_is_clean(
    world: LakeWorld, tmp_path: Path
) -> None:
    world.now = SENT + DAY
    (tmp_path / "some.rlp").write_bytes(b"\xc1" + b"\xff" * 9)
    with keeping(tmp_path / "a", envelope(1)):
        world.ingest(f"waku={tmp_path / 'a'}", f"export={tmp_path / 'some.rlp'}")
    build(world)
    found = table(world)
    assert {name: row["kind"] for name, row in found.items()} == {"waku": "archive", "export": "files"}
    assert (found["export"]["last_row"], found["export"]["lag_us"]) == (None, None)
    assert found["export"]["in_quarantine"] == found["export"]["quarantined"] == found["export"]["read"] > 0


# ── without Spark ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def idle(tmp_path: Path) -> LakeWorld:
    return LakeWorld(None, tmp_path)


def read_rows(world: LakeWorld, name: str, number: int, **fields: Any) -> None:
    """Commit rows of nameplates as ingest does."""
    ledger = Ledger(read=number, clean=number, counted=number, **fields)
    rows = dicts("nameplates", written("nameplates", [{"source": name, "_times": number}]))
    world.add("nameplates", rows, source=name, ledger=ledger)


@pytest.fixture
def built(idle: LakeWorld) -> LakeWorld:
    """Return a lake whose table of sources is up to date. Its nameplates, of two sources, are in three files."""
    for name in ("relay", "relay", "other"):
        read_rows(idle, name, 2)
    bring_up_to_date(idle)
    return idle


def bring_up_to_date(world: LakeWorld) -> None:
    """Commit the table of sources as a build does. Which rows it has does not matter."""
    with world.run() as run:
        tables = TableWithInputs.of(sources.BUILD, run.lake.table)
        rows = dicts("sources", sources_oracle({LEDGERS.name: ledgers(Random(1), ["relay"])}))
        staged = tables.target.stage(held(rows, SOURCES_TABLE))
        tables.target.commit([staged], info=info_of(run, tables, tables.points()), replace={})


def is_due(world: LakeWorld) -> bool:
    return bool(build(world, plan=True).days)


def merge(world: LakeWorld) -> None:
    """Merge the files of nameplates."""
    with world.run() as run:
        assert compact(run.lake.table(NAMEPLATES), "merge", run.now) != []


def test_a_commit_that_changes_no_row_and_reads_nothing_does_not_make_the_table_due(built: LakeWorld) -> None:
    assert not is_due(built)
    merge(built)
    assert not is_due(built)
    built.add("nameplates", [])
    assert not is_due(built)


def test_a_run_that_read_only_duplicates_makes_the_table_due(built: LakeWorld) -> None:
    merge(built)
    built.add("nameplates", [], source="relay", ledger=Ledger(read=1, duplicate=1, counted=1))
    assert is_due(built)


def test_rows_that_were_dropped_by_age_make_the_table_due(built: LakeWorld) -> None:
    day = max(str(row["day"]) for row in built.rows("nameplates"))
    tomorrow = (date.fromisoformat(day) + timedelta(1)).isoformat()
    assert built.keep("nameplates", tomorrow) == 6
    assert is_due(built)
    bring_up_to_date(built)
    read_rows(built, "late", 1)
    bring_up_to_date(built)
    assert not is_due(built)
    assert built.keep("nameplates", tomorrow) == 1, "of a day from which rows were dropped before"
    assert is_due(built)


def test_the_table_is_due_after_another_program_added_rows(built: LakeWorld) -> None:
    add_foreign(built.path, [built.rows("nameplates")[0] | {"id": 99}], NAMEPLATES)
    assert is_due(built)


@pytest.mark.parametrize("commits", [1, 3, 5])
def test_the_table_is_due_after_an_input_was_removed_and_made_again(built: LakeWorld, commits: int) -> None:
    shutil.rmtree(built.path / "nameplates")
    assert not is_due(built), "it may be made again"
    for _ in range(commits):
        read_rows(built, "relay", 1)
    assert is_due(built)


def test_the_table_stays_as_it_is_while_an_input_is_removed(
    built: LakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = built.version("sources")
    shutil.rmtree(built.path / "nameplates")
    built.add("mailboxes", [], source="relay", ledger=Ledger(read=1, duplicate=1, counted=1))
    assert not is_due(built), "the sources of nameplates would vanish from it"
    words = "because nameplates was removed: ingest it again, or remove the folder of sources, too"
    assert f"sources: stays as it was built, {words}" in built.steps.said
    with monkeypatch.context() as patched:
        patched.setattr(build_module, "BUILD", sources.BUILD._replace(definition=2))
        assert not is_due(built)
    build(built)
    assert built.version("sources") == version
    read_rows(built, "relay", 1)
    assert is_due(built)


def test_the_table_is_built_without_a_removed_input_once_it_was_removed_itself(built: LakeWorld) -> None:
    shutil.rmtree(built.path / "nameplates")
    shutil.rmtree(built.path / "sources")
    assert not is_due(built), "no input is left"
    built.add("mailboxes", [], source="relay", ledger=Ledger(read=1, duplicate=1, counted=1))
    assert is_due(built)


def test_the_table_is_due_after_an_input_was_restored_from_a_backup(built: LakeWorld) -> None:
    place, backup = built.path / "nameplates", built.folder / "backup"
    shutil.copytree(place, backup)
    merge(built)
    bring_up_to_date(built)
    shutil.rmtree(place)
    shutil.copytree(backup, place)
    assert is_due(built), "the commit that it was built from is gone"
    merge(built)
    assert is_due(built)


def test_many_commits_that_change_nothing_do_not_make_the_table_due(
    built: LakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (commit_info, freshness, build_run):
        monkeypatch.setattr(module, "MAX_COMMIT_IDS", 4)
    for _ in range(9):
        built.add("nameplates", [])
        assert build(built) == BuildResult("sources", ())
    version = built.version("sources")
    assert build(built, plan=True) == BuildResult("sources", ())
    assert built.version("sources") == version
    for _ in range(4):
        built.add("nameplates", [])
    assert is_due(built), "no build was run between them"


def test_the_table_is_due_if_this_version_computes_it_in_another_way(
    built: LakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "BUILD", sources.BUILD._replace(definition=2))
    assert is_due(built)


def test_a_lake_of_an_older_version_builds_the_table_after_each_commit(built: LakeWorld) -> None:
    _forget(built.path / "nameplates", "last_change")
    assert not is_due(built)
    merge(built)
    assert is_due(built)
    bring_up_to_date(built)
    read_rows(built, "relay", 1)
    bring_up_to_date(built)
    merge(built)
    assert not is_due(built), "which commit changed rows is known from now on"


def test_a_lake_of_an_older_version_counts_from_its_last_ingest_on(idle: LakeWorld) -> None:
    read_rows(idle, "relay", 3)
    idle.now += DAY
    read_rows(idle, "relay", 2)
    _forget(idle.path / "nameplates", "totals")
    with idle.run() as run:
        found = run.lake.table(NAMEPLATES).totals("relay")
    assert found is not None
    assert (found.read, found.since, found.until) == (2, NOW + DAY, NOW + DAY)


def _forget(folder: Path, name: str) -> None:
    """Make a table's log what a version of Restante wrote whose states had no such field."""
    for entry in (folder / delta_log.LOG_FOLDER).glob("*.json"):
        lines = [json.loads(line) for line in entry.read_text().splitlines()]
        for line in lines:
            if fields := line.get("commitInfo", {}).get(delta_log.COMMIT_INFO_KEY):
                fields["state"].pop(name, None)
        entry.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_a_source_whose_row_was_dropped_by_age_does_not_come_back(idle: LakeWorld) -> None:
    read_rows(idle, "old", 3)
    idle.add("sources", dicts("sources", sources_oracle({LEDGERS.name: ledgers(Random(1), ["old"])})))
    idle.keep("sources", "2026-12-31")
    assert not build(idle, plan=True).days
    idle.now = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    read_rows(idle, "new", 1)
    assert [str(day) for day in build(idle, plan=True).days] == ["2027-01-01"]
    assert not build(idle, plan=True, first="2027-01-02").days
