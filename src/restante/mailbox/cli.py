"""Commands of the mailbox server: `restante serve`, `config show`, `status`, and those that copy its data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from restante.cli.extra_commands import group_that_needs
from restante.cli.serve_options import JsonOption, ReadSettings, data_path, prepare, print_settings, with_options
from restante.mailbox.settings import SERVE, Serve

app = typer.Typer(cls=group_that_needs("server"))
config_app = typer.Typer(no_args_is_help=True, cls=group_that_needs("server"))
app.add_typer(config_app, name="config", help="Show or check the settings of the mailbox server.")


@app.command("serve")
@with_options(SERVE)
def serve_command(read_settings: ReadSettings) -> None:
    """Run the mailbox server."""
    settings, _ = read_settings()
    prepare(settings)
    from restante.mailbox.server.main import serve  # this import takes as long as all of the above

    serve(settings, read_settings)


@config_app.command("show")
@with_options(SERVE)
def config_show(read_settings: ReadSettings, *, json: JsonOption = False) -> None:
    """Show the settings that `serve` would use, and the origin of each."""
    print_settings(SERVE, read_settings()[1], json=json)


@config_app.command("check")
@with_options(SERVE)
def config_check(read_settings: ReadSettings) -> None:
    """Check the settings that `serve` would use, and their files.

    The exit code is 0 if all can be used. The addresses are not tried: a server may be running. Those of the Waku
    node are checked by `restante waku config --check`.
    """
    settings, _ = read_settings()
    from restante.mailbox.server.main import read_files

    read_files(settings)
    print("the settings can be used")


def _data_option(text: str) -> Any:
    return typer.Option(metavar="DIR", envvar="RESTANTE_DATA", parser=data_path, help=text)


DataOption = Annotated[Path, _data_option("Data directory.")]
DEFAULT_DATA = Path(Serve().data)


@app.command("status")
def status(data: DataOption = DEFAULT_DATA, json: JsonOption = False) -> None:
    """Count what the mailbox server has stored. The server may be running."""
    from restante.mailbox.store.status import read_status, render_status

    counts = read_status(data)
    print(msgspec.json.encode(counts).decode() if json else render_status(counts))


@app.command("backup")
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup to create; it must not exist.")],
    data: DataOption = DEFAULT_DATA,
    json: JsonOption = False,
) -> None:
    """Copy the data of the mailbox server into a file. The server may be running."""
    from restante.common.backups import render_contents
    from restante.common.progress import progress
    from restante.common.signals import cleaning_up
    from restante.mailbox.store.backup import back_up

    with cleaning_up(), progress("backup") as advance:
        contents = back_up(data, file, advance)
    print(msgspec.json.encode(contents).decode() if json else render_contents(contents))


@app.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup to restore; it is not changed.")],
    data: Annotated[Path, _data_option("Data directory; it must be new or empty.")] = DEFAULT_DATA,
    json: JsonOption = False,
) -> None:
    """Copy a backup into a new data directory. Then start the server on it."""
    from restante.common.backups import render_contents
    from restante.common.progress import progress
    from restante.common.signals import cleaning_up
    from restante.mailbox.store.backup import restore

    os.umask(0o077)  # as in `serve`
    with cleaning_up(), progress("restore") as advance:
        contents = restore(file, data, advance)
    print(msgspec.json.encode(contents).decode() if json else render_contents(contents))


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
    data: DataOption = DEFAULT_DATA,
    json: JsonOption = False,
) -> None:
    """Import the databases of the reference server. Both servers must be stopped."""
    from restante.mailbox.reference_import.importing import import_databases

    os.umask(0o077)  # as in `serve`
    report = import_databases(data, channel, usage, merge=merge)
    print(msgspec.json.encode(report).decode() if json else _count_table(msgspec.structs.asdict(report)))


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Usage database to create; it must not exist.")],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Export usage records for the reference server. The server may be running."""
    from restante.mailbox.reference_import.exporting import export_usage

    print(_count_table({"exported": export_usage(data, file)}))


def _count_table(groups: Mapping[str, Mapping[str, int]]) -> str:
    """Return counts as a table with three columns: what was done, the kind of row, the count."""
    rows = [
        (action, kind.replace("_", " "), count) for action, counts in groups.items() for kind, count in counts.items()
    ]
    width = max(len(kind) for _, kind, _ in rows)
    digits = max(len(str(count)) for _, _, count in rows)
    return "\n".join(f"{action:<9} {kind:<{width}}  {count:>{digits}}" for action, kind, count in rows)
