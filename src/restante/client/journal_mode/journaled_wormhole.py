"""A wormhole that a journal keeps, its messages, and the step in which it sends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import msgspec

from restante.client.arguments import checked_message
from restante.client.connection.server import ServerEndpoint
from restante.client.core.machine import Mood
from restante.client.core.state import WormholeState
from restante.client.errors import ServerGoneError
from restante.client.events import Event
from restante.client.journal_mode.checkpoint import CheckpointWriter
from restante.client.protocol.seeds import seed_code, seed_mailbox
from restante.client.wormhole import BaseWormhole, SentMessage, Until
from restante.common.dice import Dice
from restante.common.errors import Misuse


class Message(msgspec.Struct, frozen=True, eq=False):
    """A message of the peer, which is to be processed in a step."""

    wormhole: JournaledWormhole
    """The wormhole through which it came."""
    number: int
    """Its number among the peer's messages, from 0."""
    data: bytes
    """What the peer sent."""


class JournalStep:
    """The messages that a step has to send."""

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        self.task = task  # others do not send in it
        self.sent: list[tuple[JournaledWormhole, bytes, SentMessage]] = []


class JournalContext:
    """What the wormholes of one journal share."""

    def __init__(self, writer: CheckpointWriter, dice: Dice) -> None:
        self.writer, self.dice = writer, dice
        self.open: dict[str, JournaledWormhole] = {}
        """Wormholes whose context is entered, by their names."""
        self.uses: Counter[str] = Counter()
        """How often the wormhole of a name was entered or removed. An object of an earlier use is of no more use."""
        self.step: JournalStep | None = None
        """The step that runs."""


