"""Journal Mode: wormholes of programs that stop between messages.

Everything is in one checkpoint: the application's state, and all of each wormhole. What a wormhole sends is held
until the checkpoint that knows of it is on disk. A message of the peer is processed in a step. A step saves together:
the application's new state, what it sends, and the fact that the message was processed. A process that is killed at
any moment continues from its last checkpoint, and nothing is lost or processed twice.

The peer's messages are kept by the peer until a receipt comes for them, if it wants receipts. So a message survives
even if the server has pruned it.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import msgspec

from restante.client.base import BaseWormhole
from restante.client.checkpoint import Checkpoint, CheckpointError, CheckpointFile, CheckpointWriter, SavedWormhole
from restante.client.core.state import NEW_BYTES, State, new_state
from restante.client.defaults import DEFAULT_SERVER
from restante.client.events import Event
from restante.client.sent_message import SentMessage, to_be_sent
from restante.client.server import Server
from restante.client.work import DEFAULT_MAX_BITS
from restante.common.dice import Dice, SystemDice
from restante.common.errors import Misuse
from restante.common.tasks import until_done

T = TypeVar("T")


class Message(msgspec.Struct, frozen=True, eq=False):
    """A message of the peer, which is to be processed in a step."""

    wormhole: JournaledWormhole
    """The wormhole through which it came."""
    number: int
    """Its place among the peer's messages, from 0."""
    data: bytes
    """What the peer sent."""


