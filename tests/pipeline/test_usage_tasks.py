"""Usage records through Spark: the same rows as without, in as many tasks as there are rows for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.sources import usage_tasks
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.sources.rows import FAULT_COLUMNS, NUMBER_COLUMN, numbered
from restante.pipeline.sources.source import DUPLICATE, Part, Span
from restante.pipeline.sources.usage import OpenedUsage
from restante.pipeline.sources.usage_tasks import cut
from support.pipeline.servers import CONTEXT, T0, TABLES, alter, client, current, mailbox, nameplate, ours
from support.pipeline.source_reads import rows_of


def span_of(opened: OpenedUsage, table: str) -> Span:
    span = opened.find_new(table, {})
    assert span is not None
    return span


@pytest.mark.thorough
@pytest.mark.parametrize("table", TABLES)
def test_spark_returns_the_rows_unchanged(spark: SparkSession, tmp_path: Path, table: str) -> None:
    with ours(tmp_path / "data", nameplate(1), nameplate(2, started=1.0), mailbox(3), client(5)) as server:
        server.write(mailbox(4, result="scary"), current(60))
    with recognise(f"a={tmp_path / 'data'}").opened(tmp_path / "s", print, CONTEXT) as opened:
        assert isinstance(opened, OpenedUsage)
        span = span_of(opened, table)
        frame = opened.read(spark, span)
        columns = (*CLEAN_TABLES[table].columns, *FAULT_COLUMNS, NUMBER_COLUMN)
        assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
            (column.name, column.type.lower()) for column in columns
        ]
        rows = frame.toArrow().to_pylist()
        numbers = [row.pop(NUMBER_COLUMN.name) for row in rows]
        assert rows == rows_of(opened, span)
        assert len(rows) == span.counted
        assert [number for number in numbers if number is not None] == list(range(1, numbers.count(1) + 1))


@pytest.mark.thorough
def test_a_source_that_is_replaced_by_an_empty_one_has_no_rows_to_read(spark: SparkSession, tmp_path: Path) -> None:
    with ours(tmp_path / "one", nameplate(1)), ours(tmp_path / "two"):
        with recognise(f"a={tmp_path / 'one'}").opened(tmp_path / "s", print, CONTEXT) as opened:
            marks = span_of(opened, "nameplates").marks  # type: ignore[arg-type]
        with recognise(f"a={tmp_path / 'two'}").opened(tmp_path / "s", print, CONTEXT) as opened:
            span = opened.find_new("nameplates", marks)
            assert span
            assert (span.replace, span.counted) == (True, 0)
            assert opened.read(spark, span).count() == 0


def test_each_task_has_about_as_many_rows_wherever_ids_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ours(tmp_path / "data", *(nameplate(number) for number in range(20))) as server:
        server.forget(T0 + 2)
        alter(server.file, "DELETE FROM usage_nameplates WHERE id BETWEEN 8 AND 12")
        with recognise(f"a={tmp_path / 'data'}").opened(tmp_path / "s", print, CONTEXT) as opened:
            assert isinstance(opened, OpenedUsage)
            span = span_of(opened, "nameplates")
            assert [(task.first, task.last) for task in cut(opened.scan(span), span.parts)] == [(1, 20)]
            monkeypatch.setattr(usage_tasks, "ROWS_PER_TASK", 5)
            tasks = cut(opened.scan(span), span.parts)
            assert [(task.first, task.last) for task in tasks] == [(1, 12), (13, 17), (18, 20)]
            assert [row["id"] for row in rows_of(opened, span)] == [*range(3, 8), *range(13, 21)]


def test_tasks_run_in_parallel_and_each_once(spark: SparkSession, tmp_path: Path) -> None:
    with (
        ours(tmp_path / "data", *(nameplate(number) for number in range(20))),
        recognise(f"a={tmp_path / 'data'}").opened(tmp_path / "s", print, CONTEXT) as opened,
    ):
        assert isinstance(opened, OpenedUsage)
        parts = (Part("", 1, 7), Part("", 8, 17), Part("", 18, 20))
        frame = opened.read(spark, span_of(opened, "nameplates")._replace(parts=parts))
        found = frame.select("id", F.spark_partition_id().alias("task")).collect()
    assert sorted(tuple(row) for row in found) == [(id_, (id_ > 7) + (id_ > 17)) for id_ in range(1, 21)]


def test_rejected_rows_are_numbered_across_the_batches_of_a_task() -> None:
    faults = [[None, "wrong type", DUPLICATE], [], ["out of range"], [DUPLICATE, None], ["wrong type", "wrong type"]]
    batches = [pa.record_batch({"fault": pa.array(each, pa.string())}) for each in faults]
    found = [batch.column(NUMBER_COLUMN.name).to_pylist() for batch in numbered(batches)]
    assert found == [[None, 1, None], [], [2], [None, None], [3, 4]]
