"""The options of `restante send`, `receive` and `client config`. What they need is imported when they run."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from restante.client.defaults import DEFAULT_SERVER, DEFAULT_TRANSIT_RELAY, DEFAULT_WORDS, MAX_WORDS
from restante.common.errors import Misuse

app = typer.Typer()
client_app = typer.Typer(no_args_is_help=True)
app.add_typer(client_app, name="client", help="Show the settings of `send` and `receive`.")

ServerOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Mailbox server, ws:// or wss://, or a name of the settings file; or RESTANTE_CLIENT_SERVER. "
        f"Default: {DEFAULT_SERVER}.",
    ),
]
ProxyOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Proxy to connect through, http://, socks4:// or socks5://; or RESTANTE_CLIENT_PROXY. "
        'The option with "" means none.',
    ),
]
AppIdOption = Annotated[
    str | None,
    typer.Option("--appid", metavar="ID", help="Application id, if the other side does not use that of `wormhole`."),
]
VerifyOption = Annotated[
    bool,
    typer.Option(
        "--verify", help="Show a number and words to compare with the other side's, and ask before going on."
    ),
]
CodeLengthOption = Annotated[
    int | None,
    typer.Option(
        "--code-length",
        "-c",
        min=1,
        max=MAX_WORDS,
        show_default=False,
        metavar="WORDS",
        help=f"Words of a new code. Default: {DEFAULT_WORDS}.",
    ),
]


DumpTimingOption = Annotated[
    Path | None,
    typer.Option(
        "--dump-timing",
        metavar="FILE",
        readable=False,
        help="Write the times of all events to this file, like `wormhole --dump-timing`, even after an error.",
    ),
]
RelayOption = Annotated[
    str | None,
    typer.Option(
        "--transit-relay",
        metavar="URL",
        help="Relay for files if no direct connection is possible, tcp:HOST:PORT, or a name of the settings file; "
        "or RESTANTE_CLIENT_TRANSIT_RELAY. "
        f'The option with "" means no relay of this side. Default: {DEFAULT_TRANSIT_RELAY}.',
    ),
]
ListenOption = Annotated[
    bool, typer.Option("--listen/--no-listen", help="Let the other side connect to this computer, for files.")
]

PortOption = Annotated[
    int,
    typer.Option(
        "--port",
        min=0,
        max=65535,
        metavar="PORT",
        show_default=False,
        help="Port on which this computer listens for direct connections. Default: any free one.",
    ),
]


@contextmanager
def _without_collector() -> Iterator[None]:
    """Import without the garbage collector. When the process ends, it does not search all that was imported either.

    Both together take a fifth of the processor time of a short transfer, and find nothing.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    atexit.unregister(gc.freeze)  # of an earlier call in this process
    atexit.register(gc.freeze)


def _word_count(code: str | None, code_length: int | None) -> int:
    """Return how many words a new code has. Raises Misuse if the number is for a code that is given."""
    if code is not None and code_length is not None:
        raise Misuse("--code-length is for a new code, and a code is given: leave one of them out")
    return DEFAULT_WORDS if code_length is None else code_length