class Journal(Generic[T]):
    """The state of an application and its wormholes, in one file. One process uses it at a time.

        async with Journal(Path("contacts.journal"), {"entries": []}) as journal:
            async with journal.wormhole("bob", "example.com/contacts") as bob:
                await bob.set_code("7-your-code")
                async for message in bob.waiting():
                    async with journal.step(message) as state:
                        state["entries"].append(message.data.decode())
                        await bob.send(b"thank you")

    Leave the contexts of its wormholes before its own, which closes the file. It belongs to one event loop.
    """

    def __init__(self, path: Path, initial: T, *, dice: Dice | None = None) -> None:
        """Read the file, or begin with an initial state. The first step or wormhole writes the file.

        Args:
            path: the file. Beside it is another one, with `.lock` at the end, so that one process at a time uses it.
            initial: the application's state if there is no file. Its type `T` is that of all later states, and one
                that msgspec writes as JSON: a dict, a list, a dataclass or a Struct. A dict or a list keeps only what
                JSON has.
            dice: the source of randomness for tests. By default it is the operating system's.

        Raises:
            CheckpointError: the file is truncated, of a later version, or of another program.
            StoreError: it cannot be read, or another process or Journal uses it.

        """
        self._dice = dice or SystemDice()
        self._file = CheckpointFile(path)
        self._type = type(initial)
        self._open: dict[str, JournaledWormhole] = {}
        self._uses: Counter[str] = Counter()
        self._stepping: _Step | None = None
        self._steps = asyncio.Lock()
        self._writer = CheckpointWriter(self._file, self._content)
        try:
            checkpoint = self._file.read()
            self._application = msgspec.json.encode(initial) if checkpoint is None else bytes(checkpoint.application)
            self._wormholes = {} if checkpoint is None else checkpoint.wormholes
            self._decoded()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Release the file. It cannot be written any more, so leave all wormholes before."""
        self._file.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def state(self) -> T:
        """A copy of the application's state, as the last step left it. A change of it is not kept: use a step."""
        return self._decoded()

    @property
    def names(self) -> list[str]:
        """The names of the journal's wormholes, in use or not."""
        return list(self._wormholes)

    def wormhole(
        self,
        name: str,
        app_id: str,
        *,
        server: str = DEFAULT_SERVER,
        versions: dict[str, Any] | None = None,
        seeds: bool = False,
        proxy: str | None = None,
        ssl: tls.SSLContext | None = None,
        max_work_bits: int = DEFAULT_MAX_BITS,
        on_event: Callable[[Event], None] | None = None,
    ) -> JournaledWormhole:
        """Return the wormhole of this name, a new one if there is none. It continues when its context is entered.

        The other arguments are those of `Wormhole.create`. One that is in the journal keeps its first `server`,
        `versions` and `seeds`. It always wants receipts. If `on_event` raises, this use of the wormhole ends, and the
        next one goes on.

        Args:
            name: any text that is the program's name for it, for example that of a contact.
            app_id: as for `Wormhole.create`.

        Raises:
            Misuse: it is in use already, or belongs to another application id, or a URL, the application id or the
                versions cannot be used.

        """
        if name in self._open:
            raise Misuse(f"the wormhole {name!r} is in use already")
        saved = self._wormholes.get(name)
        if saved is None:
            random = self._dice.draw(NEW_BYTES)
            saved = SavedWormhole(server, new_state(app_id, versions or {}, random, wants_receipts=True, seeds=seeds))
        elif saved.state.app_id != app_id:
            raise Misuse(f"the wormhole {name!r} belongs to the application {saved.state.app_id!r}, not {app_id!r}")
        way = Server(saved.server, proxy, ssl)
        self._wormholes[name] = saved
        return JournaledWormhole(self, name, saved.state, way, max_work_bits=max_work_bits, on_event=on_event)

    async def remove(self, name: str) -> None:
        """Forget a wormhole, and with it all that its peer has not received.

        The server is told nothing. To leave nothing there, call the wormhole's `close` and leave its context before.

        Raises:
            Misuse: there is none of this name, or its context is not left.
            StoreError: the file cannot be written.

        """
        if name in self._open or name not in self._wormholes:
            raise Misuse(f"there is no wormhole {name!r} that is not in use")
        del self._wormholes[name]
        self._uses[name] += 1
        await self.save()

    @asynccontextmanager
    async def step(self, *messages: Message) -> AsyncIterator[T]:
        """Process messages of peers, change the application's state, and send, all or nothing.

        The block gets the state, and changes it in place. What this task sends in it is sent when the step is saved,
        which is at the end of the block. If the block raises, the state is what it was, nothing is sent, and the
        messages come again when their wormhole is next opened. One step runs at a time and others wait for it.

        Args:
            messages: each wormhole's in their order, none left out. A step without messages changes the state only.

        Raises:
            TypeError, ValueError: JSON cannot express the state that the block leaves.
            Misuse: an earlier message was left out, a message's wormhole is not open, or this is a step in a step.
            WormholeError: a wormhole into which something was sent has failed or is closed; nothing has happened.
            StoreError: the file cannot be written. The process should end; nothing was sent.

        """
        if self._stepping is not None and self._stepping.task is asyncio.current_task():
            raise Misuse("a step cannot be in another: end that one first")
        async with self._steps:
            self._writer.check()
            state = self._decoded()
            step = self._stepping = _Step(asyncio.current_task())
            try:
                yield state
            finally:
                self._stepping = None
            application = msgspec.json.encode(state)
            processed = self._in_order(messages)
            for wormhole, _, _ in step.sent:
                wormhole._check_open()
            self._application = application
            for wormhole, number in processed.items():
                wormhole._machine.processed(number)
            for wormhole, data, sent in step.sent:
                sent._number = wormhole._machine.send(data)
            try:
                await self.save()
            finally:
                for wormhole in {*processed, *(wormhole for wormhole, _, _ in step.sent)}:
                    wormhole._driver.carry_out()

    def _in_order(self, messages: Iterable[Message]) -> dict[JournaledWormhole, int]:
        """Return the last message of each wormhole. Raises Misuse if one before it was left out."""
        last: dict[JournaledWormhole, int] = {}
        for message in messages:
            wormhole = message.wormhole
            if self._open.get(wormhole.name) is not wormhole:
                raise Misuse(f"message {message.number} is not of an open wormhole of this journal: it comes again")
            following = last.get(wormhole, wormhole._state.next_peer - 1) + 1
            if message.number != following:
                raise Misuse(f"a step has message {message.number}, and message {following} comes first")
            last[wormhole] = message.number
        return last

    async def save(self) -> None:
        """Return when all that has happened so far is on disk. Steps and wormholes call it: programs need not.

        Raises:
            StoreError: the file cannot be written. Then no later call succeeds.

        """
        await self._writer.save()

    def _content(self) -> Checkpoint:
        return Checkpoint(application=msgspec.Raw(self._application), wormholes=self._wormholes)

    def _decoded(self) -> T:
        try:
            return msgspec.json.decode(self._application, type=self._type)
        except (msgspec.DecodeError, RecursionError) as error:
            raise CheckpointError(f"{self._file.path} has the state of another application: {error}") from None


