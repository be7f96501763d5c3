"""A transfer from the command line: the code, the questions, the words on the terminal, and how a signal ends it.

Standard output gets the received text and nothing else. Everything else goes to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import typer

from restante.cli.code_prompt import prompt_for_code
from restante.cli.terminal import StandardInput, visible
from restante.client import (
    DEFAULT_APP_ID,
    DEFAULT_SERVER,
    CodeError,
    Event,
    Reconnecting,
    TransferUri,
    UriError,
    WaitingForPeer,
    Welcomed,
    Working,
    Wormhole,
    abandon,
    parse_uri,
    receive_text,
    send_text,
)
from restante.client.protocol.code import nameplate_of
from restante.client.protocol.uri import SCHEME, rendezvous_of
from restante.client.server import Server
from restante.client.text import check_text
from restante.common.errors import Misuse, RestanteError, StoreError, plain

SIGTERM_EXIT: Final = 128 + signal.SIGTERM
"""The exit code after SIGTERM, as a shell shows it. After Ctrl-C it is 130."""

MAX_INPUT_BYTES: Final = 2_000_000
"""Bytes of standard input that are read. It is more than a message has."""

COMPLETION_SECONDS: Final = 5.0
"""Seconds within which a server must list its nameplates for completion. The user waits for it."""

RECEIVER: Final = "follower"


class Place(msgspec.Struct, frozen=True):
    """Where the two sides meet."""

    code: str | None
    server: str
    proxy: str | None
    app_id: str

    @classmethod
    def of(cls, code: str | None, server: str | None, proxy: str | None, app_id: str | None) -> Place:
        """Return the place that the arguments name. `code` may be a URI, which may name a server. Raises Misuse."""
        there = None
        if code is not None and code.startswith(f"{SCHEME}:"):
            try:
                uri = parse_uri(code)
            except UriError as error:
                raise Misuse(str(error)) from error
            if uri.role != RECEIVER:
                raise Misuse("this URI is for the sender: the one who made it waits to receive")
            code = uri.code
            there = None if uri.server == DEFAULT_SERVER else uri.server
        elif code is not None:
            code = own_code(code)
        url = there or server or DEFAULT_SERVER
        Server(url, proxy)  # checks them
        return cls(code, url, proxy, app_id or DEFAULT_APP_ID)

    def with_code(self, code: str) -> Place:
        """Return the same place with a code. Raises Misuse if it is none."""
        return msgspec.structs.replace(self, code=own_code(code))

    def uri(self, code: str) -> TransferUri:
        """Return what the QR code says. If no URI can name the server, it is the code alone."""
        rendezvous = rendezvous_of(self.server)
        return TransferUri(code) if rendezvous is None else TransferUri(code, rendezvous)

    def options(self) -> str:
        """Return the options that the other side needs for the same place."""
        said = [] if self.server == DEFAULT_SERVER else ["--server", self.server]
        said += [] if self.app_id == DEFAULT_APP_ID else ["--appid", self.app_id]
        return "".join(f" {shlex.quote(each)}" for each in said)


def own_code(code: str) -> str:
    """Return a code without the white space around it. Raises Misuse if it is none."""
    try:
        nameplate_of(code.strip())
    except CodeError as error:
        raise Misuse(str(error)) from error
    return code.strip()


def read_text(argument: str) -> str:
    """Return the text to send: the argument, or standard input. Raises Misuse if it is not UTF-8, or too long."""
    given = sys.stdin.buffer.read(MAX_INPUT_BYTES) if argument == "-" else os.fsencode(argument)
    try:
        text = given.decode()
    except UnicodeDecodeError as error:
        raise Misuse("the text is not UTF-8, and nothing else can be sent") from error
    check_text(text)
    return text


def read_code(place: Place, words: int) -> str:
    """Ask for a code on the terminal. The Tab key completes the server's nameplates, and words."""

    async def nameplates() -> list[str]:
        async with asyncio.timeout(COMPLETION_SECONDS), _wormhole(place, quiet=True) as wormhole:
            return await wormhole.nameplates()

    return prompt_for_code(lambda: asyncio.run(nameplates()), words)


