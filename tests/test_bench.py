"""The benches' tables: which figures have a verdict; and that benches run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from support.bounds import PATIENCE
from support.documents import ROOT
from support.processes import database, run

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


CLIENT_FAILURE_PROGRAM = """
import asyncio, sys
from client_scenarios import WrongError, both, program
waits = "import subprocess; subprocess.run([%r, '-c', 'import time; time.sleep(1000)'])" % sys.executable
try:
    asyncio.run(both(program("-c", "import sys; sys.exit('the port is taken')"), program("-c", waits)))
except WrongError as error:
    print(error)
"""


def test_a_side_of_a_bench_that_fails_is_named_and_ends_the_other_with_its_children() -> None:
    ended = run(sys.executable, "-c", CLIENT_FAILURE_PROGRAM, cwd=ROOT / "bench")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("ended with 1: the port is taken\n")


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


def test_the_bench_of_upgrades_backups_and_imports_measures_each_step(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    program = ROOT / "bench" / "mailbox_moving.py"
    few = ("--mailboxes", "20", "--records", "50", "--rounds", "1")
    ended = run(sys.executable, program, *few, "--scratch", tmp_path, "--json", file, bound=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    seconds = json.loads(file.read_text())["seconds"]
    assert {"SIGTERM to exit", "start that converts version 1", "import", "backup", "restore", "export"} <= set(
        seconds
    )
    for name, [found] in seconds.items():
        assert found > 0
        assert name in ended.stdout


def test_the_bench_of_a_lost_machine_restores_every_copy(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    program = ROOT / "bench" / "mailbox_standby.py"
    few = ("--every", "1", "--seconds", "4", "--rounds", "1")
    ended = run(sys.executable, program, *few, "--scratch", tmp_path, "--json", file, bound=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    [found] = json.loads(file.read_text())["rounds"]
    assert found["errors"] == []
    assert (found["unusable"], found["incomplete"]) == (0, 0)
    assert found["copies"] > 0
    assert found["acknowledged"] > 0
    assert found["lost"] is None or 0 <= found["lost"] <= found["acknowledged"]


def test_the_bench_of_a_lost_machine_kills_and_starts_again_before_the_end(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    program = ROOT / "bench" / "mailbox_standby.py"
    few = ("--every", "1", "--seconds", "2", "--rounds", "1", "--restarts", "2")
    beside = ("--beside", f"sh -c 'echo started >>{tmp_path}/started; exec sleep 600'")
    ended = run(sys.executable, program, *few, *beside, "--scratch", tmp_path, "--json", file, bound=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    [found] = json.loads(file.read_text())["rounds"]
    assert (found["unusable"], found["incomplete"]) == (0, 0)
    assert sum(found["kills"].values()) >= 4, "two restarts, and both at last"
    assert len((tmp_path / "started").read_text().splitlines()) == found["kills"]["beside"]


METRICS_PROGRAM = """
import json
from mailbox_instructions import Instructions, counted
from mailbox_metrics import Costs
def of(*costs_with):
    costs = Costs()
    for on in costs_with:
        for name, cost in zip(costs.turns, (2.0, on, 9.0)):
            costs.turns[name].append(cost)
    return costs.verdict
clear = [of(*[2.01] * 30), of(*[2.03] * 30)]
by_time = [*clear, of(*[2.0, 2.04] * 15), of(*[2.01] * 28, 3.0, 3.0), of(2.0, 2.1)]
def by_instructions(measured):
    return Costs(instructions=Instructions(300.0, measured, 500.0)).verdict
said = "==2690== \\n==2690== I   refs:      1,432,786,185\\n"
print(json.dumps([by_time, by_instructions(304.9), by_instructions(305.1), counted(said)]))
"""


def test_metrics_may_cost_less_than_one_percent_and_noise_is_no_verdict() -> None:
    ended = run(sys.executable, "-c", METRICS_PROGRAM, cwd=ROOT / "bench")
    assert ended.returncode == 0, ended.stderr
    by_time = ["enough", "MISSED", "undecided", "enough", "undecided"]
    assert json.loads(ended.stdout) == [by_time, "enough", "MISSED", 1_432_786_185]


@pytest.mark.parametrize("flags", [[], ["--unmeasured"]])
def test_the_sessions_whose_instructions_are_counted_come_to_their_end(tmp_path: Path, flags: list[str]) -> None:
    program = ROOT / "bench" / "mailbox_commit_loop.py"
    ended = run(sys.executable, program, tmp_path, "3", *flags)  # it checks what each side has heard
    assert ended.returncode == 0, ended.stderr
    assert database(tmp_path).exists()


@pytest.mark.thorough
def test_the_bench_of_the_metrics_measures_servers_with_and_without_them(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    program = ROOT / "bench" / "mailbox_metrics.py"
    ended = run(sys.executable, program, "--quick", "--scratch", tmp_path, "--json", file, bound=PATIENCE)
    report = json.loads(file.read_text())
    assert report["failures"] == []
    assert len(report["turns"]) == 3
    for name, costs in report["turns"].items():
        assert len(costs) == 2
        assert min(costs) > 0
        assert name in ended.stdout


YEAR_PROGRAM = """
import json, sqlite3, sys, tempfile
from argparse import Namespace
from pathlib import Path
from pipeline_year import Measured, State, results
from pipeline_year_fleet import Fleet, stretches
from process_tree import Used, adopt, measure
GB = 10**9
def used(wall, cpu, pss):
    return Used(wall, cpu, round(pss * GB), round(pss * GB), 0)
