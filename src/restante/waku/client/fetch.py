"""Fetch history from Mailservers: carry out the actions of `requester.py` over connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence

import msgspec

from restante.common.dice import SystemDice
from restante.common.errors import Misuse
from restante.waku.client.inbox import DEFAULT_MAX_HASHES, Inbox
from restante.waku.client.options import DEFAULT_OPTIONS, ConnectionOptions, check_options
from restante.waku.client.outbound_connection import NodeUnavailableError, OutboundConnection, connect
from restante.waku.client.ranges import FetchState, HistoryQuery
from restante.waku.client.requester import (
    Action,
    Connect,
    Disconnect,
    FetchReport,
    Finished,
    HandOver,
    Requester,
    SaveState,
    SendRequest,
)
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keys import Key, new_key
from restante.waku.envelope.mining import NotMined, mine
from restante.waku.envelope.payload import SymmetricKey
from restante.waku.protocol import request as requests
from restante.waku.protocol.completion import ERROR_PREFIX
from restante.waku.protocol.interest import WANTS_EVERYTHING
from restante.waku.protocol.peer import Ended, HistoryReceived
from restante.waku.protocol.request import Form, Request

Subscriber = Callable[[list[Envelope]], None]
"""Receives envelopes. They count as handed over when it returns."""

OnState = Callable[[FetchState], None]
"""Receives the new state each time the subscriber has all envelopes that the state covers."""


def do_nothing(*_: object) -> None:
    """Do nothing: the callback of a caller that passes none."""


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are written, and how much each server may cost."""

    form: Form = "envelope"
    to: SymmetricKey | bytes | None = None
    """Key that a request envelope is encrypted for: the key of the Mailserver's password, or its public key."""
    key: Key | None = None
    """Private key to authenticate with, for Mailservers that admit only some nodes. Default: a fresh key for each
    request and connection, so that requests cannot be linked by their sender."""
    connection: ConnectionOptions = DEFAULT_OPTIONS

    def __post_init__(self) -> None:
        check_options(self.connection)
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
    keep: OnState = do_nothing,
) -> FetchReport:
    """Fetch a query's history from servers and return a report.

    The first server is preferred. All servers are trusted to send history. The fetch ends when the query is known or
    no server is left to ask.

    The subscriber receives each envelope once. To keep that true for live envelopes too, pass them through the same
    `inbox`. If the subscriber raises an error, the fetch ends and raises it.
    """
    if not servers:
        raise Misuse("no Mailserver is named: name at least one")
    if inbox is None:
        inbox = Inbox(WANTS_EVERYTHING, max(DEFAULT_MAX_HASHES, len(servers) * options.connection.max_envelopes))
    requester = Requester(query, len(servers), inbox, state, options.connection)
    return await _FetchRun(servers, requester, options, subscriber, keep).run()


class _ServerConnection:
    """One connection to a server, from the decision to connect."""

    def __init__(self, server: int) -> None:
        self.server = server
        self.outbound: OutboundConnection | None = None
        self.task: asyncio.Task[None] | None = None


class _FetchRun:
    def __init__(
        self,
        servers: Sequence[Enode],
        requester: Requester,
        options: RequestOptions,
        subscriber: Subscriber,
        keep: OnState,
    ) -> None:
        self._servers = servers
        self._requester = requester
        self._options = options
        self._subscriber = subscriber
        self._keep = keep
        self._dice = SystemDice()
        self._loop = asyncio.get_running_loop()
        self._report: asyncio.Future[FetchReport] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._current: _ServerConnection | None = None
        """The connection to the server that is asked. Earlier ones may still be disconnecting."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> FetchReport:
        self._handle(lambda: self._requester.start(self._loop.time(), time.time()))
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
            for action in event():
                self._carry_out(action)
        except Exception as error:  # noqa: BLE001 - the subscriber's error; `run` raises it
            self._report.set_exception(error)
            return
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._requester.next_timeout()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._handle(lambda: self._requester.handle_timeout(self._loop.time()))

    def _carry_out(self, action: Action) -> None:
        match action:
            case Connect(server):
                self._current = _ServerConnection(server)
                self._current.task = self._start_task(self._connect(self._current))
            case SendRequest(_, request):
                assert self._current is not None
                self._start_task(self._send_request(self._current, request))
            case Disconnect():
                closing, self._current = self._current, None
                if closing is not None and closing.task is not None:
                    closing.task.cancel()
            case HandOver(envelopes):
                self._subscriber(envelopes)
            case SaveState(state):
                self._keep(state)
            case Finished(report):
                self._report.set_result(report)

    def _start_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._report.done():
            self._report.set_exception(error)

    # ── servers ──────────────────────────────────────────────────────────────────────────────────

    async def _connect(self, connection: _ServerConnection) -> None:
        server = connection.server
        try:
            async with connect(
                self._servers[server],
                self._options.key,
                options=self._options.connection,
                on_history=lambda event: self._on_history(connection, event),
            ) as connection.outbound:
                self._handle(lambda: self._requester.connected(server, self._loop.time()))
                reason = await connection.outbound.wait_closed()
        except NodeUnavailableError as error:
            reason = str(error)
        self._on_failure(connection, reason)

    def _on_failure(self, connection: _ServerConnection, reason: str) -> None:
        if connection is self._current:
            self._handle(lambda: self._requester.server_failed(connection.server, reason, self._loop.time()))

    def _on_history(self, connection: _ServerConnection, event: HistoryReceived | Ended) -> None:
        if connection is not self._current:
            return
        server, now = connection.server, self._loop.time()
        if isinstance(event, HistoryReceived):
            self._handle(lambda: self._requester.envelopes_received(server, event.envelopes, now))
        else:
            self._handle(lambda: self._requester.request_completed(server, event.payload, now))

    async def _send_request(self, connection: _ServerConnection, request: Request) -> None:
        assert connection.outbound is not None
        try:
            request_id, body = await self._encode_request(request, connection.outbound.peer.pow)
        except NotMined as error:
            self._on_failure(connection, f"the server requires more proof of work than we accept: {error}")
            return
        if connection is self._current:
            self._handle(lambda: self._requester.request_sent(connection.server, request_id, self._loop.time()))
            connection.outbound.send_request(body)

    async def _encode_request(self, request: Request, min_pow: float) -> tuple[bytes, bytes]:
        """Return the id of a request and the body of its packet."""
        if self._options.form == "plain":
            plain_request = msgspec.structs.replace(request, id=self._draw_id())
            return plain_request.id, requests.encode(plain_request)
        assert self._options.to is not None
        draft = requests.seal_request(
            request,
            self._options.to,
            now=int(time.time()),
            dice=self._dice,
            sign=self._options.key or new_key(self._dice),
        )
        start = int.from_bytes(self._dice.draw(4))
        envelope = await asyncio.to_thread(mine, draft, min_pow, start=start)
        return envelope.hash, envelope.raw

    def _draw_id(self) -> bytes:
        while (request_id := self._dice.draw(requests.ID_BYTES)).startswith(ERROR_PREFIX):
            continue  # status-go would read it as an error; one id in 2^48
        return request_id
