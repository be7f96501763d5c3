"""`restante waku`: the Mailserver's commands. What a subcommand needs is imported when it runs."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Meta

from restante.common.errors import Misuse
from restante.common.plural import counted

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
    min_pow: Annotated[str | None, typer.Option(metavar="POW", help="Envelopes with less work are refused.")] = None,
    max_ttl: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="Envelopes that are to live longer are refused.")
    ] = None,
    retention: Annotated[
        str | None, typer.Option(metavar="DAYS", help="How long envelopes are kept; 0: for ever.")
    ] = None,
    retention_bytes: Annotated[
        str | None, typer.Option(metavar="BYTES", help="How much is kept, the oldest goes first. Default: no limit.")
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Archive only this topic; repeatable. Default: all.")
    ] = None,
    requests: Annotated[
        list[str] | None, typer.Option(metavar="plain|envelope", help="Requests that are answered; repeatable.")
    ] = None,
    order: Annotated[str | None, typer.Option(metavar="asc|desc", help="Of history: oldest or newest first.")] = None,
    password_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Of the password that requests in envelopes are sealed with.")
    ] = None,
    require_signature: Annotated[
        bool | None, typer.Option("--require-signature", help="Answer signed requests in envelopes only.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="ENODE", help="Answer this node only; repeatable. Default: all.")
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(metavar="ENODE", help="Stay connected to; repeatable.")] = None,
    max_peers: Annotated[str | None, typer.Option(metavar="NUMBER")] = None,
    max_peers_per_address: Annotated[str | None, typer.Option(metavar="NUMBER")] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="`waku config` lists them; repeatable.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(metavar="auto|console|json")] = None,
) -> None:
    """Declare the options of `waku serve`; `_serving` hands them on."""


def _serving(run: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(_serve_options)
    def command(*, config: Path | None = None, **flags: Any) -> None:
        from restante.common.settings import settle
        from restante.waku.settings import WAKU

        given = {name: None if value == [] else value for name, value in flags.items()}
        run(*settle(WAKU, given, os.environ, config))

    command.__doc__ = run.__doc__
    return command


@app.command("serve")
@_serving
def serve_command(settings: Any, _sources: Any) -> None:
    """Run the node; its enode is the first line of the output."""
    from restante.common.ports import refuse_taken
    from restante.common.settings import address

    refuse_taken(*address(settings.listen, "--listen"), "--listen")
    if settings.admin != "off":
        refuse_taken(*address(settings.admin, "--admin"), "--admin")

    from restante.common import logs
    from restante.waku.node.main import serve  # this import takes as long as all of the above

    logs.start(settings.log_format)
    os.umask(0o077)  # what is in the data directory is nobody else's business
    serve(settings)


@app.command("config")
@_serving
def config_command(_settings: Any, sources: Any) -> None:
    """Show the settings that `waku serve` would use, and where each comes from."""
    from restante.common.settings import shown

    print("\n".join(shown(sources)))


@app.command()
def post(
    node: Annotated[str, typer.Argument(metavar="ENODE", help="The node to hand it to.")],
    text: Annotated[str, typer.Argument(help="What to post; - reads standard input.")] = "-",
    channel: Annotated[
        str | None, typer.Option(metavar="NAME", help="A public chat: topic and key come from its name.")
    ] = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="8 hexadecimal digits.")] = None,
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Seal with the key of the password in it.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="KEY", help="Seal for a public key, 128 hexadecimal digits.")
    ] = None,
    sign: Annotated[Path | None, typer.Option(metavar="FILE", help="Sign with the key in it.")] = None,
    ttl: Annotated[str, typer.Option(metavar="SECONDS", help="How long the envelope lives.")] = "50",
) -> None:
    """Seal a text and hand it to a node; prints the envelope's hash.

    The password may also be in RESTANTE_WAKU_PASSWORD.
    """
    import asyncio

    from restante import waku as library
    from restante.cli.waku_arguments import sealed_for
    from restante.common.settings import convert
    from restante.waku import key_file

    seconds = convert(ttl, Annotated[int, Meta(ge=1, le=2**31)], "--ttl")
    place, key = sealed_for(channel, topic, password_file, to, os.environ)
    body = sys.stdin.buffer.read() if text == "-" else os.fsencode(text)  # as the shell gave it
    signer = key_file.load(sign, "--sign") if sign is not None else None
    posted = asyncio.run(library.post(node, body, topic=place, to=key, sign=signer, ttl=seconds))
    print(posted.envelope.hash.hex())
    if not posted.confirmed:
        print("the node never confirms; whether it took the envelope is not known", file=sys.stderr)


PasswordOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The Mailserver's password; also in RESTANTE_WAKU_PASSWORD.")
]
KeyOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Who to be, where not all are let in. Default: somebody new."),
]
FormOption = Annotated[str, typer.Option(metavar="envelope|plain", help="How requests are written.")]


NodesArgument = Annotated[
    list[str], typer.Argument(metavar="ENODE...", help="Mailservers, which are trusted; the first is preferred.")
]
FromOption = Annotated[
    str, typer.Option("--from", metavar="TIME", help="1700000000, 2026-11-21T13:00 (UTC), -24h or now.")
]
ToOption = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Likewise. Default: now.")]
TopicsOption = Annotated[list[str] | None, typer.Option(metavar="TOPIC", help="8 hexadecimal digits; repeatable.")]
ChannelOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="A public chat: its topic; and its envelopes are opened.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Is made: .jsonl, .rlp or .parquet. Default: JSON lines."),
]
StateOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Fetch only what it does not know, and keep what is known in it."),
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=NUMBER", help="Of a Mailserver: pages, envelopes, bytes, seconds, size; repeatable."),
]
OpenPasswordOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Open what is sealed with the password in it.")
]
OpenKeyOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Open what is sealed for the key in it.")]
LiveOption = Annotated[
    bool, typer.Option("--live", help="Then go on with what comes, until Ctrl-C; each envelope comes once.")
]
ForOption = Annotated[
    str | None, typer.Option("--for", metavar="SECONDS", help="Of --live: stop by itself after so long.")
]


@app.command("request")
def request_command(
    nodes: NodesArgument,
    begin: FromOption = "-24h",
    end: ToOption = None,
    topic: TopicsOption = None,
    channel: ChannelOption = None,
    form: FormOption = "envelope",
    password_file: PasswordOption = None,
    key: KeyOption = None,
    output: OutputOption = None,
    state: StateOption = None,
    limit: LimitOption = None,
    open_password: OpenPasswordOption = None,
    open_key: OpenKeyOption = None,
    live: LiveOption = False,
    seconds: ForOption = None,
) -> None:
    """Fetch history from Mailservers."""
    from restante.cli.waku_arguments import opening, request_options, requested_topics
    from restante.waku.client import results
    from restante.waku.client.history import Destination, budgets, run_fetch, run_subscribe
    from restante.waku.devp2p import enode

    duration = _listening(live, end, seconds)
    topics, chat = requested_topics(channel, topic or [])
    query = _query(begin, end, topics)
    options = request_options(form, password_file, key, os.environ)
    results.check(output)
    servers = [enode.parse(each) for each in nodes]
    destination = Destination(file=output, keys=opening(chat, open_password, open_key), state=state)
    say_failure = _teller([each.address for each in servers])
    costs = budgets(limit or [])
    report = (
        run_subscribe(servers, query, options, destination, costs, say_failure, duration)
        if live
        else run_fetch(servers, query, options, destination, costs)
    )
    for number, words in () if live else report.failures.items():  # who listens was told when it failed
        say_failure(number, words)
    if output is not None:
        print(f"fetched {counted(report.counts['handed over'], 'envelope')}")
    _miss(report.missing)


def _listening(live: bool, end: str | None, seconds: str | None) -> float | None:
    """Return the seconds that --live lasts, or None if it lasts until it is stopped. Raises Misuse."""
    from restante.common.settings import convert

    if live and end is not None:
        raise Misuse("--live goes on from now: leave --to out")
    if seconds is not None and not live:
        raise Misuse("--for tells how long to listen: say --live, too")
    return None if seconds is None else convert(seconds, Annotated[float, Meta(ge=0.1, le=1_000_000_000)], "--for")


def _query(begin: str, end: str | None, topics: frozenset[bytes]) -> Any:
    import time

    from restante.cli.times import read_time
    from restante.waku.client.ranges import HistoryQuery

    now = int(time.time())
    return HistoryQuery(read_time(begin, now, "--from"), read_time(end or "now", now, "--to"), topics)


def _teller(addresses: list[str]) -> Callable[[int, str], None]:
    """Return a function that prints the failure of a server, given by its number, to standard error."""

    def say(server: int, words: str) -> None:
        address = addresses[server]
        print(words if address in words else f"{address}: {words}", file=sys.stderr)

    return say


def _miss(missing: list[tuple[int, int]]) -> None:
    """Say which times are missing, and end with 1 if any are."""
    if missing:
        ranges = ", ".join(f"{lower} to {upper}" for lower, upper in missing)
        print(f"nobody answered for all of it; missing are the times {ranges}", file=sys.stderr)
        raise typer.Exit(1)


@app.command("probe")
def probe_command(
    node: Annotated[str, typer.Argument(metavar="ENODE", help="The Mailserver.")],
    form: FormOption = "envelope",
    password_file: PasswordOption = None,
    key: KeyOption = None,
    patience: Annotated[str, typer.Option(metavar="SECONDS", help="To wait for each of its answers.")] = "10",
) -> None:
    """Check that a Mailserver works: post an envelope, and fetch it.

    Exit codes: 0 all is well, 3 cannot connect, 4 does not greet, 5 does not confirm or refuses the envelope,
    6 does not answer requests, 7 answers with an error, 8 the envelope is missing.
    """
    from restante.cli.waku_arguments import request_options
    from restante.common.settings import convert
    from restante.waku.client.probe import probe
    from restante.waku.devp2p import enode

    seconds = convert(patience, Annotated[float, Meta(ge=0.1, le=1_000_000)], "--patience")
    found = probe(enode.parse(node), request_options(form, password_file, key, os.environ), seconds)
    print(found.words, file=sys.stderr if found.outcome else sys.stdout)
    raise typer.Exit(found.outcome)


DataOption = Annotated[Path, typer.Option(metavar="DIR", envvar="RESTANTE_WAKU_DATA", help="The data directory.")]
DEFAULT_DATA = Path("restante-waku")


@app.command("export")
def export_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Is made, .rlp or .parquet; must not exist.")],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Write all archived envelopes to a file; the server may be running."""
    from restante.common.signals import cleaning_up
    from restante.waku.files.exporting import export

    with cleaning_up():
        count = export(data, file)
    print(f"exported {counted(count, 'envelope')}")


