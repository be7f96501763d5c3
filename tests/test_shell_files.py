"""The man page and the completions: they are those of the command line, and shells can use them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from restante.cli.shell_files import FOLDER, MAN_PAGE, SHELLS, Shell
from support.command_line import commands, files
from support.documents import Document
from support.processes import called, run

BIN = Path(sys.executable).parent

BASH = "COMP_WORDS=({words}); COMP_CWORD={last}; compopt() {{ :; }}; _restante; printf '%s\\n' \"${{COMPREPLY[@]}}\""
"""Calls the function as bash does (bash(1), Programmable Completion)."""

ZSH = """\
zmodload zsh/zpty
zpty terminal {zsh} -f -i
zpty -w terminal 'PS1=; fpath=({folder} $fpath); autoload -Uz compinit && compinit -u -D; print rea""dy'
zpty -r -m terminal seen '*ready*'
zpty -w -n terminal $'restante() {{ print -r -- "go""t: $*" }}\\n'
zpty -w -n terminal $'restante waku req\\t--liv\\t\\n'
zpty -r -m terminal seen '*got: *'
print -r -- "$seen"
"""
"""Types into a shell on a terminal of its own, with a tab after two words, and prints what it shows."""


def program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is missing (Debian: apt install {package})")
    return found


def test_the_files_are_those_of_the_command_line() -> None:
    """If not: PYTHONPATH=src:tests .venv/bin/python -m support.command_line."""
    assert {path: path.read_text() for path in FOLDER.iterdir()} == files()


def test_the_man_page_has_every_command_and_every_option() -> None:
    page = re.sub(r"\\(.)", r"\1", (FOLDER / MAN_PAGE).read_text())
    for command in commands():
        if not command.subcommands:
            text = page.partition(f"\n.SS restante {' '.join(command.words)}")[2].partition("\n.SS ")[0]
            assert text, command.words
            for option in command.options[:-1]:
                assert f"fB{', '.join(option.flags)}fR" in text, option.flags


def test_groff_has_nothing_to_say_about_the_man_page() -> None:
    said = run(program("groff", "groff"), "-man", "-ww", "-z", FOLDER / MAN_PAGE)
    assert (said.returncode, said.stderr) == (0, "")


def test_mandoc_has_nothing_to_say_about_the_man_page_but_that_it_has_no_date() -> None:
    said = run(program("mandoc", "mandoc"), "-Tlint", "-W", "warning", FOLDER / MAN_PAGE)
    assert [line for line in said.stdout.splitlines() if "missing date" not in line] == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("restante", "wa"), ["waku"]),
        (("restante", "waku", "re"), ["request"]),
        (("restante", "serve", "--permission"), ["--permission", "--permission-bits", "--permission-load"]),
        (("restante", "serve", "--permission", "h"), ["hashcash"]),
        (("restante", "serve", "--motd", "hi", "--no"), ["--no-list"]),
        (("restante", "waku", "request", "enode", "--live"), ["--live"]),
        (("restante", "pipeline", "build", "--lake", "nowhere"), []),
    ],
    ids=" ".join,
)
def test_bash_and_fish_complete_commands_options_and_values(words: tuple[str, ...], found: list[str]) -> None:
    quoted = " ".join(f"'{each}'" for each in words)
    script = f". '{FOLDER / SHELLS[Shell.BASH]}'; {BASH.format(words=quoted, last=len(words) - 1)}"
    said = run(program("bash", "bash"), "--norc", "-c", script)
    assert (said.returncode, said.stderr) == (0, "")
    offered = [each for each in said.stdout.splitlines() if each]
    assert sorted(offered) == sorted(found)
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("fish is missing (Debian: apt install fish)")
    line = " ".join(words)
    said = run(fish, "--no-config", "-c", f"source '{FOLDER / SHELLS[Shell.FISH]}'; complete --do-complete '{line}'")
    assert (said.returncode, said.stderr) == (0, "")
    offered = [each.partition("\t")[0] for each in said.stdout.splitlines()]
    assert sorted(offered) == sorted(found)


def test_zsh_completes_commands_and_options(tmp_path: Path) -> None:
    zsh = program("zsh", "zsh")
    script = tmp_path / "script"
    script.write_text(ZSH.format(zsh=zsh, folder=FOLDER))
    said = run(zsh, "-f", script)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.stdout)
    assert "restante waku request --liv" in shown
    assert "--live  -- After the history" in shown


def test_the_commands_print_the_files() -> None:
    assert called("man").stdout == (FOLDER / MAN_PAGE).read_text()
    for shell, file in SHELLS.items():
        assert called("completion", shell).stdout == (FOLDER / file).read_text()
    assert called("completion", "tcsh").returncode == 2


def test_the_commands_of_the_guide_put_each_file_where_it_belongs(tmp_path: Path) -> None:
    commands = Document("docs/install.md").blocks["shell files"]
    done = run("sh", "-e", "-c", commands, variables={"HOME": str(tmp_path), "PATH": f"{BIN}:{os.environ['PATH']}"})
    assert (done.returncode, done.stderr) == (0, "")
    written = {each.name: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    files = (MAN_PAGE, *SHELLS.values())
    assert sorted(written.values()) == sorted((FOLDER / file).read_bytes() for file in files)
