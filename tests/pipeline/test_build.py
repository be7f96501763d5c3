"""Which days a run builds, and what is there when it was cut off; and when it builds the table of sources."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from threading import Barrier, Event
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession

from restante.common.errors import StoreError
from restante.pipeline.build import freshness
from restante.pipeline.build import run as build_run
from restante.pipeline.build import sources as build_module
from restante.pipeline.build.freshness import TableWithInputs
from restante.pipeline.build.run import BuildResult, RowBudget, commit_info_of
from restante.pipeline.build.sources import build_sources
from restante.pipeline.lake import commit_info, delta_log
from restante.pipeline.lake.commit_info import Ledger, Mark
from restante.pipeline.lake.staging import StagedFiles
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.schemas import NAMEPLATES
from restante.pipeline.tables import sources
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.sources import LEDGERS, SOURCES_TABLE
from support.pipeline.lakes import add_foreign, held, seen
from support.pipeline.runs import COUNTING, LakeWorld, no_spark, without_spark
from support.pipeline.servers import NOW, T0
from support.pipeline.tables import Values, collected, dicts, frame, rows

FIRST, SECOND, THIRD = "2023-11-12", "2023-11-13", "2023-11-14"
SECONDS_PER_DAY = 86_400.0
OUTCOMES = {"outcomes": COUNTING["outcomes"]}


def outcomes(world: LakeWorld, first: str = "", last: str = "", builds: Mapping[str, Build] = OUTCOMES) -> list[str]:
    return [str(day) for day in world.build(first, last, builds)["outcomes"].days]


def days(world: LakeWorld) -> dict[str, int]:
    return {str(row["day"]): row["ended"] for row in sorted(world.rows("outcomes"), key=lambda row: row["day"])}


STORIES = {
    "only days that changed are built": """
        lived 12 13 14; build = 12 13 14; lived 13 13; build = 13; build =; days = 12:1 13:3 14:1
        lose 12 13; build = 12 13; days = 14:1
    """,
    "a range of days is built even if nothing changed, and no other day": """
        lived 12 13 14; build 13 = 13; days = 13:1; build 13 = 13; days = 13:1; build = 12 13 14
    """,
    "a day whose rows keep dropped stays as it was built, also if one late row is there": """
        lived 12 13 14; build = 12 13 14; keep 13 = 1; lived 12 14; build = 14; build 12 =
        keep 14 = 2; lived 13 12; keep 13 = 1; build =; days = 12:1 13:1 14:2
    """,
    "if a clock was set back, days after it are built when they change": """
        lived 12 13; clock -20; build = 12 13; lived 14; build = 14; lived 12; lose 14; build = 12 14
        days = 12:2 13:1
    """,
    "if a clock was ahead when days were dropped, later ones are built": """
        lived 12 13; clock 3650; keep 2033-10-13 = 2; clock 0; lived 13 14; build = 14; keep 14 = 1
    """,
    "merged files make no day due": """
        lived 12; build = 12; lived 13; build = 13; lived 14; build = 14; lived 13; build = 13; merge; build =
        lived 13; build = 13; days = 12:1 13:3 14:1
    """,
    **{
        f"an input was removed, and made again by {commits} commits": f"""
            lived 12; lived 13; lived 14; anew =; remove nameplates; build =; days = 12:1 13:1 14:1
            {"lived 13;" * commits} anew = nameplates was removed and made again; days = 13:{commits}
        """
        for commits in (1, 3, 5)
    },
    "days that keep dropped stay as they were built if their input is made again": """
        lived 12 13 14; build = 12 13 14; keep 13 = 1; build =; remove nameplates; lived 12 12 14
        anew = nameplates was removed and made again; days = 12:1 14:1; remove nameplates; lived 12 12 14; lived 12 14
        anew = nameplates was removed and made again; days = 12:1 14:2; build 12 =
    """,
    "an input was restored from a backup that lacks more commits than followed it, as many, and fewer": """
        lived 12; copy nameplates; lived 13; lived 12 14; build = 12 13 14; copy outcomes
        restore nameplates; anew = nameplates was put back from a backup, or changed by another program; days = 12:1
        restore outcomes; restore nameplates; lived 14; lived 14
        anew = nameplates was put back from a backup, or changed by another program; days = 12:1 14:2
        restore outcomes; restore nameplates; lived 14; lived 14; lived 14
        anew = nameplates was put back from a backup, or changed by another program; days = 12:1 14:3
    """,
    "an input was restored from a backup that has all that was built": """
        lived 12; build = 12; copy nameplates; lived 13; restore nameplates; lived 13; anew =; days = 12:1 13:1
    """,
    "a built table that was restored from a backup is brought up to date": """
        lived 12; build = 12; copy outcomes; lived 13; build = 13; restore outcomes; build = 13; days = 12:1 13:1
        remove outcomes; build = 12 13
    """,
    "a table that lags behind by too many commits is built again": f"""
        lived 12; build = 12; {"lived 13;" * 3} anew =
        {"lived 14;" * 4} anew = nameplates had 4 commits since it was built; days = 12:1 13:3 14:4
    """,
    "commits that leave no day to build do not make a table lag behind": f"""
        lived 12 14; keep 13 = 1; build = 14; {"lived 12; build =;" * 9} anew =; days = 14:1
    """,
    "a table stays as it is while an input is removed and another one changes": """
        lived 12 13; visited 13; build = 12 13; remove nameplates; visited 13; build =; build 13 =
        stays = because nameplates was removed: ingest it again, or remove the folder of outcomes, too
        defined 2; build =; days = 12:1 13:2; defined 1; lived 12 13; build = 12 13; days = 12:1 13:3
    """,
    "a table that waits for a removed input misses no day of another one": f"""
        lived 12; visited 12; build = 12; copy nameplates; remove nameplates; {"visited 13; build =;" * 3}
        restore nameplates; build = 13; days = 12:2 13:3
    """,
    "all days are built again once if their definition has changed; a range of days is not enough": """
        lived 12 13; anew =; defined 2; build 12 = 12; lived 14
        anew = this version of Restante computes it in another way; defined 1
        anew = this version of Restante computes it in another way; remove outcomes; defined 2; anew =; keep 14 = 2
        defined 1; anew = this version of Restante computes it in another way; days = 12:1 13:1 14:1
    """,
}
"""Steps of stories, and what each gives. Days are of November 2023; of an empty build nobody asks Spark for anything.

