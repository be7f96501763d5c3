"""Which days a run builds, and what is there when it was cut off. Plain Python builds them, but for two cases."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from threading import Barrier, Event
from unittest.mock import patch
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession

from restante.common.errors import StoreError
from restante.pipeline.build import freshness
from restante.pipeline.build import run as build_run
from restante.pipeline.build.freshness import DayRange
from restante.pipeline.build.row_budget import RowBudget
from restante.pipeline.build.run import BuildResult
from restante.pipeline.lake import commit_info, delta_log
from restante.pipeline.lake.commit_info import Ledger, Mark
from restante.pipeline.lake.compact import compact
from restante.pipeline.lake.staging import Staged
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.tables import BUILDS, TABLES
from restante.pipeline.tables.build import Build
from support.pipeline import busy_week as busy
from support.pipeline.plain_builds import COUNTING, without_spark
from support.pipeline.runs import LakeWorld, no_spark
from support.pipeline.servers import NOW
from support.pipeline.tables import Values, column_names, dicts

FIRST, SECOND, THIRD = "2023-11-12", "2023-11-13", "2023-11-14"
SECONDS_PER_DAY = 86_400.0
OUTCOMES = {"outcomes": COUNTING["outcomes"]}


@pytest.fixture
def few_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table may lag behind by less than four commits."""
    for module in (commit_info, freshness, build_run):
        monkeypatch.setattr(module, "MAX_COMMIT_IDS", 4)


def build(
    world: LakeWorld, first: str = "", last: str = "", builds: Mapping[str, Build] = COUNTING, *, plan: bool = False
) -> dict[str, BuildResult]:
    days = DayRange(date.fromisoformat(first), date.fromisoformat(last)) if first else None
    with world.run() as run:
        return {built.table: built for built in build_run.build(run, days, plan=plan, builds=builds)}


def outcomes(world: LakeWorld, first: str = "", last: str = "", builds: Mapping[str, Build] = OUTCOMES) -> list[str]:
    """Build that table, and give the days that were built."""
    return [str(day) for day in build(world, first, last, builds)["outcomes"].days]


def days(world: LakeWorld) -> dict[str, int]:
    """Return the count of each day of outcomes."""
    return {str(row["day"]): row["ended"] for row in sorted(world.rows("outcomes"), key=lambda row: row["day"])}


@pytest.mark.parametrize("by", ["plain", pytest.param("world", marks=pytest.mark.thorough)])
def test_only_days_that_changed_are_built_again(by: str, request: pytest.FixtureRequest) -> None:
    world: LakeWorld = request.getfixturevalue(by)
    builds = OUTCOMES if by == "plain" else {"outcomes": BUILDS["outcomes"]}
    world.lived(FIRST, SECOND, THIRD)
    assert outcomes(world, builds=builds) == [FIRST, SECOND, THIRD]
    world.lived(SECOND, SECOND)
    assert outcomes(world, builds=builds) == [SECOND]
    with patch.object(world, "spark", no_spark):
        assert outcomes(world, builds=builds) == []
    assert days(world) == {FIRST: 1, SECOND: 3, THIRD: 1}
    world.lived(THIRD, replace={})
    outcomes(world, builds=builds)
    assert days(world) == {THIRD: 1}, "a day that lost its rows is empty"


def test_a_range_of_days_is_built_even_if_nothing_changed_and_no_other_day(plain: LakeWorld) -> None:
    plain.lived(FIRST, SECOND, THIRD)
    for _ in range(2):
        assert outcomes(plain, SECOND, SECOND) == [SECOND]
        assert days(plain) == {SECOND: 1}
    assert outcomes(plain) == [FIRST, SECOND, THIRD], "the rest is still to be done"


def test_a_day_whose_rows_keep_dropped_stays_as_it_was_built(plain: LakeWorld) -> None:
    plain.lived(FIRST, SECOND, THIRD)
    outcomes(plain)
    assert plain.keep("nameplates", SECOND) == 1
    plain.lived(FIRST, THIRD)
    assert outcomes(plain) == [THIRD]
    assert outcomes(plain, FIRST, FIRST) == []
    assert plain.keep("nameplates", THIRD) == 2
    plain.lived(SECOND, FIRST)
    assert plain.keep("nameplates", SECOND) == 1, "more days are kept than before"
    assert outcomes(plain) == [], "of a day that was dropped one late row is there"
    assert days(plain) == {FIRST: 1, SECOND: 1, THIRD: 2}


