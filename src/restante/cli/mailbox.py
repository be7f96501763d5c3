"""Commands of the mailbox server: `restante serve`, `config show`, `status`, and those that copy its data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from restante.cli.serve_options import (
    AdminHosts,
    AdminTokenFile,
    Json,
    LogFormat,
    ReadSettings,
    ReportsUrl,
    data_directory,
    prepare,
    print_settings,
    with_options,
)
from restante.mailbox.settings import SERVE

app = typer.Typer()
config_app = typer.Typer(no_args_is_help=True)
app.add_typer(config_app, name="config", help="Show or check the settings of the mailbox server.")

Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="TOML file with a table [serve]; keys are the flags with _ in place of -."),
]


def _options(
    config: Config = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Data directory; created if it does not exist. Default: restante-data."),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where clients connect: HOST:PORT, *:PORT for every interface, unix:PATH, or fd:N; repeatable."
            " proxy: before it demands a PROXY header, plain: before it leaves TLS out. Default: 127.0.0.1:4000.",
        ),
    ] = None,
    tls_cert: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Certificate in PEM form, with the chain; clients then use wss://."),
    ] = None,
    tls_key: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Private key of the certificate, in PEM form, without password."),
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|off", help="Address of health checks and metrics, over HTTP. Default: 127.0.0.1:4010."
        ),
    ] = None,
    admin_token_file: AdminTokenFile = None,
    admin_host: AdminHosts = None,
    reports_url: ReportsUrl = None,
    motd: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Message that clients show to their users.")
    ] = None,
    signal_error: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Clients show this message and give up; those that ignore it are still served."
        ),
    ] = None,
    advertise_version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Clients older than this version tell their users to upgrade."),
    ] = None,
    no_list: Annotated[bool | None, typer.Option("--no-list", help="Answer `list` with no nameplates.")] = None,
    frames: Annotated[
        str | None,
        typer.Option(metavar="text|binary", help="Type of the frames that the server sends. Default: text."),
    ] = None,
    blur_usage: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="Round times in usage records down to a multiple of this. Default: 0."),
    ] = None,
    keep_usage: Annotated[
        str | None,
        typer.Option(metavar="DAYS", help="Delete usage records that are older than this. Default: keep all."),
    ] = None,
    prune_every: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="Time between prunes. Default: 300.")
    ] = None,
    prune_after: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS", help="Prune mailboxes that are not open and were not used for this long. Default: 660."
        ),
    ] = None,
    permission: Annotated[
        str | None,
        typer.Option(metavar="none|hashcash|adaptive", help="When clients must show proof of work. Default: none."),
    ] = None,
    permission_bits: Annotated[
        str | None,
        typer.Option(metavar="BITS", help="Difficulty of the proof of work; each extra bit doubles it. Default: 20."),
    ] = None,
    permission_load: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="adaptive: new connections a second above which all clients must show work. Default: 200.",
        ),
    ] = None,
    trust_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK", help="Network of proxies whose headers name the client, like 127.0.0.0/8; repeatable."
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Set a limit; `restante config show` lists them; repeatable."),
    ] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="Append the times of each command to this file.")
    ] = None,
    log_format: LogFormat = None,
) -> None:
    """Declare the options of `serve` and `config show`; `_with_options` passes them on."""


_with_options = with_options(_options, lambda: SERVE)


@app.command("serve")
@_with_options
def serve_command(read_settings: ReadSettings) -> None:
    """Run the mailbox server."""
    settings, _ = read_settings()
    prepare(settings)
    from restante.mailbox.server.main import serve  # this import takes as long as all of the above

    serve(settings, read_settings)


@config_app.command("show")
@_with_options
def config_show(read_settings: ReadSettings, *, json: Json = False) -> None:
    """Show the settings that `serve` would use, and the origin of each."""
    print_settings(SERVE, read_settings()[1], json=json)


@config_app.command("check")
@_with_options
def config_check(read_settings: ReadSettings) -> None:
    """Check the settings that `serve` would use, and their files.

    The exit code is 0 if all can be used. The addresses are not tried: a server may be running. Those of the Waku
    node are checked by `restante waku config --check`.
    """
    settings, _ = read_settings()
    from restante.mailbox.server.main import read_files

    read_files(settings)
    print("the settings can be used")


Data = Annotated[
    Path, typer.Option(metavar="DIR", envvar="RESTANTE_DATA", parser=data_directory, help="Data directory.")
]
DATA = Path("restante-data")


@app.command()
def status(data: Data = DATA, json: Json = False) -> None:
    """Count what the mailbox server has stored. The server may be running."""
    from restante.mailbox.store.status import read, render

    found = read(data)
    print(msgspec.json.encode(found).decode() if json else render(found))


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup to create; it must not exist.")],
    data: Data = DATA,
    json: Json = False,
) -> None:
    """Copy the data of the mailbox server into a file. The server may be running."""
    from restante.common.progress import progress
    from restante.common.signals import cleaning_up
    from restante.mailbox.store.backup import back_up, render

    with cleaning_up(), progress("backup") as advance:
        made = back_up(data, file, advance)
    print(msgspec.json.encode(made).decode() if json else render(made))


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup to restore; it is not changed.")],
    data: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            envvar="RESTANTE_DATA",
            parser=data_directory,
            help="Data directory; it must be new or empty.",
        ),
    ] = DATA,
    json: Json = False,
) -> None:
    """Copy a backup into a new data directory. Then start the server on it."""
    from restante.common.progress import progress
    from restante.common.signals import cleaning_up
    from restante.mailbox.store.backup import render, restore

    os.umask(0o077)  # as in `serve`
    with cleaning_up(), progress("restore") as advance:
        made = restore(file, data, advance)
    print(msgspec.json.encode(made).decode() if json else render(made))


@app.command("import")
def import_command(
    channel: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The reference server's --channel-db: nameplates, mailboxes and messages."),
    ] = None,
    usage: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The reference server's --usage-db: usage records.")
    ] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Import although the data directory already has mailboxes or usage records."),
    ] = False,
    data: Data = DATA,
    json: Json = False,
) -> None:
    """Import the databases of the reference server. Both servers must be stopped."""
    from restante.mailbox.reference_import.importing import import_databases
    from restante.mailbox.reference_import.report import render

    os.umask(0o077)  # as in `serve`
    report = import_databases(data, channel, usage, merge=merge)
    print(msgspec.json.encode(report).decode() if json else render(msgspec.structs.asdict(report)))


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Usage database to create; it must not exist.")],
    data: Data = DATA,
) -> None:
    """Export usage records for the reference server. The server may be running."""
    from restante.mailbox.reference_import.exporting import export_usage
    from restante.mailbox.reference_import.report import render

    print(render({"exported": export_usage(data, file)}))
