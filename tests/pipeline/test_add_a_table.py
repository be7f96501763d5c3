"""The guide to a new table: its blocks are applied to a copy of the sources, and its commands run there."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from support.bounds import PATIENCE
from support.documents import ROOT, Document
from support.pipeline.runs import LakeWorld
from support.pipeline.sessions import INTERPRETED, environment

GUIDE = Document("docs/pipeline/add-a-table.md")


RESTANTE_EACH: Final = """
import shlex, sys
from restante.cli.main import main
for line in sys.argv[1:]:
    sys.argv = ["restante", *shlex.split(line)]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


class Checkout:
    """A copy of the sources, with the table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("src", "tests", "docs/pipeline"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        (folder / "src/restante/pipeline/tables/longest_waits.py").write_text(GUIDE.blocks["longest_waits.py"])
        (folder / "tests/pipeline/cases/longest_waits.json").write_text(GUIDE.blocks["longest_waits.json"])
        (folder / "register.diff").write_text(GUIDE.blocks["register"])
        subprocess.run(["git", "apply", "register.diff"], cwd=folder, check=True, timeout=PATIENCE)

    def pipeline(self, *lines: str) -> str:
        """Run commands of the guide in one process."""
        return self._python("-c", RESTANTE_EACH, *(line.removeprefix("./run ") for line in lines))

    def run(self, line: str) -> str:
        """Run another line of the guide."""
        words = [word for word in shlex.split(line) if word != "PYTHONPATH=src:tests"]
        if words[:2] == ["./run", "test"]:
            words[:2] = [".venv/bin/python", "-m", "pytest"]
        assert words[0] == ".venv/bin/python"
        return self._python(*words[1:])

    def _python(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment(INTERPRETED) | {"PYTHONPATH": "src:tests", "XDG_CACHE_HOME": os.devnull},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


def test_the_guides_table_is_documented_built_and_queried(checkout: Checkout) -> None:
    [document] = GUIDE.lines("document")
    checkout.run(document)
    page = (checkout.folder / "docs/pipeline/tables.md").read_text()
    assert "### longest_waits\n\nOne row per server and day. Partitioned by month.\n\n| column |" in page

    world = LakeWorld(None, checkout.folder)
    world.write("nameplates", {"waiting_us": 7_000_000}, {"waiting_us": 9_000_000, "source": "second"})
    (checkout.folder / "restante-demo").mkdir()
    (checkout.folder / "lake").rename(checkout.folder / "restante-demo/lake")
    build, query, describe, graph = GUIDE.lines("build")
    printed = checkout.pipeline(build, query, describe, graph)
    assert "longest_waits: 1 day built (2026-03-10 to 2026-03-10), 2 rows" in printed
    rows = sorted(line.split() for line in printed.splitlines() if line.split()[1:] in (["7.0"], ["9.0"]))
    assert rows == [["main", "7.0"], ["second", "9.0"]]
    assert "Nameplates that ended." in printed
    assert "── longest_waits\n" in printed


@pytest.mark.thorough
def test_the_guides_table_passes_its_tests_and_is_in_a_demo(checkout: Checkout) -> None:
    [test] = GUIDE.lines("test")
    assert " passed" in checkout.run(f"{test} -p no:cacheprovider")
    _, query, *_ = GUIDE.lines("build")
    checkout.pipeline("./run pipeline demo --days 14 --transfers 60")
    assert {"north", "east", "south"} <= {*checkout.pipeline(query).split()}
