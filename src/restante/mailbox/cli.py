"""Commands of the mailbox server: `restante serve`, `config show`, `status`, and those that copy its data."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import asdict, replace

from restante.cli.data_commands import NEW_DIRECTORY, count_table, data_option, print_copy, to_json
from restante.cli.extra_commands import group_that_needs
from restante.cli.serve_options import (
    JsonOption,
    ReadSettings,
    check_addresses,
    prepare,
    print_settings,
    with_options,
)
from restante.common.errors import Misuse, StoreError
from restante.common.extras import require_extra
from restante.common.settings import without_password
from restante.common.terminal import say
from restante.mailbox.settings import SERVE, Serve

app = typer.Typer(cls=group_that_needs("server"))
config_app = typer.Typer(no_args_is_help=True, cls=group_that_needs("server"))
app.add_typer(config_app, name="config", help="Show or check the settings of the mailbox server.")


@app.command("serve")
@with_options(SERVE)
def serve_command(read_settings: ReadSettings) -> None:
    """Run the mailbox server."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGUSR2))  # until the server receives them
    from restante.common.handover import key_of_admin, take

    handover = take(os.environ)
    settings, _ = read_settings()
    if handover is not None:
        handover.close_listening((*settings.listen, key_of_admin(settings.admin)))
    if settings.database is not None:
        require_extra("postgres")
    prepare(settings, () if handover is None else handover.head.listening)
    # These imports take as long as all of the above.
    if settings.database is not None:
        from restante.mailbox.server import standby

        standby.serve(settings, read_settings)
    else:
        from restante.mailbox.server.main import serve

        serve(settings, read_settings, handover)


@config_app.command("show")
@with_options(SERVE)
def config_show(read_settings: ReadSettings, *, json: JsonOption = False) -> None:
    """Show the settings that `serve` would use, and the origin of each."""
    resolved = [
        replace(setting, value=without_password(setting.value))
        if setting.name == "database" and setting.value is not None
        else setting
        for setting in read_settings()[1]
    ]
    print_settings(SERVE, resolved, json=json)


@config_app.command("check")
@with_options(SERVE)
def config_check(
    read_settings: ReadSettings,
    *,
    with_database: Annotated[
        bool, typer.Option("--with-database", help="Check the version of the database, too.")
    ] = False,
) -> None:
    """Check the settings that `serve` would use, and their files.

    The exit code is 0 if all can be used. The addresses are not tried: a server may be running. Those of the Waku
    node are checked by `restante waku config --check`.
    """
    settings, _ = read_settings()
    from restante.common.handover import key_of_admin
    from restante.common.restart import running_server
    from restante.mailbox.server.main import check_database, import_lazy_modules, read_files

    read_files(settings)
    running = running_server(os.environ)
    if running is not None:
        running.check_directory(Path(settings.data))
        check_addresses(settings, (*running.listen, key_of_admin(running.admin)))
        import_lazy_modules(settings)
    if settings.database is not None:
        require_extra("postgres")
        from restante.common.postgres import check_url

        check_url(settings.database)
    if with_database:
        if settings.database is None:
            check_database(Path(settings.data))
        else:
            from restante.mailbox.store.postgres import NOT_SYNCHRONOUS, SYNCHRONOUS, reading

            with reading(settings.database) as database:
                if database.execute(SYNCHRONOUS) == [(False,)]:
                    say(f"restante: {NOT_SYNCHRONOUS}")
    print("the settings can be used")


DataOption = Annotated[Path, data_option("RESTANTE_DATA")]
DEFAULT_DATA = Path(Serve().data)
DatabaseOption = Annotated[
    str | None,
    typer.Option(metavar="URL", envvar="RESTANTE_DATABASE", help="PostgreSQL database, in place of --data."),
]


NotDatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="RESTANTE_DATABASE",
        help="For a PostgreSQL database: say what to use in place of this command.",
    ),
]


def _where(context: typer.Context, data: Path, database: str | None) -> Path | str:
    """Return what to read: the database if one is named. Raises Misuse if --data names a directory, too."""
    if database is None:
        return data
    source = context.get_parameter_source("data")
    if source is not None and source.name == "COMMANDLINE":
        raise Misuse("--data: there is a database, too (--database or RESTANTE_DATABASE): name only one")
    require_extra("postgres")
    return database


def _refuse_database(database: str | None, text: str) -> None:
    """Raise Misuse with what to use in place of this command, if a database is named."""
    if database is not None:
        raise Misuse(f"this is for data directories, not for a PostgreSQL database: {text}")


