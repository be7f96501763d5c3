"""The mailbox server with its shells on: the commit loop with its queue, and the socket. They choose batches."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from restante.common.listening import listen_address
from restante.mailbox.core.dispatcher import CLEANUP_CLOSE_CODES, Dispatcher
from restante.mailbox.core.model import Now
from restante.mailbox.server.commit_loop import CommitLoop, Retention
from restante.mailbox.server.server import Server
from support.dice import FakeDice
from support.mailbox.givens import FakeClock, Inbox, Options
from support.mailbox.tables import Rows, Usage, live_rows, usage_rows
from support.mailbox.worlds import Disk, LocalWorld


class CommitLoopWorld(LocalWorld):
    """The commit loop with its queue, over a store. It says when what came, and what is a batch."""

    tells_the_lost = False

    def __init__(
        self,
        options: Options,
        clock: FakeClock | None = None,
        dice: FakeDice | None = None,
        data: Path | None = None,
    ) -> None:
        super().__init__(options, clock, dice)
        self._data = data
        self._waiting = False
        self._store = Disk.begin(data)
        self.run(self._open())

    async def _open(self) -> None:
        retention = Retention(prune_after=self.options.prune_after)
        self._commit_loop = await CommitLoop.open(self._store, self.clock, self.dice, self.policy, retention)
        if not self.options.in_grace_period:
            self._commit_loop.dispatcher.state.end_grace_period()
        self._work()

    def _work(self) -> None:
        self._working = asyncio.get_running_loop().create_task(self._commit_loop.run())

    @property
    def dispatcher(self) -> Dispatcher:
        return self._commit_loop.dispatcher

    def now(self) -> Now:
        return self._commit_loop.now()

    def say(self, inbox: Inbox, text: str) -> None:
        self._waiting = True
        self._commit_loop.receive(inbox.connection, text)

    def lose(self, inbox: Inbox) -> None:
        self._waiting = True
        self._commit_loop.lose(inbox.connection)

    def flush(self, *, refused: bool = False) -> bool:
        self._store.refuses, self._store.refused = refused, False
        self.run(self._flush())
        return not self._store.refused

    async def _flush(self) -> None:
        if self._waiting:
            self._waiting = False
            await self._until_idle()
        self._store.refuses = False
        await self._commit_deferred()

    async def _commit_deferred(self) -> None:
        """A second goes by: what no answer rests on is on disk, too."""
        self._commit_loop.commit_deferred()
        await self._until_idle()

    async def _until_idle(self) -> None:
        """Wait until the commit loop has done everything there was to do."""
        if self._commit_loop.idle.is_set():
            return
        idle = asyncio.ensure_future(self._commit_loop.idle.wait())
        await asyncio.wait((idle, self._working), return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            idle.cancel()
            await self._working  # raises whatever ended it
            raise AssertionError("the commit loop ended by itself")

    def prune(self, *, refused: bool = False) -> bool:
        self._store.refuses, self._store.refused = refused, False
        self._commit_loop.start_pruning()
        self.run(self._until_idle())
        self._store.refuses = False
        return not self._store.refused

    def save(self) -> None:
        if self.dispatcher.state.unsaved:
            self._commit_loop.start_saving()
            self.run(self._until_idle())

    def restart(self, *, crash: bool = False) -> None:
        assert self._data is None or not crash
        self.run(self._restart(crash=crash))

    async def _restart(self, *, crash: bool) -> None:
        survivor = self._store.copy() if crash else None
        await self._stop()
        old = self._store
        if self._data is None:
            self._store = survivor or old.copy()
            await old.close()
        else:
            await old.close()
            self._store = Disk.begin(self._data)
        await self._open()

    async def _stop(self) -> None:
        self._commit_loop.stop()
        await self._working

    def live(self) -> dict[str, Rows]:
        return self._store.read(self._data, live_rows)

    def usage(self) -> Usage:
        return self._store.read(self._data, usage_rows)

    def check(self) -> None:
        self._store.check(self.dispatcher.state, self.now())

    def close(self) -> None:
        try:
            self.run(self._end())
        finally:
            super().close()

    async def _end(self) -> None:
        await self._stop()
        await self._store.close()


class SocketInbox(Inbox):
    """The same behind a WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        super().__init__()
        self.socket = socket
        host, port, *_ = socket.get_extra_info("sockname")
        self.address = host, port