@app.command("import")
def import_command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help=".rlp, .parquet, or the directory of a LevelDB archive.")
    ],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Archive the envelopes of files; the server must be stopped. Done again, it changes nothing."""
    from restante.waku.files.importing import render, take_in, warn

    os.umask(0o077)  # as for `serve`
    report = take_in(data, paths)
    print(render(report))
    for sentence in (*report.unreadable, warn(report)):
        if sentence is not None:
            print(sentence, file=sys.stderr)
    if report.refused:
        raise typer.Exit(1)


@app.command()
def check(data: DataOption = DEFAULT_DATA) -> None:
    """Look whether an archive is whole; the server may be running."""
    from restante.common.progress import progress
    from restante.waku.archive import checking, reading
    from restante.waku.archive.schema import SCHEMA

    with SCHEMA.reading(data) as database:
        counts = reading.counts(database)
        with progress("check", counts.envelopes) as advance:
            wrong = list(islice(checking.check(database, advance), MAX_SENTENCES))
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    if wrong:
        raise typer.Exit(1)
    found = ((counts.envelopes, "envelope"), (counts.bytes, "byte"), (counts.topics, "topic"))
    print(f"{', '.join(counted(*each) for each in found)}: all is well")


MAX_SENTENCES = 100
"""Sentences about what is wrong; whoever has read these needs no more."""


@app.command("backup")
def backup_command(
    target: Annotated[Path, typer.Argument(metavar="DIR", help="A new data directory; must be empty, if it exists.")],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Copy an archive; the server may be running."""
    from restante.common.progress import progress
    from restante.waku.archive.backup import backup

    os.umask(0o077)  # as for `serve`
    with progress("backup") as advance:
        backup(data, target, advance)
    print(f"{target} is a data directory with a copy of the archive")
