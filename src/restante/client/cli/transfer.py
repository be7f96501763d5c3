"""A transfer from the command line: the code, the questions and the messages on the terminal.

Standard output gets the received text and nothing else. Everything else goes to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from restante.client.arguments import MAX_SENT_BYTES
from restante.client.cli.code_prompt import own_code, prompt_for_code
from restante.client.cli.event_printer import EventPrinter
from restante.client.cli.files import Files, StoreOptions, ask_user, show_offer, store_offer
from restante.client.connection.server import check_server_url
from restante.client.core.state import check_encodable
from restante.client.defaults import DEFAULT_APP_ID, DEFAULT_SERVER
from restante.client.errors import WormholeError
from restante.client.events import Event
from restante.client.protocol.code import word_list
from restante.client.protocol.uri import FOLLOWER, SCHEME, TransferUri, parse_uri, rendezvous_of
from restante.client.timing_log import USER, TimingLog, check_timing_path, span
from restante.client.transfer.messages import reasons_sent
from restante.client.transfer.receiving import OfferedText
from restante.client.transfer.receiving import receive as receive_offer
from restante.client.transfer.text import check_text, send_text
from restante.client.transit.hints import parse_relay
from restante.client.transit.records import Role
from restante.client.wormhole import Wormhole
from restante.common.errors import Misuse, StoreError, plain
from restante.common.net import parse_ip
from restante.common.terminal import Declined, StandardInput, say
from restante.common.texts import counted, visible

COMPLETION_SECONDS: Final = 5.0
"""Seconds within which a server must list its nameplates for completion. The user waits for it."""

WORDS_PER_LINE: Final = 4
"""Words of the verifier on a line. They seldom have more than 40 characters."""

VERIFIER_REJECTED: Final = "the verifier was rejected, and nothing was transferred"


class Text(msgspec.Struct, frozen=True):
    """A text that is sent."""

    text: str
    kind: ClassVar[str] = "text"

    @property
    def described(self) -> str:
        """How long it is."""
        return f"a text of {counted(len(self.text), 'character')}"

    async def send(self, wormhole: Wormhole) -> None:
        """Send it, and wait until it has arrived."""
        await send_text(wormhole, self.text)


Item = Text | Files
"""What is sent."""


class Rendezvous(msgspec.Struct, frozen=True):
    """The code, the server and the application id that connect the two sides, and the proxy to the server."""

    code: str | None
    server: str
    proxy: str | None
    app_id: str

    @classmethod
    def of(cls, code: str | None, server: str | None, proxy: str | None, app_id: str | None) -> Rendezvous:
        """Return what the arguments name. `code` may be a URI.

        The server of a URI outranks `server`, except the public one, which URIs name by naming none. Raises Misuse.
        """
        uri_server = None
        if code is not None and code.strip().lower().startswith(f"{SCHEME}:"):
            uri = parse_uri(code.strip())
            if uri.role != FOLLOWER:
                raise Misuse("this URI is for the sender: the one who made it waits to receive")
            code = uri.code
            uri_server = None if uri.server == DEFAULT_SERVER else uri.server
        elif code is not None:
            code = own_code(code)
        url = uri_server or (DEFAULT_SERVER if server is None else server)
        check_server_url(url)
        app_id = DEFAULT_APP_ID if app_id is None else app_id
        check_encodable(app_id, {})
        return cls(code, url, proxy, app_id)

    def with_code(self, typed: str) -> Rendezvous:
        """Return the same with a code, or with that of a URI. Raises Misuse if the text is neither."""
        return self.of(typed, self.server, self.proxy, self.app_id)

    def uri(self, code: str) -> TransferUri | None:
        """Return what the QR code says. None: no URI can name the server, and without one it names the public one."""
        server = rendezvous_of(self.server)
        return None if server is None else TransferUri(code, server)

    def commands(self, command: str, *arguments: str) -> str:
        """Return what the other side types for the same server and application id: with `restante`, or `wormhole`."""
        is_default, app_id = self.server == DEFAULT_SERVER, ["--appid", self.app_id] * (self.app_id != DEFAULT_APP_ID)
        server, relay_url = ([] if is_default else [option, self.server] for option in ("--server", "--relay-url"))
        lines = (
            ["restante", command, *server, *app_id, *arguments],
            ["wormhole", *relay_url, *app_id, command, *arguments],  # its own options stand before the command
        )
        return "\n".join(map(shlex.join, lines))

    def local_addresses(self, relays: Iterable[str]) -> list[str]:
        """Return which of the server and relays no other computer can reach. With a proxy that is not known."""
        addresses = [(f"server {self.server}", urlsplit(self.server).hostname or "")]
        addresses += [(f"relay {relay}", parse_relay(relay).addresses[0].host) for relay in relays]
        return [text for text, host in addresses if self.proxy is None and _is_this_computer(host)]


def read_text(argument: str) -> str:
    """Return the text to send: the argument, or standard input. Raises Misuse if it is not UTF-8, or too long."""
    if argument != "-":
        data = os.fsencode(argument)
    elif sys.stdin is None:
        raise Misuse("standard input is closed: give the text itself")
    else:
        data = sys.stdin.buffer.read(MAX_SENT_BYTES + 1)
    if len(data) > MAX_SENT_BYTES:
        limit = counted(MAX_SENT_BYTES, "byte")
        raise Misuse(f"the text has more than {limit}, the most that can be sent: send it as a file")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Misuse("the text is not UTF-8: send it as a file") from error
    if not text:
        raise Misuse("the text is empty: there is nothing to send")
    check_text(text)
    return text


def read_code(rendezvous: Rendezvous, word_count: int) -> str:
    """Ask for a code on the terminal. The Tab key completes the server's nameplates, and words."""

    async def nameplates() -> list[str]:
        async with asyncio.timeout(COMPLETION_SECONDS), _wormhole(rendezvous, None, None) as wormhole:
            return await wormhole.nameplates()

    return prompt_for_code(lambda: asyncio.run(nameplates()), word_count)


