"""The benches' tables: which figures have a verdict."""

from __future__ import annotations

import json
import sys

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
