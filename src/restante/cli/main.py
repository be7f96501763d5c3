"""The command `restante`. A subcommand imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from restante import __version__
from restante.cli import client, mailbox, pipeline, waku
from restante.cli.terminal import excerpt, say
from restante.common.errors import RestanteError
from restante.common.settings import PREFIXES
from restante.mailbox.settings import SERVE

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(mailbox.app)
app.add_typer(client.app)
app.add_typer(waku.app, name="waku", help="Run a Waku Mailserver, post envelopes, fetch history.")
app.add_typer(pipeline.app, name="pipeline", help="Turn usage records and logs into tables, with Spark.")


def main() -> None:
    """Run a command. Exits with 0 (done) or the error's code; errors are one sentence on standard error."""
    if sys.stderr is None:  # `print` would write to standard output instead, which is for results
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - until the process ends
    try:
        app()
    except RestanteError as error:
        say(f"restante: {excerpt(str(error))}")
        sys.exit(error.exit_code)


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

    `restante serve` runs a Magic Wormhole mailbox server, `restante waku serve` a Waku v1 Mailserver. `restante send`
    and `restante receive` are a Magic Wormhole client.
    """
    check_variables(os.environ)


def check_variables(environment: Mapping[str, str]) -> None:
    """Raise Misuse for a RESTANTE_* variable that no command reads: its name is misspelt, whatever command runs."""
    SERVE.check_variables(environment)
    if any(name.startswith(PREFIXES[1]) for name in environment):
        try:
            from restante.waku.settings import WAKU
        except ImportError:  # the extra is not installed, so no command reads these
            return
        WAKU.check_variables(environment)
