"""Commands of the mailbox server: `restante serve`, `config show`, `status`, `import`, `export`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from restante.common.settings import Source, address, settle, shown
from restante.mailbox.settings import SERVE, Serve

app = typer.Typer()
config_app = typer.Typer(no_args_is_help=True)
app.add_typer(config_app, name="config", help="Settings.")

Config = Annotated[Path | None, typer.Option(help="TOML file with a table [serve]; keys are named like the flags.")]


def _options(
    config: Config = None,
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Where everything is kept.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="*:PORT is every interface.")] = None,
    admin: Annotated[str | None, typer.Option(metavar="HOST:PORT|off", help="Health checks over HTTP.")] = None,
    motd: Annotated[str | None, typer.Option(metavar="TEXT", help="Shown by every client that connects.")] = None,
    signal_error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Clients show it and give up; they are served all the same.")
    ] = None,
    advertise_version: Annotated[
        str | None, typer.Option(metavar="V", help="Older clients tell their user to upgrade.")
    ] = None,
    no_list: Annotated[bool | None, typer.Option("--no-list", help="Answer `list` with no nameplates.")] = None,
    frames: Annotated[str | None, typer.Option(metavar="text|binary", help="What we send; we take both.")] = None,
    blur_usage: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="Round times in usage records down to a multiple of this.")
    ] = None,
    keep_usage: Annotated[
        str | None, typer.Option(metavar="DAYS", help="Drop older usage records. Default: keep them.")
    ] = None,
    prune_every: Annotated[str | None, typer.Option(metavar="SECONDS", help="Time between prunes.")] = None,
    prune_after: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="Idle mailboxes are pruned after this much service.")
    ] = None,
    permission: Annotated[
        str | None, typer.Option(metavar="none|hashcash|adaptive", help="Work to be shown before one is served.")
    ] = None,
    permission_bits: Annotated[str | None, typer.Option(metavar="BITS", help="How much; one doubles it.")] = None,
    permission_load: Annotated[
        str | None, typer.Option(metavar="RATE", help="adaptive: more connections a second, and all must work.")
    ] = None,
    trust_proxy: Annotated[
        list[str] | None, typer.Option(metavar="NETWORK", help="Proxies that say who their clients are; repeatable.")
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="`restante config show` lists them; repeatable.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write when each command came and was answered.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(metavar="auto|console|json")] = None,
) -> None:
    """Declare the options of `serve` and `config show`; `_taking_options` hands them on."""


ReadSettings = Callable[[], tuple[Serve, list[Source]]]


def _taking_options(run: Callable[[ReadSettings], None]) -> Callable[..., None]:
    @functools.wraps(_options)
    def command(*, config: Path | None = None, **flags: Any) -> None:
        flags = {name: None if value == [] else value for name, value in flags.items()}
        run(lambda: settle(SERVE, flags, os.environ, config))

    command.__doc__ = run.__doc__
    return command


@app.command("serve")
@_taking_options
def serve_command(read_settings: ReadSettings) -> None:
    """Run the mailbox server."""
    from restante.common.ports import refuse_taken

    settings, _ = read_settings()
    refuse_taken(*address(settings.listen, "--listen"), "--listen")
    if settings.admin != "off":
        refuse_taken(*address(settings.admin, "--admin"), "--admin")

    from restante.common import logs
    from restante.mailbox.server.main import serve  # takes as long as all that was before

    logs.start(settings.log_format)
    os.umask(0o077)  # what is in the data directory is nobody else's business
    serve(settings, read_settings)


@config_app.command("show")
@_taking_options
def config_show(read_settings: ReadSettings) -> None:
    """Show the settings that `serve` would use, and where each comes from."""
    print("\n".join(shown(read_settings()[1])))


Data = Annotated[Path, typer.Option(metavar="DIR", envvar="RESTANTE_DATA", help="The data directory.")]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]
DATA = Path("restante-data")


@app.command()
def status(data: Data = DATA, json: Json = False) -> None:
    """Show what a mailbox server holds, read from its data directory; it may be running."""
    from restante.mailbox.store.status import read, render

    found = read(data)
    print(msgspec.json.encode(found).decode() if json else render(found))


@app.command("import")
def import_command(
    channel: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The reference server's --channel-db: what is live.")
    ] = None,
    usage: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The reference server's --usage-db: usage records.")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Into a directory that is not empty, too.")] = False,
    data: Data = DATA,
    json: Json = False,
) -> None:
    """Take over from the reference server; both servers must be stopped."""
    from restante.mailbox.reference_import.importing import import_databases
    from restante.mailbox.reference_import.report import render

    os.umask(0o077)  # as for `serve`
    report = import_databases(data, channel, usage, merge=merge)
    print(msgspec.json.encode(report).decode() if json else render(msgspec.structs.asdict(report)))


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Is made; must not exist.")],
    data: Data = DATA,
) -> None:
    """Write usage records as a usage database of the reference server; ours may be running."""
    from restante.mailbox.reference_import.exporting import export_usage
    from restante.mailbox.reference_import.report import render

    print(render({"exported": export_usage(data, file)}))
