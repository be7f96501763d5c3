"""The guide to a new table: its blocks are applied to a copy of the sources, and its commands run there."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.bounds import PATIENCE
from support.documents import ROOT, Document
from support.pipeline.runs import LakeWorld
from support.pipeline.sessions import INTERPRETED, environment

GUIDE = Document("docs/pipeline/add-a-table.md")


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

    def run(self, line: str) -> str:
        """Run a line of the guide with the Python of this process."""
        words = [word for word in shlex.split(line) if word != "PYTHONPATH=src:tests"]
        programs = {"./run test": ["pytest"], "./run pipeline": ["restante", "pipeline"]}
        if (program := " ".join(words[:2])) in programs:
            words[:2] = [".venv/bin/python", "-m", *programs[program]]
        assert words[0] == ".venv/bin/python"
        done = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=self.folder,
            env=environment(INTERPRETED) | {"PYTHONPATH": "src:tests", "XDG_CACHE_HOME": os.devnull},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
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
    assert "longest_waits: 1 day built (2026-03-10 to 2026-03-10), 2 rows" in checkout.run(build)
    rows = sorted(line.split() for line in checkout.run(query).splitlines() if line.split()[1:] in (["7.0"], ["9.0"]))
    assert rows == [["main", "7.0"], ["second", "9.0"]]
    assert "Nameplates that ended." in checkout.run(describe)
    assert "├─ longest_waits\n" in checkout.run(graph) or "└─ longest_waits\n" in checkout.run(graph)


@pytest.mark.thorough
def test_the_guides_table_passes_its_tests_and_is_in_a_demo(checkout: Checkout) -> None:
    [test] = GUIDE.lines("test")
    assert " passed" in checkout.run(f"{test} -p no:cacheprovider")
    _, query, *_ = GUIDE.lines("build")
    checkout.run("./run pipeline demo --days 14 --transfers 60")
    assert {"north", "east", "south"} <= {word for line in checkout.run(query).splitlines() for word in line.split()}
