"""The same tables wherever they are built: here, on executors of their own, on a cluster, and over Spark Connect."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from restante.pipeline.build.sources import build_sources
from restante.pipeline.lake.commit_info import Ledger
from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.sources.scratch import scratch
from restante.pipeline.tables import BUILT_TABLES
from support.bounds import PATIENCE
from support.documents import Document
from support.pipeline.busy_week import TODAY, busy_week
from support.pipeline.clusters import Standalone, changed, cluster_environment, connect_server, standalone, worker
from support.pipeline.lakes import held
from support.pipeline.runs import LakeWorld, Row
from support.pipeline.servers import client, current, mailbox, nameplate, ours
from support.pipeline.tables import dicts
from support.processes import process_group
from support.waku.archives import ROWS

pytestmark = pytest.mark.thorough
"""In a quick run test_session.py shows what a master and a Connect server are asked for, and test_lake_writer.py that
Spark's own writer, which both go by, makes the same files."""

GUIDE = Document("docs/pipeline/operating.md")

NOW: Final = TODAY + timedelta(days=7)
"""When the rows of that world are past: days that are not over for anybody yet are not built."""


@pytest.fixture(scope="module")
def here(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> LakeWorld:
    """A lake with some of everything, not built yet."""
    world = LakeWorld(spark, tmp_path_factory.mktemp("masters"))
    with world.run() as run:
        for name, values in busy_week(Random(3), 100).items():
            if name in CLEAN_TABLES:
                table = run.lake.table(CLEAN_TABLES[name])
                parts = [table.stage(held(dicts(name, values[part::3]), table.table)) for part in range(3)]
                ledger = Ledger(read=len(values), clean=len(values))
                table.commit(parts, info=replace(world.info(name), source="main", ledger=ledger))
    return world


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and two workers on loopback."""
    with standalone(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def expected(here: LakeWorld, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """The built tables as the session of all tests makes them."""
    world = copied(here, tmp_path_factory.mktemp("here"))
    world.build()
    with world.run() as run:
        build_sources(run)
    return built(world)


def test_executors_of_their_own_build_the_same_tables(
    here: LakeWorld, expected: dict[str, list[Row]], tmp_path: Path
) -> None:
    world = copied(here, tmp_path)
    there(world, "build", "--master", "local-cluster[2,1,1024]")
    assert built(world) == expected


def test_a_cluster_that_the_guide_starts_builds_the_same_tables(
    cluster: Standalone, here: LakeWorld, expected: dict[str, list[Row]], tmp_path: Path
) -> None:
    world = copied(here, tmp_path)
    as_in_the_guide(GUIDE.blocks["cluster"], world, **{"spark://10.0.0.1:7077": cluster.master})
    assert built(world) == expected


def test_a_connect_server_of_that_cluster_builds_the_same_tables(
    cluster: Standalone, here: LakeWorld, expected: dict[str, list[Row]], tmp_path: Path
) -> None:
    world = copied(here, tmp_path)
    with connect_server(cluster.master) as url:
        as_in_the_guide(GUIDE.blocks["remote"], world, **{"sc://10.0.0.1:15002": url})
    assert built(world) == expected


@pytest.mark.parametrize("where", ["a cluster", "Spark Connect"])
def test_a_run_reads_databases_here_and_files_there_and_builds_the_tables_there(
    spark: SparkSession, cluster: Standalone, tmp_path: Path, where: str
) -> None:
    world, same = (LakeWorld(spark, tmp_path / name) for name in ("there", "here"))
    for each in (world, same):
        each.folder.mkdir()
    same.now = time.time()
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.rlp").write_bytes(b"".join(each.raw for each in [*ROWS[:30], ROWS[0]]) + b"\xc1")
    (files / "b.rlp").write_bytes(b"".join(each.raw for each in ROWS[20:]))
    (tmp_path / "trace").write_text('{"connection": 1}\n')
    sources = [f"relay={tmp_path / 'a'}", f"waku={files}", f"trace={tmp_path / 'trace'}"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(ours(tmp_path / "a", nameplate(1), mailbox(2), client(3), current(None)))
        if where == "Spark Connect":
            python = {"PYSPARK_PYTHON": sys.executable}
            on = ("--remote", stack.enter_context(connect_server(**python)))
        else:
            on = ("--master", cluster.master)
        stack.enter_context(other_runs())
        said = there(world, "run", *(f"--source={each}" for each in sources), *on)
        same.ingest(*sources)
    steps = [line.partition(": ")[2] for line in said.splitlines()]
    begun = [step.partition(",")[0] for step in steps if step.startswith("Spark")]
    assert [each.partition(":")[0] for each in begun] == ["Spark on this machine", "Spark"]
    for table in ("nameplates", "mailboxes", "client_versions", "archived", "quarantine"):
        assert world.rows(table) == same.rows(table) != [], table
    assert sorted((row["kind"], row["ended"]) for row in world.rows("outcomes")) == [("claimed", 1), ("nameplate", 1)]
    assert {row["version"] for row in world.rows("versions")} == {None, "0.24.0"}


def test_a_worker_that_is_killed_in_the_middle_of_a_run_changes_no_table(
    cluster: Standalone, here: LakeWorld, expected: dict[str, list[Row]], tmp_path: Path
) -> None:
    world = copied(here, tmp_path)
    with worker(cluster.master, tmp_path / "worker") as third:
        third.says("Successfully registered with master")
        with building(world, cluster.master) as build:
            third.says("Asked to launch executor")
            until(lambda: writing(world))
            third.kill()
            assert build.poll() is None
            said = build.communicate(timeout=PATIENCE)[1]
    if build.returncode:  # Spark gives up on a task that failed four times; this one may have had bad luck
        assert said.splitlines()[-1].startswith("restante: ")
        there(world, "build", "--master", cluster.master)
    assert built(world) == expected


def test_after_the_driver_is_killed_in_the_middle_of_a_run_the_next_one_completes_the_tables(
    cluster: Standalone, here: LakeWorld, expected: dict[str, list[Row]], tmp_path: Path
) -> None:
    world = copied(here, tmp_path)
    with building(world, cluster.master) as build:
        until(lambda: writing(world))
        build.kill()
        assert build.wait() == -signal.SIGKILL
        there(world, "build", "--master", cluster.master)
    assert built(world) == expected


@contextmanager
def building(world: LakeWorld, master: str) -> Iterator[subprocess.Popen[str]]:
    """Build the tables on a cluster."""
    command = [sys.executable, "-m", "restante", "pipeline", "build", "--lake", str(world.path), "--master", master]
    with process_group(command, env=cluster_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process


def writing(world: LakeWorld) -> bool:
    """Return whether tasks of a job are writing files."""
    return any(world.path.glob("*/run-*/_temporary/0/_temporary/*"))


def until(happened: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def other_runs() -> Iterator[None]:
    """Let other runs begin and end meanwhile, which remove the folders that no run uses."""
    done = threading.Event()

    def begin_and_end() -> None:
        while not done.wait(0.05):
            with scratch():
                pass

    others = threading.Thread(target=begin_and_end)
    others.start()
    try:
        yield
    finally:
        done.set()
        others.join()


def copied(world: LakeWorld, folder: Path) -> LakeWorld:
    shutil.copytree(world.path, folder / "lake")
    copy = LakeWorld(world.spark(), folder)
    copy.now = NOW.timestamp()
    return copy


def built(world: LakeWorld) -> dict[str, list[Row]]:
    found = {name: world.rows(name) for name in BUILT_TABLES}
    assert all(found.values()), "a table without rows shows nothing"
    return found


def there(world: LakeWorld, command: str, *where: str) -> str:
    """Run a command of the pipeline in its own process; give what it wrote to standard error."""
    done = finished([sys.executable, "-m", "restante", "pipeline", command, "--lake", str(world.path), *where])
    assert done.returncode == 0, done.stderr
    return done.stderr


def finished(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        command, env=cluster_environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def as_in_the_guide(commands: str, world: LakeWorld, **changes: str) -> None:
    """Run commands of the guide on a lake."""
    done = finished(["sh", "-e", "-c", changed(commands, {"/shared/lake": f"'{world.path}'"} | changes)])
    assert done.returncode == 0, done.stderr
