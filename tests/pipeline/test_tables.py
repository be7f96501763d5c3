"""Built tables: case by case, and what holds for all of them."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from restante.pipeline.tables import BUILDS

from .oracles import ORACLES
from .tables import CASES, built, collected, frame, rows
from .world import world

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