class _Step:
    """What a step has to send."""

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        self.task = task
        """The task that runs it. Others do not send in it."""
        self.sent: list[tuple[JournaledWormhole, bytes, SentMessage]] = []


class JournaledWormhole(BaseWormhole):
    """A wormhole that a journal keeps, with the methods of `BaseWormhole`.

    Leaving its context is a pause: the connection ends when the server has all that was sent, nothing is closed
    there, and any later process continues. It waits as long as the server answers within `MAX_CLOSE_SECONDS`; what is
    left is sent by the next process. `BaseWormhole.close` ends the wormhole for good.
    """

    def __init__(
        self,
        journal: Journal[Any],
        name: str,
        state: State,
        server: Server,
        *,
        max_work_bits: int,
        on_event: Callable[[Event], None] | None,
    ) -> None:
        """Continue from a state. Programs use `Journal.wormhole`."""
        super().__init__(
            state, server, journal._dice, max_work_bits=max_work_bits, on_event=on_event, save=journal.save
        )
        self._journal = journal
        self.name: str = name
        """Its name in the journal."""
        self._uses = journal._uses[name]

    async def __aenter__(self) -> Self:
        if self.name in self._journal._open or self._journal._uses[self.name] != self._uses:
            raise Misuse(
                f"the wormhole {self.name!r} is in use already, or was used or removed since: "
                "get it from the journal again"
            )
        self._journal._open[self.name] = self
        self._journal._uses[self.name] += 1
        await self._journal.save()
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._suspend(flush=kind is None))
        try:
            await until_done(self._closing)
        finally:
            self._journal._open.pop(self.name, None)
        if kind is None:
            self._raise_unraised()

    async def _close(self, mood: str | None) -> None:
        try:
            await super()._close(mood)
        finally:
            await self._driver.wait_until_saved()
            await self._journal.save()

    def _stop(self) -> None:
        assert self._running is not None
        self._running.cancel()  # as if the process had ended: the next one goes on

    async def _suspend(self, *, flush: bool) -> None:
        if self._state.mood is not None:
            await self._leave()
        elif flush and self._state.code is not None:
            await self._flushed(lambda: (now := self._machine.connection) is not None and now.all_stored)
        await self._disconnect()
        await self._driver.wait_until_saved()
        await self._journal.save()

    @property
    def code(self) -> str | None:
        """The code. None: it is not known yet."""
        return self._state.code

    @property
    def mood(self) -> str | None:
        """How the wormhole ended, like `happy`. None: it goes on. One that has ended is of no more use: remove it."""
        return self._state.mood

    @property
    def unacknowledged(self) -> list[int]:
        """The numbers of our messages for which the peer has sent no receipt. Clients of other projects send none."""
        return list(range(self._state.acknowledged, self._state.next_own))

    async def send(self, message: bytes) -> SentMessage:
        """Send a message. In a step it is sent when the step is saved, else it is saved and sent at once.

        If the context is not entered, it is sent when it is. Otherwise this is `BaseWormhole.send`; in a step it does
        not wait for earlier messages.
        """
        step = self._journal._stepping
        if step is not None and step.task is asyncio.current_task():
            self._check_open()
            sent = SentMessage(None, self._stored, self._delivered)
            step.sent.append((self, to_be_sent(message), sent))
            return sent
        sent = await super().send(message)
        await self._journal.save()
        return sent

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield the peer's messages, as they come. Each counts as processed when a step with it is saved.

        A message without a step comes again when the wormhole is next opened. The errors of `BaseWormhole` end it.
        """
        while True:
            yield await self._next()

    async def waiting(self) -> AsyncIterator[Message]:
        """Yield the messages that the server has for us now, and end.

        Raises:
            Misuse: the wormhole has no code. Allocate or set one before.

        """
        if self._state.code is None:
            raise Misuse("a wormhole without a code has no mailbox: allocate or set one first")
        while True:
            await self._until(lambda: self._unread or self._all_told)
            if not self._unread:
                return
            yield await self._next()

    @property
    def _all_told(self) -> bool:
        connection = self._machine.connection
        return connection is not None and connection.replayed and self._driver.all_saved

    async def _next(self) -> Message:
        told = await self._take()
        return Message(self, told.number, told.plaintext)
