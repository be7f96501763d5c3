"""Measurements come to their end; what the script `run` sets up."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from restante.mailbox.settings import Serve
from restante.pipeline.cli.demo import DEMO_FOLDER
from restante.pipeline.cli.options import DEFAULT_LAKE
from restante.pipeline.cli.report import DEFAULT_FOLDER
from restante.waku.settings import WakuServe
from support.bounds import PATIENCE
from support.documents import ROOT
from support.processes import on_a_terminal, run

BENCH = ROOT / "bench"


def test_sessions_whose_instructions_are_counted_come_to_their_end(tmp_path: Path) -> None:
    done = run(sys.executable, BENCH / "mailbox_commit_loop.py", tmp_path, "3")  # it checks what each side receives
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_a_bench_comes_to_its_end_and_writes_its_figures(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    arguments = ("--quick", "--scratch", str(tmp_path), "--json", str(file))
    done = run(sys.executable, BENCH / "client.py", *arguments, bound=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(file.read_text())
    lines = done.stdout.splitlines()
    assert (figures["failures"], lines[0], lines[-1]) == ([], figures["start"], figures["end"])


needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="this machine has no valgrind")


def show_instructions(bench: str, measured: dict[str, float], show: Callable[[str, object], None]) -> None:
    """Show figures beside those of bench/instructions.json. A commit message explains a change of more than 3 %."""
    for name, committed in json.loads((BENCH / "instructions.json").read_text())[bench].items():
        show("figure", f"{bench}: {name}: {measured[name]:,.2f}; {committed:,} committed")
        assert measured[name] < 2 * committed, "beyond what another build of Python explains"


@needs_valgrind
@pytest.mark.thorough
def test_the_instructions_of_a_session_are_shown_beside_those_committed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    done = run(sys.executable, BENCH / "mailbox_commit_loop.py", tmp_path, "50", "100", bound=PATIENCE)
    assert done.returncode == 0, done.stderr
    show_instructions(
        "mailbox", {"a session in the commit loop, millions of instructions": float(done.stdout)}, record_property
    )


@needs_valgrind
@pytest.mark.thorough
@pytest.mark.parametrize("bench", ["client", "waku"])
def test_the_instructions_of_a_bench_are_shown_beside_those_committed(
    tmp_path: Path, record_property: Callable[[str, object], None], bench: str
) -> None:
    file, ours = tmp_path / "figures.json", {"client": ["--against", "restante"], "waku": ["--rounds", "1"]}
    options = [*ours[bench], "--quick", "--only", "instructions", "--scratch", str(tmp_path), "--json", str(file)]
    done = run(sys.executable, BENCH / f"{bench}.py", *options, bound=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(file.read_text())["figures"].values()
    measured = {figure["title"].strip(): figure["rounds"]["restante"][0] for figure in figures}
    show_instructions(bench, measured, record_property)


UV = """#!/bin/sh
echo "$*" >>"$HOME/calls"
[ "$2" = --quiet ] || echo "Built engine" >&2
mkdir -p "$UV_PROJECT_ENVIRONMENT/bin"
cat >"$UV_PROJECT_ENVIRONMENT/bin/restante" <<'END'
#!/bin/sh
echo "$_RESTANTE_PROGRAM $* done"
END
chmod +x "$UV_PROJECT_ENVIRONMENT/bin/restante"
"""
"""A uv that installs a program which says how it was called."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project, uv = tmp_path / "project", tmp_path / "bin" / "uv"
    for folder in (project, uv.parent):
        folder.mkdir()
    shutil.copy2(ROOT / "run", project)
    uv.write_text(UV)
    uv.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    return project


def test_on_a_terminal_the_script_shows_what_it_installs(project: Path) -> None:
    printed = on_a_terminal(project / "run", "pipeline", "build")
    assert [text for text in ("run: setting up Spark", "Built engine", "build done\n") if text not in printed] == []
    assert on_a_terminal(project / "run", "pipeline", "build") == f"{project / 'run'} pipeline build done\n"


def test_without_a_terminal_the_script_says_only_that_it_takes_minutes(project: Path, tmp_path: Path) -> None:
    """It installs once what each command needs more than the rest."""
    done = run(project / "run", "pipeline", "build")
    assert (done.returncode, done.stdout) == (0, f"{project / 'run'} pipeline build done\n")
    assert done.stderr == "run: setting up Spark (once; about 1 GB, some minutes)\n"
    for line in ("./run", "sh run send file", "sh run receive 7-code", "./run waku serve", "./run waku import old"):
        done = run(*line.split(), cwd=project)
        arguments = line.partition("run")[2].strip() or "serve"
        assert (done.stdout, done.stderr) == (f"./run {arguments} done\n", ""), "as it was called"
    sync = f"sync --quiet --frozen --inexact --project {project} --no-default-groups"
    assert (tmp_path / "calls").read_text().splitlines() == [
        *(f"{sync} --extra pipeline", f"{sync} --extra server", sync, f"{sync} --extra waku"),
        f"{sync} --extra waku --extra leveldb",
    ]


def test_contributing_md_lists_every_command_of_the_script_and_git_ignores_what_commands_leave_by_default() -> None:
    [commands] = re.findall(r"^([a-z ]+\|[a-z |]+)\)$", (ROOT / "run").read_text(), re.MULTILINE)
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert [word for word in commands.split(" | ") if f"    ./run {word}" not in guide] == []
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    folders = (Serve().data, WakuServe().data, DEFAULT_LAKE, DEMO_FOLDER, DEFAULT_FOLDER)
    assert [folder for folder in folders if f"{folder}/" not in ignored] == []


def test_bench_runs_a_measurement_by_its_name_and_prints_its_usage_without_one() -> None:
    done = run(ROOT / "run", "bench", "mailbox", "--help")
    assert (done.returncode, "--only" in done.stdout) == (0, True)
    for arguments in ((), ("nothing",), ("../src/restante/__init__",)):
        done = run(ROOT / "run", "bench", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "./run bench mailbox|client|waku|pipeline" in done.stderr
