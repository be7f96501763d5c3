"""`restante relay`: the command line. What a subcommand needs is imported when it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from restante.cli.data_commands import NEW_DIRECTORY, count_table, data_option, print_copy, to_json
from restante.cli.extra_commands import group_that_needs
from restante.cli.serve_options import JsonOption, ReadSettings, prepare, print_settings, with_options
from restante.relay.settings import RELAY, RelayServe

app = typer.Typer(
    name="relay",
    help="Run a transit relay, and work with its usage records.",
    no_args_is_help=True,
    cls=group_that_needs("server"),
)


@app.command("serve")
@with_options(RELAY)
def serve_command(read_settings: ReadSettings) -> None:
    """Run a transit relay."""
    settings, _ = read_settings()
    prepare(settings)
    from restante.relay.server.main import serve

    serve(settings, read_settings)


@app.command("config")
@with_options(RELAY)
def config_command(
    read_settings: ReadSettings,
    *,
    check: Annotated[bool, typer.Option("--check", help="Check these settings and their files instead.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the settings that `serve` would use, and the origin of each."""
    settings, sources = read_settings()
    if not check:
        print_settings(RELAY, sources, json=json)
        return
    from restante.relay.server.main import read_files

    read_files(settings)
    print("the settings can be used")


DataOption = Annotated[Path, data_option("RESTANTE_RELAY_DATA")]
DEFAULT_DATA = Path(RelayServe().data)


@app.command("status")
def status(data: DataOption = DEFAULT_DATA, json: JsonOption = False) -> None:
    """Count the transfers and bytes of today and of this month (UTC). The relay may be running."""
    import time

    from restante.relay.store.status import read_status, render_status

    counts = read_status(data, time.time())
    print(to_json(counts) if json else render_status(counts))


@app.command("import")
def import_command(
    usage: Annotated[Path, typer.Option(metavar="FILE", help="The reference relay's --usage-db: usage records.")],
    merge: Annotated[
        bool, typer.Option("--merge", help="Import although the data directory already has usage records.")
    ] = False,
    data: DataOption = DEFAULT_DATA,
    json: JsonOption = False,
) -> None:
    """Import the usage records of the reference relay. Both relays must be stopped."""
    from restante.relay.reference_import.importing import import_usage

    os.umask(0o077)  # as in `serve`
    report = import_usage(data, usage, merge=merge)
    print(to_json(report) if json else count_table(msgspec.structs.asdict(report)))


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Usage database to create; it must not exist.")],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Export usage records for the reference relay. The relay may be running."""
    from restante.relay.reference_import.exporting import export_usage

    print(count_table({"exported": {"transfers": export_usage(data, file)}}))


@app.command("backup")
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup to create; it must not exist.")],
    data: DataOption = DEFAULT_DATA,
    json: JsonOption = False,
) -> None:
    """Copy the data of the relay into a file. The relay may be running."""
    from restante.relay.store.backup import back_up

    print_copy("backup", lambda advance: back_up(data, file, advance), json=json)


@app.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup to restore; it is not changed.")],
    data: Annotated[Path, data_option("RESTANTE_RELAY_DATA", NEW_DIRECTORY)] = DEFAULT_DATA,
    json: JsonOption = False,
) -> None:
    """Copy a backup into a new data directory. Then start the relay on it."""
    from restante.relay.store.backup import restore

    print_copy("restore", lambda advance: restore(file, data, advance), json=json)