Nameplates `lived` on days and mailboxes were `visited`; all rows of days that `lose` names go. To build `anew` is to
build twice, the second time nothing; it gives why all days were built.
"""


@pytest.mark.parametrize("name", STORIES)
def test_the_days_of_a_story_are_built(plain: LakeWorld, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in (commit_info, freshness, build_run):
        monkeypatch.setattr(module, "MAX_COMMIT_IDS", 4)
    world, now = plain, COUNTING["outcomes"]
    for step in STORIES[name].replace("\n", ";").split(";"):
        command, _, expected = (part.strip() for part in step.partition("="))
        what, *names = command.split() or [""]
        dates = [day if "-" in day else f"2023-11-{day}" for day in names]
        gives: object = ""
        match what:
            case "lived" | "visited":
                world.lived(*dates, table="nameplates" if what == "lived" else "mailboxes")
            case "lose":
                world.lived(replace={"day": set(dates)})
            case "keep":
                gives = world.keep("nameplates", *dates)
            case "clock":
                world.now = NOW + float(names[0]) * SECONDS_PER_DAY
            case "merge":
                for table in ("nameplates", "outcomes"):
                    assert len(world.merge(table)) == 1
            case "copy":
                shutil.copytree(world.path / names[0], world.folder / names[0])
            case "restore" | "remove":
                shutil.rmtree(world.path / names[0], ignore_errors=True)
                if what == "restore":
                    shutil.copytree(world.folder / names[0], world.path / names[0])
            case "defined":
                now = now._replace(definition=int(names[0]))
            case "build":
                only = "".join(dates)
                with patch.object(world, "spark", world.spark if expected else no_spark):
                    gives = " ".join(day[-2:] for day in outcomes(world, only, only, {"outcomes": now}))
            case "anew":
                world.messages.clear()
                outcomes(world, builds={"outcomes": now})
                gives = "".join(line.partition("built again: ")[2] for line in world.messages)
                assert outcomes(world, builds={"outcomes": now}) == []
            case "stays":
                gives = world.messages[-1].partition("stays as it was built, ")[2]
            case "days":
                gives = " ".join(f"{day[-2:]}:{count}" for day, count in days(world).items())
            case _:
                assert not step.strip()
        assert str(gives) == expected, step


def test_a_table_built_from_a_built_table_follows_when_that_one_is_built_again(plain: LakeWorld) -> None:
    builds = {name: COUNTING[name] for name in ("envelopes", "traffic")}
    archived(plain, "one", FIRST, SECOND)
    plain.build(builds=builds)
    assert [str(row["day"]) for row in plain.rows("traffic")] == [FIRST, SECOND]
    for table in ("envelopes", "archived"):
        shutil.rmtree(plain.path / table)
    archived(plain, "one", SECOND)
    plain.build(builds=builds)
    assert [str(row["day"]) for row in plain.rows("traffic")] == [SECOND]


def test_a_removed_built_table_does_not_stop_the_tables_that_are_built_from_it(plain: LakeWorld) -> None:
    builds = {name: COUNTING[name] for name in ("coverage", "gaps")}
    archived(plain, "one", FIRST, SECOND)
    plain.build(builds=builds)
    shutil.rmtree(plain.path / "coverage")
    built = plain.build(builds=builds)
    assert built["gaps"].days == built["coverage"].days != ()
    assert not any("stays" in line for line in plain.messages)


def test_a_build_reads_a_fixed_number_of_log_entries(plain: LakeWorld) -> None:
    def reads() -> int:
        plain.lived(THIRD)
        read.reset_mock()
        outcomes(plain)
        return read.call_count

    with patch.object(delta_log, "_read", side_effect=delta_log._read) as read:  # only the costs show reads
        outcomes(plain)
        few = max(reads(), reads())
        for number in range(12):
            mark = {"": Mark(number, "", 0, "")}
            plain.add("nameplates", [], source=f"server {number % 3}", ledger=Ledger(), marks=mark)
        read.reset_mock()
        assert seen(plain.path, NAMEPLATES).marks("server 1") == {"": Mark(10, "", 0, "")}
        assert read.call_count == 2
        assert reads() == few < 10


def test_days_with_many_rows_are_built_a_few_at_a_time(plain: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_run, "MAX_JOB_ROWS", 2)
    plain.lived(FIRST, SECOND, THIRD)
    outcomes(plain)
    assert [info.days for info in plain.infos("outcomes")] == [[THIRD], [FIRST, SECOND]]
    assert days(plain) == {FIRST: 1, SECOND: 1, THIRD: 1}
    assert any("outcomes: 2 of 3 days" in line for line in plain.messages)


def test_an_interrupted_run_is_finished_by_the_next(plain: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = LakeTable.commit

    def cut_off(table: LakeTable, staged: list[StagedFiles], **options: Any) -> int:
        if str(options.get("replace")) == str({"day": {SECOND}}):
            raise KeyboardInterrupt
        return commit(table, staged, **options)

    monkeypatch.setattr(build_run, "MAX_JOB_ROWS", 1)
    plain.lived(FIRST, SECOND, THIRD)
    for definition in (1, 2):
        builds = {"outcomes": COUNTING["outcomes"]._replace(definition=definition)}
        with patch.object(LakeTable, "commit", cut_off), pytest.raises(KeyboardInterrupt):
            outcomes(plain, builds=builds)
        assert outcomes(plain, builds=builds) == [FIRST, SECOND, THIRD]
        assert days(plain) == {FIRST: 1, SECOND: 1, THIRD: 1}
        assert outcomes(plain, builds=builds) == []


def test_a_plan_names_the_days_of_every_table_and_builds_none(plain: LakeWorld) -> None:
    plain.lived(THIRD)
    with patch.object(plain, "spark", no_spark):
        planned = plain.build(builds=COUNTING, plan=True)
    assert plain.version("outcomes") is None
    built = plain.build(builds=COUNTING)
    assert {name: plan.days for name, plan in planned.items()} == {name: done.days for name, done in built.items()}
    assert planned["outcomes"].days
    # NOW is of the day after it; a nameplate may have lived until then, and a day more
    assert [str(day) for day in planned["pressure"].days] == [THIRD, "2023-11-15", "2023-11-16"]


def test_a_table_that_fails_ends_the_run_and_tables_built_from_it_wait_for_the_next_run(plain: LakeWorld) -> None:
    builds = {name: COUNTING[name] for name in ("envelopes", "traffic", "coverage")}
    archived(plain, "one", FIRST, SECOND)
    stage = LakeTable.stage

    def fail(table: LakeTable, frame: DataFrame) -> StagedFiles:
        if table.table.name == "envelopes":
            raise StoreError("no room")
        return stage(table, frame)

    with patch.object(LakeTable, "stage", fail), pytest.raises(StoreError, match="no room"):
        plain.build(builds=builds)
    assert plain.version("envelopes") is plain.version("traffic") is None
    plain.build(builds=builds)
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


SENT = ("2023-11-10", "2023-11-11", FIRST, SECOND, THIRD)


def archived(world: LakeWorld, source: str, *days: str, source_kind: str = "archive") -> None:
    of = {"source": source, "source_kind": source_kind}
    world.write("archived", *({"hash": uuid4().hex, "sent": f"{day}T12:00:00", **of} for day in days))


def coverage(world: LakeWorld) -> list[str]:
    return [str(day) for day in world.build(builds={"coverage": COUNTING["coverage"]})["coverage"].days]


def coverage_days(world: LakeWorld) -> dict[str, list[str]]:
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


NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)


def make(world: LakeWorld) -> BuildResult:
    with world.run() as run:
        return build_sources(run)


def days_due(world: LakeWorld, first: str = "") -> list[str]:
    with world.run() as run:
        return [str(day) for day in build_sources(run, first, plan=True).days]


def ledger(source: str, kind: str, read: int, **fields: Any) -> dict[str, Any]:
    """Return a row of LEDGERS. All that is not named is 0, or of NOON."""
    counts = dict.fromkeys(("duplicate", "quarantined", "missed"), 0)
    times = {"last_ingest": "2026-03-10T12:00:00", "counted_since": "2026-03-10T12:00:00"}
    return {"source": source, "kind": kind, "read": read, "clean": read, **counts, **times, **fields}


def row(source: str, kind: str, counts: tuple[int, ...], last_row: datetime | None, ingested: datetime) -> Values:
    lag = None if last_row is None else (ingested - last_row) // timedelta(microseconds=1)
    return (source, kind, last_row, ingested, lag, NOON, *counts, ingested.date())


def test_a_source_has_one_row_with_the_sums_of_its_ledgers_and_its_last_row(spark: SparkSession) -> None:
    later = NOON + timedelta(days=1, microseconds=5)
    rejected = {"table": "nameplates", "reason": "r", "digest": "", "day": "2026-03-10"}
    inputs: dict[str, list[dict[str, Any]]] = {
        "nameplates": [{}, {"started": "2026-03-10T11:00:00"}, {"source": "second"}],
        "mailboxes": [{"started": "2026-03-10T13:00:00"}],
        "client_versions": [{"source": "second", "connect_time": "2026-03-09T12:00:00"}],
        "server_commands": [{"source": "trace", "server_rx": NOON.timestamp() + 0.25}],
        "client_events": [{"source": "trace", "start": NOON.timestamp()}, {"source": "not in a ledger"}],
        "archived": [{"source": "one"}, {"source": "one", "sent": "2026-03-10T12:30:00"}],
        "quarantine": [{**rejected, "identity": str(at), "source": ("main", "torn")[at % 2]} for at in range(3)],
        LEDGERS.name: [
            ledger("main", "usage", 5, clean=3, duplicate=1, quarantined=1, last_ingest=later.isoformat()[:-6]),
            ledger("main", "usage", 2, missed=7, counted_since="2026-03-11T12:00:00"),
            ledger("second", "usage", 2),
            ledger("trace", "logs", 4),
            ledger("one", "archive", 2),
            ledger("torn", "files", 1, clean=0, quarantined=1),
        ],
    }
    names = (*sources.BUILD.inputs, LEDGERS.name)
    frames = {name: frame(spark, name, rows(name, inputs.get(name, []))) for name in names}
    assert collected(sources.BUILD.rows(frames)) == Counter(
        [
            row("main", "usage", (7, 5, 1, 1, 7, 2), NOON + timedelta(hours=1), later),
            row("second", "usage", (2, 2, 0, 0, 0, 0), NOON, NOON),
            row("trace", "logs", (4, 4, 0, 0, 0, 0), NOON + timedelta(seconds=0.25), NOON),
            row("one", "archive", (2, 2, 0, 0, 0, 0), NOON + timedelta(hours=0.5), NOON),
            row("torn", "files", (1, 0, 0, 1, 0, 1), None, NOON),
        ]
    )


def read_rows(world: LakeWorld, name: str, number: int, *, last: float = 0.0, **fields: Any) -> None:
    started = datetime.fromtimestamp(T0 + last, UTC).isoformat()[:-6]
    ledger = Ledger(read=number, clean=number, **fields)
    world.write("nameplates", {"source": name, "_times": number, "started": started}, source=name, ledger=ledger)


def test_the_rows_are_those_of_the_lake(world: LakeWorld) -> None:
    """The last day of a file is not that of each source in it. The marks tell archives from files."""
    ends = {"a": 1.0, "b": 2 * SECONDS_PER_DAY, "c": 40 * SECONDS_PER_DAY}
    for name, last in ends.items():
        read_rows(world, name, 1)
        world.now += SECONDS_PER_DAY
        read_rows(world, name, 2, last=last)
    world.merge("nameplates")
    marks = {"waku": {"": Mark(1, "a", 1, "a")}, "export": {"x.rlp": Mark(1, "a", 1, "a")}}
    for name, of_source in marks.items():
        world.add("archived", [], source=name, ledger=Ledger(read=1, duplicate=1), marks=of_source)
    assert make(world).rows == 5
    table = {row["source"]: row for row in world.rows("sources")}
    kinds = {**dict.fromkeys(ends, "usage"), "waku": "archive", "export": "files"}
    assert {name: row["kind"] for name, row in table.items()} == kinds
    for number, (name, last) in enumerate(ends.items()):
        times = (T0 + last, NOW + number * SECONDS_PER_DAY, NOW + (number + 1) * SECONDS_PER_DAY)
        columns = ("last_row", "counted_since", "last_ingest")
        assert [table[name][column] for column in columns] == [datetime.fromtimestamp(time, UTC) for time in times]
        assert (table[name]["read"], table[name]["clean"]) == (3, 3)
    assert table["waku"]["last_row"] is None


@pytest.fixture
def built(idle: LakeWorld) -> LakeWorld:
    """Return a lake whose table of sources is up to date. Its nameplates, of two sources, are in three files."""
    for name in ("mailbox", "mailbox", "other"):
        read_rows(idle, name, 2)
    bring_up_to_date(idle)
    return idle


@pytest.fixture
def idle(tmp_path: Path) -> LakeWorld:
    return LakeWorld(None, tmp_path)


def bring_up_to_date(world: LakeWorld) -> None:
    ingested = datetime.fromtimestamp(NOW, UTC)
    records = dicts("sources", [row("mailbox", "usage", (0,) * 6, None, ingested)])
    with world.run() as run:
        tables = TableWithInputs.open(sources.BUILD, run.lake.table)
        staged = tables.target.stage(held(records, SOURCES_TABLE))
        tables.target.commit([staged], info=commit_info_of(run, tables, tables.input_commits()), replace={})


def test_what_changes_or_reads_rows_makes_the_table_due(built: LakeWorld) -> None:
    assert not days_due(built)
    with patch.object(build_module, "BUILD", sources.BUILD._replace(definition=2)):
        assert days_due(built), "this version computes it in another way"
    built.merge("nameplates")
    built.add("nameplates", [])
    assert not days_due(built)
    built.add("nameplates", [], source="mailbox", ledger=Ledger(read=1, duplicate=1))
    assert days_due(built), "it read a duplicate"
    bring_up_to_date(built)
    add_foreign(built.path, [built.rows("nameplates")[0] | {"id": 99}], NAMEPLATES)
    assert days_due(built), "another program added a row"
    bring_up_to_date(built)
    day = max(record["day"] for record in built.rows("nameplates"))
    tomorrow = (day + timedelta(1)).isoformat()
    assert built.keep("nameplates", tomorrow) == 7
    assert days_due(built), "rows were dropped by age"
    bring_up_to_date(built)
    read_rows(built, "late", 1)
    bring_up_to_date(built)
    assert not days_due(built)
    assert built.keep("nameplates", tomorrow) == 1, "of a day from which rows were dropped before"
    assert days_due(built)


def test_the_table_stays_while_an_input_is_removed(built: LakeWorld) -> None:
    version = built.version("sources")
    shutil.rmtree(built.path / "nameplates")
    built.add("mailboxes", [], source="mailbox", ledger=Ledger(read=1, duplicate=1))
    assert not days_due(built), "the sources of nameplates would vanish from it"
    sentence = "because nameplates was removed: ingest it again, or remove the folder of sources, too"
    assert f"sources: stays as it was built, {sentence}" in built.messages
    with patch.object(build_module, "BUILD", sources.BUILD._replace(definition=2)):
        assert not days_due(built)
    make(built)
    assert built.version("sources") == version
    shutil.rmtree(built.path / "sources")
    assert days_due(built), "it was removed itself"


def test_many_commits_of_nothing_make_no_table_due(built: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (commit_info, freshness, build_run):
        monkeypatch.setattr(module, "MAX_COMMIT_IDS", 4)
    for _ in range(9):
        built.add("nameplates", [])
        assert make(built) == BuildResult("sources", ())
    version = built.version("sources")
    assert not days_due(built)
    assert built.version("sources") == version
    for _ in range(4):
        built.add("nameplates", [])
    assert days_due(built), "no build was run between them"


def test_counts_begin_again_when_rows_are_replaced(idle: LakeWorld) -> None:
    for number, replaced, count, since in ((3, False, 3, 0), (2, False, 5, 0), (2, True, 2, 2)):
        read_rows(idle, "mailbox", number, replaced=replaced)
        totals = seen(idle.path, NAMEPLATES).state.totals["mailbox"]
        assert (totals.read, totals.since, totals.until) == (count, NOW + since * SECONDS_PER_DAY, idle.now)
        idle.now += SECONDS_PER_DAY


def test_a_source_whose_row_was_dropped_by_age_does_not_come_back(idle: LakeWorld) -> None:
    read_rows(idle, "old", 3)
    bring_up_to_date(idle)
    idle.keep("sources", "2026-12-31")
    assert not days_due(idle)
    idle.now = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    read_rows(idle, "new", 1)
    assert days_due(idle) == ["2027-01-01"]
    assert not days_due(idle, first="2027-01-02")
