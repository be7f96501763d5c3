"""`restante waku`: `serve` and `config` here, the others in waku_requests.py and waku_archive.py.

What a subcommand needs is imported when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from restante.cli import waku_archive, waku_requests
from restante.cli.extra_commands import group_that_needs
from restante.cli.serve_options import (
    AdminHosts,
    AdminTokenFile,
    Json,
    LogFormat,
    ReadSettings,
    ReportsUrl,
    prepare,
    print_settings,
    with_options,
)
from restante.common.settings import Part

app = typer.Typer(no_args_is_help=True, cls=group_that_needs("waku"))


def _serve_options(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file with a table [waku]; keys are the flags with _ in place of -."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Data directory; created if it does not exist. Default: restante-waku."),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where peers connect: HOST:PORT, *:PORT for every interface, unix:PATH, or fd:N; repeatable."
            " proxy: before it demands a PROXY header. Default: 127.0.0.1:30303.",
        ),
    ] = None,
    trust_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK", help="Network of proxies that send PROXY headers, like 127.0.0.0/8; repeatable."
        ),
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|off", help="Address of health checks and metrics over HTTP. Default: 127.0.0.1:4011."
        ),
    ] = None,
    admin_token_file: AdminTokenFile = None,
    admin_host: AdminHosts = None,
    reports_url: ReportsUrl = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The node's private key; created if it does not exist. Default: node.key in the data directory.",
        ),
    ] = None,
    min_pow: Annotated[
        str | None, typer.Option(metavar="POW", help="Refuse envelopes with less proof of work. Default: 2e-06.")
    ] = None,
    max_ttl: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="Refuse envelopes with a longer time to live. Default: 604800."),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(
            metavar="DAYS", help="Keep envelopes for this long after they were sent; 0 is for ever. Default: 30."
        ),
    ] = None,
    retention_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Remove the oldest envelopes when the archive has more bytes than this. Default: no limit.",
        ),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC", help="Archive only this topic, 8 hexadecimal digits; repeatable. Default: all."
        ),
    ] = None,
    requests: Annotated[
        list[str] | None,
        typer.Option(metavar="plain|envelope", help="Form of the requests to answer; repeatable. Default: both."),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            metavar="asc|desc", help="Send history with the oldest or the newest envelope first. Default: asc."
        ),
    ] = None,
    password_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File with the password that requests in envelopes are sealed with; or RESTANTE_WAKU_PASSWORD.",
        ),
    ] = None,
    require_signature: Annotated[
        bool | None, typer.Option("--require-signature", help="Require that requests in envelopes are signed.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="ENODE", help="Answer only requests of this node; repeatable. Default: all."),
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="ENODE", help="Stay connected to this node; repeatable.")
    ] = None,
    max_peers: Annotated[str | None, typer.Option(metavar="NUMBER", help="Peers at once. Default: 1000.")] = None,
    max_peers_per_address: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Connections at once from one address. Default: 50.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Set a limit; `restante waku config` lists them; repeatable."),
    ] = None,
    log_format: LogFormat = None,
) -> None:
    """Declare the options of `waku serve` and `waku config`; `_with_options` passes them on."""


def _waku_part() -> Part[Any]:
    from restante.waku.settings import WAKU

    return WAKU


_with_options = with_options(_serve_options, _waku_part)


@app.command("serve")
@_with_options
def serve_command(read_settings: ReadSettings) -> None:
    """Run a Waku Mailserver. It prints its enode URL first."""
    settings, _ = read_settings()
    prepare(settings)
    from restante.waku.node.main import serve  # this import takes as long as all of the above

    serve(settings)


@app.command("config")
@_with_options
def config_command(
    read_settings: ReadSettings,
    *,
    check: Annotated[bool, typer.Option("--check", help="Check these settings and their files instead.")] = False,
    json: Json = False,
) -> None:
    """Show the settings that `serve` would use, and the origin of each."""
    settings, sources = read_settings()
    if not check:
        print_settings(_waku_part(), sources, json=json)
        return
    from restante.waku.node.main import read_files

    read_files(settings)
    print("the settings can be used")


app.add_typer(waku_requests.app)
app.add_typer(waku_archive.app)
