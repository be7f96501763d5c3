"""The man page and the completions: they are those of the command line, and a shell can use them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from restante.cli.shell_files import FOLDER, MAN_PAGE, SHELLS, Shell
from support.command_line import files
from support.documents import Document
from support.processes import called, run

BIN = Path(sys.executable).parent

BASH = "COMP_WORDS=({words}); COMP_CWORD={last}; compopt() {{ :; }}; _restante; printf '%s\\n' \"${{COMPREPLY[@]}}\""
"""Calls the function as bash does (bash(1), Programmable Completion)."""


def program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is missing (Debian: apt install {package})")
    return path


def test_the_files_are_those_of_the_command_line() -> None:
    """If not: PYTHONPATH=src:tests .venv/bin/python -m support.command_line."""
    assert {path: path.read_text() for path in FOLDER.iterdir()} == files()


@pytest.mark.thorough
def test_readers_of_man_pages_have_nothing_to_say_about_ours_but_that_it_has_no_date() -> None:
    done = run(program("groff", "groff"), "-man", "-ww", "-z", FOLDER / MAN_PAGE)
    assert (done.returncode, done.stderr) == (0, "")
    done = run(program("mandoc", "mandoc"), "-Tlint", "-W", "warning", FOLDER / MAN_PAGE)
    assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []


def test_bash_completes_commands_options_and_values() -> None:
    completions = {
        ("restante", "wa"): ["waku"],
        ("restante", "waku", "re"): ["request"],
        ("restante", "serve", "--permission"): ["--permission", "--permission-bits", "--permission-load"],
        ("restante", "serve", "--permission", "h"): ["hashcash"],
        ("restante", "serve", "--motd", "hi", "--no"): ["--no-list"],
        ("restante", "waku", "request", "enode", "--live"): ["--live"],
        ("restante", "pipeline", "build", "--lake", "nowhere"): [],
    }
    bash = program("bash", "bash")
    for line, expected in completions.items():
        quoted = " ".join(f"'{word}'" for word in line)
        script = f". '{FOLDER / SHELLS[Shell.BASH]}'; {BASH.format(words=quoted, last=len(line) - 1)}"
        done = run(bash, "--norc", "-c", script)
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(filter(None, done.stdout.splitlines())) == sorted(expected), line


def test_the_commands_print_the_files() -> None:
    assert called("man").stdout == (FOLDER / MAN_PAGE).read_text()
    for shell, file in SHELLS.items():
        assert called("completion", shell).stdout == (FOLDER / file).read_text()
    assert called("completion", "tcsh").returncode == 2


def test_the_commands_of_the_guide_put_each_file_where_it_belongs(tmp_path: Path) -> None:
    commands = Document("docs/install.md").blocks["shell files"]
    done = run("sh", "-e", "-c", commands, variables={"HOME": str(tmp_path), "PATH": f"{BIN}:{os.environ['PATH']}"})
    assert (done.returncode, done.stderr) == (0, "")
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    shipped = (MAN_PAGE, *SHELLS.values())
    assert sorted(written) == sorted((FOLDER / file).read_bytes() for file in shipped)
