"""`restante man` and `restante completion`: files that are generated from the command line, in share/.

A wheel also installs them below `share/` of its environment, where Debian, pip with `--prefix` and pipx find them.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

FOLDER: Final = Path(__file__).with_name("share")
MAN_PAGE: Final = "restante.1"
app = typer.Typer()


class Shell(StrEnum):
    """A shell that has a completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


COMPLETION_FILES: Final = {Shell.BASH: "restante.bash", Shell.ZSH: "_restante", Shell.FISH: "restante.fish"}
"""The completion of each shell, in FOLDER."""


@app.command("completion")
def completion(shell: Annotated[Shell, typer.Argument(metavar="|".join(Shell), help="Your shell.")]) -> None:
    """Print a script that completes commands in a shell."""
    _print(COMPLETION_FILES[shell])


@app.command("man")
def man() -> None:
    """Print the man page.

    To read it: restante man | man -l -
    """
    _print(MAN_PAGE)


def _print(file: str) -> None:
    sys.stdout.write((FOLDER / file).read_text("utf-8"))
