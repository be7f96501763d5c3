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
from .world import DAY, world

ADD_UP: Mapping[str, Mapping[str, Sequence[str]]] = {
    "outcomes": {"ended": ("nameplates", "mailboxes")},
    "durations": {"count": ("nameplates", "mailboxes") * 2},
    "pressure": {"started": ("nameplates",)},
    "busy_hours": {"binds": ("client_versions",), "mailboxes": ("mailboxes",), "nameplates": ("nameplates",)},
    "versions": {"binds": ("client_versions",), "mailboxes": ("mailboxes",)},
    "times": {"count": ("timing",)},
    "traffic": {"envelopes": ("envelopes",)},
}
"""Columns that add up to the rows that were read."""


@pytest.fixture(scope="module")
def inputs() -> Mapping[str, Sequence[Values]]:
    """All tables that are read: of the one day more than 100,000 rows together, since plain Python is slow."""
    found = world(Random(6), rows=21_000)
    places = {name: [column.name for column in TABLES[name].columns].index("day") for name in found}
    assert sum(row[places[name]] == DAY.date() for name, rows in found.items() for row in rows) > 100_000
    return found


@pytest.mark.parametrize("name", BUILDS)
def test_a_day_of_over_100_000_rows_is_as_plain_python_has_it(
    spark: SparkSession, tmp_path: Path, inputs: Mapping[str, Sequence[Values]], name: str
) -> None:
    build = BUILDS[name]
    frames = {each: _stored(spark, tmp_path / f"{each}.parquet", each, inputs[each]) for each in build.inputs}
    made = collected(build.rows(frames))
    assert made == ORACLES[name](inputs)
    columns = [column.name for column in TABLES[name].columns]
    for column, counted in ADD_UP.get(name, {}).items():
        assert sum(row[columns.index(column)] * n for row, n in made.items()) == sum(
            len(inputs[each]) for each in counted
        )


def _stored(spark: SparkSession, file: Path, name: str, values: Sequence[Values]) -> DataFrame:
    pq.write_table(table(name, values), file, row_group_size=20_000)
    return spark.read.schema(TABLES[name].ddl).parquet(str(file))
