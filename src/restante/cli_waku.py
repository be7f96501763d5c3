"""`restante waku`: the Mailserver's commands. What a subcommand needs is imported when it runs."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from restante.errors import Misuse

app = typer.Typer(no_args_is_help=True)


@app.callback()
def waku() -> None:
    """Hold Waku envelopes until they are asked for."""
    if importlib.util.find_spec("coincurve") is None:
        raise Misuse("this needs the extra 'waku': pip install 'restante[waku]'")


def _serve_options(
    config: Annotated[
        Path | None, typer.Option(help="TOML file with a table [waku]; keys are named like flags.")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Where everything is kept.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="*:PORT is every interface.")] = None,
    admin: Annotated[str | None, typer.Option(metavar="HOST:PORT|off", help="Health checks over HTTP.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FILE", help="The node's key; made if need be. Default: in the data.")
    ] = None,
    min_pow: Annotated[
        float | None, typer.Option(metavar="POW", help="Envelopes with less work are refused.")
    ] = None,
    max_ttl: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="Envelopes that are to live longer are refused.")
    ] = None,
    retention: Annotated[float | None, typer.Option(metavar="DAYS", help="How long envelopes are kept.")] = None,
    retention_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help="How much is kept, the oldest goes first. Default: no limit.")
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Archive only this topic; repeatable. Default: all.")
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(metavar="ENODE", help="Stay connected to; repeatable.")] = None,
    max_peers: Annotated[int | None, typer.Option(metavar="NUMBER")] = None,
    max_peers_per_address: Annotated[int | None, typer.Option(metavar="NUMBER")] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="`waku config` lists them; repeatable.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(metavar="auto|console|json")] = None,
) -> None:
    """Declare the options of `waku serve`; `_serving` hands them on."""


def _serving(run: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(_serve_options)
    def command(*, config: Path | None = None, **flags: Any) -> None:
        from restante.config import settle
        from restante.waku.config import WAKU

        given = {name: None if value == [] else value for name, value in flags.items()}
        run(*settle(WAKU, given, os.environ, config))

    command.__doc__ = run.__doc__
    return command


@app.command("serve")
@_serving
def serve_command(settings: Any, _sources: Any) -> None:
    """Run the node; its enode is the first line of the output."""
    from restante.ops import logs
    from restante.waku.serve import serve

    logs.start(settings.log_format)
    os.umask(0o077)  # what is in the data directory is nobody else's business
    serve(settings)
