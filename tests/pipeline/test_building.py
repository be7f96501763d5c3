"""Which days a run builds, and what is there when it was cut off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from random import Random
from threading import Barrier, Event

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline import world as busy
from pipeline.runs import World, no_spark
from pipeline.servers import T0, current, nameplate, ours
from pipeline.tables import Values, frame
from restante.errors import StoreError
from restante.pipeline import building
from restante.pipeline.building import Built, _Room
from restante.pipeline.laketable import LakeTable
from restante.pipeline.schemas import CLEAN
from restante.pipeline.staging import Staged
from restante.pipeline.tables import BUILDS

DAY = 86_400.0
FIRST, SECOND, THIRD = "2023-11-12", "2023-11-13", "2023-11-14"


def outcomes(world: World, *days: str) -> Built:
    """Build one table."""
    return world.build(*days, only="outcomes")["outcomes"]


def days(world: World, table: str = "outcomes") -> dict[str, int]:
    """Give the count of each day."""
    return {str(row["day"]): row["ended"] for row in sorted(world.rows(table), key=lambda row: row["day"])}


def test_only_days_that_changed_are_built_anew(world: World, tmp_path: Path) -> None:
    spec = f"relay={tmp_path / 'a'}"
    with ours(tmp_path / "a", *(nameplate(0, started=T0 - day * DAY) for day in range(3)), current(None)) as server:
        world.ingest(spec)
        first = outcomes(world)
        server.write(nameplate(0, started=T0 - DAY), nameplate(1, started=T0 - DAY))
        world.ingest(spec)
        second = outcomes(world)
        world.spark, began = no_spark, world.spark
        third = outcomes(world)
        world.spark = began
    assert [str(day) for day in first.days] == [FIRST, SECOND, THIRD]
    assert [str(day) for day in second.days] == [SECOND]
    assert third.days == []
    assert days(world) == {FIRST: 1, SECOND: 3, THIRD: 1}


def test_a_day_that_is_built_again_has_the_same_rows(world: World, tmp_path: Path) -> None:
    with ours(tmp_path / "a", *(nameplate(number) for number in range(5)), current(None)):
        world.ingest(f"relay={tmp_path / 'a'}")
        outcomes(world)
        before, version = world.rows("outcomes"), world.version("outcomes")
        outcomes(world, THIRD, THIRD)
    assert world.rows("outcomes") == before
    assert world.version("outcomes") != version


def test_a_range_of_days_is_built_up_to_date_or_not_and_no_other(world: World, tmp_path: Path) -> None:
    with ours(tmp_path / "a", *(nameplate(0, started=T0 - day * DAY) for day in range(3)), current(None)):
        world.ingest(f"relay={tmp_path / 'a'}")
    assert [str(day) for day in outcomes(world, SECOND, SECOND).days] == [SECOND]
    assert days(world) == {SECOND: 1}
    assert [str(day) for day in outcomes(world).days] == [FIRST, SECOND, THIRD], "the rest is still to be done"


def test_a_day_that_lost_its_rows_is_empty_then(world: World, tmp_path: Path) -> None:
    with ours(tmp_path / "a", nameplate(0, started=T0 - DAY), nameplate(1), current(None)):
        world.ingest(f"relay={tmp_path / 'a'}")
    outcomes(world)
    with ours(tmp_path / "b", nameplate(1), current(None)):
        world.ingest(f"relay={tmp_path / 'b'}")
    outcomes(world)
    assert days(world) == {THIRD: 1}


def test_a_day_whose_rows_were_dropped_by_age_stays_as_it_was_built(world: World, tmp_path: Path) -> None:
    spec = f"relay={tmp_path / 'a'}"
    with ours(tmp_path / "a", *(nameplate(0, started=T0 - day * DAY) for day in range(3)), current(None)) as server:
        world.ingest(spec)
        outcomes(world)
        assert world.keep("nameplates", SECOND) == 1
        server.write(nameplate(9, started=T0 - 2 * DAY), nameplate(10))
        world.ingest(spec)
        assert [str(day) for day in outcomes(world).days] == [THIRD]
        assert outcomes(world, FIRST, FIRST).days == []
    assert days(world) == {FIRST: 1, SECOND: 1, THIRD: 2}


def test_a_day_whose_rows_are_gone_is_not_built_of_a_late_one_when_more_is_kept_later(
    world: World, tmp_path: Path
) -> None:
    spec = f"relay={tmp_path / 'a'}"
    with ours(tmp_path / "a", *(nameplate(0, started=T0 - day * DAY) for day in range(3)), current(None)) as server:
        world.ingest(spec)
        outcomes(world)
        assert world.keep("nameplates", THIRD) == 2
        server.write(*(nameplate(9, started=T0 - day * DAY) for day in (1, 2)))
        world.ingest(spec)
        assert world.keep("nameplates", SECOND) == 1
        assert outcomes(world).days == []
    assert days(world) == {FIRST: 1, SECOND: 1, THIRD: 1}


def test_days_are_built_some_at_a_time_where_they_have_many_rows(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "ROWS", 2)
    with ours(tmp_path / "a", *(nameplate(0, started=T0 - day * DAY) for day in range(3)), current(None)):
        world.ingest(f"relay={tmp_path / 'a'}")
    outcomes(world)
    assert [note.days for note in world.notes("outcomes")] == [[THIRD], [FIRST, SECOND]]
    assert days(world) == {FIRST: 1, SECOND: 1, THIRD: 1}
    assert any("outcomes: 2 of 3 days" in words for words in world.steps.said)


def test_a_run_that_was_cut_off_between_two_days_is_finished_by_the_next(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = LakeTable.commit
    done: list[str] = []

    def cut_off(table: LakeTable, *given: object, **others: object) -> int:
        if table.table.name == "outcomes" and done:
            raise KeyboardInterrupt
        done.append(table.table.name)
        return commit(table, *given, **others)  # type: ignore[arg-type]

    with ours(tmp_path / "a", *(nameplate(0, started=T0 - day * DAY) for day in range(3)), current(None)):
        world.ingest(f"relay={tmp_path / 'a'}")
    with monkeypatch.context() as patched:
        patched.setattr(building, "ROWS", 1)
        patched.setattr(LakeTable, "commit", cut_off)
        with pytest.raises(KeyboardInterrupt):
            outcomes(world)
    assert days(world) == {FIRST: 1}
    outcomes(world)
    assert days(world) == {FIRST: 1, SECOND: 1, THIRD: 1}
    world.spark = no_spark
    assert outcomes(world).days == []


def test_a_plan_names_the_days_of_every_table_and_builds_none(world: World, tmp_path: Path) -> None:
    with ours(tmp_path / "a", nameplate(1), current(None)):
        world.ingest(f"relay={tmp_path / 'a'}")
    world.spark, began = no_spark, world.spark
    planned = world.build(plan=True)
    world.spark = began
    assert world.version("outcomes") is None
    done = world.build()
    assert {name: built.days for name, built in planned.items()} == {name: built.days for name, built in done.items()}


def test_no_day_is_built_that_nobody_has_lived_in(world: World, tmp_path: Path) -> None:
    with ours(tmp_path / "a", nameplate(1), current(None)):
        world.ingest(f"relay={tmp_path / 'a'}")
    assert [str(day) for day in world.build(only="pressure", plan=True)["pressure"].days] == [
        "2023-11-14",
        "2023-11-15",  # NOW is of that day
        "2023-11-16",
    ]


def test_there_is_nothing_to_build_in_an_empty_lake(world: World) -> None:
    world.spark = no_spark
    assert all(not built.days for built in world.build().values())


Some = Mapping[str, Sequence[Values]]
"""Rows of some clean tables."""


def test_a_table_that_fails_ends_the_run_and_what_is_made_of_it_waits_for_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.now = (busy.DAY + timedelta(days=30)).timestamp()
    rows = busy.world(Random(2), 20)
    builds = {name: BUILDS[name] for name in ("envelopes", "traffic", "coverage")}
    commit(world, {"archived": rows["archived"]})
    stage = LakeTable.stage

    def fail(table: LakeTable, given: DataFrame) -> Staged:
        if table.table.name == "envelopes":
            raise StoreError("no room")
        return stage(table, given)

    with monkeypatch.context() as patched, world.run() as run:
        patched.setattr(LakeTable, "stage", fail)
        with pytest.raises(StoreError, match="no room"):
            building.build(run, builds=builds)
    assert world.version("envelopes") is None
    assert world.version("traffic") is None
    with world.run() as run:
        building.build(run, builds=builds)
    assert sum(row["envelopes"] for row in world.rows("traffic")) == len(world.rows("envelopes")) > 0


def test_jobs_go_on_beside_one_another_where_they_read_no_more_than_one_may() -> None:
    room, both = _Room(10), Barrier(2)

    def job(rows: int) -> None:
        with room.taken(rows):
            both.wait(60)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(job, rows) for rows in (4, 6)]:
            done.result()


@pytest.mark.parametrize("rows", [5, 25])
def test_a_job_waits_until_there_is_room_and_one_that_is_too_large_until_it_is_alone(rows: int) -> None:
    room, begun = _Room(10), Event()

    def job() -> None:
        with room.taken(rows):
            begun.set()

    with ThreadPoolExecutor(1) as pool:
        with room.taken(6):
            waiting = pool.submit(job)
            assert not begun.wait(0.2)
        waiting.result(60)
    assert begun.is_set()


def test_no_job_is_begun_any_more_where_one_has_failed() -> None:
    room = _Room(10)
    with ThreadPoolExecutor(1) as pool, room.taken(10):
        waiting = pool.submit(room.taken(1).__enter__)
        room.close()
        assert isinstance(waiting.exception(60), CancelledError)
    with pytest.raises(CancelledError), room.taken(1):
        pass


REACHING = {name: build for name, build in BUILDS.items() if any(map(any, build.reach.values()))}
"""Tables of which a day is made of other days' rows too."""


