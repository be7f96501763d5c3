"""Journal Mode: wormholes of programs that stop between messages.

Everything is in one checkpoint: the application's state, and all of each wormhole. What a wormhole sends waits
until the checkpoint that has it is on disk. A message of the peer is processed in a step. A step saves together:
the application's new state, what it sends, and the fact that the message was processed. A process that is killed at
any moment continues from its last checkpoint, and nothing is lost or processed twice.
"""

from __future__ import annotations

import asyncio
import math
import ssl as tls
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import msgspec

from restante.client.arguments import check_flags, is_text
from restante.client.connection.options import DEFAULT_OPTIONS, ConnectionOptions
from restante.client.connection.server import ServerEndpoint
from restante.client.connection.work import DEFAULT_MAX_BITS
from restante.client.core.state import NEW_BYTES, new_state
from restante.client.defaults import DEFAULT_SERVER
from restante.client.events import Event
from restante.client.journal_mode.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointFile,
    CheckpointWriter,
    SavedWormhole,
)
from restante.client.journal_mode.journaled_wormhole import JournalContext, JournaledWormhole, JournalStep, Message
from restante.common.dice import Dice, SystemDice
from restante.common.errors import Misuse

T = TypeVar("T")


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
            dice: the source of randomness for tests, an object with the methods `draw(size)`, which returns bytes,
                and `below(bound)`, which returns a number from 0 to `bound` - 1. By default it is the system's.

        Raises:
            CheckpointError: the file is truncated, of a later version, or of another program.
            StoreError: it cannot be read, or another process or Journal uses it.

        """
        self._file = CheckpointFile(path)
        self._type = type(initial)
        self._steps = asyncio.Lock()
        try:
            self._checkpoint = self._file.read() or Checkpoint(application=self._encode_state(initial))
            # As a copy: what was decoded is a view of the whole file.
            self._saved_application = self._checkpoint.application = self._checkpoint.application.copy()
            self._decode_state(self._saved_application)
        except BaseException:
            self._file.close()
            raise
        self._writer = CheckpointWriter(self._file, self._checkpoint)
        self._shared = JournalContext(self._writer, dice or SystemDice())

    def close(self) -> None:
        """Release the file. It cannot be written any more, so leave all wormholes before."""
        self._file.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> T:
        """A copy of the application's state, as the last saved step left it. A change of it is not kept: use a step.

        If the file could not be written, nobody knows which state is in it. Then reading this raises the StoreError.
        Open the file again.
        """
        self._writer.check()
        return self._decode_state(self._saved_application)

    @property
    def names(self) -> list[str]:
        """The names of the journal's wormholes, in use or not. Reading this raises the StoreError as `state` does."""
        self._writer.check()
        return list(self._checkpoint.wormholes)

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
        options: ConnectionOptions = DEFAULT_OPTIONS,
    ) -> JournaledWormhole:
        """Return the wormhole of this name, or a new one. It connects when its context is entered.

        The other arguments are those of `Wormhole.create`. One that is in the journal keeps its first `server`,
        `versions` and `seeds`. It always wants receipts. If `on_event` raises, this use of the wormhole ends, and the
        next one goes on.

        Args:
            name: any text that is the program's name for it, for example that of a contact.
            app_id: as for `Wormhole.create`.

        Raises:
            Misuse: it is in use already, or belongs to another application id, or an argument cannot be used.
            StoreError: the file could not be written before.

        """
        if not is_text(name):
            raise Misuse(f"the name of a wormhole is a text, not {name!r}")
        check_flags(seeds=seeds)
        self._writer.check()
        if name in self._shared.open:
            raise Misuse(f"the wormhole {name!r} is in use already")
        saved = self._checkpoint.wormholes.get(name)
        if saved is None:
            random = self._shared.dice.draw(NEW_BYTES)
            saved = SavedWormhole(server, new_state(app_id, versions or {}, random, wants_receipts=True, seeds=seeds))
        elif saved.state.app_id != app_id:
            raise Misuse(f"the wormhole {name!r} belongs to the application {saved.state.app_id!r}, not {app_id!r}")
        endpoint = ServerEndpoint(saved.server, proxy, ssl, max_work_bits, options)
        wormhole = JournaledWormhole(self._shared, name, saved.state, endpoint, on_event=on_event)
        self._checkpoint.wormholes[name] = saved
        return wormhole

    async def remove(self, name: str) -> None:
        """Forget a wormhole, and with it all that its peer has not received.

        The server is told nothing. To leave nothing there, call the wormhole's `close` and leave its context before.

        Raises:
            Misuse: the journal has no wormhole of this name, or its context was not left.
            StoreError: the file cannot be written.

        """
        if name in self._shared.open:
            raise Misuse(f"the wormhole {name!r} is in use: leave its context first")
        if name not in self._checkpoint.wormholes:
            raise Misuse(f"this journal has no wormhole {name!r}")
        del self._checkpoint.wormholes[name]
        self._shared.uses[name] += 1
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
            Misuse: that state has NaN or infinity, or a value without the type of its field; an earlier message was
                left out, a message's wormhole is not open, or this is a step in a step.
            WormholeError: a wormhole into which something was sent has failed or is closed; nothing has happened.
            StoreError: the file cannot be written. The process should end; nothing was sent.

        """
        if self._shared.step is not None and self._shared.step.task is asyncio.current_task():
            raise Misuse("a step cannot begin in another one: end that one first")
        async with self._steps:
            self._writer.check()
            state = self._decode_state(self._checkpoint.application)
            step = self._shared.step = JournalStep(asyncio.current_task())
            try:
                yield state
            finally:
                self._shared.step = None
            application = self._encode_state(state)
            processed = self._last_numbers(messages)
            for wormhole, _, _ in step.sent:
                wormhole._check_open()
            self._checkpoint.application = application
            for wormhole, number in processed.items():
                wormhole._machine.processed(number)
            for wormhole, data, sent in step.sent:
                sent._number = wormhole._machine.send(data)
            try:
                await self.save()
            finally:  # a cancelled step is saved, too
                self._saved_application = application
                for wormhole in {*processed, *(wormhole for wormhole, _, _ in step.sent)}:
                    wormhole._driver.carry_out()

    def _last_numbers(self, messages: Iterable[Message]) -> dict[JournaledWormhole, int]:
        """Return the last message of each wormhole. Raises Misuse if one before it was left out."""
        last_numbers: dict[JournaledWormhole, int] = {}
        for message in messages:
            wormhole = message.wormhole
            if self._shared.open.get(wormhole.name) is not wormhole:
                raise Misuse(f"message {message.number} is of no wormhole that is open in this journal")
            following = last_numbers.get(wormhole, wormhole._state.next_peer - 1) + 1
            if message.number != following:
                raise Misuse(f"a step has message {message.number} without message {following}, which comes first")
            last_numbers[wormhole] = message.number
        return last_numbers

    async def save(self) -> None:
        """Return when all that has happened so far is on disk. Steps and wormholes call it: programs need not.

        Raises:
            StoreError: the file cannot be written. Then no later call succeeds.

        """
        await self._writer.save()

    def _encode_state(self, state: T) -> msgspec.Raw:
        """Return a state as JSON. Raises TypeError, ValueError or Misuse if it could not be read again as it is."""
        application = msgspec.json.encode(state)
        if b"null" in application and not _is_finite(msgspec.to_builtins(state)):
            raise Misuse("the state has NaN or infinity, which JSON cannot express")
        try:
            msgspec.json.decode(application, type=self._type)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Misuse(f"a value of the state does not have the type of its field: {error}") from None
        return msgspec.Raw(application)

    def _decode_state(self, application: msgspec.Raw) -> T:
        try:
            return msgspec.json.decode(application, type=self._type)
        except (msgspec.DecodeError, RecursionError) as error:
            raise CheckpointError(f"{self._file.path} has the state of another application: {error}") from None


def _is_finite(value: object) -> bool:
    """Return whether a value has no NaN and no infinity, which msgspec writes as null."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value)) and all(map(_is_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_is_finite, value))
