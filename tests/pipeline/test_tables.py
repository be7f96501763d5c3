"""Built tables: case by case, and what holds for all of them.

A Spark job costs a second, whatever it reads. So one job builds all cases of a table, each on days or at sources of
its own, and each test compares the rows of its case.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.tables import BUILDS, envelopes
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.outcomes import FAILURES
from restante.pipeline.tables.top_n import MAX_NAMES
from support.effort import rounds
from support.pipeline.busy_week import TODAY, busy_week, crowd
from support.pipeline.oracles import ORACLES
from support.pipeline.tables import (
    CASES,
    TABLES,
    Values,
    apart,
    assert_adds_up,
    built,
    collected,
    dicts,
    frame,
    needed,
    parted,
    rows,
    with_folders,
)
from support.pipeline.timing_vectors import by_python, delivery_cases, timing_cases
from support.rows import every

FOLDERS = sorted(path for path in CASES.glob("*/*") if path.is_dir())
REACHING = [name for name, build in BUILDS.items() if any(map(any, build.reach.values()))]
"""Tables of which a day is made of other days' rows too."""

PLACED = [name for name, build in BUILDS.items() if build.placed]
NAMED = ["outcomes", "durations", "failures", "versions", "addresses"]
"""Tables that have strangers' names."""

OF_PAIRS = ("deliveries", "transfers")
"""Tables that join the two logs of a transfer."""

DAYS = (TODAY.date(), TODAY.date() - timedelta(2))
LEFT_OUT = TODAY.date() - timedelta(1)
"""A day that is not asked for where days are built apart from others."""

GENERATED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}

Inputs = Mapping[str, Sequence[Values]]


class Split(NamedTuple):
    """How a table's input comes."""

    seed: int
    parts: int


IN_ORDER = Split(0, 1)
SPLITS = [Split(seed, parts) for seed, parts in ((1, 3), (2, 8))][: rounds(1, 2)]
"""Shuffled; and then each of a table's stages has so many tasks, however few rows there are: few, which share
folders, and so many that some have no rows. Each split costs all tables a second or more."""


def written(case: Path) -> tuple[Inputs, Counter[Values]]:
    """Read a case: what goes in, and what is expected."""
    read = {file.stem: json.loads(file.read_text()) for file in case.glob("*.json")}
    expected = Counter(rows(case.parent.name, read.pop("expected")))
    return {table: rows(table, each) for table, each in read.items()}, expected


def is_empty(case: Path) -> bool:
    return not any(written(case)[0].values())


@pytest.fixture(scope="module", autouse=True)
def a_thousand_rows_make_a_folder_of_an_hour() -> Iterator[None]:
    """Let small cases have an hour with its own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelopes, "MIN_HOUR_ROWS", 1000)
        yield


@cache
def given(name: str) -> Mapping[str, tuple[Inputs, Counter[Values]]]:
    """Return the cases of a table by name: what goes in, and what is expected."""
    found = {case.name: written(case) for case in FOLDERS if case.parent.name == name and not is_empty(case)}
    if name == "timing":
        return {**found, **timing_cases()}
    return {**found, **delivery_cases(name)} if name in OF_PAIRS else found


@cache
def week() -> Inputs:
    return busy_week(Random(1), rows=600)


@cache
def strangers() -> Inputs:
    """Return a day on which clients name more applications and versions than are counted one by one."""
    return crowd(Random(5), names=5 * MAX_NAMES // 2)


@cache
def cases(name: str) -> Mapping[str, Inputs]:
    """Return all that is built of a table in one job, by name."""
    build = BUILDS[name]
    found = {case: inputs for case, (inputs, _) in given(name).items()}
    found["a busy week"] = week()
    if name in (*NAMED, "gaps"):
        found["strangers"] = strangers()
    found = {case: with_folders(build, inputs) for case, inputs in found.items()}
    for case, day in alone(name):
        found[f"{case}: {day} alone"] = {
            each: [row for row in found[case].get(each, ()) if of(each, row) in read(build, each, day)]
            for each in needed(build)
        }
    return found


def read(build: Build, name: str, day: date) -> set[date]:
    """Return the days of an input that one day is built from."""
    return build.reads(name, {day}) if name in build.inputs else {day}


def whole(name: str) -> list[str]:
    """Name the cases of which all is read."""
    parts = {f"{case}: {day} alone" for case, day in alone(name)}
    return [case for case in cases(name) if case not in parts]


def alone(name: str) -> list[tuple[str, date]]:
    """Name the days that are built also from the days that they read, and no others; with the case that has them."""
    found = [
        (case, day) for case, (_, rows) in given(name).items() for day in sorted({of(name, row) for row in rows})
    ]
    return found + [("a busy week", day) for day in DAYS]


@cache
def expected(name: str, case: str) -> Counter[Values]:
    """Return the expected rows of a case: as it says itself, or as plain Python computes them."""
    return given(name)[case][1] if case in given(name) else ORACLES[name](cases(name)[case])


def of(table: str, row: Values) -> date:
    """Return the day of a row."""
    names = [column.name for column in TABLES[table].columns]
    day = row[names.index("day")]
    assert isinstance(day, date)
    return day


class Found(NamedTuple):
    """What a job made."""

    cases: Mapping[str, Counter[Values]]
    tasks: Mapping[Values, set[int]]
    """Of each folder: which tasks had its rows."""


@pytest.fixture(scope="module")
def made(spark: SparkSession) -> Callable[[str, Split], Found]:
    """Build a table's cases together, once for each split of their rows."""

    @cache
    def make(name: str, split: Split) -> Found:
        build, those = BUILDS[name], cases(name)
        inputs = {
            each: [row for at, of in enumerate(those.values(), 1) for row in apart(at, each, of.get(each, ()))]
            for each in needed(build)
        }
        if split == IN_ORDER:
            made = collected(build.rows({each: frame(spark, each, inputs[each]) for each in inputs}))
            tasks: Mapping[Values, set[int]] = {}
        else:
            made, tasks = _spread(spark, name, inputs, split)
        found = parted(name, made)
        assert found.keys() <= set(range(1, len(those) + 1)), "there are rows of no case"
        return Found({case: found.get(at, Counter()) for at, case in enumerate(those, 1)}, tasks)

    return make


