"""The same tables wherever they are built: here, on executors of their own, and over Spark Connect."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final

import pyspark
import pytest
from pyspark.sql import SparkSession

from restante.pipeline import jvm
from restante.pipeline.schemas import CLEAN
from restante.pipeline.tables import BUILDS

from .runs import ENVIRONMENT, Row, World
from .tables import frame
from .world import DAY
from .world import world as rows

NOW: Final = DAY + timedelta(days=7)
"""When the rows of that world are past: days that are not over for anybody yet are not built."""

PATIENCE: Final = 600.0
"""Seconds for what takes twenty on a quiet machine."""


@pytest.fixture(scope="module")
def here(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A lake with some of everything, not built yet."""
    world = World(spark, tmp_path_factory.mktemp("masters"))
    with world.run() as run:
        for name, values in rows(Random(3), 100).items():
            if name in CLEAN:
                table = run.lake.table(CLEAN[name])
                staged = table.stage(frame(spark, name, values).repartition(3))
                table.commit([staged], note=world.note(name))
    return world


@pytest.fixture(scope="module")
def expected(here: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """The built tables as the session of all tests makes them."""
    world = copied(here, tmp_path_factory.mktemp("here"))
    world.build()
    return built(world)


def test_executors_of_their_own_build_the_same_tables(
    here: World, expected: dict[str, list[Row]], tmp_path: Path
) -> None:
    world = copied(here, tmp_path)
    build(world, "--master", "local-cluster[2,1,1024]")
    assert built(world) == expected


def test_spark_connect_builds_the_same_tables(here: World, expected: dict[str, list[Row]], tmp_path: Path) -> None:
    world = copied(here, tmp_path)
    with connect_server(tmp_path) as port:
        build(world, "--remote", f"sc://127.0.0.1:{port}")
    assert built(world) == expected


def copied(world: World, folder: Path) -> World:
    shutil.copytree(world.path, folder / "lake")
    copy = World(world.spark(), folder)
    copy.now = NOW.timestamp()
    return copy


def built(world: World) -> dict[str, list[Row]]:
    found = {name: world.rows(name) for name in BUILDS}
    assert all(found.values()), "a table without rows shows nothing"
    return found


def build(world: World, *where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "restante", "pipeline", "build", "--lake", str(world.path), *where],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def connect_server(folder: Path) -> Iterator[int]:
    """Run a Spark Connect server with two cores; give its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    home = Path(pyspark.__file__).parent
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
    }
    confs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command = [
        *(str(home / "bin" / "spark-submit"), "--master", "local[2]", *confs),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
    ]
    environment = ENVIRONMENT | {"JAVA_HOME": str(jvm.home()), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "connect.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            end = time.monotonic() + PATIENCE
            while not answers(port):
                assert server.poll() is None, (folder / "connect.log").read_text()
                assert time.monotonic() < end, "it does not listen"
                time.sleep(0.1)
            yield port
        finally:
            server.kill()
            server.wait()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