def test_days_after_a_clock_that_was_set_back_are_built_when_they_change(plain: LakeWorld) -> None:
    plain.lived(FIRST, SECOND)
    plain.now = NOW - 20 * SECONDS_PER_DAY
    assert outcomes(plain) == [FIRST, SECOND]
    plain.lived(THIRD)
    assert outcomes(plain) == [THIRD]
    plain.lived(FIRST, replace={"day": {THIRD}})
    outcomes(plain)
    assert days(plain) == {FIRST: 2, SECOND: 1}, "a later day that lost its rows is built, too"


def test_days_dropped_by_a_clock_that_was_ahead_do_not_keep_later_ones_from_being_built(plain: LakeWorld) -> None:
    plain.lived(FIRST, SECOND)
    plain.now = NOW + 3650 * SECONDS_PER_DAY
    first = datetime.fromtimestamp(plain.now, UTC).date() - timedelta(30)
    assert plain.keep("nameplates", first.isoformat()) == 2
    plain.now = NOW
    plain.lived(SECOND, THIRD)
    assert outcomes(plain) == [THIRD], "what was left of a dropped day is not built"
    assert plain.keep("nameplates", THIRD) == 1


def test_merging_the_files_of_inputs_and_tables_makes_no_day_due(plain: LakeWorld) -> None:
    for day in (FIRST, SECOND, THIRD, SECOND):
        plain.lived(day)
        outcomes(plain)
    with plain.run() as run:
        for name in ("nameplates", "outcomes"):
            assert len(compact(run.lake.table(TABLES[name]), "merge", lambda: plain.now)) == 1
    assert outcomes(plain) == []
    plain.lived(SECOND)
    assert outcomes(plain) == [SECOND]
    assert days(plain) == {FIRST: 1, SECOND: 3, THIRD: 1}


# ── an input, or a table, that was removed or restored ───────────────────────────────────────────


def put_aside(world: LakeWorld, table: str = "nameplates") -> Path:
    """Make a backup of a table."""
    return shutil.copytree(world.path / table, world.folder / uuid4().hex)


def put_back(world: LakeWorld, backup: Path, table: str = "nameplates") -> None:
    remove(world, table)
    shutil.copytree(backup, world.path / table)


def remove(world: LakeWorld, table: str = "nameplates") -> None:
    shutil.rmtree(world.path / table)


def reasons(world: LakeWorld) -> list[str]:
    """Return why all days were built again; forget it then."""
    said = [words.partition("built again: ")[2] for words in world.steps.said if "built again" in words]
    world.steps.said.clear()
    return said


def built_anew(world: LakeWorld) -> list[str]:
    """Build outcomes, and give why all of its days are built."""
    outcomes(world)
    assert outcomes(world) == []
    return reasons(world)


@pytest.mark.parametrize("commits", [1, 3, 5])
def test_days_are_built_again_if_their_input_was_removed_and_created_again(plain: LakeWorld, commits: int) -> None:
    for day in (FIRST, SECOND, THIRD):
        plain.lived(day)
    assert built_anew(plain) == []
    remove(plain)
    assert outcomes(plain) == [], "it may be made again"
    assert days(plain) == {FIRST: 1, SECOND: 1, THIRD: 1}
    for _ in range(commits):
        plain.lived(SECOND)
    assert built_anew(plain) == ["nameplates was removed and made again"]
    assert days(plain) == {SECOND: commits}


