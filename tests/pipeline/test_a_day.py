"""A test day of over 100,000 rows, and its neighbours, beside plain Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from restante.pipeline.tables import BUILDS
from support.pipeline.busy_week import TODAY, busy_week
from support.pipeline.oracles import ORACLES
from support.pipeline.tables import TABLES, Values, assert_adds_up, collected, needed, table, with_folders

pytestmark = pytest.mark.thorough  # of fewer rows, test_tables.py shows the same


@pytest.fixture(scope="module")
def inputs() -> Mapping[str, Sequence[Values]]:
    """All tables that are read: of the one day more than 100,000 rows together, since plain Python is slow."""
    found = busy_week(Random(6), rows=24_000)
    places = {name: [column.name for column in TABLES[name].columns].index("day") for name in found}
    assert sum(row[places[name]] == TODAY.date() for name, rows in found.items() for row in rows) > 100_000
    return found


@pytest.mark.parametrize("name", BUILDS)
def test_a_day_of_over_100_000_rows_is_as_plain_python_has_it(
    spark: SparkSession, tmp_path: Path, inputs: Mapping[str, Sequence[Values]], name: str
) -> None:
    build = BUILDS[name]
    full = with_folders(build, inputs)
    frames = {each: _stored(spark, tmp_path / f"{each}.parquet", each, full[each]) for each in needed(build)}
    made = collected(build.rows(frames))
    assert made == ORACLES[name](full)
    assert_adds_up(name, made, inputs)


def _stored(spark: SparkSession, file: Path, name: str, values: Sequence[Values]) -> DataFrame:
    pq.write_table(table(name, values), file, row_group_size=20_000)
    return spark.read.schema(TABLES[name].ddl).parquet(str(file))
