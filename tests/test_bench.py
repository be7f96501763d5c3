"""The benches' tables: which figures have a verdict; and that the client's bench runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.bounds import PATIENCE
from support.documents import ROOT
from support.processes import run

PROGRAM = """
import json
from waku_figures import Run, verdict
def of(name, value, window=16, packet=10):
    run = Run(None, 1, 1, 1, 1, 1.0, 1, 1, window, packet, {name: [value]})
    *_, bounds = run.table().splitlines()
    return verdict(run.figure(name), value), bounds.split()[-2:]
print(json.dumps([
    of("ingest_rate", 12_001.0, window=4),
    of("ingest_rate", 11_999.0, window=4),
    of("ingest_rate", 12_001.0),
    of("ingest_rate", 12_001.0, window=4, packet=1),
    of("ingest", 28.0),
    of("ingest", 40.0),
    of("ingest", 41.0),
]))
"""


def test_the_rate_of_ingest_has_a_verdict_for_the_window_that_its_target_is_of() -> None:
    ended = run(sys.executable, "-c", PROGRAM, cwd=ROOT / "bench")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == [
        ["enough", ["12,000", "enough"]],
        ["MISSED", ["12,000", "MISSED"]],
        ["", ["unconfirmed", "12,001"]],
        ["", ["unconfirmed", "12,001"]],
        ["aim", ["28", "aim"]],
        ["enough", ["28", "enough"]],
        ["MISSED", ["28", "MISSED"]],
    ]


CLIENT_PROGRAM = """
import json
from client_figures import FIGURES
from figures import Results
def of(name, ours, reference):
    results = Results(1_000, FIGURES)
    results.add(name, "restante", ours)
    results.add(name, "reference", reference)
    return results.verdict(name)
print(json.dumps([
    of("rate", 20_000, 30_000),
    of("rate", 10_000, 500),
    of("rate", 9_999, 500),
    of("cpu", 2, 30),
    of("cpu", 2, 16),
    of("cpu", 2, 15.9),
    of("wall", 8, 100),
    of("wall", 15, 16),
    of("wall", 15.1, 16),
    of("sender_cpu", 1, 2),
    of("file", 400, 100),
    of("file", 150, 100),
    of("file", 149, 100),
    of("file_rust", 60, 100),
    of("file_sender_memory", 45, 20),
    of("file_receiver_memory", 61, 90),
]))
"""


def test_a_client_is_judged_by_its_own_rate_and_by_how_much_less_cpu_it_takes() -> None:
    ended = run(sys.executable, "-c", CLIENT_PROGRAM, cwd=ROOT / "bench")
    assert ended.returncode == 0, ended.stderr
    judged = ["aim", "enough", "MISSED"]
    assert json.loads(ended.stdout) == [*judged, *judged, *judged, "", *judged, "enough", "aim", "MISSED"]


def test_the_clients_bench_measures_both_clients(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    program = ROOT / "bench" / "client.py"
    ended = run(sys.executable, program, "--quick", "--scratch", tmp_path, "--json", file, bound=PATIENCE)
    report = json.loads(file.read_text())
    assert report["failures"] == []
    assert ended.returncode == 0, ended.stderr
    figures = report["figures"]
    assert {"cpu", "wall", "rate", "few", "import", "first_frame", "file", "directory"} <= set(figures)
    for name, figure in figures.items():
        assert figure["restante"] > 0, name
        assert figure["reference"] > 0, name
        assert figure["title"] in ended.stdout
