"""The same tables wherever they are built: here, on executors of their own, on a cluster, and over Spark Connect."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pytest
from pyarrow.fs import S3FileSystem, copy_files
from pyspark.sql import SparkSession

from pipeline.test_extracts import DAMAGE
from restante.pipeline.build.sources import build_sources
from restante.pipeline.lake.commit_info import Ledger
from restante.pipeline.lake.lake import Lake
from restante.pipeline.lake.url_path import UrlPath
from restante.pipeline.lake.vacuum import vacuum
from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.spark import java
from restante.pipeline.spark.session import HEARTBEAT_TIMEOUT, LOCAL_SETTINGS
from restante.pipeline.tables import BUILT_TABLES, TABLES
from support.bounds import PATIENCE, wait_until
from support.documents import Document
from support.pipeline.busy_week import TODAY, busy_week
from support.pipeline.extracts import files_of
from support.pipeline.relays import our_relay, transfer
from support.pipeline.runs import LakeWorld, Row, spark_command
from support.pipeline.servers import client, current, mailbox, nameplate, ours
from support.pipeline.sessions import environment
from support.pipeline.tables import dicts
from support.processes import called, kill_group, process_group, run
from support.s3 import connector_settings, s3_bucket, with_sdk
from support.tools import MissingError
from support.waku.archives import ROWS

pytestmark = pytest.mark.thorough
"""In a quick run test_session.py shows what a master and a Connect server are asked for, and test_lake_table.py that
Spark's own writer, which both go by, makes the same files."""

GUIDE = Document("docs/pipeline/clusters.md")

[CONNECTOR] = re.findall(r"--packages (\S+)", GUIDE.blocks["bucket"])
"""Hadoop's package for a bucket."""