def run(transfer: Coroutine[Any, Any, None]) -> None:
    """Run a transfer. Ctrl-C and SIGTERM end it after the other side is told; a second one ends it at once."""

    async def guarded() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await transfer

    try:
        asyncio.run(guarded())
    except asyncio.CancelledError:
        raise typer.Exit(SIGTERM_EXIT) from None
    except KeyboardInterrupt:
        _say("")  # or the shell's prompt follows ^C
        raise


async def send(place: Place, text: str, code: str | None, *, words: int, verify: bool, qr: bool) -> None:
    """Send a text to whoever uses the code."""
    async with _wormhole(place) as wormhole:
        if code is None:
            code = await wormhole.allocate_code(words)
        else:
            await wormhole.set_code(code)
        _say(f"Wormhole code is: {code}\n")
        if qr:
            _show_qr(str(place.uri(code)))
        options = f"{' --verify' if verify else ''}{place.options()} {shlex.quote(code)}"
        _say(f"On the other computer, please run:\n\nrestante receive{options}\n")
        async with _agreement(wormhole, "sender", verify=verify):
            await send_text(wormhole, text)
    _say("The text has arrived.")


async def receive(place: Place, *, allocate: bool, words: int, verify: bool) -> None:
    """Print the text of whoever uses the code."""
    async with _wormhole(place) as wormhole:
        if allocate:
            code = await wormhole.allocate_code(words)
            options = f"{' --verify' if verify else ''}{place.options()} --code {shlex.quote(code)}"
            _say(f"Wormhole code is: {code}\n")
            _say(f"On the other computer, please run:\n\nrestante send{options} --text TEXT\n")
        else:
            await wormhole.set_code(place.code or own_code(await StandardInput().line()))
        async with _agreement(wormhole, "receiver", verify=verify):
            await receive_text(wormhole, _print_text)


@asynccontextmanager
async def _agreement(wormhole: Wormhole, role: str, *, verify: bool) -> AsyncIterator[None]:
    """Wait for the other side, and let the user compare the verifier. Whatever ends the block, the peer is told."""
    verifier = await wormhole.verifier()
    try:
        if verify:
            await _compare(verifier.hex())
        yield
    except asyncio.CancelledError:
        await abandon(wormhole, f"the {role} stopped")
        raise
    except (StoreError, VerifierRejected) as error:
        await abandon(wormhole, str(error))
        raise


class VerifierRejected(RestanteError):  # noqa: N818 - it is what the user decided
    """The user did not confirm the verifier."""


async def _compare(verifier: str) -> None:
    standard_input = StandardInput()
    while True:
        _say(f"Verifier {verifier}. Does the other side show the same? (yes/no): ", end="")
        answer = (await standard_input.line()).strip().lower()
        if answer in {"yes", "y"}:
            return
        if answer in {"no", "n", ""}:
            raise VerifierRejected("the verifier was rejected, and nothing was transferred")


def _print_text(received: str) -> None:
    """Print a text. On a terminal control characters are shown as escapes, since the sender may be anybody."""
    try:
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
            print(visible(received), flush=True)
        else:
            sys.stdout.buffer.write(received.encode(errors="backslashreplace") + b"\n")
            sys.stdout.buffer.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains again when it ends
        raise StoreError(f"the text could not be printed: {plain(error)}") from error


def _wormhole(place: Place, *, quiet: bool = False) -> Wormhole:
    show = None if quiet else _Narrator().hear
    return Wormhole.create(place.app_id, server=place.server, proxy=place.proxy, on_event=show)


class _Narrator:
    """Says on standard error what a user would otherwise wonder about."""

    def __init__(self) -> None:
        self._motd: str | None = None
        self._worked = 0
        self._waiting = False

    def hear(self, event: Event) -> None:
        match event:
            case Welcomed(motd) if motd and motd != self._motd:
                self._motd = motd
                _say(f"The server says: {visible(motd)}")
            case Working(bits) if bits != self._worked:
                self._worked = bits
                _say(f"The server demands proof of work ({bits} bits); it is being done.")
            case WaitingForPeer() if not self._waiting:
                self._waiting = True
                _say("Waiting for the other side …")
            case Reconnecting(delay, reason):
                _say(f"{visible(reason)}; trying again in {delay:.0f} s")
            case _:
                pass


def _show_qr(uri: str) -> None:
    import segno

    segno.make(uri).terminal(out=sys.stderr, compact=True)
    _say("")


def _say(words: str, end: str = "\n") -> None:
    print(words, end=end, file=sys.stderr, flush=True)
