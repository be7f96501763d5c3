"""The mailbox server with its shells on: the commit loop with its queue, and the socket. They choose batches."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from typing import Any

from restante.common.listening import parse_listen_address
from restante.mailbox.core.dispatcher import CLEANUP_CLOSE_CODES
from restante.mailbox.core.model import Now
from restante.mailbox.server.commit_loop import CommitLoop, Retention
from restante.mailbox.server.server import Server
from restante.mailbox.store.interface import TermOver
from support.dice import FakeDice
from support.mailbox.databases import Clock, Database, MemoryDatabase
from support.mailbox.givens import FakeClock, Inbox, Options
from support.mailbox.hand_over import hand_over
from support.mailbox.live import DESCRIPTORS
from support.mailbox.raw_socket import BINARY, CLOSE, TEXT, RawSocket, frame
from support.mailbox.worlds import World


class CommitLoopWorld(World):
    """The commit loop with its queue, over a store. It says when what came, and what is a batch."""

    durable = True
    tells_the_lost = False

    def __init__(
        self,
        options: Options,
        clock: FakeClock | None = None,
        dice: FakeDice | None = None,
        begin: Callable[[Clock], Coroutine[Any, Any, Database]] = MemoryDatabase.begin,
    ) -> None:
        super().__init__(options, clock, dice)
        self._waiting = False
        self.database = self.run(begin(self.clock.monotonic))
        self.run(self._open())

    async def _open(self) -> None:
        await self._open_commit_loop()
        if not self.options.in_grace_period:
            self.dispatcher.state.end_grace_period()
        self._work()

    async def _open_commit_loop(self) -> None:
        retention, policy = Retention(prune_after=self.options.prune_after), self.options.policy()
        self._commit_loop = await CommitLoop.open(self.database.store, self.clock, self.dice, policy, retention)
        self.dispatcher = self._commit_loop.dispatcher

    def _work(self) -> None:
        self._working = asyncio.get_running_loop().create_task(self._commit_loop.run())

    def now(self) -> Now:
        return self._commit_loop.now()

    def say(self, inbox: Inbox, text: str) -> None:
        self._waiting = True
        self._commit_loop.receive(inbox.connection, text, self._commit_loop.now())

    def lose(self, inbox: Inbox) -> None:
        self._waiting = True
        self._commit_loop.lose(inbox.connection)

    def flush(self, *, refused: bool = False) -> bool:
        return self._stored(self._flush(), refused=refused)

    def _stored(self, work: Coroutine[Any, Any, None], *, refused: bool) -> bool:
        before = self._commit_loop.measurements.batches_not_stored
        self.database.refuse(refuses=refused)
        self.run(work)
        self.database.refuse(refuses=False)
        return self._commit_loop.measurements.batches_not_stored == before

    async def _flush(self) -> None:
        if self._waiting:
            self._waiting = False
            await self._until_idle()
        self.database.refuse(refuses=False)
        await self._commit_deferred()

    async def _commit_deferred(self) -> None:
        """A second goes by: what no answer rests on is on disk, too."""
        self._commit_loop.commit_deferred()
        await self._until_idle()

    async def _until_idle(self) -> None:
        if self._commit_loop.idle.is_set():
            return
        idle = asyncio.ensure_future(self._commit_loop.idle.wait())
        await asyncio.wait((idle, self._working), return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            idle.cancel()
            await self._working  # raises whatever ended it
            raise AssertionError("the commit loop ended by itself")

    def prune(self, *, refused: bool = False) -> bool:
        self._commit_loop.start_pruning()
        return self._stored(self._until_idle(), refused=refused)

    def save(self) -> None:
        if self.dispatcher.state.unsaved:
            self._commit_loop.start_saving()
            self.run(self._until_idle())

    def restart(self, *, crash: bool = False) -> None:
        self.run(self._restart(crash=crash))

    async def _restart(self, *, crash: bool) -> None:
        survivor = await self.database.restarted(crash=True) if crash else None
        with contextlib.suppress(*[TermOver] if crash else []):  # what is saved after a take-over
            await self._stop()
        if survivor is not None:
            await self.database.store.close()
        self.database = survivor or await self.database.restarted(crash=False)
        await self._open()

    async def _stop(self) -> None:
        self._commit_loop.stop()
        await self._working

    def close(self) -> None:
        try:
            self.run(self._stop())
        finally:
            super().close()


class SocketInbox(Inbox):
    def __init__(self, socket: RawSocket) -> None:
        super().__init__()
        self.socket = socket
        host, port, *_ = socket.writer.get_extra_info("sockname")
        self.address = host, port

    async def hear(self, opcode: int) -> bool:
        """Read a frame; false: the server closed."""
        try:
            received, payload = await self.socket.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.verdict = self.verdict or (1006, "")  # no close came
            return False
        if received == CLOSE:
            self.verdict = int.from_bytes(payload[:2]), payload[2:].decode()
            return False
        assert received == opcode
        self.frames.append(json.loads(payload))
        return True


class SocketWorld(CommitLoopWorld):
    """The whole server, with clients on loopback; an answered ping means that all before it is done (spec 000)."""

    hanging_up_loses = True

    _speaker: SocketInbox | None = None
    _gathered: int | None = None
    """How many commands wait while the commit loop is closed; None: it is open."""
    _barriers = _sent = 0

    async def _open(self) -> None:
        await super()._open()
        self._here: list[SocketInbox] = []
        self._opcode = BINARY if self.options.binary else TEXT
        settings = self.options.welcome_options(), self.options.admission()
        self._server = Server(
            self._commit_loop, self.clock, *settings, descriptors=DESCRIPTORS, binary=self.options.binary
        )
        self._server.cleanup_seconds = self.options.parting
        [at] = await self._server.listeners.listen(parse_listen_address("127.0.0.1:0", "--listen"))
        self._port = int(at.rpartition(":")[2])

    def connect(self) -> Inbox:
        return self.run(self._connect())

    async def _connect(self) -> Inbox:
        headers = {name.replace("-", "_"): value for name, value in self.options.headers().items()}
        inbox = SocketInbox(await RawSocket.dial(self._port, **headers))
        await inbox.hear(self._opcode)
        self._here.append(inbox)
        return inbox

    def say(self, inbox: Inbox, text: str) -> None:
        assert isinstance(inbox, SocketInbox)
        self.run(self._say(inbox, text))

    async def _say(self, inbox: SocketInbox, text: str) -> None:
        self._sent += 1  # the letter of spec 000 has binary frames, clients send text
        self._speaker = inbox
        inbox.socket.write(frame(BINARY if self._sent % 2 == 0 else TEXT, text.encode()))
        if self._gathered is not None:
            self._gathered += 1
            while len(self._commit_loop.queue) < self._gathered:  # noqa: ASYNC110 - a list, and nobody else asks
                await asyncio.sleep(0)

    def lose(self, inbox: Inbox) -> None:
        assert isinstance(inbox, SocketInbox)
        self.run(self._lose(inbox))

    async def _lose(self, inbox: SocketInbox) -> None:
        if inbox in self._here:
            self._here.remove(inbox)
        if inbox.verdict is None:
            inbox.socket.bid_farewell()
        await inbox.socket.hang_up()
        while len(self.dispatcher.connections) > len(self._here) or not self._commit_loop.idle.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)  # until the server has read that the client is gone

    def ended(self, inbox: Inbox) -> int | None:
        """Wait for the close: it may come a moment after the error."""
        assert isinstance(inbox, SocketInbox)
        while inbox.verdict is None:
            self.run(inbox.hear(self._opcode))
        self.lose(inbox)
        return inbox.verdict[0]

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
        # First to whoever spoke, since that is told when everybody else is.
        for inbox in sorted(self._here, key=lambda inbox: inbox is not self._speaker):
            if not await self._hear_until_barrier(inbox):
                await self._lose(inbox)
        self.database.refuse(refuses=False)
        await self._commit_deferred()

    async def _hear_until_barrier(self, inbox: SocketInbox) -> bool:
        """Wait for the answer to a ping: everything sent before has arrived then. False: the server closed."""
        self._barriers += 1
        barrier = f"barrier {self._barriers}"
        inbox.socket.say(type="ping", ping=barrier, id=barrier)
        while await inbox.hear(self._opcode):
            if inbox.frames[-1].get("pong") == barrier:
                inbox.frames = [
                    message for message in inbox.frames if barrier not in (message.get("id"), message.get("pong"))
                ]
                return True
        return False

    async def _stop(self) -> None:
        """Drain. Every client is told that the server restarts, unless it was being sent away at once."""
        verdicts_before = [peer.verdict for peer in self.dispatcher.connections if peer.verdict is not None]
        at_once = sum(verdict.code not in CLEANUP_CLOSE_CODES for verdict in verdicts_before)
        draining = asyncio.ensure_future(self._server.drain(self._working))
        for inbox in self._here:
            assert not await inbox.hear(self._opcode), inbox.frames
            inbox.socket.bid_farewell()
        await draining
        for inbox in self._here:
            await inbox.socket.hang_up()
        verdicts = [inbox.verdict for inbox in self._here]
        self._here.clear()
        sent_away = len([verdict for verdict in verdicts if verdict != (1001, "server restarts")])
        assert at_once <= sent_away <= len(verdicts_before), verdicts


class HandedOverWorld(SocketWorld):
    """The same, but that another process goes on before each answer: with the commands that wait, if they do."""

    async def _flush(self) -> None:
        await self._hand_over()
        await super()._flush()

    async def _hand_over(self) -> None:
        running = self._gathered is None
        self._server = await hand_over(self._server, self._open_again, running=running)
        if running:
            self._end_old()
            self._work()

    async def _open_again(self, service: float) -> CommitLoop:
        self._old = self._working
        self.database.store.service = service
        await self._open_commit_loop()
        return self._commit_loop

    def _end_old(self) -> None:
        self._old.cancel()