def test_days_are_built_again_if_their_input_was_restored_from_a_backup(plain: LakeWorld) -> None:
    plain.lived(FIRST)
    backup = put_aside(plain)
    plain.lived(SECOND)
    plain.lived(FIRST, THIRD)
    outcomes(plain)
    built = put_aside(plain, "outcomes")
    for commits in (0, 2, 3):  # fewer than the backup lacks, as many, and more
        put_back(plain, built, "outcomes")
        put_back(plain, backup)
        for _ in range(commits):
            plain.lived(THIRD)
        assert built_anew(plain) == ["nameplates was put back from a backup"]
        assert days(plain) == {FIRST: 1} | ({THIRD: commits} if commits else {})
    later = put_aside(plain)
    plain.lived(SECOND)
    put_back(plain, later)
    plain.lived(SECOND)
    assert built_anew(plain) == [], "all that was built is in this backup"
    assert days(plain) == {FIRST: 1, SECOND: 1, THIRD: 3}


def test_a_built_table_that_was_restored_from_a_backup_is_brought_up_to_date(plain: LakeWorld) -> None:
    plain.lived(FIRST)
    outcomes(plain)
    backup = put_aside(plain, "outcomes")
    plain.lived(SECOND)
    outcomes(plain)
    put_back(plain, backup, "outcomes")
    assert outcomes(plain) == [SECOND]
    assert days(plain) == {FIRST: 1, SECOND: 1}
    remove(plain, "outcomes")
    assert outcomes(plain) == [FIRST, SECOND]


def test_a_table_built_from_a_built_table_follows_when_that_one_is_built_again(plain: LakeWorld) -> None:
    builds = {name: COUNTING[name] for name in ("envelopes", "traffic")}
    archived(plain, "one", FIRST, SECOND)
    build(plain, builds=builds)
    assert [str(row["day"]) for row in plain.rows("traffic")] == [FIRST, SECOND]
    remove(plain, "envelopes")
    remove(plain, "archived")
    archived(plain, "one", SECOND)
    build(plain, builds=builds)
    assert [str(row["day"]) for row in plain.rows("traffic")] == [SECOND]


def test_days_that_keep_dropped_stay_as_they_were_built_if_their_input_is_created_again(plain: LakeWorld) -> None:
    plain.lived(FIRST, SECOND, THIRD)
    outcomes(plain)
    assert plain.keep("nameplates", SECOND) == 1
    archived(plain, "one", THIRD)
    both = build(plain, builds={**OUTCOMES, "coverage": COUNTING["coverage"]})
    assert both["outcomes"].days == [], "nothing of it is built, and yet it is committed what was dropped"
    assert both["coverage"].days
    for commits in range(1, 3):
        remove(plain)
        for _ in range(commits):
            plain.lived(FIRST, FIRST, THIRD)
        assert built_anew(plain) == ["nameplates was removed and made again"]
        assert days(plain) == {FIRST: 1, THIRD: commits}
        assert outcomes(plain, FIRST, FIRST) == []


@pytest.mark.usefixtures("few_commits")
def test_a_table_that_lags_behind_by_too_many_commits_is_built_again(plain: LakeWorld) -> None:
    plain.lived(FIRST)
    outcomes(plain)
    for _ in range(3):
        plain.lived(SECOND)
    assert built_anew(plain) == []
    for _ in range(4):
        plain.lived(THIRD)
    assert built_anew(plain) == ["nameplates had 4 commits since it was built"]
    assert days(plain) == {FIRST: 1, SECOND: 3, THIRD: 4}


@pytest.mark.usefixtures("few_commits")
def test_commits_that_leave_no_day_to_build_do_not_make_a_table_lag_behind(plain: LakeWorld) -> None:
    plain.lived(FIRST, THIRD)
    plain.keep("nameplates", SECOND)
    outcomes(plain)
    plain.spark = no_spark
    for _ in range(9):
        plain.lived(FIRST)
        assert built_anew(plain) == []
    assert days(plain) == {THIRD: 1}


@pytest.mark.parametrize(("only", "definition"), [("", 1), (SECOND, 1), ("", 2)])
def test_a_table_stays_as_it_is_while_an_input_is_removed(plain: LakeWorld, only: str, definition: int) -> None:
    plain.lived(FIRST, SECOND)
    plain.lived(SECOND, table="mailboxes")
    outcomes(plain)
    before, version = plain.rows("outcomes"), plain.version("outcomes")
    remove(plain)
    plain.lived(SECOND, table="mailboxes")
    builds = {"outcomes": COUNTING["outcomes"]._replace(definition=definition)}
    assert outcomes(plain, only, only, builds) == []
    words = "because nameplates was removed: ingest it again, or remove the folder of outcomes, too"
    assert f"outcomes: stays as it was built, {words}" in plain.steps.said
    assert (plain.rows("outcomes"), plain.version("outcomes")) == (before, version)
    plain.lived(FIRST, SECOND)
    assert outcomes(plain, builds=builds) == [FIRST, SECOND]
    assert days(plain) == {FIRST: 1, SECOND: 3}


