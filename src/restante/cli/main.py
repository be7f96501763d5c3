"""The command `restante`. Only the part of it that is called is imported, and by a subcommand what it needs."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Mapping
from errno import EDQUOT, ENOSPC
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from restante import __version__
from restante.common.errors import RestanteError, StoreError, plain
from restante.common.terminal import excerpt, say

PREFIX: Final = "RESTANTE_"
"""The beginning of the names of our variables."""

MODULES: Final = {
    name: module
    for module, names in {
        "restante.mailbox.cli": "serve status nodes restart backup restore migrate import export config",
        "restante.relay.cli": "relay",
        "restante.cli.health": "health",
        "restante.client.cli.commands": "send receive client",
        "restante.timing.cli": "timing",
        "restante.waku.cli": "waku",
        "restante.pipeline.cli.commands": "pipeline",
        "restante.pipeline.cli.extract": "extract",
        "restante.cli.shell_files": "completion man",
    }.items()
    for name in names.split()
}
"""For each command the module whose `app` has it, in the order of the help."""


class _Commands(Mapping[str, Any]):
    """The commands. Each is imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


@functools.cache
def _command(name: str) -> Any:
    """Return a command. If it is registered with its name, the others of its module are not made."""
    app = import_module(MODULES[name]).app
    part = typer.Typer(rich_markup_mode=None, cls=app.info.cls)
    part.registered_commands = [command for command in app.registered_commands if command.name == name]
    if not part.registered_commands:
        part.add_typer(app)
    return get_group(part).commands[name]


class _Group(TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": _Commands()})


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run a command. Exits with 0 (done) or the error's code; errors are one sentence on standard error."""
    if sys.stderr is None:  # `print` would write to standard output instead, which is for results
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - until the process ends
    try:
        try:
            app()
        finally:
            _flush_results()
    except RestanteError as error:
        say(f"restante: {excerpt(str(error))}")
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in {ENOSPC, EDQUOT}:
            raise
        # Mostly it is standard output: an error of a file that we write names the file, and is a StoreError.
        say(f"restante: cannot write to standard output or a temporary file: {plain(error)}")
        sys.exit(StoreError.exit_code)


def _flush_results() -> None:
    """Write what is buffered of standard output. Raises StoreError, and SystemExit if its reader has gone.

    Python itself would do this after `main`, and exit with 120 if it fails.
    """
    if sys.stdout is None or sys.stdout.closed:
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes there
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        raise StoreError(f"cannot write to standard output: {plain(error)}") from error


def _print_version(value: bool) -> None:
    if value:
        print(f"restante {__version__}")
        raise typer.Exit


@app.callback()
def restante(
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Store end-to-end encrypted messages until the other side comes.

    `restante serve` runs a Magic Wormhole mailbox server, `restante relay serve` a transit relay, and `restante waku
    serve` a Waku v1 Mailserver.
    `restante send` and `restante receive` transfer texts, files and directories between two computers.
    """
    if any(name.startswith(PREFIX) for name in os.environ):
        check_variables(os.environ)


def check_variables(environment: Mapping[str, str]) -> None:
    """Raise Misuse for a RESTANTE_* variable that no command reads: its name is misspelt, whatever command runs."""
    from restante.mailbox.settings import SERVE

    SERVE.check_variables(environment)
    if any(name.startswith(f"{PREFIX}RELAY_") for name in environment):
        from restante.relay.settings import RELAY

        RELAY.check_variables(environment)
    if any(name.startswith(f"{PREFIX}WAKU_") for name in environment):
        from restante.waku.settings import WAKU

        WAKU.check_variables(environment)