def of(pss, reports, *again):
    options = Namespace(days=360, every=30)
    run = used(10, 10, pss)
    state = State(0, 1, 1, 1, runs=[Measured(30, 30, 0.0, run, run, 1)], reports=[used(reports, reports, 1)])
    state.again = [(used(*a, 1), used(*b, 1)) for a, b in again]
    found = results(options, 12, state)
    return [found.verdict(name) for name in ("memory", "cpu", "wall", "reports")]
folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
fleet = Fleet(folder, 1_700_006_400, 1000, 1000, 1)
fleet.make()
made = fleet.serve(1, 2) + fleet.serve(3, 3)
def count(name, file, *queries):
    with sqlite3.connect(folder / name / file) as database:
        return [database.execute(query).fetchone()[0] for query in queries]
archives = [
    count(name, "archive.sqlite", "SELECT count(*) FROM envelopes", "SELECT min(arrived - (id >> 31)) FROM arrivals")
    for name in ("alpha", "beta")
]
adopt()
burn = "import os, subprocess, sys; held = b'x' * 60_000_000; "
burn += "subprocess.Popen([sys.executable, '-c', 'sum(range(20_000_000)); import time; time.sleep(0.5)'])"
with (folder / "log").open("wb") as log:
    found = measure([sys.executable, "-c", burn + "; import time; time.sleep(0.6)"], {}, log)
print(json.dumps({
    "verdicts": [
        of(2.9, 9, ((9, 9), (9.8, 9.8))), of(3.9, 19, ((9, 9), (9.8, 11.5))), of(4.1, 21, ((9, 9), (12, 12)))
    ],
    "stretches": list(stretches(60, 30, 2)),
    "made": made,
    "north": count("north", "restante.sqlite", "SELECT count(*) FROM usage_mailboxes"),
    "archives": archives,
    "cpu": found.cpu,
    "pss": found.pss,
    "rss": found.rss,
}))
"""


def test_a_year_is_served_and_its_runs_are_measured_with_all_their_processes(tmp_path: Path) -> None:
    ended = run(sys.executable, "-c", YEAR_PROGRAM, tmp_path, cwd=ROOT / "bench", bound=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["verdicts"] == [["aim"] * 4, ["enough", "enough", "aim", "enough"], ["MISSED"] * 4]
    assert found["stretches"] == [[1, 28], [29, 29], [30, 30], [31, 58], [59, 59], [60, 60]]
    made, (alpha, beta) = found["made"], found["archives"]
    assert {name: made[name] for name in ("mailboxes", "nameplates", "client_versions", "envelopes")} == {
        "mailboxes": 1200,
        "nameplates": 900,
        "client_versions": 900,
        "envelopes": 3000,
    }
    assert found["north"] == [480]
    assert made["archived"] == alpha[0] + beta[0]
    assert 2750 < alpha[0] < 2950
    assert 2750 < beta[0] < 2950
    assert alpha[1] == beta[1] == 1
    assert found["cpu"] > 0.2, "the child that ended later is counted"
    assert 60e6 < found["pss"] <= found["rss"]


CHANGES_PROGRAM = """
import sys
import pipeline_changes
pipeline_changes.MIN_FOUND = float(sys.argv.pop(1))
pipeline_changes.MAX_FLAGGED = float(sys.argv.pop(1))
pipeline_changes.main()
"""


def test_the_bench_of_changes_judges_small_fleets_and_ends_with_1_if_a_target_is_missed(tmp_path: Path) -> None:
    words = ("--seeds", "3", "3", "--days", "14", "--transfers", "30", "--keep", tmp_path)
    for targets, verdicts, code in (
        (("0", "1"), ["enough", "enough"], 0),
        (("1.1", "1"), ["MISSED", "enough"], 1),
        (("0", "-1"), ["enough", "MISSED"], 1),
    ):
        ended = run(sys.executable, "-c", CHANGES_PROGRAM, *targets, *words, cwd=ROOT / "bench", bound=PATIENCE)
        assert (ended.returncode, ended.stderr) == (code, "")
        assert re.findall(r"  (enough|MISSED)$", ended.stdout, re.MULTILINE) == verdicts
        assert ended.stdout.startswith("1 fleets, seeds 3 to 3, ")
        assert re.search(r"^days of Gap +\d of +3, ", ended.stdout, re.MULTILINE)


DEMO_PROGRAM = """
import sys
from functools import partial
import pipeline_demo
from restante.demo.fleet import Fleet
pipeline_demo.MAX_COMMAND_SECONDS = float(sys.argv.pop(1))
pipeline_demo.Fleet = partial(Fleet, days=14, transfers=20)
measure = pipeline_demo.measure
said = "print('demo: fleet: north: 9 conversations, 0.5 s'); print('demo: fleet: 4 parts, 1.5 s')"
def stand_in(command, *given):
    assert command[1:3] == ["pipeline", "demo"] and command[4:] == ["--seed", "1", "--days", "14"]
    return measure([sys.executable, "-c", said], *given)
pipeline_demo.measure = stand_in
pipeline_demo.main()
"""


def test_the_bench_of_the_demo_ends_with_1_if_a_target_is_missed(tmp_path: Path) -> None:
    """A program that does nothing stands for the command, which takes a minute."""
    words = ("--rounds", "1", "--scratch", tmp_path, "--arguments", "--days", "14")
    for target, verdict, code in (("1000", "enough", 0), ("0", "MISSED", 1)):
        ended = run(sys.executable, "-c", DEMO_PROGRAM, target, *words, cwd=ROOT / "bench", bound=PATIENCE)
        assert (ended.returncode, ended.stderr) == (code, "")
        assert re.search(rf"^command .*at most {target} s: {verdict}$", ended.stdout, re.MULTILINE)
        assert re.search(r"^generator +1\.5 s, the median of 1; at most 60 s: enough$", ended.stdout, re.MULTILINE)
