"""Small jobs and large ones: which a run has, and that small ones make the same tables as others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from restante.pipeline.build.run import build_tables
from restante.pipeline.build.sources import build_sources
from restante.pipeline.ingest import Run, ingest
from restante.pipeline.lake.commit_info import Ledger
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.spark import small_jobs
from restante.pipeline.spark.small_jobs import JobSize
from restante.pipeline.tables import BUILDS
from support.pipeline.runs import LakeWorld
from support.pipeline.servers import nameplate, ours
from support.waku.archives import ROWS as ENVELOPES
from support.waku.archives import archive_of
from support.waku.envelopes import T0 as SENT

ROWS, FILE_ROWS = small_jobs.MAX_SMALL_JOB_ROWS, small_jobs.MAX_SMALL_JOB_FILE_ROWS
BYTES = small_jobs.MAX_SMALL_JOB_FILE_BYTES
FIRST, SECOND = "2023-11-12", "2023-11-13"


def test_a_job_is_small_up_to_a_number_of_rows_and_a_size_of_files(spark: SparkSession) -> None:
    small = small_jobs.session_for(spark, JobSize(ROWS, FILE_ROWS, BYTES))
    assert small is not spark
    assert small_jobs.is_small(small)
    assert not small_jobs.is_small(spark)
    assert small_jobs.session_for(spark, JobSize(0)) is small
    for more in (JobSize(ROWS + 1), JobSize(ROWS, FILE_ROWS + 1), JobSize(ROWS, FILE_ROWS, BYTES + 1)):
        assert not more.small
        assert small_jobs.session_for(spark, more) is spark


def test_a_small_job_is_one_task_without_generated_code(spark: SparkSession) -> None:
    small = small_jobs.session_for(spark, JobSize(0))
    frame = small_jobs.one_task(small.range(1000))
    assert frame.rdd.getNumPartitions() == 1
    plan = frame.groupBy("id").count()._jdf.queryExecution().executedPlan().toString()  # explain() only prints
    assert "WholeStageCodegen" not in plan
    assert "Exchange" not in plan
    assert small_jobs.one_task(spark.range(1000)).rdd.getNumPartitions() > 1


@pytest.fixture
def lake(tmp_path: Path) -> LakeWorld:
    world = LakeWorld(None, tmp_path)
    world.now = SENT + 86_400.0
    return world


def limits(*, rows: int = 100, file_rows: int = 100, size: int = 1 << 30) -> Any:
    return patch.multiple(
        small_jobs, MAX_SMALL_JOB_ROWS=rows, MAX_SMALL_JOB_FILE_ROWS=file_rows, MAX_SMALL_JOB_FILE_BYTES=size
    )


def is_large(lake: LakeWorld, work: Callable[[Run], object], **of_small_jobs: int) -> bool:
    asked: list[str] = []
    spark = pytest.raises(pytest.fail.Exception, match="Spark was asked for")
    with limits(**of_small_jobs), lake.run() as run, spark:
        work(run._replace(large_jobs=lambda: asked.append("large")))
    assert asked in ([], ["large"])
    return bool(asked)


def ingests(spec: str) -> Callable[[Run], object]:
    return lambda run: ingest(run, [recognise(spec)])


def builds(*names: str) -> Callable[[Run], object]:
    return lambda run: build_tables(run, builds={name: BUILDS[name] for name in names})


def add(lake: LakeWorld, *days: str, source: str = "mailbox") -> None:
    ledger = Ledger(read=len(days), clean=len(days))
    records = ({"started": f"{day}T12:00:00", "source": source} for day in days)
    lake.write("nameplates", *records, source=source, ledger=ledger)


def test_usage_records_are_a_large_job_if_there_are_many(lake: LakeWorld, tmp_path: Path) -> None:
    with ours(tmp_path / "mailbox", nameplate(1), nameplate(2)):
        work = ingests(f"mailbox={tmp_path / 'mailbox'}")
        assert not is_large(lake, work, rows=2, size=0)
        assert is_large(lake, work, rows=1)


@pytest.mark.parametrize("kind", ["archive", "files"])
def test_envelopes_are_a_large_job_if_they_have_many_bytes(lake: LakeWorld, tmp_path: Path, kind: str) -> None:
    content = b"".join(envelope.raw for envelope in ENVELOPES)
    (tmp_path / "x.rlp").write_bytes(content)
    work = ingests(f"waku={archive_of(tmp_path / 'data') if kind == 'archive' else tmp_path / 'x.rlp'}")
    assert not is_large(lake, work, size=2 * len(content))
    assert is_large(lake, work, size=len(content) // 2)


def test_a_job_is_large_if_it_reads_many_rows_or_opens_a_large_file(lake: LakeWorld) -> None:
    add(lake, FIRST, FIRST)
    assert not is_large(lake, builds("outcomes"), rows=2, file_rows=2)
    assert is_large(lake, builds("outcomes"), rows=1)
    add(lake, SECOND)
    [merged] = lake.merge("nameplates")
    assert not is_large(lake, builds("outcomes"), rows=3, file_rows=3, size=merged.size)
    assert is_large(lake, builds("outcomes"), rows=3, file_rows=2)
    assert is_large(lake, builds("outcomes"), rows=3, size=merged.size - 1)


def test_rows_of_a_table_that_is_built_first_are_estimated(lake: LakeWorld) -> None:
    """Ten events are at most thirty rows of `timing`."""
    lake.now = SENT + 10_000 * 86_400
    lake.write("client_events", {"_times": 10})
    assert not is_large(lake, builds("timing"), rows=29)
    assert is_large(lake, builds("timing", "times"), rows=29)
    assert not is_large(lake, builds("timing", "times"), rows=30)


def test_the_table_of_sources_is_a_large_job_if_the_latest_days_have_many_rows(lake: LakeWorld) -> None:
    """Of three sources, three rows are of the last day, and four of the one before."""
    add(lake, *[FIRST] * 4)
    add(lake, SECOND, SECOND)
    add(lake, SECOND, source="other")
    [merged] = lake.merge("nameplates")
    for more in ({}, {"rows": 2}, {"file_rows": 6}, {"size": merged.size - 1}):
        of_small_jobs = {"rows": 3, "file_rows": 7, "size": merged.size} | more
        assert is_large(lake, build_sources, **of_small_jobs) is bool(more), "of the day before no row is read"
