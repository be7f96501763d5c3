"""The table of sources: the rows that it has, and when a run builds it again."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from restante.pipeline.build import freshness
from restante.pipeline.build import run as build_run
from restante.pipeline.build import sources as build_module
from restante.pipeline.build.freshness import TableWithInputs
from restante.pipeline.build.run import BuildResult, info_of
from restante.pipeline.build.sources import build_sources
from restante.pipeline.lake import commit_info
from restante.pipeline.lake.commit_info import Ledger, Mark
from restante.pipeline.schemas import NAMEPLATES
from restante.pipeline.tables import sources
from restante.pipeline.tables.sources import LEDGERS, SOURCES_TABLE
from support.pipeline.lakes import add_foreign, held
from support.pipeline.runs import LakeWorld
from support.pipeline.servers import NOW, T0
from support.pipeline.tables import Values, collected, dicts, frame, rows

Row = dict[str, Any]
DAY = 86_400.0
NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
"""The time of a row that names none."""


def build(world: LakeWorld, *, plan: bool = False, first: str = "") -> BuildResult:
    with world.run() as run:
        return build_sources(run, first, plan=plan)


# ── the rows ─────────────────────────────────────────────────────────────────────────────────────


def ledger(source: str, kind: str, read: int, **fields: Any) -> Row:
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
    inputs: dict[str, list[Row]] = {
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
    """Commit rows of nameplates as ingest does, of T0 and so many seconds after it."""
    started = datetime.fromtimestamp(T0 + last, UTC).isoformat()[:-6]
    ledger = Ledger(read=number, clean=number, counted=number, **fields)
    world.write("nameplates", {"source": name, "_times": number, "started": started}, source=name, ledger=ledger)


def test_the_rows_are_those_of_the_lake(world: LakeWorld) -> None:
    """The last day of a file is not that of each source in it. The marks tell archives from files."""
    ends = {"a": 1.0, "b": 2 * DAY, "c": 40 * DAY}
    for name, last in ends.items():
        read_rows(world, name, 1)
        world.now += DAY
        read_rows(world, name, 2, last=last)
    world.merge("nameplates")
    marks = {"waku": {"": Mark(1, "a", 1, "a")}, "export": {"x.rlp": Mark(1, "a", 1, "a")}}
    for name, of_source in marks.items():
        world.add("archived", [], source=name, ledger=Ledger(read=1, duplicate=1, counted=1), marks=of_source)
    assert build(world).rows == 5
    table = {row["source"]: row for row in world.rows("sources")}
    kinds = {**dict.fromkeys(ends, "usage"), "waku": "archive", "export": "files"}
    assert {name: row["kind"] for name, row in table.items()} == kinds
    for number, (name, last) in enumerate(ends.items()):
        times = (T0 + last, NOW + number * DAY, NOW + (number + 1) * DAY)
        columns = ("last_row", "counted_since", "last_ingest")
        assert [table[name][column] for column in columns] == [datetime.fromtimestamp(time, UTC) for time in times]
        assert (table[name]["read"], table[name]["clean"]) == (3, 3)
    assert table["waku"]["last_row"] is None


# ── when it is built again ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def built(idle: LakeWorld) -> LakeWorld:
    """Return a lake whose table of sources is up to date. Its nameplates, of two sources, are in three files."""
    for name in ("relay", "relay", "other"):
        read_rows(idle, name, 2)
    bring_up_to_date(idle)
    return idle


@pytest.fixture
def idle(tmp_path_factory: pytest.TempPathFactory) -> LakeWorld:
    """Return a lake without Spark."""
    return LakeWorld(None, tmp_path_factory.mktemp("idle"))


def bring_up_to_date(world: LakeWorld) -> None:
    """Commit the table of sources as a build does. Which rows it has does not matter."""
    ingested = datetime.fromtimestamp(NOW, UTC)
    records = dicts("sources", [row("relay", "usage", (0,) * 6, None, ingested)])
    with world.run() as run:
        tables = TableWithInputs.of(sources.BUILD, run.lake.table)
        staged = tables.target.stage(held(records, SOURCES_TABLE))
        tables.target.commit([staged], info=info_of(run, tables, tables.points()), replace={})


def is_due(world: LakeWorld) -> bool:
    return bool(build(world, plan=True).days)


def test_what_changes_or_reads_rows_makes_the_table_due(built: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_due(built)
    with monkeypatch.context() as patched:
        patched.setattr(build_module, "BUILD", sources.BUILD._replace(definition=2))
        assert is_due(built), "this version computes it in another way"
    built.merge("nameplates")
    built.add("nameplates", [])
    assert not is_due(built)
    built.add("nameplates", [], source="relay", ledger=Ledger(read=1, duplicate=1, counted=1))
    assert is_due(built), "it read a duplicate"
    bring_up_to_date(built)
    add_foreign(built.path, [built.rows("nameplates")[0] | {"id": 99}], NAMEPLATES)
    assert is_due(built), "another program added a row"
    bring_up_to_date(built)
    day = max(record["day"] for record in built.rows("nameplates"))
    tomorrow = (day + timedelta(1)).isoformat()
    assert built.keep("nameplates", tomorrow) == 7
    assert is_due(built), "rows were dropped by age"
    bring_up_to_date(built)
    read_rows(built, "late", 1)
    bring_up_to_date(built)
    assert not is_due(built)
    assert built.keep("nameplates", tomorrow) == 1, "of a day from which rows were dropped before"
    assert is_due(built)


def test_the_table_stays_while_an_input_is_removed(built: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    version = built.version("sources")
    shutil.rmtree(built.path / "nameplates")
    built.add("mailboxes", [], source="relay", ledger=Ledger(read=1, duplicate=1, counted=1))
    assert not is_due(built), "the sources of nameplates would vanish from it"
    sentence = "because nameplates was removed: ingest it again, or remove the folder of sources, too"
    assert f"sources: stays as it was built, {sentence}" in built.steps.said
    with monkeypatch.context() as patched:
        patched.setattr(build_module, "BUILD", sources.BUILD._replace(definition=2))
        assert not is_due(built)
    build(built)
    assert built.version("sources") == version
    shutil.rmtree(built.path / "sources")
    assert is_due(built), "it was removed itself"


def test_many_commits_of_nothing_make_no_table_due(built: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_counts_begin_again_when_rows_are_replaced(idle: LakeWorld) -> None:
    for number, replaced, expected in ((3, False, (3, NOW)), (2, False, (5, NOW)), (2, True, (2, NOW + 2 * DAY))):
        read_rows(idle, "relay", number, replaced=replaced)
        with idle.run() as run:
            totals = run.lake.table(NAMEPLATES).totals("relay")
        assert totals is not None
        assert (totals.read, totals.since, totals.until) == (*expected, idle.now)
        idle.now += DAY


def test_a_source_whose_row_was_dropped_by_age_does_not_come_back(idle: LakeWorld) -> None:
    read_rows(idle, "old", 3)
    bring_up_to_date(idle)
    idle.keep("sources", "2026-12-31")
    assert not build(idle, plan=True).days
    idle.now = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    read_rows(idle, "new", 1)
    assert [str(day) for day in build(idle, plan=True).days] == ["2027-01-01"]
    assert not build(idle, plan=True, first="2027-01-02").days