class Clients:
    """The clients of a server on loopback. They know that it has done what they said by having a ping answered."""

    def __init__(self, *, binary: bool = False) -> None:
        self.here: list[SocketInbox] = []
        self._kind = aiohttp.WSMsgType.BINARY if binary else aiohttp.WSMsgType.TEXT
        self._speaker: SocketInbox | None = None
        self._barriers = 0
        self._ends = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    async def connect(self, port: int, headers: dict[str, str]) -> SocketInbox:
        if self._session is None:
            self._session = await self._ends.enter_async_context(aiohttp.ClientSession())
        url = f"ws://127.0.0.1:{port}/v1"
        inbox = SocketInbox(await self._session.ws_connect(url, headers=headers, max_msg_size=0))
        await self._hear_one(inbox)
        self.here.append(inbox)
        return inbox

    async def say(self, inbox: SocketInbox, text: str, *, binary: bool = False) -> None:
        self._speaker = inbox
        if binary:
            await inbox.socket.send_bytes(text.encode())
        else:
            await inbox.socket.send_str(text)

    async def lose(self, inbox: SocketInbox) -> None:
        if inbox in self.here:
            self.here.remove(inbox)
        await inbox.socket.close()

    async def hear(self, lose: Callable[[SocketInbox], Awaitable[None]]) -> None:
        """Read all that was sent: first to whoever spoke, since that is told when everybody else is."""
        speaker, self._speaker = self._speaker, None
        listeners = [inbox for inbox in self.here if inbox is not speaker]
        for inbox in [speaker, *listeners] if speaker in self.here else listeners:
            if inbox is not None and not await self._hear_until_barrier(inbox):
                await lose(inbox)

    async def _hear_until_barrier(self, inbox: SocketInbox) -> bool:
        """Wait for the answer to a ping: everything sent before has arrived then (spec 000 has pings for this)."""
        self._barriers += 1
        barrier = f"barrier {self._barriers}"
        with contextlib.suppress(ConnectionError):  # what was sent before the end can still be read
            await inbox.socket.send_str(json.dumps({"type": "ping", "ping": barrier, "id": barrier}))
        while await self._hear_one(inbox):
            if inbox.frames[-1].get("pong") == barrier:
                inbox.frames = [
                    frame for frame in inbox.frames if barrier not in (frame.get("id"), frame.get("pong"))
                ]
                return True
        return False

    async def _hear_one(self, inbox: SocketInbox) -> bool:
        """Read a frame; false: the server closed."""
        message = await inbox.socket.receive()
        if message.type is aiohttp.WSMsgType.CLOSE:
            inbox.verdict = message.data, message.extra or ""
            return False
        if message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.ERROR):
            inbox.verdict = inbox.socket.close_code or 1006, ""  # no close came
            return False
        assert message.type is self._kind
        inbox.frames.append(json.loads(message.data))
        return True

    async def ended(self, inbox: SocketInbox) -> int | None:
        """Wait for the close: it may come a moment after the error."""
        while inbox.verdict is None and await self._hear_one(inbox):
            pass
        return None if inbox.verdict is None else inbox.verdict[0]

    async def end(self) -> list[tuple[int, str] | None]:
        """Return how the server closed each."""
        for inbox in self.here:
            assert not await self._hear_one(inbox), inbox.frames
        verdicts = [inbox.verdict for inbox in self.here]
        await self.close()
        return verdicts

    async def close(self) -> None:
        for inbox in self.here:
            await inbox.socket.close()
        self.here.clear()
        self._session = None
        await self._ends.aclose()
        await asyncio.sleep(0)


class SocketWorld(CommitLoopWorld):
    """The whole server, with real clients on loopback."""

    hanging_up_loses = True

    def __init__(
        self,
        options: Options,
        clock: FakeClock | None = None,
        dice: FakeDice | None = None,
        data: Path | None = None,
    ) -> None:
        self._clients = Clients(binary=options.binary)
        self._gathered: int | None = None
        """How many commands wait while the commit loop is closed; None: it is open."""
        self._sent = 0
        super().__init__(options, clock, dice, data)

    async def _open(self) -> None:
        await super()._open()
        self._server = Server(self._commit_loop, self.clock, self.welcome_options, self.options.admission())
        self._server.cleanup_seconds = self.options.parting
        [at] = await self._server.listeners.listen(listen_address("127.0.0.1:0", "--listen"))
        self._port = int(at.rpartition(":")[2])

    def connect(self) -> Inbox:
        return self.run(self._clients.connect(self._port, self.options.headers()))

    def say(self, inbox: Inbox, text: str) -> None:
        assert isinstance(inbox, SocketInbox)
        self.run(self._say(inbox, text))

    async def _say(self, inbox: SocketInbox, text: str) -> None:
        self._sent += 1  # the letter of spec 000 has binary frames, clients send text
        await self._clients.say(inbox, text, binary=self._sent % 2 == 0)
        if self._gathered is not None:
            self._gathered += 1
            while len(self._commit_loop.queue) < self._gathered:  # noqa: ASYNC110 - a list, and nobody else asks
                await asyncio.sleep(0)

    def lose(self, inbox: Inbox) -> None:
        assert isinstance(inbox, SocketInbox)
        self.run(self._lose(inbox))

    async def _lose(self, inbox: SocketInbox) -> None:
        await self._clients.lose(inbox)
        while len(self.dispatcher.connections) > len(self._clients.here) or not self._commit_loop.idle.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)  # until the server has read that the client is gone

    def ended(self, inbox: Inbox) -> int | None:
        assert isinstance(inbox, SocketInbox)
        code = self.run(self._clients.ended(inbox))
        self.lose(inbox)
        return code

    def gather(self) -> None:
        """Close the commit loop: what is received waits, and is one batch when it opens."""
        self.run(self._hold_the_commit_loop())
        self._gathered = 0

    async def _hold_the_commit_loop(self) -> None:
        await self._until_idle()
        self._working.cancel()
        await asyncio.wait((self._working,))

    async def _flush(self) -> None:
        if self._gathered is not None:
            self._gathered = None
            self._work()
        await self._clients.hear(self._lose)
        self._store.refuses = False
        await self._commit_deferred()

    async def _stop(self) -> None:
        """Drain. Every client is told that the server restarts, unless it was being sent away at once."""
        verdicts_before = [each.verdict for each in self.dispatcher.connections if each.verdict is not None]
        at_once = sum(verdict.code not in CLEANUP_CLOSE_CODES for verdict in verdicts_before)
        await self._server.drain(self._working)
        verdicts = await self._clients.end()
        sent_away = len([verdict for verdict in verdicts if verdict != (1001, "server restarts")])
        assert at_once <= sent_away <= len(verdicts_before), verdicts