@app.command("status")
def status(
    context: typer.Context,
    data: DataOption = DEFAULT_DATA,
    database: DatabaseOption = None,
    json: JsonOption = False,
) -> None:
    """Count what the mailbox server has stored. The server may be running."""
    from restante.mailbox.store.status import read_status, render_status

    counts = read_status(_where(context, data, database))
    print(to_json(counts) if json else render_status(counts))


@app.command("nodes")
def nodes(
    database: Annotated[
        str | None,
        typer.Option(metavar="URL", envvar="RESTANTE_DATABASE", help="PostgreSQL database of the servers."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show which server of a PostgreSQL database serves.

    It also shows which ones stand by, if the database knows. It takes up to 3 seconds.
    """
    if database is None:
        raise Misuse("name the database of the servers: --database URL")
    require_extra("postgres")
    from restante.mailbox.store.status import read_nodes, render_nodes

    servers = read_nodes(database)
    print(to_json(servers) if json else render_nodes(servers))


@app.command("restart")
def restart(data: DataOption = DEFAULT_DATA, json: JsonOption = False) -> None:
    """Replace the running server by the installed version. Clients stay connected, except through its own TLS."""
    from restante.common.restart import ask
    from restante.mailbox.store.schema import FILE

    answer = ask(data, FILE)
    if answer.error:
        raise StoreError(answer.error)
    kept = f"{answer.connections} connections waited for {answer.seconds:.2f} s"
    print(to_json(answer) if json else f"restante {answer.version} serves; {kept}")


@app.command("backup")
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup to create; it must not exist.")],
    data: DataOption = DEFAULT_DATA,
    database: NotDatabaseOption = None,
    json: JsonOption = False,
) -> None:
    """Copy the data of the mailbox server into a file. The server may be running."""
    _refuse_database(
        database,
        "use pg_dump --dbname URL --schema=restante --format=custom --file FILE",
    )
    from restante.mailbox.store.backup import back_up

    print_copy("backup", lambda advance: back_up(data, file, advance), json=json)


@app.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup to restore; it is not changed.")],
    data: Annotated[Path, data_option("RESTANTE_DATA", NEW_DIRECTORY)] = DEFAULT_DATA,
    database: NotDatabaseOption = None,
    json: JsonOption = False,
) -> None:
    """Copy a backup into a new data directory. Then start the server on it."""
    _refuse_database(
        database,
        "stop all its servers, and restore a backup of pg_dump with pg_restore --dbname URL --schema=restante --clean"
        " --if-exists --single-transaction FILE",
    )
    from restante.mailbox.store.backup import restore

    print_copy("restore", lambda advance: restore(file, data, advance), json=json)


@app.command("migrate")
def migrate(
    source: Annotated[str, typer.Option("--from", metavar="DIR|URL", help="What to copy; it is not changed.")],
    target: Annotated[
        str, typer.Option("--to", metavar="DIR|URL", help="Where to copy it; it must be new or empty.")
    ],
    json: JsonOption = False,
) -> None:
    """Copy a data directory to a PostgreSQL database, or back. Stop all servers of both first."""
    require_extra("postgres")
    import asyncio

    from restante.common.progress import progress
    from restante.mailbox.store import migration

    os.umask(0o077)  # as in `serve`
    with progress("migrate") as advance:
        result = asyncio.run(migration.migrate(source, target, advance))
    rows = {name: result.rows[name] for name in migration.RECORDS}
    print(to_json(result) if json else count_table({"copied" if result.copied else "was there": rows}))


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
    database: NotDatabaseOption = None,
    json: JsonOption = False,
) -> None:
    """Import the databases of the reference server. Both servers must be stopped."""
    _refuse_database(
        database, "import into a new data directory (--data), and copy that with restante migrate --from DIR --to URL"
    )
    from restante.mailbox.reference_import.importing import import_databases

    os.umask(0o077)  # as in `serve`
    report = import_databases(data, channel, usage, merge=merge)
    print(to_json(report) if json else count_table(asdict(report)))


@app.command("export")
def export(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Usage database to create; it must not exist.")],
    data: DataOption = DEFAULT_DATA,
    database: DatabaseOption = None,
) -> None:
    """Export usage records for the reference server. The server may be running."""
    from restante.mailbox.reference_import.exporting import export_usage

    print(count_table({"exported": export_usage(_where(context, data, database), file)}))