@contextmanager
def timing_log_at(path: Path | None, command: str, sent_paths: Iterable[str] = ()) -> Iterator[TimingLog | None]:
    """Yield a timing log if a path is given, and write it at the end, even after an error. Raises Misuse.

    `command` is its name in the logs of `wormhole`: cmd_send or cmd_receive. The log replaces no file that is sent.
    """
    if path is None:
        yield None
        return
    check_timing_path(path)
    if os.path.realpath(path) in map(os.path.realpath, sent_paths):
        raise Misuse(f"{visible(str(path))} is sent: name another file for the timing log")
    timing = TimingLog()
    timing.event("command dispatch", which=command)
    try:
        yield timing
    finally:
        timing.event("exit")
        try:
            timing.write(path)
        except StoreError as error:
            say(f"restante: {visible(str(error))}")
        else:
            say(f"Timing data written to {visible(str(path))}")


async def send(
    rendezvous: Rendezvous,
    item: Item,
    *,
    word_count: int,
    verify: bool,
    qr: bool | None,
    timing: TimingLog | None,
) -> None:
    """Send something to whoever uses the code. A new one is made if there is none.

    `qr` is whether to show a QR code. None: if the terminal is wide enough. Raises RestanteError, Declined.
    """
    async with _entered(_wormhole(rendezvous, EventPrinter().show, timing)) as wormhole:
        say(f"Sending {item.described}")
        if rendezvous.code is None:
            code = await wormhole.allocate_code(word_count)
        else:
            code = rendezvous.code
            await wormhole.set_code(code)
        if qr is not False:
            _show_qr(rendezvous.uri(code), requested=bool(qr))
        for address in rendezvous.local_addresses(item.transit.relays if isinstance(item, Files) else ()):
            say(f"Only this computer can reach the {address}.")
        _show_code(code, rendezvous.commands("receive", *["--verify"] * verify, code))
        await _confirm_peer(wormhole, Role.SENDER, verify=verify)
        await item.send(wormhole)
    say(f"The {item.kind} has arrived.")


async def receive(
    rendezvous: Rendezvous,
    store_options: StoreOptions,
    *,
    allocate: bool,
    word_count: int,
    verify: bool,
    timing: TimingLog | None,
) -> None:
    """Receive what whoever uses the code sends: print a text, store a file or a directory.

    `allocate` is whether to make a new code. Otherwise it is asked for if there is none. Raises RestanteError,
    Declined.
    """
    if rendezvous.code is None and not allocate:
        with span(timing, "input code", waiting=USER):
            rendezvous = rendezvous.with_code(await StandardInput().line())
    events = EventPrinter(code_given=rendezvous.code is not None)
    async with _entered(_wormhole(rendezvous, events.show, timing)) as wormhole:
        if rendezvous.code is None:
            code = await wormhole.allocate_code(word_count)
            _show_code(code, rendezvous.commands("send", *["--verify"] * verify, "--code", code, "PATH"))
        else:
            await wormhole.set_code(rendezvous.code)
        await _confirm_peer(wormhole, Role.RECEIVER, verify=verify)
        await _receive_offered(wormhole, store_options)