def test_days_that_came_one_by_one_and_late_are_built_as_if_all_had_come_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    steps = one_by_one(busy.world(Random(1), 1000))
    together = {name: [row for step in steps for row in step[name]] for name in steps[0]}
    worlds = {name: World(spark, tmp_path / name) for name in ("one by one", "at once")}
    for name, came in (("one by one", steps), ("at once", [together])):
        world = worlds[name]
        world.folder.mkdir()
        world.now = (busy.DAY + timedelta(days=30)).timestamp()
        for step in came:
            commit(world, step)
            with world.run() as run:
                building.build(run, builds=REACHING)
    for table in REACHING:
        expected = worlds["at once"].rows(table)
        assert expected, table
        assert worlds["one by one"].rows(table) == expected, table


def one_by_one(rows: Some) -> Sequence[Some]:
    """Part rows of some days into those up to one, those of the days after it, and late ones of the day before it."""
    today, yesterday, first = (busy.DAY.date() - timedelta(days) for days in range(3))
    steps: list[dict[str, Sequence[Values]]] = [{}, {}, {}]
    for name in {each for build in REACHING.values() for each in build.inputs}:
        day = [column.name for column in CLEAN[name].columns].index("day")
        some = [row for row in rows[name] if row[-1] != "second"]  # of one server: each folder more takes time
        late = [row for row in some if row[day] == yesterday][::2]
        steps[0][name] = [row for row in some if first <= row[day] <= today and row not in late]
        steps[1][name] = [row for row in some if row[day] > today]
        steps[2][name] = late
        assert all(step[name] for step in steps), f"{name}: no rows show nothing"
    return steps


def commit(world: World, rows: Some) -> None:
    with world.run() as run:
        for name, values in rows.items():
            table = run.lake.table(CLEAN[name])
            table.commit([table.stage(frame(world.spark(), name, values))], note=world.note(name))
