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
    """Raise Misuse if the extra is not installed."""
    if importlib.util.find_spec("coincurve") is None:
        raise Misuse("this command needs the extra 'waku': pip install 'restante[waku]'")


def _serve_options(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file with a table [waku]; keys are named like the flags."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Data directory; created if it does not exist. Default: restante-waku."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Address for peers; *:PORT is every interface. Default: 127.0.0.1:30303."
        ),
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|off", help="Address of health checks and metrics over HTTP. Default: 127.0.0.1:4011."
        ),
    ] = None,
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
        typer.Option(metavar="BYTES", help="Keep at most this much, and remove the oldest first. Default: no limit."),
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
    log_format: Annotated[
        str | None,
        typer.Option(
            metavar="auto|console|json",
            help="Format of the log; auto is console on a terminal, else json. Default: auto.",
        ),
    ] = None,
) -> None:
    """Declare the options of `waku serve` and `waku config`; `_serving` passes them on."""


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
    """Run a Waku Mailserver. It prints its enode URL first."""
    from restante.common.ports import refuse_taken
    from restante.common.settings import address

    refuse_taken(*address(settings.listen, "--listen"), "--listen")
    if settings.admin != "off":
        refuse_taken(*address(settings.admin, "--admin"), "--admin")

    from restante.common import logs
    from restante.waku.node.main import serve  # this import takes as long as all of the above

    logs.start(settings.log_format)
    os.umask(0o077)  # only the owner may read the data directory
    serve(settings)


@app.command("config")
@_serving
def config_command(_settings: Any, sources: Any) -> None:
    """Show the settings that `serve` would use, and the origin of each."""
    from restante.common.settings import shown

    print("\n".join(shown(sources)))


