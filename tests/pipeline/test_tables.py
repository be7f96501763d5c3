"""Built tables: case by case, and what holds for all of them."""

import json
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from restante.pipeline.schemas import CLEAN
from restante.pipeline.tables import BUILDS

from .oracles import ORACLES
from .tables import CASES, TABLES, built, collected, frame, rows
from .world import DAY, world

FOLDERS = sorted(path for path in CASES.glob("*/*") if path.is_dir())


@pytest.mark.parametrize("case", FOLDERS, ids=lambda case: f"{case.parent.name}: {case.name}")
def test_a_case_gives_the_rows_that_it_expects(spark: SparkSession, case: Path) -> None:
    name = case.parent.name
    written = {file.stem: json.loads(file.read_text()) for file in case.glob("*.json")}
    expected = rows(name, written.pop("expected"))
    got = built(spark, name, {table: rows(table, each) for table, each in written.items()})
    assert got == Counter(expected)


def test_every_table_has_cases() -> None:
    assert {case.parent.name for case in FOLDERS} == set(BUILDS)


@pytest.mark.parametrize("name", BUILDS)
def test_no_split_and_no_order_of_its_input_changes_a_table(spark: SparkSession, name: str) -> None:
    inputs = world(random.Random(1), rows=300)
    build, expected = BUILDS[name], ORACLES[name](inputs)
    for seed, parts in ((1, 1), (2, 2), (3, 5)):
        shuffled = {each: random.Random(seed).sample(inputs[each], len(inputs[each])) for each in build.inputs}
        frames = {each: frame(spark, each, rows).repartition(parts) for each, rows in shuffled.items()}
        assert collected(build.rows(frames)) == expected


@pytest.mark.parametrize("name", [name for name, build in BUILDS.items() if any(map(any, build.reach.values()))])
def test_a_day_built_from_what_it_reads_is_as_in_a_full_build(spark: SparkSession, name: str) -> None:
    inputs, build = world(random.Random(2), rows=300), BUILDS[name]
    column = {each: [column.name for column in TABLES[each].columns].index("day") for each in (name, *build.inputs)}
    full = built(spark, name, inputs)
    for day in (DAY.date(), DAY.date() - timedelta(2)):
        read = {
            each: [row for row in inputs[each] if row[column[each]] in build.reads(each, {day})]
            for each in build.inputs
        }
        alone = built(spark, name, read)
        assert {row: n for row, n in alone.items() if row[column[name]] == day} == {
            row: n for row, n in full.items() if row[column[name]] == day
        }


@pytest.mark.parametrize("name", [name for name, build in BUILDS.items() if build.placed])
def test_a_folder_gets_one_file(spark: SparkSession, tmp_path: Path, name: str) -> None:
    inputs, build = world(random.Random(4), rows=1500), BUILDS[name]
    frames = {each: frame(spark, each, inputs[each]).repartition(8) for each in build.inputs}
    # So few rows as here would be put together whatever was done.
    settings = {"spark.sql.shuffle.partitions": "8", "spark.sql.adaptive.coalescePartitions.enabled": "false"}
    before = {setting: str(spark.conf.get(setting)) for setting in settings}
    try:
        for setting, value in settings.items():
            spark.conf.set(setting, value)
        made = build.written(frames, [DAY.date() + timedelta(days) for days in (-1, 0, 1)])
        made.write.partitionBy(*build.table.partitions).parquet(str(tmp_path / name))
    finally:
        for setting, value in before.items():
            spark.conf.set(setting, value)
    files = list((tmp_path / name).rglob("*.parquet"))
    assert len({file.name for file in files}) > 1, "one task alone shows nothing"
    assert Counter(Counter(file.parent for file in files).values()).keys() == {1}


def test_what_a_day_reads_and_what_it_touches_are_each_other_s_mirror() -> None:
    day = DAY.date()
    for build in BUILDS.values():
        for name in build.inputs:
            for read in build.reads(name, {day}):
                assert day in build.touches(name, {read})
            assert len(build.touches(name, {day})) == len(build.reads(name, {day})) <= 8


def test_tables_are_built_after_what_they_are_made_of() -> None:
    known = set(CLEAN)
    for name, build in BUILDS.items():
        assert set(build.inputs) <= known
        known.add(name)


def test_100_000_versions_and_applications_of_a_day_make_a_short_table(spark: SparkSession) -> None:
    binds = [{"app_id": f"app {n}", "version": f"1.{n}"} for n in range(100_000)]
    binds += [{"app_id": "common", "version": "1.0"}] * 10
    made = built(spark, "versions", {"client_versions": rows("client_versions", binds)})
    names = [column.name for column in TABLES["versions"].columns]
    found = [dict(zip(names, row, strict=True)) for row in made]
    assert sum(row["binds"] for row in found) == 100_010
    assert {row["binds"] for row in found if row["app_id"] == "common"} == {10}
    assert len({row["app_id"] for row in found}) == len({row["version"] for row in found}) == 1001
    assert len(found) <= 2002
