"""The driver of a machine: it carries out the machine's outputs, and connects again when the connection is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from restante.client.connection.options import ConnectionOptions
from restante.client.connection.server import ServerEndpoint
from restante.client.connection.work import check_demand, find_stamp
from restante.client.core.conversation import PAKE
from restante.client.core.machine import Machine
from restante.client.core.outputs import MessageReceived, NameplatesListed, Output, Reconnect, SendFrame, ShowWork
from restante.client.errors import (
    BusyServerError,
    PermissionNeededError,
    ServerError,
    ServerGoneError,
)
from restante.client.events import Closed, Connecting, Event, Failed, Reconnecting
from restante.client.timing_log import CRYPTO, TimingLog
from restante.common.dice import Dice
from restante.common.errors import StoreError

if TYPE_CHECKING:
    from restante.client.connection.websocket import Connection

MAX_BAD_CONNECTIONS: Final = 3
"""Connections in a row on which the server owed an answer or broke the protocol. Then the wormhole fails: the server
is out of order."""

MAX_HURRIED_CONNECTIONS: Final = 20
"""Connections that are lost while the wormhole is being closed, and on which the server answered. Then no more are
made: it may answer and hang up for ever."""

SAVED_BEFORE: Final = (SendFrame, Closed, Failed)
"""Outputs that a process must not forget: what the server was sent, and how the wormhole ended."""

DELAY_FACTOR: Final = 1.5
"""What each attempt to connect again multiplies the delay with (twisted.application.internet, `backoffPolicy`)."""

HURRIED_DELAY_SECONDS: Final = 0.25
"""Seconds between attempts while the wormhole is being closed."""

ID_BYTES: Final = 2
"""Random bytes of a command's id, as in the Python client (mw _rendezvous.py:280)."""


Computed = TypeVar("Computed")


class BadServerError(ServerGoneError):
    """The server is connected, and owes an answer or breaks the protocol."""


def delay_before(attempt: int, dice: Dice, options: ConnectionOptions) -> float:
    """Return the seconds before an attempt, of which the first has the number 1."""
    power = DELAY_FACTOR ** min(attempt - 1, 100)  # a larger one is no float
    delay = min(options.first_delay_seconds * power, options.max_delay_seconds)
    return delay + min(delay, 1.0) * dice.below(1000) / 1000