@pytest.mark.usefixtures("few_commits")
def test_a_table_that_waits_for_a_removed_input_misses_no_day_of_another_one(plain: LakeWorld) -> None:
    plain.lived(FIRST)
    plain.lived(FIRST, table="mailboxes")
    outcomes(plain)
    backup = put_aside(plain)
    remove(plain)
    for _ in range(3):
        plain.lived(SECOND, table="mailboxes")
        assert outcomes(plain) == []
    shutil.copytree(backup, plain.path / "nameplates")
    assert SECOND in outcomes(plain)
    assert days(plain) == {FIRST: 2, SECOND: 3}


def test_a_removed_built_table_does_not_stop_the_tables_that_are_built_from_it(plain: LakeWorld) -> None:
    builds = {name: COUNTING[name] for name in ("coverage", "gaps")}
    archived(plain, "one", FIRST, SECOND)
    build(plain, builds=builds)
    remove(plain, "coverage")
    built = build(plain, builds=builds)
    assert built["coverage"].days
    assert built["gaps"].days == built["coverage"].days
    assert not any("stays" in words for words in plain.steps.said)


# ── other versions ───────────────────────────────────────────────────────────────────────────────


def defined(world: LakeWorld, definition: int, first: str = "", last: str = "") -> tuple[list[str], list[str]]:
    """Build outcomes by a definition; return the days that were built, and why all of them were."""
    reasons(world)
    built = outcomes(world, first, last, {"outcomes": COUNTING["outcomes"]._replace(definition=definition)})
    return built, reasons(world)


CHANGED = ["this version of Restante computes it in another way"]


def test_all_days_are_built_again_once_if_their_definition_has_changed(plain: LakeWorld) -> None:
    plain.lived(FIRST, SECOND)
    assert defined(plain, 1) == ([FIRST, SECOND], [])
    assert defined(plain, 2, FIRST, FIRST) == ([FIRST], []), "a range of days does not bring it up to date"
    plain.lived(THIRD)
    assert defined(plain, 2) == ([FIRST, SECOND, THIRD], CHANGED)
    assert defined(plain, 2) == ([], [])
    assert defined(plain, 1) == ([FIRST, SECOND, THIRD], CHANGED), "an older version came back"
    remove(plain, "outcomes")
    assert defined(plain, 2) == ([FIRST, SECOND, THIRD], [])
    plain.keep("nameplates", THIRD)
    assert defined(plain, 1) == ([THIRD], CHANGED), "days that `keep` dropped stay as they were built"
    assert days(plain) == {FIRST: 1, SECOND: 1, THIRD: 1}


def test_a_build_reads_a_fixed_number_of_log_entries(plain: LakeWorld) -> None:
    with patch.object(delta_log, "_read", side_effect=delta_log._read) as read:

        def reads() -> int:
            plain.lived(THIRD)
            read.reset_mock()
            outcomes(plain)
            return read.call_count

        outcomes(plain)
        few = max(reads(), reads())
        for number in range(12):
            mark = {"": Mark(number, "", 0, "")}
            plain.add("nameplates", [], source=f"server {number % 3}", ledger=Ledger(), marks=mark)
        read.reset_mock()
        with plain.run() as run:
            assert run.lake.table(CLEAN_TABLES["nameplates"]).marks("server 1") == {"": Mark(10, "", 0, "")}
        assert read.call_count == 2
        assert reads() == few < 10


# ── runs that were cut off, and plans ────────────────────────────────────────────────────────────


def test_days_with_many_rows_are_built_a_few_at_a_time(plain: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_run, "MAX_JOB_ROWS", 2)
    plain.lived(FIRST, SECOND, THIRD)
    outcomes(plain)
    assert [info.days for info in plain.infos("outcomes")] == [[THIRD], [FIRST, SECOND]]
    assert days(plain) == {FIRST: 1, SECOND: 1, THIRD: 1}
    assert any("outcomes: 2 of 3 days" in words for words in plain.steps.said)


