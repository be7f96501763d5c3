"""Measurements: those that documents name have the options; they come to their end; and how figures are judged."""

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


VERDICTS = """
import json, sys
from client_figures import FIGURES
from figures import Results
from mailbox_instructions import Instructions
from mailbox_metrics import Costs
from waku_figures import Run, verdict
def client(name, ours, reference):
    results = Results(1_000, FIGURES)
    results.add(name, "restante", ours)
    results.add(name, "reference", reference)
    return results.verdict(name)
def waku(name, value, window=16, packet=10):
    run = Run(None, 1, 1, 1, 1, 1.0, 1, 1, window, packet, {name: [value]})
    return verdict(run.figure(name), value)
def metrics(*costs_with):
    costs = Costs()
    for on in costs_with:
        for name, cost in zip(costs.turns, (2.0, on, 9.0)):
            costs.turns[name].append(cost)
    return costs.verdict
def instructions(measured):
    return Costs(instructions=Instructions(300.0, measured, 500.0)).verdict
print(json.dumps([eval(row) for row in sys.argv[1:]]))
"""


def test_a_figure_is_judged_by_its_target() -> None:
    verdicts = {
        "client('rate', 20_000, 30_000)": "aim",
        "client('rate', 10_000, 500)": "enough",
        "client('rate', 9_999, 500)": "MISSED",
        "client('cpu', 2, 30)": "aim",
        "client('cpu', 2, 16)": "enough",
        "client('cpu', 2, 15.9)": "MISSED",
        "client('sender_cpu', 1, 2)": "",
        "client('file', 149, 100)": "MISSED",
        "client('file_sender_memory', 45, 20)": "aim",
        "waku('ingest_rate', 12_001.0, window=4)": "enough",
        "waku('ingest_rate', 11_999.0, window=4)": "MISSED",
        "waku('ingest_rate', 12_001.0)": "",
        "waku('ingest', 28.0)": "aim",
        "waku('ingest', 41.0)": "MISSED",
        "metrics(*[2.01] * 30)": "enough",
        "metrics(*[2.03] * 30)": "MISSED",
        "metrics(*[2.0, 2.04] * 15)": "undecided",
        "metrics(2.0, 2.1)": "undecided",
        "instructions(304.9)": "enough",
        "instructions(305.1)": "MISSED",
    }
    done = run(sys.executable, "-c", VERDICTS, *verdicts, cwd=BENCH)
    assert done.returncode == 0, done.stderr
    assert dict(zip(verdicts, json.loads(done.stdout), strict=True)) == verdicts


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