async def _receive_offered(wormhole: Wormhole, store_options: StoreOptions) -> None:
    offered = await receive_offer(wormhole, store_options.transit, any_name=True)
    if store_options.dry_run:
        show_offer(offered)
        await offered.reject("the receiver only looks at the offer")
    elif isinstance(offered, OfferedText):
        async with reasons_sent(wormhole, Role.RECEIVER):
            with span(wormhole.timing, "print"):
                _print_text(offered.text)
        await offered.accept()
    else:
        await store_offer(offered, store_options)


def _show_code(code: str, commands: str) -> None:
    """Show what to type on the other computer, and the code last, where it is not scrolled away."""
    say(f"On the other computer, run one of these:\n\n{commands}\n\nWormhole code is: {code}")


def _is_this_computer(host: str) -> bool:
    """Return whether a host is the computer that connects to it (RFC 6761 section 6.3; 0.0.0.0 and :: on Linux)."""
    address = parse_ip(host)
    if address is None:
        return host.rstrip(".").rpartition(".")[2].lower() == "localhost"
    return address.is_loopback or address.is_unspecified


async def _confirm_peer(wormhole: Wormhole, role: Role, *, verify: bool) -> None:
    """Wait for the other side, and let the user compare the verifier. Raises Declined if they differ."""
    async with reasons_sent(wormhole, role):
        verifier = await wormhole.verifier()
        if verify:
            # The PGP word list begins with a word of two syllables, a code with one of three.
            words = [word_list(position)[byte] for position, byte in enumerate(verifier, 1)]
            lines = [
                " ".join(words[start : start + WORDS_PER_LINE]) for start in range(0, len(words), WORDS_PER_LINE)
            ]
            say("\n".join((f"Verifier {verifier.hex()}.", "In words:", *lines)))
            if not await ask_user(wormhole, "Does the other side show the same?"):
                raise Declined(VERIFIER_REJECTED)


def _print_text(text: str) -> None:
    """Print a text. On a terminal control characters are shown as escapes, since the sender may be anybody."""
    if sys.stdout is None:
        raise StoreError("the text could not be printed: standard output is closed").with_peer_text()
    try:
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
            print(visible(text), flush=True)
        else:
            sys.stdout.buffer.write(text.encode(errors="backslashreplace") + b"\n")
            sys.stdout.buffer.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise Python reports the same error again when it ends
        raise StoreError(f"the text could not be printed: {plain(error)}").with_peer_text() from error


def _wormhole(rendezvous: Rendezvous, on_event: Callable[[Event], None] | None, timing: TimingLog | None) -> Wormhole:
    server, proxy = rendezvous.server, rendezvous.proxy
    wormhole = Wormhole.create(rendezvous.app_id, server=server, proxy=proxy, on_event=on_event, timing=timing)
    return wormhole._entered_at_once()  # the code is shown while it connects, and the user sees that a server is busy


@asynccontextmanager
async def _entered(wormhole: Wormhole) -> AsyncIterator[Wormhole]:
    """Enter a wormhole. If the block is stopped, say what the receiver has, and whether the other side was told."""
    try:
        async with wormhole:
            yield wormhole
    except asyncio.CancelledError as error:
        for outcome in getattr(error, "__notes__", ()):
            say(f"restante: stopped {outcome}")
        if wormhole._reason is not None:
            with contextlib.suppress(WormholeError):  # it was closed before the server had stored the reason
                await wormhole._reason.stored()
                say("The other side was told.")
        raise


def _show_qr(uri: TransferUri | None, *, requested: bool) -> None:
    """Show a QR code if standard error is a terminal that is wide enough, or if the user requested it."""
    if uri is None:
        if requested:
            say("There is no QR code: it can name only servers whose URL ends with /v1.\n")
        return
    columns = _columns()
    if not requested and not columns:
        return
    import segno  # here, because most transfers show no QR code

    qr, text = segno.make(str(uri)), io.StringIO()
    if requested or columns >= qr.symbol_size()[0]:
        qr.terminal(out=text, compact=True)
        say(text.getvalue())


def _columns() -> int:
    """Return how many columns standard error has. It is 0 if that is not a terminal."""
    try:
        return 0 if sys.stderr is None else os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 0
