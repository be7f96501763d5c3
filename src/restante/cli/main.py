"""The command `restante`. A subcommand imports what it needs when it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from restante import __version__
from restante.cli import mailbox, pipeline, waku
from restante.common.errors import Misuse, RestanteError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(mailbox.app)
app.add_typer(waku.app, name="waku", help="The Waku Mailserver.")
app.add_typer(pipeline.app, name="pipeline", help="Tables of what servers leave behind, on Spark.")


def main() -> None:
    """Run a command. Exits with 0 (done), 1 (failed) or 2 (misuse); errors are one sentence on standard error."""
    try:
        app()
    except RestanteError as error:
        print(f"restante: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, Misuse) else 1)


def _print_version(value: bool) -> None:
    if value:
        print(f"restante {__version__}")
        raise typer.Exit


@app.callback()
def restante(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """Store end-to-end encrypted messages until the other side comes."""
