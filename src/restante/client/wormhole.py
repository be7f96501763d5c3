"""A wormhole for programs that run as long as it is open."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self

from restante.client.arguments import check_seconds
from restante.client.base import BaseWormhole
from restante.client.connection.server import Server
from restante.client.connection.work import DEFAULT_MAX_BITS
from restante.client.core.outputs import Closed, Failed, KeyAgreed, MessageReceived, NameplatesListed, PeerConfirmed
from restante.client.core.state import NEW_BYTES, new_state
from restante.client.defaults import DEFAULT_SERVER
from restante.client.errors import ClosedError, WormholeError
from restante.client.events import Awaited, Event, PeerSilent
from restante.client.timing_log import TimingLog
from restante.common.dice import SystemDice

SILENCE_SECONDS: Final = 60.0
"""Seconds without an answer of the peer after which `PeerSilent` is reported. A person who decides, and a client that
connects again to the server, mostly take less."""


class Wormhole(BaseWormhole):
    """A wormhole that closes when its context is left. Nothing of it outlives the process.

    Leaving the context is like `close`. If it is left with an exception, the mood is `errory` (`lonely` if no peer
    came), and that exception goes on, whatever `close` raises.
    """

    timing: TimingLog | None = None
    """The timing log that `create` was given."""
    silence_seconds: float = SILENCE_SECONDS
    """Seconds without an answer of the peer after which `PeerSilent` is reported."""
    _key_timer: asyncio.TimerHandle | None = None
    _silence_matters = True

    @classmethod
    def create(
        cls,
        app_id: str,
        *,
        server: str = DEFAULT_SERVER,
        versions: dict[str, Any] | None = None,
        receipts: bool = False,
        seeds: bool = False,
        proxy: str | None = None,
        ssl: tls.SSLContext | None = None,
        max_work_bits: int = DEFAULT_MAX_BITS,
        on_event: Callable[[Event], None] | None = None,
        timing: TimingLog | None = None,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> Self:
        """Return a new wormhole, which connects when its context is entered. Call it while an event loop runs.

        Args:
            app_id: names the application, like `example.com/chat`. Only programs with the same one can meet.
            server: the URL of the mailbox server, `ws://` or `wss://` with its path, which is mostly `/v1`.
            versions: a dict that JSON can express; the peer's application can read it with `BaseWormhole.versions`.
            receipts: keep each message until the peer's application has processed it (`SentMessage.delivered`).
            seeds: offer the peer a seed, so that the next wormhole needs no code (`BaseWormhole.seed`).
            proxy: `socks5://`, `socks4://`, `http://` or `https://`, with `USER:PASSWORD@` if needed, a host and a
                port.
            ssl: how the server of a `wss://` URL proves who it is. By default, with the system's certificates.
            max_work_bits: the most work that is done if the server demands hashcash. Each bit doubles it.
            on_event: called with each event (`Event`), on the event loop. If it raises, the wormhole is closed, and
                every call raises the error.
            timing: logs what is sent and received, and when.
            silence_seconds: seconds without an answer of the peer after which `PeerSilent` is reported: while the key
                is agreed, and while a text, a file or a directory is sent or received.

        Raises:
            Misuse: an argument cannot be used.

        """
        check_seconds("silence_seconds", silence_seconds)
        dice = SystemDice()
        state = new_state(app_id, versions or {}, dice.draw(NEW_BYTES), wants_receipts=receipts, seeds=seeds)
        place = Server(server, proxy, ssl)
        wormhole = cls(state, place, dice, max_work_bits=max_work_bits, on_event=on_event)
        wormhole.timing = wormhole._driver.timing = timing
        wormhole.silence_seconds = silence_seconds
        return wormhole

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            with suppress(WormholeError):  # the error of the body goes on
                await self.close("errory" if self._state.peer_versions is not None else None)

    def _stop(self) -> None:
        self._machine.close(WormholeError.mood)

    def _handle(self, event: Event | MessageReceived | NameplatesListed) -> None:
        if isinstance(event, PeerSilent) and not self._silence_matters:
            return  # of a transfer that goes on without the server
        super()._handle(event)
        if isinstance(event, KeyAgreed):
            self._key_timer = self._report_silence("key")
        elif isinstance(event, PeerConfirmed | Failed | Closed) and self._key_timer is not None:
            self._key_timer.cancel()
        if isinstance(event, Closed):
            self._silence_matters = False

    async def _disconnect(self) -> None:
        self._silence_matters = False
        if self._key_timer is not None:
            self._key_timer.cancel()
        await super()._disconnect()

    def _report_silence(self, awaited: Awaited, ends_after: float | None = None) -> asyncio.TimerHandle:
        """Report, after `silence_seconds`, that the peer has not answered."""
        event = PeerSilent(self.silence_seconds, awaited, ends_after)
        return asyncio.get_running_loop().call_later(self.silence_seconds, self._handle, event)

    @contextmanager
    def _expecting(self, awaited: Awaited, ends_after: float | None = None) -> Iterator[None]:
        """Report `PeerSilent` if the block, which waits for the peer, takes `silence_seconds`."""
        timer = self._report_silence(awaited, ends_after)
        try:
            yield
        finally:
            timer.cancel()

    async def receive(self) -> bytes:
        """Wait for the peer's next message, and return it. They come in the order of sending, each once.

        Messages that came before the wormhole was closed or failed are returned first, then the error is raised.
        A receipt says to the peer that a message is processed as soon as this method returns it.
        """
        message = await self._take()
        self._machine.processed(message.number)
        self._driver.carry_out()
        return message.plaintext

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the peer's messages, until another task closes this wormhole.

        The server does not report that the peer has closed: agree on a last message.
        """
        with suppress(ClosedError):
            while True:
                yield await self.receive()
