"""Property: whatever is committed in whatever order, the table is what a list of rows would be."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from restante.pipeline.lake import delta_log
from restante.pipeline.lake import table as lake_table
from restante.pipeline.lake.commit_info import Point
from restante.pipeline.lake.compact import compact
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.lake.vacuum import vacuum
from restante.pipeline.schemas import Table
from support.effort import examples
from support.pipeline.lakes import (
    LETTERS,
    MONTHLY_LETTERS,
    Row,
    add_foreign,
    contents,
    frame,
    held,
    info,
    letter,
    matches,
    opened,
    seen,
    stored,
)

DAYS = ["2026-10-31", "2026-11-01", "2026-11-03"]
SOURCES = ["a", "b.c"]
HOURS = [None, 0, 13]

rows = st.lists(
    st.builds(
        letter,
        st.integers(min_value=0, max_value=500),
        day=st.sampled_from(DAYS),
        source=st.sampled_from(SOURCES),
        hour=st.sampled_from(HOURS),
    ),
    max_size=6,
)

where = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "day": st.sets(st.sampled_from(DAYS)),
            "source": st.sets(st.sampled_from(SOURCES)),
            "hour": st.sets(st.sampled_from([None, "0", "13"])),
        },
    ),
)


class Commit(NamedTuple):
    """Rows to add, in one stage or several, and what they replace; before them, rows that another program adds."""

    stages: list[list[Row]]
    replace: dict[str, set[str | None]] | None
    keep: str | None
    compact: bool
    vacuum: bool
    foreign: list[Row]


commits = st.builds(
    Commit,
    st.lists(rows, max_size=2),
    where,
    st.sampled_from([None, None, *DAYS]),
    st.booleans(),
    st.booleans(),
    st.one_of(st.just([]), rows),
)


def order(found: list[Row]) -> list[Row]:
    return sorted(found, key=lambda row: (row["id"], row["day"], row["source"], str(row["hour"])))


@examples(15)
@given(st.lists(commits, min_size=1, max_size=4), st.sampled_from([LETTERS, MONTHLY_LETTERS]))
def test_any_sequence_of_commits_is_what_a_list_of_rows_would_be(made: list[Commit], table: Table) -> None:
    committed(made, table, held, contents)


@pytest.mark.thorough
@examples(2)
@given(st.lists(commits, min_size=1, max_size=4), st.sampled_from([LETTERS, MONTHLY_LETTERS]))
def test_any_sequence_of_commits_through_spark_is_what_a_list_of_rows_would_be(
    spark: SparkSession, made: list[Commit], table: Table
) -> None:
    committed(made, table, lambda stage, _: frame(spark, stage), lambda table: table.read(spark).toArrow())


def committed(
    made: list[Commit],
    letters: Table,
    staged: Callable[[list[Row], Table], DataFrame],
    read: Callable[[LakeTable], pa.Table],
) -> None:
    """Do the commits to a table and to a list of rows, and hold them against each other after each."""
    model: list[Row] = []
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 2)
        patch.setattr(delta_log, "LOG_RETENTION_SECONDS", float("-inf"))  # no entry is kept that is not needed
        lake, version = Path(folder), -1
        touched: list[set[str]] = []
        points: list[Point | None] = []
        kept = ""
        for commit in made:
            added = [row for stage in commit.stages for row in stage]
            with opened(lake, letters) as table:
                if commit.foreign and points:
                    add_foreign(lake, commit.foreign, letters)
                    model = model + commit.foreign
                    version += 1
                    touched.append({str(row["day"]) for row in commit.foreign})
                    points.append(seen(lake, letters).point)
                gone = [] if commit.replace is None else [row for row in model if matches(row, commit.replace)]
                days = {str(row["day"]) for row in (*gone, *added)}
                model = [row for row in model if row not in gone]
                model = model + added
                stages = [table.stage(staged(stage, letters)) for stage in commit.stages]
                version += 1
                assert table.commit(stages, info=info(), replace=commit.replace) == version
                touched.append(days)
                points.append(table.point)
                if commit.keep:
                    old = [row for row in model if str(row["day"]) < commit.keep]
                    assert table.keep(commit.keep, info()) == len(old)
                    model = [row for row in model if str(row["day"]) >= commit.keep]
                    if old:
                        version += 1
                        touched.append(set())
                        points.append(table.point)
                        last = max(row["day"] for row in old)
                        kept = max(kept, str(last + timedelta(1)))
                if commit.compact and compact(table, "compact", lambda: 2e9):
                    version += 1
                    touched.append(set())
                    points.append(table.point)
                if commit.vacuum:
                    vacuum(table, grace=0, now=4e9)
                assert order(read(table).to_pylist()) == order(model)
                assert table.version == version
                for number, point in enumerate(points):
                    later = set().union(*touched[number + 1 :])
                    assert table.state.days(number) == {day for day in later if day >= kept}
                    assert point is not None
                    assert table.follows(point)
                assert (table.state.kept or "") == kept
                assert table.state.days() == {day for day in set().union(*touched) if day >= kept}
            assert order(stored(lake, table=letters)) == order(model)
