"""Fetch history from Mailservers: carries out the actions of `requester.py` over connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

import msgspec

from restante.common.dice import SystemDice
from restante.common.errors import Misuse
from restante.waku.client.inbox import REMEMBERED_HASHES, Inbox
from restante.waku.client.outbound_connection import NodeUnavailableError, OutboundConnection, connect
from restante.waku.client.ranges import FetchState, HistoryQuery
from restante.waku.client.requester import (
    Action,
    Budgets,
    Connect,
    Disconnect,
    FetchReport,
    Finished,
    HandOver,
    Requester,
    SaveState,
    SendRequest,
    Timeouts,
)
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keys import Key, new_key
from restante.waku.envelope.mining import NotMined, mine
from restante.waku.envelope.payload import SymmetricKey
from restante.waku.protocol import request as requests
from restante.waku.protocol.completion import ERROR_PREFIX
from restante.waku.protocol.interest import WANTS_EVERYTHING, Interest
from restante.waku.protocol.peer import Ended, HistoryReceived
from restante.waku.protocol.request import Form, Request

GREET_TIMEOUT: Final = 10.0
"""Seconds within which a server must greet."""

Subscriber = Callable[[list[Envelope]], None]
"""Receives envelopes. They count as handed over when it returns."""

Keep = Callable[[FetchState], None]
"""Receives the new state each time the subscriber has all envelopes that the state covers."""


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are written."""

    form: Form = "envelope"
    to: SymmetricKey | bytes | None = None
    """Key that a request envelope is encrypted for: the key of the Mailserver's password, or its public key."""
    key: Key | None = None
    """Private key to authenticate with, for Mailservers that admit only some nodes. Default: a fresh key for each
    request and connection, so that requests cannot be linked by their sender."""

    def __post_init__(self) -> None:
        if self.form == "envelope" and self.to is None:
            raise Misuse("a request in an envelope is sealed: name the key to seal it with")


async def fetch(
    servers: Sequence[Enode],
    query: HistoryQuery,
    options: RequestOptions,
    subscriber: Subscriber,
    *,
    inbox: Inbox | None = None,
    state: FetchState | None = None,
    keep: Keep | None = None,
    budgets: Budgets | None = None,
    timeouts: Timeouts | None = None,
) -> FetchReport:
    """Fetch a query's history from servers and return a report.

    The first server is preferred. All servers are trusted to send history. The fetch ends when the query is known or
    no server is left to ask.

    The subscriber receives each envelope once. To keep that true for live envelopes too, pass them through the same
    `inbox`. If the subscriber raises an error, the fetch ends and raises it.
    """
    if not servers:
        raise Misuse("no Mailserver is named: name at least one")
    budgets = budgets or Budgets()
    if inbox is None:
        inbox = Inbox(WANTS_EVERYTHING, max(REMEMBERED_HASHES, len(servers) * budgets.envelopes))
    core = Requester(query, len(servers), inbox, state, budgets, timeouts)
    return await _Fetch(servers, core, options, subscriber, keep).run()


