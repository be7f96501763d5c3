"""Usage records through Spark: the same rows as without, in as many tasks as there are rows for."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.sources import usage_tasks
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.sources.rows import FAULT_COLUMNS, NUMBER_COLUMN, numbered
from restante.pipeline.sources.source import DUPLICATE, Part, Span
from restante.pipeline.sources.usage import OpenedUsage
from restante.pipeline.sources.usage_tasks import ROWS_PER_TASK, cut
from support.mailbox.reference_sources import Their
from support.pipeline.servers import CONTEXT, T0, TABLES, alter, client, current, drained, mailbox, nameplate, ours

ROWS = 2 * ROWS_PER_TASK + 50_000


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows as they would be without Spark, whose Python has times without a zone."""
    stamps = [field.name for field in frame.schema if field.dataType.typeName() == "timestamp"]
    found = frame.select("*", *(F.unix_micros(name).alias(f"{name}_micros") for name in stamps)).collect()
    return [plain(row.asDict(), stamps) for row in found]


def plain(row: dict[str, Any], stamps: list[str]) -> dict[str, Any]:
    for name in stamps:
        row[name] = row.pop(f"{name}_micros")
    return row


def micros(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value.timestamp() * 1_000_000) if name in {"started", "connect_time"} and value else value
        for name, value in row.items()
    }


def span_of(opened: OpenedUsage, table: str) -> Span:
    span = opened.find_new(table, {})
    assert span is not None
    return span


def test_spark_returns_the_rows_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    with ours(tmp_path / "data", nameplate(1), nameplate(2, started=1.0), mailbox(3), client(5)) as server:
        server.write(mailbox(4, result="scary"), current(60))
    with recognise(f"a={tmp_path / 'data'}").opened(tmp_path / "s", print, CONTEXT) as opened:
        assert isinstance(opened, OpenedUsage)
        for table in TABLES:
            span = span_of(opened, table)
            frame = opened.read(spark, span)
            wanted = (*CLEAN_TABLES[table].columns, *FAULT_COLUMNS, NUMBER_COLUMN)
            assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
                (column.name, column.type.lower()) for column in wanted
            ]
            found = collected(frame)
            numbers = [number for row in found if (number := row.pop(NUMBER_COLUMN.name)) is not None]
            assert numbers == list(range(1, len(numbers) + 1))
            assert found == [micros(row) for row in drained(opened, span)]
            assert len(numbers) == len([row for row in found if row["fault"] is not None])
            assert len(found) == span.counted
    assert found[0]["day"] == date(2023, 11, 14)


def test_spark_s_files_contain_nothing_that_is_not_for_the_lake(spark: SparkSession, tmp_path: Path) -> None:
    their = Their(tmp_path / "their")
    for number in range(3):
        their.bind("canary-side", T0)
        their.claim("canary-side", f"1{number}", T0)
        their.release("canary-side", f"1{number}", T0 + 1)
    alter(their.usage, "UPDATE nameplates SET result = 'canary' WHERE rowid = 1")
    with recognise(f"a={their.usage}").opened(tmp_path / "s", print, CONTEXT) as opened:
        assert isinstance(opened, OpenedUsage)
        for table in ("nameplates", "client_versions"):
            opened.read(spark, span_of(opened, table)).write.json(str(tmp_path / "written" / table))
    written = b"".join(file.read_bytes() for file in (tmp_path / "written").rglob("*") if file.is_file())
    assert b"unknown result" in written
    assert b"0.24.0" in written
    assert b"canary" not in written


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
            assert [row["id"] for row in drained(opened, span)] == [*range(3, 8), *range(13, 21)]


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


@pytest.mark.thorough
def test_many_rows_are_read_by_several_tasks_each_once(spark: SparkSession, tmp_path: Path) -> None:
    their = Their(tmp_path / "their")
    their.stop()
    alter(
        their.usage,
        f"""INSERT INTO client_versions
            WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {ROWS})
            SELECT 'app-' || (i % 7), 'canary-side', {T0} + i % 5000 / 8.0, 'python', '0.' || i FROM n""",
        "DELETE FROM client_versions WHERE rowid BETWEEN 1000 AND 100999",
    )
    with recognise(f"a={their.usage}").opened(tmp_path / "s", print, CONTEXT) as opened:
        assert isinstance(opened, OpenedUsage)
        span = span_of(opened, "client_versions")
        assert (span.counted, span.missed) == (ROWS - 100_000, 100_000)
        frame = opened.read(spark, span)
        counts = (
            frame.withColumn("task", F.spark_partition_id())
            .agg(
                F.count("*"),
                F.count_distinct("id"),
                F.min("id"),
                F.max("id"),
                F.count("fault"),
                F.count_distinct("task"),
            )
            .collect()
        )
    assert tuple(counts[0]) == (ROWS - 100_000, ROWS - 100_000, 1, ROWS, 0, 2)


def test_rejected_rows_are_numbered_across_the_batches_of_a_task() -> None:
    faults = [[None, "wrong type", DUPLICATE], [], ["out of range"], [DUPLICATE, None], ["wrong type", "wrong type"]]
    batches = [pa.record_batch({"fault": pa.array(each, pa.string())}) for each in faults]
    found = [batch.column(NUMBER_COLUMN.name).to_pylist() for batch in numbered(batches)]
    assert found == [[None, 1, None], [], [2], [None, None], [3, 4]]
