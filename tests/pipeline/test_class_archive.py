"""The archive of Java's classes: where it is, when it is made, and that Java uses it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import pytest
from pyspark import SparkContext

from restante.cli import pipeline_run
from restante.common.errors import StoreError
from restante.common.lock_file import lock_file
from restante.pipeline.ingest import Run
from restante.pipeline.spark import class_archive, session
from support.bounds import PATIENCE
from support.pipeline.runs import LakeWorld
from support.pipeline.servers import current, mailbox, nameplate, ours
from support.pipeline.sessions import ENVIRONMENT

CLASSES = "java/lang/Object\njava/util/zip/GZIPInputStream\n"
GENERATED = (
    "java/lang/invoke/BoundMethodHandle$Species_LI\n@lambda-form-invoker [LF_RESOLVE] x invokeStatic L_V\n"
    "@lambda-form-invoker [SPECIES_RESOLVE] java.lang.invoke.BoundMethodHandle$Species_LI\n"
)


@pytest.fixture
def installed(tmp_path: Path) -> tuple[Path, Path]:
    """A JAVA_HOME and a SPARK_HOME."""
    home, spark = tmp_path / "java", tmp_path / "spark"
    (tmp_path / "list").write_text(CLASSES)
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="21.0.8"\n')
    (spark / "jars").mkdir(parents=True)
    return home, spark


def test_an_archive_belongs_to_one_java_and_one_spark_as_they_are_now(installed: tuple[Path, Path]) -> None:
    home, spark = installed
    cache = {"XDG_CACHE_HOME": "/cache"}
    first = class_archive.place(home, spark, cache)
    assert first.parent == Path("/cache/restante")
    assert class_archive.place(home, spark, cache) == first
    (home / "release").write_text('JAVA_VERSION="21.0.9"\n')
    newer = class_archive.place(home, spark, cache)
    os.utime(spark / "jars", (1, 1))
    newest = class_archive.place(home, spark, cache)
    assert len({first, newer, newest}) == 3
    assert len({each.name.rpartition("-")[0] for each in (first, newer, newest)}) == 1, "one replaces the other"
    assert class_archive.place(home, spark / "jars", cache).name.rpartition("-")[0] != first.name.rpartition("-")[0]


def test_java_lists_its_classes_only_while_there_is_no_archive_and_one_can_be_written(tmp_path: Path) -> None:
    archive = tmp_path / "missing" / "cache" / "classes-a-b.jsa"
    assert class_archive.option(archive, tmp_path) == f'"-XX:DumpLoadedClassList={tmp_path / "classes"}"'
    assert class_archive.option(archive, None) == ""
    (tmp_path / "file").touch()
    assert class_archive.option(tmp_path / "file" / "cache" / "classes-a-b.jsa", tmp_path) == ""
    archive.parent.mkdir(parents=True)
    archive.touch()
    for folder in (tmp_path, None):
        assert class_archive.option(archive, folder) == f'"-XX:SharedArchiveFile={archive}"'
    for name in ('of "mine"', "of\\mine"):  # which Spark would take apart
        assert class_archive.option(tmp_path / name / archive.name, tmp_path) == ""
        assert class_archive.option(archive, tmp_path / name) == ""


class Made(NamedTuple):
    """An archive that a Java, which is a script, is to make; in it $draft is what it is to write."""

    home: Path
    archive: Path
    classes: Path

    def says(self, script: str) -> None:
        java_ = self.home / "bin" / "java"
        options = "for each; do case $each in -XX:SharedArchiveFile=*) draft=${each#*=};; esac; done"
        java_.write_text(f"#!/bin/sh\n{options}\n{script}\n")
        java_.chmod(0o755)

    def make(self) -> bool:
        return class_archive.make(self.archive, self.home, "x.jar:y.jar", self.classes)


@pytest.fixture
def made(installed: tuple[Path, Path], tmp_path: Path) -> Made:
    return Made(installed[0], tmp_path / "cache" / "classes-a-new.jsa", tmp_path / "list")


def test_a_new_archive_replaces_those_of_the_same_java_and_spark(made: Made) -> None:
    made.says('echo "$@" >"$draft"')
    cache = made.archive.parent
    cache.mkdir()
    for name in ("classes-a-old.jsa", "classes-a-old.jsa.draft", "classes-b-old.jsa", "java-1"):
        (cache / name).touch()
    assert made.make()
    assert sorted(file.name for file in cache.iterdir()) == [
        *("classes-a-new.jsa", "classes-b-old.jsa", "classes-lock", "java-1")
    ]
    said = made.archive.read_text()
    assert said.startswith("-Xshare:dump ")
    assert f"-XX:SharedClassListFile={made.classes} " in said
    assert said.endswith(" -cp x.jar:y.jar\n")


def test_no_archive_is_made_while_another_process_makes_one_or_has_made_it(made: Made) -> None:
    made.says("exit 1")
    made.archive.parent.mkdir()
    held = lock_file(made.archive.parent / "classes-lock")
    assert not made.make()
    os.close(held)
    with pytest.raises(StoreError):
        made.make()
    made.archive.write_text("theirs")
    assert not made.make()
    assert made.archive.read_text() == "theirs"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('echo half >"$draft"; echo; echo "no room"; exit 3', "Java ended with 3: no room"),
        ("exit 1", "Java ended with 1: it said nothing"),
        ("", "cannot write .*: No such file or directory"),
        ("exec sleep 600", r"did not finish within 0\.1 s"),
    ],
    ids=["it says why", "it does not", "it writes nothing", "it does not end"],
)
def test_if_java_makes_no_archive_it_is_said_and_nothing_is_left(
    made: Made, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    if "sleep" in script:
        monkeypatch.setattr(class_archive, "MAKING_TIMEOUT", 0.1)
    made.says(script)
    with pytest.raises(StoreError, match=words):
        made.make()
    assert [file.name for file in made.archive.parent.iterdir()] == ["classes-lock"]


def test_no_archive_is_begun_if_the_disk_has_no_room(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(StoreError, match=r"has no room for it, \d+ MiB"):
        made.make()


def test_classes_that_java_generates_are_not_archived(made: Made) -> None:
    made.says(f'cat {made.classes} >"$draft"')
    made.classes.write_text(GENERATED + CLASSES)
    assert made.make()
    assert made.archive.read_text() == CLASSES


# ── a run that makes one at its end ──────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@contextmanager
def opened(lake: Path, *, archive_classes: bool = True) -> Iterator[Run]:
    options: dict[str, Any] = {"write": True, "make": True, "memory": "1g", "verbose": False}
    with pipeline_run.open_run("run", lake, archive_classes=archive_classes, **options) as run:
        yield run


def full(_folder: Path) -> NoReturn:
    raise StoreError("the disk is full")


def interrupted(number: signal.Signals, _folder: Path) -> NoReturn:
    try:
        os.kill(os.getpid(), number)
        time.sleep(PATIENCE)  # the signal ends it
    finally:
        for further in (signal.SIGTERM, signal.SIGINT):  # these change nothing
            os.kill(os.getpid(), further)
    raise AssertionError


@pytest.mark.parametrize(
    ("archive_classes", "why"),
    [
        (full, "the disk is full"),
        (partial(interrupted, signal.SIGINT), "it was stopped"),
        (partial(interrupted, signal.SIGTERM), "it was stopped"),
    ],
)
def test_a_run_whose_archive_is_not_made_says_so_and_succeeds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    archive_classes: Callable[[Path], bool],
    why: str,
) -> None:
    monkeypatch.setattr(session, "session", lambda *_given, **_others: nullcontext(object()))
    monkeypatch.setattr(session, "archive_classes", archive_classes)
    with opened(tmp_path) as run:
        run.spark()
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"run: no archive of Java's classes was made, so later runs start as slowly as this one: {why}"
    )
    with opened(tmp_path):
        pass
    assert capsys.readouterr().err == "", "Java was not started"


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), RuntimeError("no home directory")])
def test_a_run_that_is_done_succeeds_whatever_is_wrong_with_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail() -> NoReturn:
        raise error

    monkeypatch.setattr(session, "session", lambda *_given, **_others: nullcontext(object()))
    monkeypatch.setattr(SparkContext, "_gateway", object())
    monkeypatch.setattr(class_archive, "ours", fail)
    with opened(tmp_path) as run:
        run.spark()
    assert "archive" not in capsys.readouterr().err, "Java has listed no classes"
    with opened(tmp_path) as run:
        run.spark()
        (run.scratch / class_archive.CLASSES_FILE).touch()
    said = f"as slowly as this one: the cache folder cannot be read: {error} (XDG_CACHE_HOME)\n"
    assert capsys.readouterr().err.endswith(said)


def test_java_is_started_for_small_jobs_and_once_more_before_the_first_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    @contextmanager
    def begun(*_given: object, small_jobs: bool, **_others: object) -> Iterator[object]:
        said.append("small" if small_jobs else "large")
        yield object()
        said.append("ended")

    monkeypatch.setattr(session, "session", begun)
    with opened(tmp_path, archive_classes=False) as run:
        assert run.spark() is run.spark()
        run.large_jobs()
        assert said == ["small", "ended"]
        large = run.spark()
        run.large_jobs()
        assert run.spark() is large
    assert said == ["small", "ended", "large", "ended"]


LOW: Final = """
from restante.pipeline.spark import small_jobs
small_jobs.MAX_SMALL_JOB_ROWS = 1
from restante.cli.main import main
main()
"""


@pytest.mark.thorough
def test_the_first_run_makes_an_archive_from_which_the_next_one_starts_java(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def sh(*words: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, *words, "pipeline", "run", "--lake", "lake", "--source", "relay=relay"],
            env=ENVIRONMENT | cache | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    with ours(tmp_path / "relay", nameplate(1), current(None)):
        said = sh("-m", "restante")
    assert "run: archive of Java's classes: made, so that later runs start faster, " in said
    [archive] = (tmp_path / "cache" / "restante").glob("classes-*.jsa")
    with ours(tmp_path / "relay", mailbox(3), mailbox(4), nameplate(5)):
        # With -Xshare:on Java does not start without its archive.
        said = sh("-c", LOW, JAVA_TOOL_OPTIONS=f"{ENVIRONMENT['JAVA_TOOL_OPTIONS']} -Xshare:on")
    assert said.count("Spark: ready") == 2, "one was started for small jobs, and one for the two mailboxes"
    assert "archive" not in said
    assert archive.exists()
    world = LakeWorld(None, tmp_path)
    assert [len(world.rows(name)) for name in ("nameplates", "mailboxes")] == [2, 2]
