"""`restante waku`: `serve` and `config` here, the others in waku_requests.py and waku_archive.py.

What a subcommand needs is imported when it runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from restante.cli import waku_archive, waku_requests
from restante.cli.extra_commands import group_that_needs
from restante.cli.serve_options import (
    Json,
    ReadSettings,
    prepare,
    print_settings,
    with_options,
)
from restante.waku.settings import WAKU

app = typer.Typer(no_args_is_help=True, cls=group_that_needs("waku"))


@app.command("serve")
@with_options(WAKU)
def serve_command(read_settings: ReadSettings) -> None:
    """Run a Waku Mailserver. It prints its enode URL first."""
    settings, _ = read_settings()
    prepare(settings)
    from restante.waku.node.main import serve  # this import takes as long as all of the above

    serve(settings)


@app.command("config")
@with_options(WAKU)
def config_command(
    read_settings: ReadSettings,
    *,
    check: Annotated[bool, typer.Option("--check", help="Check these settings and their files instead.")] = False,
    json: Json = False,
) -> None:
    """Show the settings that `serve` would use, and the origin of each."""
    settings, sources = read_settings()
    if not check:
        print_settings(WAKU, sources, json=json)
        return
    from restante.waku.node.main import read_files

    read_files(settings)
    print("the settings can be used")


app.add_typer(waku_requests.app)
app.add_typer(waku_archive.app)