class _Fetch:
    def __init__(
        self,
        servers: Sequence[Enode],
        core: Requester,
        options: RequestOptions,
        subscriber: Subscriber,
        keep: Keep | None,
    ) -> None:
        self._servers = servers
        self._core = core
        self._options = options
        self._subscriber = subscriber
        self._keep = keep
        self._dice = SystemDice()
        self._loop = asyncio.get_running_loop()
        self._report: asyncio.Future[FetchReport] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._visits: dict[int, _Visit] = {}
        """The current visits by server. A visit that was left may still be disconnecting."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> FetchReport:
        self._handle(lambda: self._core.start(self._loop.time(), time.time()))
        try:
            return await self._report
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks:
                if not task.cancelling():  # a cancelled task is still disconnecting
                    task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # ── between the requester and the connections ────────────────────────────────────────────────

    def _handle(self, event: Callable[[], list[Action]]) -> None:
        """Report an event to the requester and carry out the actions it returns."""
        if self._report.done():
            return
        try:
            for each in event():
                self._do(each)
        except Exception as error:  # noqa: BLE001 - the subscriber's error; `run` raises it
            self._report.set_exception(error)
            return
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._core.next_timeout()
        self._timer = None if due is None else self._loop.call_at(due, self._on_time)

    def _on_time(self) -> None:
        self._handle(lambda: self._core.handle_timeout(self._loop.time()))

    def _do(self, action: Action) -> None:
        match action:
            case Connect(server):
                visit = self._visits[server] = _Visit(server)
                visit.task = self._start(self._visit(visit))
            case SendRequest(server, request):
                self._start(self._request(self._visits[server], request))
            case Disconnect(server):
                left = self._visits.pop(server, None)
                if left is not None and left.task is not None:
                    left.task.cancel()
            case HandOver(envelopes):
                self._subscriber(envelopes)
            case SaveState(state):
                if self._keep is not None:
                    self._keep(state)
            case Finished(report):
                self._report.set_result(report)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._report.done():
            self._report.set_exception(error)

    # ── servers ──────────────────────────────────────────────────────────────────────────────────

    def _counts(self, visit: _Visit) -> bool:
        return self._visits.get(visit.server) is visit

    async def _visit(self, visit: _Visit) -> None:
        server = visit.server
        try:
            async with connect(
                self._servers[server],
                self._options.key or new_key(self._dice),
                Interest.named([]),
                GREET_TIMEOUT,
                lambda event: self._take_history(visit, event),
            ) as visit.connection:
                self._handle(lambda: self._core.connected(server, self._loop.time()))
                words = await visit.connection.gone()
        except NodeUnavailableError as error:
            words = str(error)
        self._lost(visit, words)

    def _lost(self, visit: _Visit, words: str) -> None:
        if self._counts(visit):
            self._handle(lambda: self._core.server_failed(visit.server, words, self._loop.time()))

    def _take_history(self, visit: _Visit, event: HistoryReceived | Ended) -> None:
        if not self._counts(visit):
            return
        now = self._loop.time()
        if isinstance(event, HistoryReceived):
            self._handle(lambda: self._core.envelopes_received(visit.server, event.envelopes, now))
        else:
            self._handle(lambda: self._core.request_completed(visit.server, event.payload, now))

    async def _request(self, visit: _Visit, request: Request) -> None:
        assert visit.connection is not None
        try:
            written, body = await self._written(request, visit.connection.node.pow)
        except NotMined as error:
            self._lost(visit, f"the server requires more proof of work than we accept: {error}")
            return
        if self._counts(visit):
            self._handle(lambda: self._core.request_sent(visit.server, written, self._loop.time()))
            visit.connection.request(body)

    async def _written(self, request: Request, least: float) -> tuple[bytes, bytes]:
        """Write a request. Return its id and the body of its packet."""
        if self._options.form == "plain":
            named = msgspec.structs.replace(request, id=self._id())
            return named.id, requests.write(named)
        assert self._options.to is not None
        draft = requests.enclose(
            request,
            self._options.to,
            now=int(time.time()),
            dice=self._dice,
            sign=self._options.key or new_key(self._dice),
        )
        start = int.from_bytes(self._dice.draw(4))
        envelope = await asyncio.to_thread(mine, draft, least, start=start)
        return envelope.hash, envelope.raw

    def _id(self) -> bytes:
        while (drawn := self._dice.draw(requests.ID_BYTES)).startswith(ERROR_PREFIX):
            continue  # status-go would read it as an error; one id in 2^48
        return drawn


class _Visit:
    """One connection to a server, from the decision to connect."""

    def __init__(self, server: int) -> None:
        self.server = server
        self.connection: OutboundConnection | None = None
        self.task: asyncio.Task[None] | None = None
