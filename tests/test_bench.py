"""Measurements: those that documents name have the options, and come to their end; what the script `run` sets up."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from restante.cli.pipeline_demo import DEMO_FOLDER
from restante.cli.pipeline_options import DEFAULT_LAKE
from restante.cli.pipeline_report import DEFAULT_FOLDER
from restante.mailbox.settings import Serve
from restante.waku.settings import WakuServe
from support.bounds import PATIENCE
from support.documents import DOCUMENTS, ROOT
from support.processes import on_a_terminal, run

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


# ── the script run ────────────────────────────────────────────────────────────────────────────────


FILES = {
    "pyproject.toml": """
[project]
name = "restante"
version = "0"
requires-python = ">=3.11"
optional-dependencies.pipeline = ["engine"]
[tool.uv]
package = false
[tool.uv.sources]
engine = { path = "engine" }
""",
    "engine/pyproject.toml": """
[project]
name = "engine"
version = "1"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
""",
    "engine/backend.py": """
import zipfile

FILES = {
    "engine.py": "import os\\ndef main(): print(os.environ['_RESTANTE_PROGRAM'], 'done')",
    "engine-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: engine\\nVersion: 1\\n",
    "engine-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    "engine-1.dist-info/entry_points.txt": "[console_scripts]\\nrestante = engine:main\\n",
    "engine-1.dist-info/RECORD": "",
}

def build_wheel(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f"{folder}/engine-1-py3-none-any.whl", "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(name, text)
    return "engine-1-py3-none-any.whl"
""",
}
"""A project whose extra `pipeline` is one package, which is built from its source, as Spark is."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the script and a small project, for which uv needs no network. The home is empty."""
    folder = tmp_path / "project"
    (folder / "engine").mkdir(parents=True)
    shutil.copy2(ROOT / "run", folder)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (tmp_path / "home").mkdir()
    for name in ("UV_CACHE_DIR", "UV_PROJECT_ENVIRONMENT", "XDG_CACHE_HOME", "XDG_DATA_HOME", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", f"{ROOT / '.tools' / 'uv' / 'bin'}:{os.environ['PATH']}")
    locked = run("uv", "lock", "--project", folder)
    assert locked.returncode == 0, locked.stderr
    return folder


def test_on_a_terminal_the_script_shows_what_it_installs(project: Path) -> None:
    shown = on_a_terminal(project / "run", "pipeline", "build")
    assert [text for text in ("run: setting up Spark", "Built", "engine", "done\n") if text not in shown] == []
    assert on_a_terminal(project / "run", "pipeline", "build") == f"{project / 'run'} done\n"


def test_without_a_terminal_the_script_says_only_that_it_takes_minutes_and_writes_outside_only_to_the_cache(
    project: Path, tmp_path: Path
) -> None:
    done = run(project / "run", "pipeline", "build")
    assert (done.returncode, done.stdout) == (0, f"{project / 'run'} done\n")
    assert done.stderr == "run: setting up Spark (once; about 1 GB, some minutes)\n"
    assert [path.name for path in (tmp_path / "home").iterdir()] == [".cache"]
    assert {path.name for path in tmp_path.iterdir()} == {"home", "project"}
    for command, program in ((("./run",), "./run"), (("sh", "run"), "./run")):
        assert run(*command, "pipeline", "build", cwd=project).stdout == f"{program} done\n", "as it was called"


def test_contributing_md_lists_every_command_of_the_script_and_git_ignores_what_commands_leave_by_default() -> None:
    [commands] = re.findall(r"^([a-z ]+\|[a-z |]+)\)$", (ROOT / "run").read_text(), re.MULTILINE)
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert [word for word in commands.split(" | ") if f"    ./run {word}" not in guide] == []
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    folders = (Serve().data, WakuServe().data, DEFAULT_LAKE, DEMO_FOLDER, DEFAULT_FOLDER)
    assert [folder for folder in folders if f"{folder}/" not in ignored] == []


def test_bench_runs_a_measurement_by_its_name_and_prints_its_usage_without_one() -> None:
    shown = run(ROOT / "run", "bench", "mailbox", "--help")
    assert (shown.returncode, "--only" in shown.stdout) == (0, True)
    for arguments in ((), ("nothing",), ("../src/restante/__init__",)):
        done = run(ROOT / "run", "bench", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "./run bench mailbox|client|waku|pipeline" in done.stderr
