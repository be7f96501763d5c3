"""Measurements: those that documents name have the options, and they come to their end."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from support.bounds import PATIENCE
from support.documents import DOCUMENTS, ROOT
from support.processes import run

BENCH = ROOT / "bench"

OPTIONS = """
import contextlib, io, json, re, runpy, sys
def options(name):
    sys.argv[:] = [name, "--help"]
    text = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(text):
        runpy.run_path(f"{name}.py", run_name="__main__")
    return re.findall(r"--[a-z-]+", text.getvalue())
print(json.dumps({name: options(name) for name in sys.argv[1:]}))
"""


def test_every_bench_that_a_document_names_exists_and_has_the_options() -> None:
    named: dict[str, set[str]] = {}
    for document in DOCUMENTS:
        for name, arguments in re.findall(r"\./run bench ([a-z_]+\b)([^|`\n]*)", document.read_text()):
            named.setdefault(name, set()).update(re.findall(r"--[a-z-]+", arguments))
    assert len(named) > 8
    done = run(sys.executable, "-c", OPTIONS, *named, cwd=BENCH, variables={"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    for name, options in json.loads(done.stdout).items():
        assert named[name] | {"--help"} <= set(options), name


def test_sessions_whose_instructions_are_counted_come_to_their_end(tmp_path: Path) -> None:
    done = run(sys.executable, BENCH / "mailbox_commit_loop.py", tmp_path, "3")  # it checks what each side receives
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("client", "--quick"),
        ("mailbox_metrics", "--quick"),
        ("mailbox_moving", "--mailboxes 20 --records 50 --rounds 1"),
        ("mailbox_standby", "--every 1 --seconds 4 --rounds 1"),
    ],
)
def test_a_bench_comes_to_its_end_and_writes_its_figures(name: str, options: str, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    arguments = (*options.split(), "--scratch", str(tmp_path), "--json", str(file))
    done = run(sys.executable, BENCH / f"{name}.py", *arguments, bound=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(file.read_text())
    assert figures.get("failures", []) == []