@app.command("send")
def send(
    paths: Annotated[
        list[str] | None,  # as a Path an empty text would be the working directory
        typer.Argument(
            metavar="[PATH]...",
            help="File or directory to send. Several are sent as one directory. - reads standard input.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name that the receiver is told. Default: that of the PATH. - needs one.",
            show_default=False,
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="Text to send; - reads standard input.")] = None,
    code: Annotated[
        str | None, typer.Option(metavar="CODE", help="Use this code, which the other side knows already.")
    ] = None,
    code_length: CodeLengthOption = None,
    verify: VerifyOption = False,
    qr: Annotated[
        bool | None,
        typer.Option("--qr/--no-qr", help="Show the code as a QR code. Default: on a terminal that is wide enough."),
    ] = None,
    ignore_unsendable: Annotated[
        bool,
        typer.Option(
            "--ignore-unsendable", help="Leave out files of a directory that cannot be sent, and name them."
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be offered, and this computer's addresses. Send nothing."),
    ] = False,
    server: ServerOption = None,
    transit_relay: RelayOption = None,
    listen: ListenOption = True,
    port: PortOption = 0,
    proxy: ProxyOption = None,
    appid: AppIdOption = None,
    dump_timing: DumpTimingOption = None,
) -> None:
    """Send a file, a directory or a text to another computer. Prints a code for the person there, and waits.

    The other side runs `restante receive CODE`, or `wormhole receive CODE`. The exit code is 0 when everything has
    arrived, 3 if the code does not work, and 4 if the server cannot be used.
    """
    with _without_collector():
        from msgspec import structs

        from restante.client.cli import code_prompt, files, running, settings, transfer
        from restante.common.terminal import say

    if (text is None) == (not paths):
        raise Misuse("say what to send: a PATH, or --text TEXT, or --text - for standard input")
    if text == "-" and verify:
        raise Misuse("--verify asks on standard input, and --text - reads it: give the text itself")
    from_standard_input = "-" in (paths or ())
    if from_standard_input and len(paths or ()) > 1:
        raise Misuse("- is standard input, and cannot be sent with other files: name a file - as ./-")
    if from_standard_input and verify:
        raise Misuse("--verify asks on standard input, and - reads it: name a file")
    if name is not None and text is not None:
        raise Misuse("a text has no name: leave --name out")
    files.check_name(name)
    word_count = _word_count(code, code_length)
    sent_code = None if code is None else code_prompt.own_code(code)  # no URI: the receiver reads it
    chosen = settings.resolve(server, transit_relay, proxy, os.environ)
    rendezvous = structs.replace(transfer.Rendezvous.of(None, chosen.server, chosen.proxy, appid), code=sent_code)
    transit = files.transit_options(chosen.transit_relay, listen=listen, port=port, proxy=chosen.proxy)
    with ExitStack() as stack:
        item: transfer.Item
        if text is not None:
            item = transfer.Text(transfer.read_text(text))
        elif from_standard_input:
            item = files.Files(stack.enter_context(files.outgoing_input(name)), transit)
        else:
            item = files.Files(
                files.outgoing(files.sent_paths(paths or []), name, ignore_unsendable=ignore_unsendable), transit
            )
        if dry_run:
            say(f"offered: {item.described}")
            if isinstance(item, files.Files):  # a text needs no transit connection
                files.show_own_hints(transit)
            return
        timing_log = transfer.timing_log_at(dump_timing, "cmd_send", paths or ())
        with timing_log as timing, chosen.origins_named(rendezvous.server):
            running.run(transfer.send(rendezvous, item, word_count=word_count, verify=verify, qr=qr, timing=timing))


@app.command("receive")
def receive(
    code: Annotated[
        str | None, typer.Argument(metavar="[CODE]", help="Code or wormhole-transfer: URI. Default: ask for it.")
    ] = None,
    allocate: Annotated[
        bool, typer.Option("--allocate", help="Make a new code; the sender uses it with `send --code`.")
    ] = False,
    code_length: CodeLengthOption = None,
    verify: VerifyOption = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Existing directory to store the file in, or its new path. - writes a file to standard output.",
        ),
    ] = None,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept", help="Ask no questions, for scripts. If the path exists, fail, unless --replace is given."
        ),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a file or directory that exists at the path.")
    ] = False,
    rename: Annotated[
        bool, typer.Option("--rename", help="If the path exists, add a number: `letter (1).txt`.")
    ] = False,
    unpack: Annotated[
        bool, typer.Option("--unpack", help="Unpack a received tar file: wormhole-rs sends a directory as one.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the offer and the addresses of the sender, and reject the offer.")
    ] = False,
    server: ServerOption = None,
    transit_relay: RelayOption = None,
    listen: ListenOption = True,
    port: PortOption = 0,
    proxy: ProxyOption = None,
    appid: AppIdOption = None,
    dump_timing: DumpTimingOption = None,
) -> None:
    """Receive a file, a directory or a text. A text is printed.

    Without CODE the command asks for one, and the Tab key completes it. The command asks before it stores a file.
    The exit code is 0 when everything is stored or printed, 3 if the code does not work, and 4 if the server cannot
    be used.
    """
    with _without_collector():
        from restante.client.cli import code_prompt, files, running, settings, transfer
        from restante.client.timing_log import USER, span

    if allocate and code is not None:
        raise Misuse("--allocate makes a new code: leave the code out")
    to_standard_output = output == "-"
    if to_standard_output and (replace or rename or unpack):
        raise Misuse("--output - stores nothing: leave --replace, --rename and --unpack out")
    if replace and rename:
        raise Misuse("--replace and --rename say what to do if the path exists: give one of them")
    if to_standard_output and sys.stdout is None:
        raise Misuse("standard output is closed: name a file for --output")
    word_count = _word_count(code, code_length)
    chosen = settings.resolve(server, transit_relay, proxy, os.environ)
    rendezvous = transfer.Rendezvous.of(code, chosen.server, chosen.proxy, appid)
    target = None if to_standard_output else files.output_path(output, may_be_file=not accept or replace or rename)
    transit = files.transit_options(chosen.transit_relay, listen=listen, port=port, proxy=chosen.proxy)
    into_output = target is not None and target.is_dir()
    options = files.StoreOptions(
        target, into_output, accept, replace, rename, unpack, dry_run, to_standard_output, transit, dump_timing
    )
    timing_log = transfer.timing_log_at(dump_timing, "cmd_receive")
    with timing_log as timing, chosen.origins_named(rendezvous.server):
        if not allocate and sys.stdin is not None and sys.stdin.isatty():
            if code is None:
                with span(timing, "input code", waiting=USER):
                    rendezvous = rendezvous.with_code(transfer.read_code(rendezvous, word_count))
            elif not accept and (one_word := code_prompt.one_word_code(code)) is not None:
                with span(timing, "input code", waiting=USER):
                    rendezvous = rendezvous.with_code(code_prompt.ask_for_second_word(one_word))
        receiving = transfer.receive(
            rendezvous, options, allocate=allocate, word_count=word_count, verify=verify, timing=timing
        )
        running.run(receiving)


@client_app.command("config")
def config(
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show what `send` and `receive` would use, and the origin of each.

    The settings file is ~/.config/restante/client.toml, or restante/client.toml in $XDG_CONFIG_HOME. Its keys are
    server, transit-relay and proxy. Its tables [servers] and [relays] give names to URLs.
    """
    from restante.client.cli import settings

    settings.show(settings.resolve(None, None, None, os.environ), json=json)
