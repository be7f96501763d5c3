"""Small jobs: what they are, and that they make the same tables as others."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from restante.common.errors import StoreError
from restante.pipeline.lake.writer import OpenFile
from restante.pipeline.spark import small_jobs
from restante.pipeline.spark.small_jobs import JobSize
from support.pipeline.runs import LakeWorld
from support.pipeline.servers import client, current, mailbox, nameplate, ours

USAGE = ("nameplates", "mailboxes", "client_versions", "quarantine")


ROWS, FILE_ROWS = small_jobs.MAX_SMALL_JOB_ROWS, small_jobs.MAX_SMALL_JOB_FILE_ROWS
BYTES = small_jobs.MAX_SMALL_JOB_FILE_BYTES


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
    plan = frame.groupBy("id").count()._jdf.queryExecution().executedPlan().toString()
    assert "WholeStageCodegen" not in plan
    assert "Exchange" not in plan
    assert small_jobs.one_task(spark.range(1000)).rdd.getNumPartitions() > 1


@pytest.mark.thorough
def test_small_jobs_make_the_tables_that_others_make(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Any] = [
        row for number in range(60) for row in (nameplate(number * 700), mailbox(number * 900), client(number * 800))
    ]
    rows += [nameplate(3, result="mooddy"), mailbox(4, started=-1.0)]  # of no known result; before the first day
    tables = []
    with ours(tmp_path / "relay", *rows, current(None)):
        for most in (small_jobs.MAX_SMALL_JOB_ROWS, -1):
            monkeypatch.setattr(small_jobs, "MAX_SMALL_JOB_ROWS", most)
            world = LakeWorld(spark, tmp_path / str(most))
            world.folder.mkdir()
            world.ingest(f"relay={tmp_path / 'relay'}")
            tables.append({name: world.rows(name) for name in (*USAGE, *world.build())})
    assert tables[0] == tables[1]
    assert [len(tables[0][name]) for name in USAGE] == [60, 60, 60, 2]
    assert tables[0]["versions"]


def test_a_disk_that_is_full_while_a_small_job_writes_is_one_sentence(
    world: LakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with ours(tmp_path / "relay", nameplate(1)):
        with monkeypatch.context() as patched:
            patched.setattr(OpenFile, "_write", full)
            with pytest.raises(
                StoreError, match=r"^cannot write to .*: No space left on device; these rows were not"
            ):
                world.ingest(f"relay={tmp_path / 'relay'}")
        world.ingest(f"relay={tmp_path / 'relay'}")
    assert len(world.rows("nameplates")) == 1