def test_an_interrupted_run_is_finished_by_the_next(plain: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = LakeTable.commit

    def cut_off(table: LakeTable, *given: object, **others: object) -> int:
        if str(others.get("replace")) == str({"day": {SECOND}}):
            raise KeyboardInterrupt
        return commit(table, *given, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(build_run, "MAX_JOB_ROWS", 1)
    plain.lived(FIRST, SECOND, THIRD)
    for definition, reason in ((1, []), (2, CHANGED)):
        with patch.object(LakeTable, "commit", cut_off), pytest.raises(KeyboardInterrupt):
            defined(plain, definition)
        assert defined(plain, definition) == ([FIRST, SECOND, THIRD], reason)
        assert days(plain) == {FIRST: 1, SECOND: 1, THIRD: 1}
        assert defined(plain, definition) == ([], [])


def test_a_plan_names_the_days_of_every_table_and_builds_none(plain: LakeWorld) -> None:
    plain.lived(THIRD)
    with patch.object(plain, "spark", no_spark):
        planned = build(plain, plan=True)
    assert plain.version("outcomes") is None
    built = build(plain)
    assert {name: each.days for name, each in planned.items()} == {name: each.days for name, each in built.items()}
    assert planned["outcomes"].days
    # NOW is of the day after it; a nameplate may have lived until then, and a day more
    assert [str(day) for day in planned["pressure"].days] == [THIRD, "2023-11-15", "2023-11-16"]


def test_a_table_that_fails_ends_the_run_and_tables_built_from_it_wait_for_the_next_run(plain: LakeWorld) -> None:
    builds = {name: COUNTING[name] for name in ("envelopes", "traffic", "coverage")}
    archived(plain, "one", FIRST, SECOND)
    stage = LakeTable.stage

    def fail(table: LakeTable, frame: DataFrame) -> Staged:
        if table.table.name == "envelopes":
            raise StoreError("no room")
        return stage(table, frame)

    with patch.object(LakeTable, "stage", fail), pytest.raises(StoreError, match="no room"):
        build(plain, builds=builds)
    assert plain.version("envelopes") is plain.version("traffic") is None
    build(plain, builds=builds)
    assert len(plain.rows("traffic")) == len(plain.rows("envelopes")) == 2


def test_jobs_run_in_parallel_while_together_they_read_no_more_than_one_may() -> None:
    budget, both, begun = RowBudget(10), Barrier(2), Event()

    def job(rows: int) -> None:
        with budget.reserve(rows):
            both.wait(60) if rows in {4, 6} else begun.set()

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(job, rows) for rows in (4, 6)]:
            done.result()
        for rows in (5, 25):  # a job that is too large waits until it is alone
            begun.clear()
            with budget.reserve(6):
                waiting = pool.submit(job, rows)
                assert not begun.wait(0.05)
            waiting.result(60)
            assert begun.is_set()
        with budget.reserve(10):
            waiting = pool.submit(job, 1)
            budget.close()
            assert isinstance(waiting.exception(60), CancelledError), "no job starts after one has failed"
    with pytest.raises(CancelledError), budget.reserve(1):
        pass


@pytest.mark.thorough
def test_late_days_are_built_as_if_all_had_come_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """In a quick run test_tables.py shows that Spark builds a day from the days that it reads."""
    rows = {name: values for name, values in busy.busy_week(Random(1), 500).items() if name in CLEAN_TABLES}
    today, yesterday, first = (busy.TODAY.date() - timedelta(days) for days in range(3))
    steps: list[dict[str, Sequence[Values]]] = [{}, {}, {}]
    for name, values in rows.items():
        day = column_names(name).index("day")
        of_one = [row for row in values if row[-1] != "second"]  # each folder more takes time
        late = [row for row in of_one if row[day] == yesterday][::2]
        steps[0][name] = [row for row in of_one if first <= row[day] <= today and row not in late]
        steps[1][name] = [row for row in of_one if row[day] > today]
        steps[2][name] = late
    stepwise, at_once = (LakeWorld(spark, tmp_path / name) for name in ("stepwise", "at once"))
    for world in (stepwise, at_once):
        world.folder.mkdir()
        world.now = (busy.TODAY + timedelta(days=30)).timestamp()
    reaching = [name for name, table in BUILDS.items() if any(map(any, table.reach.values()))]
    inputs = {name for table in reaching for name in BUILDS[table].inputs}
    builds = {name: table for name, table in BUILDS.items() if name in {*reaching, *inputs}}
    for step in steps:
        for name, values in step.items():
            stepwise.add(name, dicts(name, values))
        build(stepwise, builds=builds)
    for name in rows:
        at_once.add(name, dicts(name, [row for step in steps for row in step[name]]))
    build(at_once, builds=builds)
    for name in builds:
        assert stepwise.rows(name) == at_once.rows(name), name


# ── a mailserver that has nothing on a day ───────────────────────────────────────────────────────

SENT = ("2023-11-10", "2023-11-11", FIRST, SECOND, THIRD)


def archived(world: LakeWorld, source: str, *days: str, source_kind: str = "archive") -> None:
    """Commit an envelope of a source for each day that is named; another one each time."""
    of = {"source": source, "source_kind": source_kind}
    world.write("archived", *({"hash": uuid4().hex, "sent": f"{day}T12:00:00", **of} for day in days))


def coverage(world: LakeWorld) -> list[str]:
    """Build the table; give the days that were built."""
    return [str(day) for day in build(world, builds={"coverage": COUNTING["coverage"]})["coverage"].days]


def coverage_days(world: LakeWorld) -> dict[str, list[str]]:
    """Return, for each mailserver, its days with rows; days without envelopes are in brackets."""
    rows: dict[str, list[str]] = {}
    for row in sorted(world.rows("coverage"), key=lambda row: row["day"]):
        rows.setdefault(row["source"], []).append(str(row["day"]) if row["envelopes"] else f"({row['day']})")
    return rows


def test_a_later_mailserver_has_a_row_for_each_day_from_its_first(plain: LakeWorld) -> None:
    archived(plain, "one", *SENT)
    assert coverage(plain) == list(SENT)
    archived(plain, "two", FIRST)
    assert coverage(plain) == [FIRST, SECOND, THIRD]
    assert coverage_days(plain)["two"] == [FIRST, f"({SECOND})", f"({THIRD})"]
    archived(plain, "two", SENT[0])
    assert coverage(plain) == [SENT[0], SENT[1]]
    assert coverage_days(plain)["two"] == [SENT[0], f"({SENT[1]})", FIRST, f"({SECOND})", f"({THIRD})"]
    archived(plain, "export", SENT[1], source_kind="files")
    assert coverage(plain) == [SENT[1]]
    assert coverage_days(plain).keys() == {"one", "two"}
    plain.spark = no_spark
    assert coverage(plain) == []


def test_a_mailserver_without_envelopes_in_the_lake_has_no_rows_of_later_days(plain: LakeWorld) -> None:
    archived(plain, "one", FIRST, SECOND)
    archived(plain, "retired", FIRST)
    coverage(plain)
    plain.keep("archived", SECOND)
    archived(plain, "one", THIRD)
    assert coverage(plain) == [THIRD]
    assert coverage_days(plain) == {"one": [FIRST, SECOND, THIRD], "retired": [FIRST, f"({SECOND})"]}


def test_mailservers_are_covered_in_whatever_order_they_came(plain: LakeWorld, tmp_path: Path) -> None:
    dice = Random(4)
    for _ in range(8):
        source = dice.choice(("one", "two", "three", "export"))
        kind = "files" if source == "export" else "archive"
        archived(plain, source, *dice.choices(SENT, k=dice.randrange(1, 3)), source_kind=kind)
        if dice.random() < 0.7:
            coverage(plain)
    coverage(plain)
    at_once = LakeWorld(None, tmp_path / "at once")
    at_once.folder.mkdir()
    at_once.add("archived", plain.rows("archived"))
    with without_spark(at_once):
        coverage(at_once)
    assert coverage_days(plain) == coverage_days(at_once)
