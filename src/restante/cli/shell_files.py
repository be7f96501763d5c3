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


SHELLS: Final = {Shell.BASH: "restante.bash", Shell.ZSH: "_restante", Shell.FISH: "restante.fish"}
"""The completion of each shell."""


@app.command("completion")
def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")]) -> None:
    """Print a script that completes commands in a shell."""
    _print(SHELLS[shell])


@app.command("man")
def man() -> None:
    """Print the man page.

    To read it: restante man | man -l -
    """
    _print(MAN_PAGE)


def _print(file: str) -> None:
    sys.stdout.write((FOLDER / file).read_text())