class Driver:
    """Keeps one machine connected."""

    def __init__(
        self,
        machine: Machine,
        server: ServerEndpoint,
        report: Callable[[Event | MessageReceived | NameplatesListed], None],
        dice: Dice,
        *,
        changed: Callable[[], None],
        on_store_error: Callable[[StoreError], None],
        save: Callable[[], Awaitable[None]] | None = None,
        waits: bool = False,
    ) -> None:
        """Prepare. `changed` is called when a frame of the server is handled, which need not be an event.

        `save` is awaited before anything is sent that the machine's state must not forget. If it raises StoreError,
        `on_store_error` is called, and nothing more is sent. If this driver `waits`, a first connection that cannot
        be made is tried again, as a lost one is, whatever the error: another network may not have it.
        """
        self._machine, self._server, self._report, self._dice = machine, server, report, dice
        self._changed, self._on_store_error = changed, on_store_error
        self._save, self._waits = save, waits
        self.timing: TimingLog | None = None
        """Logs what is sent and received."""
        self._saving: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._work: asyncio.Task[None] | None = None
        self._next_check: asyncio.TimerHandle
        self._reading = asyncio.Event()
        self._reading.set()
        self._hurry = asyncio.Event()
        self._store_error: StoreError | None = None
        self._connect_error: ServerGoneError | None = None
        self.ended = False
        """Whether the nameplate is released and the mailbox closed."""

    def pause(self) -> None:
        """Read no more from the server: the application is behind."""
        if self._reading.is_set():
            self._reading.clear()
            if self._connection is not None:
                self._connection.pause()

    def resume(self) -> None:
        """Read again."""
        if not self._reading.is_set():
            self._reading.set()
            if self._connection is not None:
                self._connection.resume()

    def hurry(self) -> None:
        """Connect again at once, and soon after each further attempt that fails: the wormhole is being closed."""
        self._hurry.set()

    def timed(self, work: Callable[[], Computed]) -> Computed:
        """Do what may compute this side's half of the key, or the key, and log how long that takes."""
        if self.timing is None:
            return work()
        state, start = self._machine.state, self.timing.clock()
        had_half, had_key = PAKE in state.own, state.key is not None
        result = work()
        if not had_half and PAKE in state.own:
            self.timing.add("pake1", start, self.timing.clock(), waiting=CRYPTO)
        if not had_key and state.key is not None:
            self.timing.add("pake2", start, self.timing.clock(), waiting=CRYPTO)
        return result

    def carry_out(self) -> None:
        """Send and report what the machine wants, in order. What has to be saved before is sent later."""
        if self._saving is not None:
            return  # it carries out what has come in the meantime
        while outputs := self._machine.outputs():
            if self._save is not None and any(isinstance(output, SAVED_BEFORE) for output in outputs):
                self._saving = asyncio.create_task(self._save_first(outputs))
                return
            for output in outputs:
                self._carry_out_one(output)

    @property
    def all_saved(self) -> bool:
        """Whether nothing waits to be saved: all that the machine wanted is sent and reported."""
        return self._saving is None and self._store_error is None

    @property
    def connect_error(self) -> ServerGoneError | None:
        """Why the last attempt failed, if no server has answered yet."""
        return None if self._machine.answers else self._connect_error

    def no_welcome_error(self) -> ServerGoneError:
        """Return the error for a server that has sent no welcome in time."""
        if self._connect_error is None:
            return self._server.no_answer(opened=self._connection is not None)
        limit = self._server.options.connect_seconds
        return ServerGoneError(f"no connection within {limit:g} s: {self._connect_error}")

    async def wait_until_saved(self) -> None:
        """Wait until what had to be saved is saved and sent. Raises StoreError if it cannot be saved."""
        while self._saving is not None:
            await asyncio.shield(self._saving)
        if self._store_error is not None:
            raise self._store_error

    async def run(self) -> None:
        """Stay connected until the machine is closed.

        Raises:
            ServerGoneError: there is no first connection, or the server was out of order
                on several in a row.
            StoreError: the state cannot be saved.

        """
        attempt = bad_connections = hurried_connections = 0
        while not self.ended:
            await self._reading.wait()
            if self._store_error is not None:
                raise self._store_error
            self._report(Connecting(self._server.url))
            answers = self._machine.answers
            error = await self._connect()
            answered = self._machine.answers > answers
            hurried, busy = self._hurry.is_set(), isinstance(error, BusyServerError)
            hurried_connections += answered and hurried
            if self.ended or hurried_connections >= MAX_HURRIED_CONNECTIONS:
                return
            bad_connections = bad_connections + 1 if isinstance(error, BadServerError) else 0
            if not self._may_retry(error, bad_connections):
                raise error
            if not self._machine.answers:
                self._connect_error = ServerGoneError(str(error))  # programs get no BusyServerError
            attempt = 1 if answered and not busy else attempt + 1
            delay = HURRIED_DELAY_SECONDS if hurried else delay_before(attempt, self._dice, self._server.options)
            self._report(Reconnecting(delay, str(error), busy))
            if hurried:
                await asyncio.sleep(delay)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._hurry.wait()

    def _may_retry(self, error: ServerGoneError, bad_connections: int) -> bool:
        """Return whether another connection may be better than the last, which ended with an error."""
        if bad_connections >= MAX_BAD_CONNECTIONS:
            return False
        return self._waits or self._machine.answers > 0 or isinstance(error, BusyServerError)

    def _carry_out_one(self, output: Output) -> None:
        if isinstance(output, SendFrame):
            if self._connection is not None:
                text = output.text
                if self.timing is not None:
                    text = self.timing.sent(self._machine.state.side, text, self._dice.draw(ID_BYTES).hex())
                self._connection.send(text)
        elif isinstance(output, Reconnect):
            self._end_connection(BusyServerError(output.reason))
        elif isinstance(output, ShowWork):
            self._begin_work(output)
        else:
            if isinstance(output, Closed):
                self.ended = True
                self._end_connection(ServerGoneError("the wormhole is closed"))
            self._report(output)

    async def _save_first(self, outputs: list[Output]) -> None:
        assert self._save is not None
        connection = self._connection
        try:
            await self._save()
            for output in outputs:
                if not isinstance(output, SendFrame | Reconnect) or self._connection is connection:
                    self._carry_out_one(output)
        except StoreError as error:
            self._store_error = self._store_error or error
            self._on_store_error(self._store_error)
            self._end_connection(self._store_error)
            self._hurry.set()
            self._reading.set()  # `run` ends, whatever it waits for
            return
        finally:
            self._saving = None
        self.carry_out()
        if self.all_saved:
            self._changed()

    async def _connect(self) -> ServerGoneError:
        """Serve one connection until it ends. Return why. Raises StoreError if the state cannot be saved."""
        from restante.client.connection.websocket import connect

        try:
            async with connect(self._server, self._set_connection, self._receive) as connection:
                self._watch()
                try:
                    raise self._store_error or await connection.ended
                finally:
                    self._next_check.cancel()
        except ServerGoneError as error:
            return error
        except ServerError as error:
            self._machine.fail(error)
            return BadServerError(str(error))
        finally:
            self._connection = None
            self._machine.disconnected()
            self.carry_out()
            if self._work is not None:
                self._work.cancel()
                await asyncio.wait([self._work])  # its processes end with it
                self._work = None

    def _set_connection(self, connection: Connection) -> None:
        self._connection = connection
        self._machine.connected()
        if not self._reading.is_set():
            connection.pause()

    def _receive(self, text: bytes) -> None:
        if self.timing is None:
            handled = self._machine.receive(text)
        else:
            self.timing.received(self._machine.state.side, text)
            handled = self.timed(lambda: self._machine.receive(text))
        if not handled:
            return
        self.carry_out()
        if self.all_saved:
            self._changed()

    def _end_connection(self, reason: ServerGoneError | StoreError) -> None:
        if self._connection is not None:
            self._connection.end(reason)

    def _watch(self, earlier_answers: int = -1) -> None:
        """End a connection on which an answer has been owed since the last check and none came. Check again later."""
        answers, seconds = self._machine.answers, self._server.options.answer_seconds
        owed = self._machine.awaits_answer and self._reading.is_set()
        if owed and answers == earlier_answers and self._connection is not None:
            reason = f"{self._server.url} did not answer within {seconds:g} s: use another server"
            self._connection.end(BadServerError(reason))
        call_later = asyncio.get_running_loop().call_later
        self._next_check = call_later(seconds, self._watch, answers if owed else -1)

    def _begin_work(self, demand: ShowWork) -> None:
        try:
            check_demand(demand.bits, demand.resource, self._server.max_work_bits)
        except PermissionNeededError as error:
            self._machine.fail(error)
        else:
            self._work = asyncio.create_task(self._show_work(demand))

    async def _show_work(self, demand: ShowWork) -> None:
        try:
            stamp = await find_stamp(demand.bits, demand.resource, self._report)
        except PermissionNeededError as error:
            self._machine.fail(error)
        else:
            self._machine.permitted(stamp)
        self.carry_out()