class JournaledWormhole(BaseWormhole):
    """A wormhole that a journal keeps, with the methods of `BaseWormhole`.

    Leaving its context is a pause: the connection ends when the server has all that was sent, nothing is closed
    there, and any later process continues. It waits as long as the server answers within
    `ConnectionOptions.close_seconds`; what is left is sent by the next process. `BaseWormhole.close` ends the
    wormhole for good.

    If the server cannot be reached at first, the wormhole tries again, with the event `Reconnecting`, as after a lost
    connection, whatever the reason: the event has it. Leaving the context raises `ServerGoneError` if no server has
    answered.

    If the file could not be written, nobody knows which state is in it. Then reading `code`, `met`, `mood` or
    `unacknowledged` raises the StoreError, as `Journal.state` does.
    """

    def __init__(
        self,
        shared: JournalContext,
        name: str,
        state: WormholeState,
        server: ServerEndpoint,
        *,
        on_event: Callable[[Event], None] | None,
    ) -> None:
        """Continue from a state. Programs use `Journal.wormhole`."""
        super().__init__(state, server, shared.dice, on_event=on_event, save=shared.writer.save, waits=True)
        self._shared = shared
        self.name: str = name
        """Its name in the journal."""
        self._uses = shared.uses[name]

    async def __aenter__(self) -> Self:
        self._check_current()
        self._shared.open[self.name] = self
        self._shared.uses[self.name] += 1
        await self._shared.writer.save()
        return await super().__aenter__()

    def _check_current(self) -> None:
        """Raise Misuse if the journal has this wormhole in use, or no more."""
        if self.name in self._shared.open or self._shared.uses[self.name] != self._uses:
            raise Misuse(
                f"the wormhole {self.name!r} is in use already, or was used or removed since: "
                "get it from the journal again"
            )

    def _check_open(self) -> None:
        if self._running is None and self._shared.open.get(self.name) is not self:
            self._check_current()
        super()._check_open()

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            await self._end(lambda: self._suspend(flush=error is None), error)
        finally:
            self._shared.open.pop(self.name, None)

    def _check_entered(self) -> None:
        if self._shared.open.get(self.name) is not self:
            self._check_current()
        super()._check_entered()

    async def _close(self, mood: Mood | None) -> None:
        try:
            await self._wait_until_all_stored(patient=False)
            await self._close_mailbox(mood)
        finally:
            await self._driver.wait_until_saved()
            await self._shared.writer.save()

    def _stop(self) -> None:
        assert self._running is not None
        self._running.cancel()  # as if the process had ended: the next one goes on

    async def _suspend(self, *, flush: bool) -> None:
        if self._state.mood is not None:
            await self._close_mailbox(None)
        elif flush and self._state.code is not None:
            await self._wait_while_answered(
                lambda: (
                    self._has_ended
                    or ((connection := self._machine.connection) is not None and connection.all_stored)
                ),
                self._options.close_seconds,
            )
            if not self._machine.answers:
                reason = self._driver.connect_error or "no server has answered"
                self._fail(ServerGoneError(f"{reason}: the journal keeps what was sent for the next time"))
        await self._disconnect()
        await self._driver.wait_until_saved()
        await self._shared.writer.save()

    async def set_seed(self, seed: bytes) -> None:
        """Connect to the peer of an earlier wormhole, by its `seed`. A seed is for one wormhole of each side.

        Both sides derive the mailbox from the seed, so that neither has to come within the time that the server keeps
        a code. The peer has to call `set_seed`, too: with `seed_code` it would use another mailbox. The same seed may
        be set again.

        Raises:
            Misuse, ValueError: the wormhole has a code or another seed; the seed has not 32 bytes.

        """
        await self._use_code(seed_code(seed), seed_mailbox(seed))

    @property
    def code(self) -> str | None:
        """The code. None: it is not known yet."""
        return self._checked_state.code

    @property
    def met(self) -> bool:
        """Whether the peer was there, with the same code or seed."""
        return self._checked_state.peer_versions is not None

    @property
    def mood(self) -> str | None:
        """How the wormhole ended, like `happy`. None: it goes on. One that has ended is of no more use: remove it."""
        return self._checked_state.mood

    @property
    def unacknowledged(self) -> list[int]:
        """The numbers of messages for which the peer has sent no receipt. Other clients send none."""
        state = self._checked_state
        return list(range(state.acknowledged, state.next_own))

    @property
    def _checked_state(self) -> WormholeState:
        """The state, unless the file could not be written."""
        self._shared.writer.check()
        return self._state

    async def send(self, message: bytes, until: Until = "sent") -> SentMessage:
        """Send a message. In a step it is sent when the step is saved, else it is saved and sent at once.

        If the context is not entered, it is sent when it is. Otherwise this is `BaseWormhole.send`; in a step it does
        not wait for earlier messages, and `until` is `sent`.
        """
        step = self._shared.step
        if step is not None and step.task is asyncio.current_task():
            if until != "sent":
                raise Misuse("a message of a step is sent when the step is saved: wait for it then")
            self._check_open()
            sent = SentMessage(self, None)
            step.sent.append((self, checked_message(message), sent))
            return sent
        self._check_until(until)
        sent = await super().send(message)
        await self._shared.writer.save()
        await sent._reached(until)
        return sent

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield the peer's messages, as they come. Each counts as processed when a step with it is saved.

        A message without a step comes again when the wormhole is next opened. The errors of `BaseWormhole` end it.
        """
        while True:
            yield await self._next_message()

    async def waiting(self) -> AsyncIterator[Message]:
        """Yield the messages of the peer that the server has now, and end.

        Raises:
            Misuse: the wormhole has no code. Allocate or set one before.

        """
        if self._state.code is None:
            raise Misuse("a wormhole without a code has no mailbox: allocate or set one first")
        while True:
            await self._wait_until(lambda: self._unread or self._all_delivered)
            if not self._unread:
                return
            yield await self._next_message()

    @property
    def _all_delivered(self) -> bool:
        connection = self._machine.connection
        return connection is not None and connection.replayed and self._driver.all_saved

    async def _next_message(self) -> Message:
        received = await self._next_unread()
        return Message(self, received.number, received.plaintext)
