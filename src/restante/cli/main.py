"""The command `restante`. Only the part of it that is called is imported, and by a subcommand what it needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from errno import EDQUOT, ENOSPC
from typing import Annotated, Final

import typer

from restante import __version__
from restante.common.errors import RestanteError, StoreError, plain
from restante.common.terminal import excerpt, say

PREFIX: Final = "RESTANTE_"
"""The beginning of the names of our variables."""

CLIENT: Final = {"send", "receive"}
"""Commands for which nothing else is imported: their users wait for the imports."""


def application(command: str = "") -> typer.Typer:
    """Return the commands: all of them, or only `health` or those of the client if one of these is called."""
    app = typer.Typer(
        no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    app.callback()(restante)
    from restante.cli import health

    if command == "health":  # container checks start it every few seconds
        app.add_typer(health.app)
        return app
    from restante.client.cli import commands as client

    if command in CLIENT:
        app.add_typer(client.app)
        return app
    from restante.cli import shell_files
    from restante.mailbox import cli as mailbox
    from restante.pipeline.cli import commands as pipeline
    from restante.timing import cli as timing
    from restante.waku import cli as waku

    app.add_typer(mailbox.app)
    app.add_typer(health.app)
    app.add_typer(client.app)
    app.add_typer(timing.app, name="timing", help="Show where the time of a transfer went.")
    app.add_typer(waku.app, name="waku", help="Run a Waku Mailserver, post envelopes, fetch history.")
    app.add_typer(pipeline.app, name="pipeline", help="Turn usage records and logs into tables, with Spark.")
    app.add_typer(shell_files.app)
    return app


def main() -> None:
    """Run a command. Exits with 0 (done) or the error's code; errors are one sentence on standard error."""
    if sys.stderr is None:  # `print` would write to standard output instead, which is for results
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - until the process ends
    try:
        try:
            application(*sys.argv[1:2])()
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


def restante(
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Store end-to-end encrypted messages until the other side comes.

    `restante serve` runs a Magic Wormhole mailbox server. `restante waku serve` runs a Waku v1 Mailserver.
    `restante send` and `restante receive` transfer texts, files and directories between two computers.
    """
    if any(name.startswith(PREFIX) for name in os.environ):
        check_variables(os.environ)


def check_variables(environment: Mapping[str, str]) -> None:
    """Raise Misuse for a RESTANTE_* variable that no command reads: its name is misspelt, whatever command runs."""
    from restante.common.settings import PREFIXES
    from restante.mailbox.settings import SERVE

    SERVE.check_variables(environment)
    if any(name.startswith(PREFIXES[1]) for name in environment):
        from restante.waku.settings import WAKU

        WAKU.check_variables(environment)