def _spread(
    spark: SparkSession, name: str, inputs: Inputs, split: Split
) -> tuple[Counter[Values], Mapping[Values, set[int]]]:
    """Build a table, as it is to be written, from rows that are spread over tasks."""
    build = BUILDS[name]
    frames = {
        each: frame(spark, each, Random(split.seed).sample(inputs[each], len(inputs[each]))).repartition(split.parts)
        for each in inputs
    }
    # So few rows as here would be put together whatever was done.
    settings = {
        "spark.sql.shuffle.partitions": str(split.parts),
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
    }
    days = {of(name, row) for case in whole(name) for row in expected(name, case)} - {LEFT_OUT}
    with configured(spark, settings):
        together = build.written(frames, sorted(days)).withColumn("task", f.spark_partition_id())
        found = collected(together)
    columns = [column.name for column in build.table.columns]
    folders = [columns.index(column) for column in build.table.order]
    tasks: dict[Values, set[int]] = {}
    for *row, task in found:
        tasks.setdefault(tuple(row[at] for at in folders), set()).add(task)
    made: Counter[Values] = Counter()
    for (*row, _), times in found.items():
        made[tuple(row)] += times
    return made, tasks


@contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings within the block."""
    before = {setting: str(spark.conf.get(setting)) for setting in settings}
    try:
        for setting, value in settings.items():
            spark.conf.set(setting, value)
        yield
    finally:
        for setting, value in before.items():
            spark.conf.set(setting, value)


@pytest.mark.parametrize(
    "case",
    [case for case in FOLDERS if not is_empty(case)],
    ids=lambda case: f"{case.parent.name}: {case.name}",
)
def test_a_case_gives_the_rows_that_it_expects(made: Callable[[str, Split], Found], case: Path) -> None:
    assert made(case.parent.name, IN_ORDER).cases[case.name] == expected(case.parent.name, case.name)


@pytest.mark.parametrize("case", timing_cases())
def test_a_vector_of_timing_gives_the_rows_that_it_expects(made: Callable[[str, Split], Found], case: str) -> None:
    """tests/timing/test_vectors.py tests them in Python."""
    assert made("timing", IN_ORDER).cases[case] == expected("timing", case)


@every(("name", "case"), [(name, case) for name in OF_PAIRS for case in delivery_cases(name)])
def test_a_vector_of_deliveries_gives_the_rows_that_it_expects(
    made: Callable[[str, Split], Found], name: str, case: str
) -> None:
    """tests/timing/test_deliveries.py tests them in Python."""
    assert made(name, IN_ORDER).cases[case] == expected(name, case)


def test_the_oracles_of_deliveries_and_transfers_agree_with_the_vectors() -> None:
    for name in OF_PAIRS:
        for case, (inputs, wanted) in delivery_cases(name).items():
            assert ORACLES[name](inputs) == wanted, case


@pytest.mark.parametrize("seed", range(rounds(8, 50)))
def test_the_oracle_of_timing_agrees_with_the_timing_tool(seed: int) -> None:
    inputs = busy_week(Random(seed), rows=600)
    assert by_python(inputs) == ORACLES["timing"](inputs)


@pytest.mark.parametrize("name", ["outcomes", "coverage"])
def test_spark_s_generated_code_gives_the_same_rows(spark: SparkSession, name: str) -> None:
    """A quick run interprets all other queries (conftest.py); a thorough one has code generated for all."""
    with configured(spark, GENERATED):
        assert built(spark, name, week()) == expected(name, "a busy week")


@pytest.mark.parametrize("name", [case.parent.name for case in FOLDERS if is_empty(case)])
def test_no_rows_give_no_rows(spark: SparkSession, name: str) -> None:
    assert built(spark, name, {}) == Counter()


def test_every_table_has_cases() -> None:
    assert {case.parent.name for case in FOLDERS} == set(BUILDS)


@pytest.mark.parametrize("name", BUILDS)
def test_no_split_and_no_order_of_its_input_changes_a_table(made: Callable[[str, Split], Found], name: str) -> None:
    for split in (IN_ORDER, *SPLITS):
        found = made(name, split).cases
        for case in whole(name):
            wanted = expected(name, case)
            if split != IN_ORDER and name in REACHING:
                wanted = Counter({row: n for row, n in wanted.items() if of(name, row) != LEFT_OUT})
            assert found[case] == wanted, f"{case}: {split}"
    assert_adds_up(name, made(name, IN_ORDER).cases["a busy week"], week())


@pytest.mark.parametrize("name", BUILDS)
def test_a_day_built_from_what_it_reads_is_as_in_a_full_build(made: Callable[[str, Split], Found], name: str) -> None:
    for case, day in alone(name):
        found = made(name, IN_ORDER).cases[f"{case}: {day} alone"]
        assert {row: n for row, n in found.items() if of(name, row) == day} == {
            row: n for row, n in expected(name, case).items() if of(name, row) == day
        }, f"{case}: {day}"


def test_the_hours_of_failures_add_up_to_the_outcomes_of_the_day(made: Callable[[str, Split], Found]) -> None:
    hours: dict[tuple[Any, ...], Counter[str]] = {}
    for row in dicts("failures", made("failures", IN_ORDER).cases["a busy week"]):
        counts = Counter({name: row[name] for name in ("ended", "failed", *FAILURES)})
        hours.setdefault((row["app_id"], row["kind"], row["day"], row["source"]), Counter()).update(counts)
    assert hours == {
        (row["app_id"], row["kind"], row["day"], row["source"]): Counter(
            {name: row[name] for name in ("ended", *FAILURES)} | {"failed": row["ended"] - row["happy"]}
        )
        for row in dicts("outcomes", made("outcomes", IN_ORDER).cases["a busy week"])
    }


def test_the_hours_of_hourly_coverage_add_up_to_the_coverage_of_the_day(
    made: Callable[[str, Split], Found],
) -> None:
    hours: dict[tuple[date, str], Counter[str]] = {}
    for row in dicts("hourly_coverage", made("hourly_coverage", IN_ORDER).cases["a busy week"]):
        counts = Counter({name: row[name] for name in ("envelopes", "alone", "missing")})
        hours.setdefault((row["day"], row["source"]), Counter()).update(counts)
    days = dicts("coverage", made("coverage", IN_ORDER).cases["a busy week"])
    assert days
    for row in days:
        assert hours[row["day"], row["source"]] == Counter(
            {name: row[name] for name in ("envelopes", "alone", "missing")}
        )


@pytest.mark.parametrize("name", PLACED)
def test_the_rows_of_a_folder_or_of_a_day_are_one_task_s(made: Callable[[str, Split], Found], name: str) -> None:
    for split in SPLITS:
        tasks = made(name, split).tasks
        assert len(set().union(*tasks.values())) > 1, "one task alone shows nothing"
        assert {folder: n for folder, n in tasks.items() if len(n) > 1} == {}


@pytest.mark.parametrize("name", NAMED)
def test_many_versions_and_applications_of_a_day_make_a_short_table(
    made: Callable[[str, Split], Found], name: str
) -> None:
    assert_short(name, made(name, IN_ORDER).cases["strangers"])


def test_many_topics_that_a_mailserver_lacks_make_a_short_table(made: Callable[[str, Split], Found]) -> None:
    found = dicts("gaps", made("gaps", IN_ORDER).cases["strangers"])
    topics = Counter(row["topic"] for row in found)
    assert len(topics) == 1001, "a thousand topics, and NULL for the others"
    assert sum(row["missing"] for row in found) == len(strangers()["archived"])
    [common] = [row for row in found if row["topic"] == "0xffffffff"]
    assert common["missing"] == 10


@pytest.mark.thorough
def test_100_000_versions_and_applications_of_a_day_make_a_short_table(spark: SparkSession) -> None:
    binds = crowd(Random(5), names=100_000)["client_versions"]
    found = built(spark, "versions", {"client_versions": binds})
    assert_adds_up("versions", found, {"client_versions": binds, "mailboxes": ()})
    assert_short("versions", found)


def assert_short(name: str, made: Counter[Values]) -> None:
    found = dicts(name, made)
    assert len({row["app_id"] for row in found} - {None}) == 1001
    if name == "versions":
        assert {row["connections"] for row in found if row["app_id"] == "common"} == {10}
        of_known_ones = [row for row in found if row["attribution"] == "version"]
        assert len({row["version"] for row in of_known_ones}) == 1001
        assert len(of_known_ones) <= 2002


def test_the_days_that_a_day_reads_mirror_the_days_that_it_affects() -> None:
    day = TODAY.date()
    for build in BUILDS.values():
        for name in build.inputs:
            for read in build.reads(name, {day}):
                assert day in build.touches(name, {read})
            assert len(build.touches(name, {day})) == len(build.reads(name, {day})) <= 8


def test_tables_are_built_after_their_inputs() -> None:
    known = set(CLEAN_TABLES)
    for name, build in BUILDS.items():
        assert set(build.inputs) <= known
        known.add(name)
