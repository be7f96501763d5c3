"""The guide's examples for schedulers: a day that is repeated has the same rows."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.bounds import PATIENCE
from support.documents import Document
from support.pipeline.runs import LakeWorld, command, spark_command
from support.pipeline.servers import client, current, mailbox, nameplate, ours
from support.pipeline.sessions import INTERPRETED, environment
from support.processes import run
from support.tools import MissingError, build, fetch, installed, uv

GUIDE = Document("docs/pipeline/operating.md")
[CRON] = GUIDE.lines("crontab")
DAG = GUIDE.blocks["restante.py"]
DAY = "2023-11-14"
"""The day of the rows of `nameplate` and others."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LakeWorld]:
    """Yield the world of the guide's lake, and of a server whose data the guide names."""
    with ours(tmp_path / "restante", nameplate(1), mailbox(2), client(3), current(None)):
        yield LakeWorld(None, tmp_path / "restante-pipeline")


def here(line: str, world: LakeWorld) -> str:
    return line.replace("/var/lib", str(world.folder.parent))


def arguments(line: str, world: LakeWorld) -> list[str]:
    return shlex.split(here(line, world).removeprefix("/opt/restante/bin/restante pipeline "))


def rows(world: LakeWorld) -> dict[str, list[dict[str, object]]]:
    return {name: world.rows(name) for name in ("outcomes", "durations", "pressure", "busy_hours", "versions")}


def test_a_repeated_run_and_days_that_are_built_again_have_the_same_rows(
    spark: SparkSession, first_lake: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """The lake is that of a first run, whose source has the same name."""
    world = LakeWorld(None, tmp_path / "restante-pipeline")
    shutil.copytree(first_lake[0] / "restante-lake", world.path)
    shutil.copytree(first_lake[0] / "restante-data", tmp_path / "restante")
    minute, hour, *every, line = CRON.split(maxsplit=5)
    assert (minute, hour, *every) == ("0", "4", "*", "*", "*")
    assert "%" not in line, "which cron would take for the end of a line"
    first = rows(world)
    assert all(first.values())
    assert "outcomes: 0 days built, 0 rows\n" in command(*arguments(line, world)).stdout
    assert rows(world) == first

    [line] = [
        ast.literal_eval(keyword.value)
        for node in ast.walk(ast.parse(DAG))
        for keyword in getattr(node, "keywords", ())
        if keyword.arg == "bash_command"
    ]
    line = line.replace("{{ data_interval_start | ds }}", DAY)
    outputs = [command(*arguments(line, world), "--lake", world.path).stdout for _ in range(2)]
    assert f"reports: {world.folder}/reports/{DAY}.html written\n" in outputs[0]
    assert "reports: nothing new\n" in outputs[1]
    assert rows(world) == first

    [again] = GUIDE.lines("again")
    built = spark_command(spark, *shlex.split(again.removeprefix("./run pipeline ")), "--lake", world.path)
    assert f"outcomes: 1 day built ({DAY} to {DAY}), 2 rows\n" in built.stdout
    assert rows(world) == first


AIRFLOW = ("--exclude-newer", "2026-11-20T00:00:00Z", "apache-airflow==3.3.2", "apache-airflow-providers-standard")


def install_airflow(new: Path) -> None:
    build(uv(), "venv", "--quiet", "--relocatable", "--python", sys.executable, new / "venv", cwd=new)
    python = new / "venv" / "bin" / "python"
    fetch("uv", uv(), "pip", "install", "--quiet", "--python", python, *AIRFLOW, cwd=new)


@pytest.mark.thorough
def test_airflow_runs_the_guides_dag_and_repeats_a_day(world: LakeWorld, tmp_path: Path) -> None:
    try:
        airflow = installed("airflow", " ".join([*AIRFLOW, sys.version]).encode(), install_airflow)
    except MissingError as missing:
        pytest.skip(str(missing))
    program = tmp_path / "restante-program"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m restante "$@"\n')
    program.chmod(0o755)
    dags = tmp_path / "dags"
    dags.mkdir()
    dag = here(DAG, world).replace("/opt/restante/bin/restante", str(program))
    dag = dag.replace("start_date=datetime(2026,", "start_date=datetime(2023,")  # a DAG has no task before it
    (dags / "restante.py").write_text(dag)
    variables = environment(INTERPRETED) | {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "XDG_CACHE_HOME": os.devnull,
    }
    python = airflow / "venv" / "bin" / "python"
    run(python, "-m", "airflow", "db", "migrate", variables=variables, bound=PATIENCE)
    built = []
    for _ in range(2):
        day_after = "2023-11-15T04:00:00+00:00"  # a day's run begins when its interval is over
        done = run(
            python, "-m", "airflow", "dags", "test", "restante", day_after, variables=variables, bound=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert (world.folder / "reports" / f"{DAY}.html").exists(), done.stdout + done.stderr
        built.append(rows(world))
    assert built[0] == built[1]
    assert all(built[0].values())