def cluster_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a cluster's machine: all of them are this one. It has settings of Spark, too."""
    small = {"driver.memory": "1g", "executor.memory": "512m", "sql.shuffle.partitions": "4", "ui.enabled": "false"}
    return environment({f"spark.{name}": value for name, value in small.items()}) | {
        "JAVA_HOME": str(java.find_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_WEBUI_PORT": "0",
        "SPARK_WORKER_WEBUI_PORT": "0",
        **variables,
    }


class Daemon(NamedTuple):
    process: subprocess.Popen[str]
    output: Path

    def says(self, pattern: str) -> re.Match[str]:
        end = time.monotonic() + PATIENCE
        while not (match := re.search(pattern, self.output.read_text())):
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < end, self.output.read_text()
            time.sleep(0.05)
        return match


@contextmanager
def daemon(commands: str, **variables: str) -> Iterator[Daemon]:
    """Run commands that start a process of Spark. An error of the block is followed by what the process said."""
    environ = cluster_environment(**variables)
    with (
        tempfile.NamedTemporaryFile() as output,
        process_group(["sh", "-e", "-c", commands], env=environ, stdout=output, stderr=output) as process,
    ):
        started = Daemon(process, Path(output.name))
        try:
            yield started
        except BaseException as error:
            lines = started.output.read_text().splitlines()
            telling = [line for line in lines if re.search("WARN|ERROR|Exception|SparkContext", line)]
            error.add_note("\n".join([commands, *telling[-100:], "The end of its output:", *lines[-100:]]))
            raise


def changed(block: str, changes: Mapping[str, str]) -> str:
    """Return a block of the guide with other values in place of its own, and with our programs."""
    for old, new in changes.items():
        assert old in block, f"{old} is not in {block}"
        block = block.replace(old, new)
    return block.replace(".venv/bin/python", sys.executable).replace("./run", f"{sys.executable} -m restante")


@contextmanager
def worker(master: str, work: Path, address: str = "127.0.0.1") -> Iterator[Daemon]:
    changes = {
        "spark://10.0.0.1:7077": master,
        "10.0.0.2": address,
        "--cores 4": "--cores 1",
        "--memory 4g": "--memory 1g",
        "/var/tmp/spark": str(work),
    }
    with daemon(changed(GUIDE.blocks["worker"], changes)) as started:
        yield started


@contextmanager
def connect_server(**variables: str) -> Iterator[str]:
    patient = f"{HEARTBEAT_TIMEOUT}={LOCAL_SETTINGS[HEARTBEAT_TIMEOUT]}"
    changes = {"spark://10.0.0.1:7077": f"'local[2]' --conf {patient}", "10.0.0.1": "127.0.0.1", "15002": "0"}
    with daemon(changed(GUIDE.blocks["connect"], changes), **variables) as server:
        port = server.says(r"Spark Connect server started at: \S+:(\d+)")[1]
        yield f"sc://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def here(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> LakeWorld:
    """A lake with some of everything, not built yet, and each table in three files."""
    world = LakeWorld(spark, tmp_path_factory.mktemp("masters"))
    week = busy_week(Random(3), 100)
    for name in CLEAN_TABLES:
        values = week.get(name, ())
        for part in range(3):
            rows = dicts(name, values[part::3])
            world.add(name, rows, source="main", ledger=Ledger(read=len(rows), clean=len(rows)))
    return world


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    work = tmp_path_factory.mktemp("cluster")
    with daemon(changed(GUIDE.blocks["master"], {"10.0.0.1": "127.0.0.1", "7077": "0"})) as started:
        url = started.says(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")[1]
        with worker(url, work / "one") as first_worker, worker(url, work / "other", "127.0.0.2") as other:
            for begun in (first_worker, other):
                begun.says("Successfully registered with master")
            yield url


@pytest.fixture(scope="module")
def expected(here: LakeWorld, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    world = copied(here, tmp_path_factory.mktemp("here"))
    world.build()
    with world.run() as run:
        build_sources(run)
    tables = built(world)
    assert tables.keys() == BUILT_TABLES.keys(), "a table without rows shows nothing"
    return tables


def test_spark_connect_builds_equal_tables(here: LakeWorld, expected: dict[str, list[Row]], tmp_path: Path) -> None:
    world = copied(here, tmp_path)
    with connect_server() as url:
        as_in_the_guide("remote", world, {"sc://10.0.0.1:15002": url})
    assert built(world) == expected


def test_the_next_run_completes_what_a_killed_driver_left(
    master: str, here: LakeWorld, expected: dict[str, list[Row]], tmp_path: Path
) -> None:
    world = copied(here, tmp_path)
    with running(world, "build", "--master", master) as build:
        until_written(world)
        build.kill()
        assert build.wait() == -signal.SIGKILL
        as_in_the_guide("cluster", world, {"spark://10.0.0.1:7077": master})
    assert built(world) == expected


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, str]]:
    """An S3 server with this bucket, and the variables that name it, which are set."""
    (tmp_path / "conf").mkdir()
    with ExitStack() as stack:
        try:
            variables = stack.enter_context(s3_bucket("bucket"))
        except MissingError as missing:
            pytest.skip(str(missing))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield variables


def file_system(variables: Mapping[str, str]) -> S3FileSystem:
    return S3FileSystem(
        endpoint_override=variables["AWS_ENDPOINT_URL"].removeprefix("http://"),
        scheme="http",
        region=variables["AWS_REGION"],
        access_key=variables["AWS_ACCESS_KEY_ID"],
        secret_key=variables["AWS_SECRET_ACCESS_KEY"],
    )


def test_a_lake_is_moved_to_a_bucket_built_there_after_a_kill_and_moved_back(
    here: LakeWorld, expected: dict[str, list[Row]], tmp_path: Path, bucket: Mapping[str, str]
) -> None:
    url, store = "s3://bucket/lake", file_system(bucket)
    copy_files(str(here.path), "bucket/lake", destination_filesystem=store)
    lacking = run(*command(here, "build")[:-1], url, variables=cluster_environment(), bound=PATIENCE)
    assert "Spark has no connector for the URL of the lake or of the extracts " in lacking.stderr
    assert f": add --packages {CONNECTOR}, or give" in lacking.stderr, "the guide names another version"

    line = changed(GUIDE.blocks["bucket"], {url: url, CONNECTOR: with_sdk(CONNECTOR)})
    environ = cluster_environment(**connector_settings(tmp_path / "conf"))
    with process_group(["sh", "-e", "-c", f"exec {line}"], env=environ, stderr=subprocess.PIPE) as build:
        wait_until(lambda: build.poll() is not None or any("/run=" in str(file) for file in UrlPath(url).files()))
        kill_group(build)
        output = build.communicate()[1]
    if "unresolved dependency" in output:
        pytest.skip(f"Spark does not reach a repository of Maven, which it needs once: {output}")
    line = f"{line.rstrip()} --master 'local-cluster[2,1,1024]'"
    output += finished(["sh", "-e", "-c", line], **connector_settings(tmp_path / "conf"))
    with Lake.open(url, write=True) as lake:
        tables = [lake.table(table) for table in TABLES.values()]
        for table in tables:
            vacuum(table, grace=86400, now=time.time() + 2 * 86400)
        kept = {str(file.path) for table in tables for file in table.files()}
    files = {str(file) for file in UrlPath(url).files()}
    assert {file for file in files if "/_delta_log/" not in file} == {*kept, f"{url}/lake.json"}
    copy_files("bucket/lake", str(tmp_path / "lake"), source_filesystem=store)
    world = LakeWorld(here.spark(), tmp_path)
    assert built(world) == expected
    assert all("canary" not in text for text in (output, world.bytes().decode(errors="replace")))


def test_extracts_in_a_bucket_give_the_tables_and_the_errors_of_a_folder(
    spark: SparkSession, tmp_path: Path, bucket: Mapping[str, str]
) -> None:
    folder, url, sources = tmp_path / "extracts", "s3://bucket/hosts", ("mailbox", "cut", "newer", "relay")
    our_relay(tmp_path / "relay", transfer(1), transfer(2))
    with ExitStack() as stack:
        stack.enter_context(ours(tmp_path / "mailbox", nameplate(1), mailbox(2), client(3), current(None)))
        for name in ("cut", "newer"):
            stack.enter_context(ours(tmp_path / name, nameplate(1)))
        texts = []
        for target in (str(folder), url):
            done = called("extract", *(f"--source={name}={tmp_path / name}" for name in sources), "--output", target)
            assert done.returncode == 0, done.stderr
            texts.append(done.stdout)
        assert texts[0] == texts[1] != ""
        for name, damage in (("cut", DAMAGE["truncated"][0]), ("newer", DAMAGE["newer"][0])):
            [file] = files_of(folder, name)
            damage(folder / file.path)
            [path] = (UrlPath(url) / name).files()
            path.write_bytes((folder / file.path).read_bytes())
        here, there, connected = (tmp_path / name for name in ("here", "there", "connected"))
        missing_bucket = spark_command(spark, "ingest", "--lake", there, "--extracts", "s3://none/hosts", ends=1)
        assert "--extracts s3://none/hosts: there is no such folder: name the one with" in missing_bucket.stderr
        expected = spark_command(spark, "ingest", "--lake", here, "--extracts", folder, ends=1)
        [line] = GUIDE.lines("extracts")
        line = changed(line, {"run --extracts": f"ingest --lake {there} --extracts"})
        lacking = run(*shlex.split(line.partition("--packages")[0]), variables=cluster_environment(), bound=PATIENCE)
        assert "Spark has no connector for the URL of the lake or of the extracts " in lacking.stderr
        variables = connector_settings(tmp_path / "conf")
        settings = cluster_environment(**variables)
        done = run(*shlex.split(line.replace(CONNECTOR, with_sdk(CONNECTOR))), variables=settings, bound=PATIENCE)
        if "unresolved dependency" in done.stderr:
            pytest.skip(f"Spark does not reach a repository of Maven, which it needs once: {done.stderr}")
        with (tmp_path / "conf" / "spark-defaults.conf").open("a") as defaults:
            defaults.write(f"spark.jars.packages {with_sdk(CONNECTOR)}\n")
        with connect_server(**variables, **bucket) as remote:
            line = line.partition("--packages")[0].replace(str(there), str(connected))
            by_connect = run(*shlex.split(line), "--remote", remote, variables=settings, bound=PATIENCE)

    def errors(output: str) -> list[str]:
        lines = re.sub(r"\d{8}T\d{6}Z", "GENERATION", output).splitlines()
        return [line for line in lines if line.startswith("restante: ")]

    assert len(errors(expected.stderr)) == 2
    for program in (done, by_connect):
        assert errors(program.stderr.replace(url, str(folder))) == errors(expected.stderr)
    lakes = [LakeWorld(spark, path) for path in (here, there, connected)]
    for world in lakes:
        world.path = world.folder
    for table in CLEAN_TABLES:
        assert lakes[0].rows(table) == lakes[1].rows(table) == lakes[2].rows(table), table
    assert len(lakes[1].rows("nameplates")) == 1
    assert len(lakes[1].rows("relay_transfers")) == 2
    assert all("canary" not in text for text in (done.stderr, lakes[1].bytes().decode(errors="replace")))


def test_a_failed_task_and_expired_credentials_lose_and_double_no_row_in_a_bucket(
    here: LakeWorld, expected: dict[str, list[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors write. One is refused when its file gets its place; later all are, when the next table is written."""
    world = copied(here, tmp_path, "nameplates", "mailboxes", "client_versions", "live")
    (tmp_path / "conf").mkdir()
    settings = connector_settings(tmp_path / "conf")
    with ExitStack() as stack:
        try:
            options = {"fails": r"PUT .*/run=[^/]*/month=.*\.parquet", "expires": "PUT .*/guesses/run=.*/_temporary/"}
            variables = stack.enter_context(s3_bucket("bucket", **options))
        except MissingError as missing:
            pytest.skip(str(missing))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        copy_files(str(world.path), "bucket/lake", destination_filesystem=file_system(variables))
        monkeypatch.setattr(world, "path", "s3://bucket/lake")
        line = command(world, "build", "--master", "local-cluster[2,1,1024]", "--packages", with_sdk(CONNECTOR))
        refused = run(*line, variables=cluster_environment(**settings), bound=PATIENCE)
        if "unresolved dependency" in refused.stderr:
            pytest.skip(f"Spark does not reach a repository of Maven, which it needs once: {refused.stderr}")
        sentence = "restante: the store of s3://bucket/lake refused the credentials ("
        assert (refused.returncode, refused.stderr.splitlines()[-1][: len(sentence)]) == (1, sentence)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
        finished(line, **settings)
        store = file_system(variables | {"AWS_ACCESS_KEY_ID": "another"})
        copy_files("bucket/lake", str(tmp_path / "back"), source_filesystem=store)
    monkeypatch.setattr(world, "path", tmp_path / "back")
    tables = built(world)
    assert len(tables) > 5
    assert all(rows == expected[name] for name, rows in tables.items() if name != "sources")


def test_the_sources_of_a_run_on_a_connect_server_are_read_here(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.rlp").write_bytes(b"".join(row.raw for row in [*ROWS[:30], ROWS[0]]) + b"\xc1")
    (tmp_path / "files" / "b.rlp").write_bytes(b"".join(row.raw for row in ROWS[20:]))
    (tmp_path / "trace").write_text('{"connection": 1}\n')
    sources = [
        f"{name}={tmp_path / path}" for name, path in (("mailbox", "a"), ("waku", "files"), ("trace", "trace"))
    ]
    world, same = (LakeWorld(spark, tmp_path / name) for name in ("there", "here"))
    world.folder.mkdir()
    same.folder.mkdir()
    same.now = time.time()
    with (
        ours(tmp_path / "a", nameplate(1), mailbox(2), client(3), current(None)),
        connect_server() as url,
    ):
        output = finished(command(world, "run", *(f"--source={source}" for source in sources), "--remote", url))
        same.ingest(*sources)
    begun = re.findall("^run: (Spark.*?):", output, re.MULTILINE)
    assert begun == ["Spark on this machine", "Spark"]
    for table in ("nameplates", "mailboxes", "client_versions", "archived", "quarantine"):
        assert world.rows(table) == same.rows(table) != [], table
    assert sorted((row["kind"], row["ended"]) for row in world.rows("outcomes")) == [("claimed", 1), ("nameplate", 1)]
    assert {row["version"] for row in world.rows("versions")} == {None, "0.24.0"}


def test_a_killed_worker_loses_and_doubles_no_row(
    master: str, here: LakeWorld, expected: dict[str, list[Row]], tmp_path: Path
) -> None:
    world = copied(here, tmp_path, "nameplates", "mailboxes", "client_versions", "live")
    with worker(master, tmp_path / "worker") as third:
        third.says("Successfully registered with master")
        with running(world, "build", "--master", master) as build:
            third.says("Asked to launch executor")
            until_written(world)
            kill_group(third.process)  # as if its machine had failed
            assert build.poll() is None
            output = build.communicate(timeout=PATIENCE)[1]
    if build.returncode:  # Spark gives up on a task that failed four times; this one may have had bad luck
        assert output.splitlines()[-1].startswith("restante: ")
        finished(command(world, "build", "--master", master))
    tables = built(world)
    assert len(tables) > 5
    assert all(rows == expected[name] for name, rows in tables.items() if name != "sources")


COMMITTER: Final = """
import java.io.File;
import java.io.IOException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.TaskAttemptContext;

/** Calls for each attempt at a task before it creates a file, and for each job when it ends. */
public class Committer extends org.apache.parquet.hadoop.ParquetOutputCommitter {
    private final Path output;
    private final File marks;
    private boolean slow;

    public Committer(Path output, TaskAttemptContext context) throws IOException {
        super(output, context);
        this.output = output;
        marks = new File(context.getConfiguration().get("marks"));
    }

    private boolean writes(String table) {
        return output.getParent().getName().equals(table);
    }

    /** The first attempt at a task of one table fails. That of another table is slow: its job ends without it. */
    public Path getWorkPath() throws IOException {
        if (writes("durations") && mark("failed")) throw new IOException("an attempt that fails");
        if (writes("outcomes") && mark("slow")) {
            slow = true;
            boolean killed = false;
            while (!killed || !has("ended")) killed |= interrupted();
        }
        return super.getWorkPath();
    }

    /** What the slow attempt has written stays, as if its machine had failed. */
    public void abortTask(TaskAttemptContext context) throws IOException {
        Path folder = super.getWorkPath();
        if (!slow) super.abortTask(context);
        else if (folder.getFileSystem(context.getConfiguration()).exists(folder)) mark("written");
    }

    public void commitJob(JobContext context) throws IOException {
        super.commitJob(context);
        if (writes("outcomes") && has("slow")) {
            mark("ended");
            while (!has("written")) interrupted();
        }
    }

    private boolean mark(String name) throws IOException {
        return new File(marks, name).createNewFile();
    }

    private boolean has(String name) {
        return new File(marks, name).exists();
    }

    /** Waits for a moment. Spark interrupts an attempt when another one has succeeded. */
    private static boolean interrupted() {
        try {
            Thread.sleep(10);
            return false;
        } catch (InterruptedException e) {
            return true;
        }
    }
}
"""


def compiled(spark: SparkSession, source: str, folder: Path) -> None:
    """Compile a class of Java with the compiler of Spark's own, which needs no JDK."""
    java: Any = spark._jvm
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.Thread.currentThread().getContextClassLoader())
    compiler.cook(source)
    for name, code in compiler.getBytecodes().items():
        (folder / f"{name}.class").write_bytes(code)


@pytest.mark.parametrize("at_url", [False, True], ids=["folder", "bucket"])
def test_a_failed_attempt_and_one_that_writes_after_its_job_ended_double_no_row(
    spark: SparkSession,
    master: str,
    here: LakeWorld,
    expected: dict[str, list[Row]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    at_url: bool,
) -> None:
    """Spark makes another attempt at a failed and at a slow task, the second one with spark.speculation."""
    world = copied(here, tmp_path, "nameplates", "mailboxes", "client_versions", "live")
    store, line = None, ["build", "--master", master]
    variables = {"SPARK_CONF_DIR": str(tmp_path / "conf")}
    if at_url:
        store = file_system(request.getfixturevalue("bucket"))
        copy_files(str(world.path), "bucket/lake", destination_filesystem=store)
        monkeypatch.setattr(world, "path", "s3://bucket/lake")
        variables = connector_settings(tmp_path / "conf")
        line += ["--packages", with_sdk(CONNECTOR)]
    else:
        (tmp_path / "conf").mkdir()
    for folder in ("classes", "marks"):
        (tmp_path / folder).mkdir()
    compiled(spark, COMMITTER, tmp_path / "classes")
    settings = {
        "spark.speculation": "true",
        "spark.speculation.task.duration.threshold": "1s",  # of the only task of a stage
        "spark.driver.extraClassPath": str(tmp_path / "classes"),
        "spark.executor.extraClassPath": str(tmp_path / "classes"),
        "spark.hadoop.spark.sql.parquet.output.committer.class": "Committer",
        "spark.hadoop.marks": str(tmp_path / "marks"),
    }
    with (tmp_path / "conf" / "spark-defaults.conf").open("a") as defaults:
        defaults.writelines(f"{name} {value}\n" for name, value in settings.items())
    done = run(*command(world, *line), variables=cluster_environment(**variables), bound=PATIENCE)
    if "unresolved dependency" in done.stderr:
        pytest.skip(f"Spark does not reach a repository of Maven, which it needs once: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert {mark.name for mark in (tmp_path / "marks").iterdir()} == {"failed", "slow", "ended", "written"}
    if store:
        copy_files("bucket/lake", str(tmp_path / "back"), source_filesystem=store)
        monkeypatch.setattr(world, "path", tmp_path / "back")
    tables = built(world)
    assert len(tables) > 5
    assert all(rows == expected[name] for name, rows in tables.items() if name != "sources")


def command(world: LakeWorld, *args: str) -> list[str]:
    return [sys.executable, "-m", "restante", "pipeline", *args, "--lake", str(world.path)]


@contextmanager
def running(world: LakeWorld, *args: str) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with process_group(command(world, *args), env=cluster_environment(), **pipes) as process:
        yield process


def until_written(world: LakeWorld) -> None:
    wait_until(lambda: any(world.path.glob("*/run-*/_temporary/0/_temporary/*")))


def copied(world: LakeWorld, folder: Path, *tables: str) -> LakeWorld:
    shutil.copytree(world.path, folder / "lake")
    for table in (folder / "lake").iterdir():
        if tables and table.is_dir() and table.name not in tables:
            shutil.rmtree(table)
    copy = LakeWorld(world.spark(), folder)
    copy.now = (TODAY + timedelta(days=365)).timestamp()
    return copy


def built(world: LakeWorld) -> dict[str, list[Row]]:
    return {name: rows for name in BUILT_TABLES if (rows := world.rows(name))}


def finished(line: list[str], **variables: str) -> str:
    done = run(*line, variables=cluster_environment(**variables), bound=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stderr


def as_in_the_guide(block: str, world: LakeWorld, changes: Mapping[str, str]) -> None:
    finished(["sh", "-e", "-c", changed(GUIDE.blocks[block], {"/shared/lake": f"'{world.path}'", **changes})])
