"""`restante waku`: the command line. What a subcommand needs is imported when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Meta

from restante.cli.extra_commands import group_that_needs
from restante.cli.serve_options import JsonOption, ReadSettings, data_path, prepare, print_settings, with_options
from restante.common.errors import Misuse
from restante.common.texts import counted
from restante.waku.protocol.policy import TTL_SECONDS
from restante.waku.settings import DEFAULT_DATA, WAKU

if TYPE_CHECKING:
    from restante.waku.client.fetch import RequestOptions
    from restante.waku.client.history import Destination
    from restante.waku.client.ranges import HistoryQuery
    from restante.waku.devp2p.enode import Enode

app = typer.Typer(
    name="waku",
    help="Run a Waku Mailserver, post envelopes, fetch history.",
    no_args_is_help=True,
    cls=group_that_needs("waku"),
)


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
    json: JsonOption = False,
) -> None:
    """Show the settings that `serve` would use, and the origin of each."""
    settings, sources = read_settings()
    if not check:
        print_settings(WAKU, sources, json=json)
        return
    from restante.waku.node.main import read_files

    read_files(settings)
    print("the settings can be used")


# ── commands that connect to nodes ───────────────────────────────────────────────────────────────

MAX_OPEN_RANGES = 20
"""Open ranges that are printed, one on a line. The next run of `restante pipeline gaps` lists all of them."""


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
    ttl: Annotated[str, typer.Option(metavar="SECONDS", help="Time to live of the envelope.")] = str(TTL_SECONDS),
) -> None:
    """Seal a text and send it to a node. Prints the hash of the envelope.

    Name where it goes and who can open it: --channel, or --topic with --password-file or --to.
    """
    import asyncio

    from restante import waku as library
    from restante.common.settings import convert
    from restante.waku.client.arguments import topic_and_seal_key
    from restante.waku.key_file import load_key

    seconds = convert(ttl, Annotated[int, Meta(ge=1, le=2**31)], "--ttl")
    topic_bytes, key = topic_and_seal_key(channel, topic, password_file, to, os.environ)
    body = sys.stdin.buffer.read() if text == "-" else os.fsencode(text)  # the same bytes as on the command line
    signer = load_key(sign, "--sign") if sign is not None else None
    posted = asyncio.run(library.post(node, body, topic=topic_bytes, to=key, sign=signer, ttl=seconds))
    print(posted.envelope.hash.hex())
    if not posted.confirmed:
        print("this node does not confirm envelopes: it may not have accepted this one", file=sys.stderr)


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
DEFAULT_FROM = "-24h"
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help=f"First time: 1700000000, 2026-11-21T13:00 (UTC), -24h or now. Default: {DEFAULT_FROM}.",
    ),
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
        help="Limit for each Mailserver: pages, envelopes, bytes, seconds or size; repeatable.",
    ),
]
OpenPasswordOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with a password to open envelopes with.")
]
OpenKeyOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with a private key to open envelopes with.")
]
TextOption = Annotated[
    bool, typer.Option("--text", help="Print the time and the text of each envelope, and no JSON.")
]
RangesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="File of `restante pipeline gaps`: every Mailserver is asked for each of its ranges."
    ),
]
LiveOption = Annotated[
    bool, typer.Option("--live", help="After the history, print new envelopes as they arrive, until Ctrl-C.")
]
ForOption = Annotated[str | None, typer.Option("--for", metavar="SECONDS", help="With --live: stop after this long.")]


@app.command("request")
def request_command(
    nodes: NodesArgument,
    begin: FromOption = None,
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
    ranges: RangesOption = None,
    live: LiveOption = False,
    seconds: ForOption = None,
    text: TextOption = False,
) -> None:
    """Fetch history from Mailservers.

    Name what to fetch: --channel, --topic or --ranges.
    """
    from restante.waku.client.arguments import opening_keys, request_options, requested_topics
    from restante.waku.client.history import Destination, check_output_file, run_fetch, run_subscribe
    from restante.waku.devp2p import enode

    options = request_options(form, password_file, key, os.environ, limit or [])
    check_output_file(output)
    servers = [enode.parse(url) for url in nodes]
    print_failure = _failure_printer([server.address for server in servers])
    if ranges is not None:
        if any((begin, end, topic, channel, state, live, seconds)):
            raise Misuse(
                "--ranges names times and topics: leave --from, --to, --topic, --channel, --state, --live out"
            )
        keys = opening_keys(None, open_password, open_key)
        destination = Destination(output_file=output, keys=keys, text=_text_only(text, output, keys))
        _request_ranges(servers, ranges, options, destination, print_failure)
        return
    live_seconds = _live_seconds(live, end, seconds)
    topics, channel_key = requested_topics(channel, topic or [])
    query = _query(begin or DEFAULT_FROM, end, topics)
    keys = opening_keys(channel_key, open_password, open_key)
    destination = Destination(output_file=output, keys=keys, state_file=state, text=_text_only(text, output, keys))
    report = (
        run_subscribe(servers, query, options, destination, print_failure, live_seconds)
        if live
        else run_fetch(servers, query, options, destination)
    )
    for number, reason in () if live else report.failures.items():  # with --live they were printed at once
        print_failure(number, reason)
    if output is not None:
        print(f"fetched {counted(report.handed_over, 'envelope')}")
    _exit_if_missing(report.missing)


def _request_ranges(
    servers: Sequence[Enode],
    file: Path,
    options: RequestOptions,
    destination: Destination,
    print_failure: Callable[[int, str], None],
) -> None:
    """Fetch the ranges of a file, and print which stay open. End with 1 if one was not answered for."""
    from restante.waku.client.history import open_range_sentences, run_ranges
    from restante.waku.files import missing_ranges

    ranges = missing_ranges.read(file).ranges
    results = run_ranges(servers, ranges, options, destination, print_failure)
    if destination.output_file is not None:
        fetched = counted(sum(result.envelopes for result in results), "envelope")
        still_open = sum(result.is_open for result in results)
        print(f"fetched {fetched} of {counted(len(results), 'range')}; {counted(still_open, 'range')} open")
    for sentence in open_range_sentences(results, MAX_OPEN_RANGES):
        print(sentence, file=sys.stderr)
    if not all(result.answered for result in results):
        raise typer.Exit(1)


def _text_only(text: bool, output: Path | None, keys: Sequence[object]) -> bool:
    """Return whether to print only times and texts. Raises Misuse if they cannot be printed."""
    if text and output is not None:
        raise Misuse("--text prints, and --output writes a file: leave one of them out")
    if text and not keys:
        raise Misuse("--text needs a key that opens the envelopes: --channel, --open-password or --open-key")
    return text


def _live_seconds(live: bool, end: str | None, seconds: str | None) -> float | None:
    """Return the seconds that --live lasts, or None if it lasts until it is stopped. Raises Misuse."""
    from restante.common.settings import convert

    if live and end is not None:
        raise Misuse("--live has no end: leave --to out")
    if seconds is not None and not live:
        raise Misuse("--for is how long --live lasts: add --live, or leave --for out")
    return None if seconds is None else convert(seconds, Annotated[float, Meta(ge=0.1, le=1_000_000_000)], "--for")


def _query(begin: str, end: str | None, topics: frozenset[bytes]) -> HistoryQuery:
    import time

    from restante.cli.times import read_time
    from restante.waku.client.ranges import HistoryQuery

    now = int(time.time())
    return HistoryQuery(read_time(begin, now, "--from"), read_time(end or "now", now, "--to"), topics)


def _failure_printer(addresses: list[str]) -> Callable[[int, str], None]:
    """Return a function that prints the failure of a server, by its number, to standard error."""

    def print_failure(server: int, reason: str) -> None:
        address = addresses[server]
        print(reason if address in reason else f"{address}: {reason}", file=sys.stderr)

    return print_failure


def _exit_if_missing(missing: list[tuple[int, int]]) -> None:
    """Print which times are missing, and end with 1 if any are."""
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
    import asyncio

    from restante.common.settings import convert
    from restante.waku.client.arguments import request_options
    from restante.waku.client.probe import probe
    from restante.waku.devp2p import enode

    seconds = convert(patience, Annotated[float, Meta(ge=0.1, le=1_000_000)], "--patience")
    result = asyncio.run(probe(enode.parse(node), request_options(form, password_file, key, os.environ), seconds))
    print(result.explanation, file=sys.stderr if result.outcome else sys.stdout)
    raise typer.Exit(result.outcome)


# ── commands for a data directory ────────────────────────────────────────────────────────────────

DataOption = Annotated[
    Path, typer.Option(metavar="DIR", envvar="RESTANTE_WAKU_DATA", parser=data_path, help="Data directory.")
]
DATA_DIRECTORY = Path(DEFAULT_DATA)

MAX_PRINTED_ERRORS = 100
"""Errors that `check` prints. More would not help to find the cause."""


@app.command("export")
def export_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to create, .rlp or .parquet; it must not exist.")
    ],
    data: DataOption = DATA_DIRECTORY,
) -> None:
    """Write all archived envelopes to a file. The server may be running."""
    from restante.common.signals import cleaning_up
    from restante.waku.files.archive_files import export

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
    data: DataOption = DATA_DIRECTORY,
) -> None:
    """Archive the envelopes of files. The server must be stopped. Importing a file again changes nothing."""
    from restante.waku.files.archive_files import import_files, render_report, warning

    os.umask(0o077)  # as for `serve`
    report = import_files(data, paths)
    print(render_report(report))
    for sentence in (*report.unreadable, warning(report)):
        if sentence is not None:
            print(sentence, file=sys.stderr)
    if report.refused:
        raise typer.Exit(1)


@app.command()
def check(data: DataOption = DATA_DIRECTORY) -> None:
    """Check an archive for damage. The server may be running."""
    from restante.common.progress import progress
    from restante.waku.archive import checking, statements
    from restante.waku.archive.schema import SCHEMA

    with SCHEMA.reading(data) as database:
        counts = statements.read_counts(database)
        with progress("check", counts.envelopes) as advance:
            errors = list(islice(checking.check(database, advance), MAX_PRINTED_ERRORS))
    for error in errors:
        print(error, file=sys.stderr)
    if errors:
        raise typer.Exit(1)
    quantities = ((counts.envelopes, "envelope"), (counts.bytes, "byte"), (counts.topics, "topic"))
    print(f"{', '.join(counted(number, noun) for number, noun in quantities)}: no errors")


@app.command("backup")
def backup_command(
    target: Annotated[
        Path, typer.Argument(metavar="DIR", help="Data directory to create; if it exists, it must be empty.")
    ],
    data: DataOption = DATA_DIRECTORY,
) -> None:
    """Copy an archive into a new data directory. The server may be running."""
    from restante.common.progress import progress
    from restante.waku.archive.schema import backup

    os.umask(0o077)  # as for `serve`
    with progress("backup") as advance:
        backup(data, target, advance)
    print(f"{target} is a data directory with a copy of the archive")
