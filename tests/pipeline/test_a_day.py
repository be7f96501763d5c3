"""A test day of over 100,000 rows, and its neighbours, beside plain Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from restante.pipeline.tables import BUILDS

from .oracles import ORACLES
from .tables import TABLES, Values, collected, table
from .world import world


@pytest.fixture(scope="module")
def inputs() -> Mapping[str, Sequence[Values]]:
    return world(Random(6), rows=110_000)


@pytest.mark.parametrize("name", BUILDS)
def test_a_day_of_over_100_000_rows_is_as_plain_python_has_it(
    spark: SparkSession, tmp_path: Path, inputs: Mapping[str, Sequence[Values]], name: str
) -> None:
    build = BUILDS[name]
    assert sum(len(inputs[each]) for each in build.inputs) > 100_000
    frames = {each: _stored(spark, tmp_path / f"{each}.parquet", each, inputs[each]) for each in build.inputs}
    assert collected(build.rows(frames)) == ORACLES[name](inputs)


def _stored(spark: SparkSession, file: Path, name: str, values: Sequence[Values]) -> DataFrame:
    pq.write_table(table(name, values), file, row_group_size=20_000)
    return spark.read.schema(TABLES[name].ddl).parquet(str(file))