@app.command()
def post(
    node: Annotated[str, typer.Argument(metavar="ENODE", help="Enode URL of the node to send it to.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text to post; - reads standard input.")] = "-",
    channel: Annotated[
        str | None, typer.Option(metavar="NAME", help="Public chat to post to; its name gives the topic and the key.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Topic to post on, 8 hexadecimal digits.")
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the password to seal with; or RESTANTE_WAKU_PASSWORD."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Public key of the receiver to seal for, 128 hexadecimal digits."),
    ] = None,
    sign: Annotated[Path | None, typer.Option(metavar="FILE", help="File with the private key to sign with.")] = None,
    ttl: Annotated[str, typer.Option(metavar="SECONDS", help="Time to live of the envelope.")] = "50",
) -> None:
    """Seal a text and send it to a node. Prints the hash of the envelope.

    Name where it goes and who can open it: --channel, or --topic with --password-file or --to.
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
        print("this node confirms no envelopes: it is not known whether it took this one", file=sys.stderr)


PasswordOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with the Mailserver's password; or RESTANTE_WAKU_PASSWORD.")
]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with the private key to connect with, for a Mailserver with --allow. Default: a new key.",
    ),
]
FormOption = Annotated[
    str, typer.Option(metavar="envelope|plain", help="Form of the requests: sealed in an envelope, or plain.")
]


NodesArgument = Annotated[
    list[str], typer.Argument(metavar="ENODE...", help="Enode URLs of Mailservers; the next is asked if one fails.")
]
FromOption = Annotated[
    str, typer.Option("--from", metavar="TIME", help="First time: 1700000000, 2026-11-21T13:00 (UTC), -24h or now.")
]
ToOption = Annotated[
    str | None, typer.Option("--to", metavar="TIME", help="Last time, written like that of --from. Default: now.")
]
TopicsOption = Annotated[
    list[str] | None, typer.Option(metavar="TOPIC", help="Topic to request, 8 hexadecimal digits; repeatable.")
]
ChannelOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Public chat to request; its envelopes are opened.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="File to create, .jsonl, .rlp or .parquet. Default: print JSON lines."
    ),
]
StateOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File that records which times are known, so that only the rest is fetched."),
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=NUMBER",
        help="Limit what a Mailserver may cost: pages, envelopes, bytes, seconds or size; repeatable.",
    ),
]
OpenPasswordOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with a password to open envelopes with.")
]
OpenKeyOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with a private key to open envelopes with.")
]
LiveOption = Annotated[
    bool, typer.Option("--live", help="After the history, print new envelopes as they arrive, until Ctrl-C.")
]
ForOption = Annotated[str | None, typer.Option("--for", metavar="SECONDS", help="With --live: stop after this long.")]


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
    """Fetch history from Mailservers.

    Name what to fetch: --channel or --topic.
    """
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
    for number, words in () if live else report.failures.items():  # with --live each was printed when it happened
        say_failure(number, words)
    if output is not None:
        print(f"fetched {counted(report.counts['handed over'], 'envelope')}")
    _miss(report.missing)


def _listening(live: bool, end: str | None, seconds: str | None) -> float | None:
    """Return the seconds that --live lasts, or None if it lasts until it is stopped. Raises Misuse."""
    from restante.common.settings import convert

    if live and end is not None:
        raise Misuse("--live has no end: leave --to out")
    if seconds is not None and not live:
        raise Misuse("--for is how long --live lasts: add --live, or leave --for out")
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
        print(
            f"no Mailserver answered for these times: {ranges}; try again later, or name another Mailserver",
            file=sys.stderr,
        )
        raise typer.Exit(1)


@app.command("probe")
def probe_command(
    node: Annotated[str, typer.Argument(metavar="ENODE", help="Enode URL of the Mailserver.")],
    form: FormOption = "envelope",
    password_file: PasswordOption = None,
    key: KeyOption = None,
    patience: Annotated[str, typer.Option(metavar="SECONDS", help="Time to wait for each answer.")] = "10",
) -> None:
    """Check that a Mailserver works: post an envelope, and fetch it.

    Exit codes: 0 all is well, 3 it cannot be reached, 4 it does not greet, 5 it does not confirm the envelope or
    refuses it, 6 it does not answer the request, 7 it answers with an error, 8 the envelope is missing.
    """
    from restante.cli.waku_arguments import request_options
    from restante.common.settings import convert
    from restante.waku.client.probe import probe
    from restante.waku.devp2p import enode

    seconds = convert(patience, Annotated[float, Meta(ge=0.1, le=1_000_000)], "--patience")
    found = probe(enode.parse(node), request_options(form, password_file, key, os.environ), seconds)
    print(found.words, file=sys.stderr if found.outcome else sys.stdout)
    raise typer.Exit(found.outcome)


DataOption = Annotated[Path, typer.Option(metavar="DIR", envvar="RESTANTE_WAKU_DATA", help="Data directory.")]
DEFAULT_DATA = Path("restante-waku")


@app.command("export")
def export_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to create, .rlp or .parquet; it must not exist.")
    ],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Write all archived envelopes to a file. The server may be running."""
    from restante.common.signals import cleaning_up
    from restante.waku.files.exporting import export

    with cleaning_up():
        count = export(data, file)
    print(f"exported {counted(count, 'envelope')}")


@app.command("import")
def import_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Files to read, .rlp or .parquet, or the directory of a LevelDB archive."
        ),
    ],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Archive the envelopes of files. The server must be stopped. Importing a file again changes nothing."""
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
    """Check an archive for damage. The server may be running."""
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
"""Lines about what is wrong that `check` prints. More would not help to find the cause."""


@app.command("backup")
def backup_command(
    target: Annotated[
        Path, typer.Argument(metavar="DIR", help="Data directory to create; if it exists, it must be empty.")
    ],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Copy an archive into a new data directory. The server may be running."""
    from restante.common.progress import progress
    from restante.waku.archive.backup import backup

    os.umask(0o077)  # as for `serve`
    with progress("backup") as advance:
        backup(data, target, advance)
    print(f"{target} is a data directory with a copy of the archive")
