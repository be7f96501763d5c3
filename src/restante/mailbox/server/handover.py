"""What a mailbox server leaves to the process that replaces it, and how that process goes on with it.

Nameplates, mailboxes and messages are in the database. Here is what only memory knows: connections with their
sessions and what is not read or written yet, quotas, rates, counts and the commands that wait.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from restante.common.address_registry import AddressRegistry
from restante.common.data_directory import holds_lock
from restante.common.errors import PeerError
from restante.common.handover import Handover, Head, start_anew
from restante.common.line_writer import wait_for_standard_error
from restante.common.logs import log, trace_text
from restante.common.websocket_request import PicowsTransport
from restante.mailbox.core.connection_state import ConnectionLost, ConnectionState, ReceivedError, ReceivedText
from restante.mailbox.core.limits import RateLimiter
from restante.mailbox.core.model import Now
from restante.mailbox.core.quotas import AddressQuota, QuotaRecord, QuotasRecord
from restante.mailbox.core.session import Session
from restante.mailbox.core.state import StateRecord
from restante.mailbox.protocol.frame_text import text_of
from restante.mailbox.server.commit_loop import CommitLoopRecord
from restante.mailbox.server.connection import Socket, SocketRecord
from restante.mailbox.server.receive_buffer import ReceiveBuffer
from restante.mailbox.server.server import Server

FORMAT: Final = 2
"""The format of the body. A version that adds, removes or renames a field of its records, or changes what one means,
has another. A body with unknown fields, or without one that has no default, is refused, too."""

REQUEST: Final = (
    b"GET /v1 HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
"""A request for picows, which knows no other way to an open WebSocket. Its answer is sent to nobody."""


class ConnectionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A connection. The names are those of `ConnectionState`."""

    number: int
    session: Session
    address_quotas: list[int]
    """The numbers of its quotas."""
    debts: tuple[float, float, bool]
    """Of its rates."""
    socket: SocketRecord | None = None
    """None: it is lost, which is the last that waits of it in the queue."""
    admitted: bool = False
    verdict: tuple[int, str] | None = None
    departing_commands: int = 0
    unbound_since: int | None = None
    """The second in which it connected, if it may not have bound yet."""
    answered: bool = False
    """Whether it was sent the answer to an `allocate` (`App.answered`)."""


class EntryRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An entry of the queue. Without a text and an error, it is the loss of the connection."""

    connection: int
    now: Now
    text: bytes | None = None
    error: tuple[int, str, str, str] | None = None
    """The code, the text, the hint and the reason."""


class RegistryRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys and the quotas of addresses. The names are those of `AddressRegistry`."""

    key: bytes
    day: int
    day_key: bytes
    quotas: list[QuotaRecord]


class RefusalsRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts of refusals. The names are those of `RefusalCounts`."""

    since_start: dict[str, int]
    this_minute: list[tuple[str, str | None, int]]
    lately: list[tuple[str, str | None, int]]


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is left."""

    closed: int
    """Connections that are closed with the process before. Their clients may connect again."""
    second: int
    connections: list[ConnectionRecord]
    queue: list[EntryRecord]
    state: StateRecord
    commit_loop: CommitLoopRecord
    registry: RegistryRecord
    quotas: QuotasRecord
    refusals: RefusalsRecord
    load: tuple[int, int, float, int]
    """Of `LoadLevel`."""
    demanded: int
    changes: int
    """Of `Admission`."""
    connections_seen: int
    failed_handshakes: int


def read_body(handover: Handover, data: Path) -> Body | None:
    """Return what was left by a server of this data directory. None: nothing of use; the connections are closed."""
    body = handover.read_body()
    try:
        if not holds_lock(handover.head.locks, data):
            raise ValueError(f"{data} is another data directory")  # noqa: TRY301
        if handover.head.format != FORMAT:
            raise ValueError(f"format {handover.head.format} in place of {FORMAT}")  # noqa: TRY301
        return msgspec.msgpack.decode(body, type=Body)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        log.error("this version cannot go on with the connections of the one before", reason=str(error))
        handover.close_connections()
        return None


async def enter_or_start_anew(server: Server, head: Head, body: Body) -> None:
    """Go on with what was left. If that fails, start again without the connections."""
    try:
        await enter_sockets(server, body, enter(server, body))
    except Exception as error:  # noqa: BLE001 - our bug
        log.error("the connections of the process before are closed", fault=trace_text(error))
        wait_for_standard_error()
        start_anew(sys.orig_argv[1:], head)


# ── leaving ───────────────────────────────────────────────────────────────────────────────────────


def leave(server: Server, *, closed: int) -> Body:
    """Return what the next process needs. The commit loop is held. Nothing is changed.

    `closed`: how many connections were closed because the next process cannot go on with them.
    """
    commit_loop, admission = server.commit_loop, server.admission
    dispatcher = commit_loop.dispatcher
    registry, refusals = admission.addresses, dispatcher.quotas.refusal_counts
    numbers = {quota: number for number, quota in enumerate(registry.quotas.values())}
    connections = [
        _leave_connection(server, connection, numbers)
        for connection in sorted(dispatcher.connections, key=lambda connection: connection.number)
    ]
    queue = [_leave_entry(entry) for entry in commit_loop.queue.entries()]
    lost = {entry.connection for entry in queue if entry.text is None and entry.error is None}
    unusable = [record for record in connections if record.socket is None and record.number not in lost]
    queue += [EntryRecord(record.number, commit_loop.now()) for record in unusable]
    return Body(
        closed + len(unusable),
        server.second,
        connections,
        queue,
        dispatcher.state.record(),
        commit_loop.record(),
        RegistryRecord(
            registry.key,
            registry.day,
            registry.day_key,
            [quota.record(key) for key, quota in registry.quotas.items()],
        ),
        dispatcher.quotas.record(numbers),
        RefusalsRecord(
            dict(refusals.since_start),
            [(*pair, times) for pair, times in refusals.this_minute.items()],
            [(*pair, times) for pair, times in refusals.lately.items()],
        ),
        admission.load_level.state,
        admission.demanded,
        admission.changes,
        dispatcher.connections_seen,
        server.failed_handshakes,
    )


def _leave_connection(
    server: Server, connection: ConnectionState, numbers: dict[AddressQuota, int]
) -> ConnectionRecord:
    session, rate_limiter, verdict = connection.session, connection.backlog.rate_limiter, connection.verdict
    app = server.commit_loop.dispatcher.state.app(session.app_id or "")
    client = cast("Socket", connection.socket)
    return ConnectionRecord(
        connection.number,
        session,
        [numbers[quota] for quota in connection.address_quotas if quota in numbers],
        (rate_limiter or RateLimiter()).debts,
        None if connection.gone else client.record(),
        client in server.admitted,
        None if verdict is None else (verdict.code, verdict.text),
        connection.departing_commands,
        server.unbound.get(client),
        session.allocated is not None and app.answered.get(session.allocated) is connection,
    )


def _leave_entry(entry: ReceivedText | ReceivedError | ConnectionLost) -> EntryRecord:
    number, now = entry.connection.number, entry.now
    if isinstance(entry, ReceivedText):
        text = entry.text
        return EntryRecord(number, now, text if isinstance(text, bytes) else text.encode())
    if isinstance(entry, ReceivedError):
        error = entry.error
        return EntryRecord(number, now, error=(error.code, error.text, error.hint, error.reason))
    return EntryRecord(number, now)


# ── entering ──────────────────────────────────────────────────────────────────────────────────────


def enter(server: Server, body: Body) -> dict[int, Socket]:
    """Go on where the process before has ended, but for the sockets. Return those by the number of the connection.

    The server does not listen yet, and its commit loop does not run. Raises LookupError and ValueError if the records
    contradict each other.
    """
    commit_loop, admission = server.commit_loop, server.admission
    dispatcher, refusals = commit_loop.dispatcher, commit_loop.dispatcher.quotas.refusal_counts
    server.second, server.failed_handshakes = body.second, body.failed_handshakes
    commit_loop.restore(body.commit_loop, closed=body.closed)
    dispatcher.state.restore(body.state)
    quotas = _enter_registry(admission.addresses, body.registry)
    dispatcher.quotas.restore(body.quotas, quotas)
    refusals.since_start.update(body.refusals.since_start)
    refusals.this_minute.update({(reason, address): times for reason, address, times in body.refusals.this_minute})
    refusals.lately.update({(reason, address): times for reason, address, times in body.refusals.lately})
    admission.load_level.state = body.load
    admission.demanded, admission.changes = body.demanded, body.changes
    sockets = {record.number: _enter_connection(server, record, quotas) for record in body.connections}
    dispatcher.connections_seen = body.connections_seen
    for record in sorted(body.connections, key=lambda record: record.unbound_since or 0):
        if record.unbound_since is not None and record.socket is not None:
            server.unbound[sockets[record.number]] = record.unbound_since
    for entry in body.queue:
        _enter_entry(server, sockets[entry.connection].connection, entry)
    dispatcher.state.end_batch()  # an undone batch does not undo who is there
    return sockets


def _enter_registry(registry: AddressRegistry[AddressQuota], record: RegistryRecord) -> list[AddressQuota]:
    registry.key, registry.day, registry.day_key = record.key, record.day, record.day_key
    quotas = [AddressQuota.restored(quota) for quota in record.quotas]
    for quota_record, quota in zip(record.quotas, quotas, strict=True):
        registry.quotas[quota_record.key] = quota
    return quotas


def _enter_connection(server: Server, record: ConnectionRecord, quotas: Sequence[AddressQuota]) -> Socket:
    dispatcher, session = server.commit_loop.dispatcher, record.session
    client = Socket(server)
    connection = client.connection
    connection.number, connection.session = record.number, session
    connection.departing_commands = record.departing_commands
    if record.verdict is not None:
        connection.verdict = PeerError(*record.verdict)
    assert connection.backlog.rate_limiter is not None
    connection.backlog.rate_limiter.debts = record.debts
    dispatcher.restore_connection(connection, answered=record.answered)
    connection.address_quotas = tuple(quotas[number] for number in record.address_quotas)
    if record.socket is not None:
        client.bucket = record.socket.bucket
        server.restore_socket(client, admitted=record.admitted)
    return client


def _enter_entry(server: Server, connection: ConnectionState, entry: EntryRecord) -> None:
    commit_loop = server.commit_loop
    if entry.text is not None:
        commit_loop.receive(connection, text_of(entry.text), entry.now)
        if connection.backlog.large:
            server.memory_holders.note(cast("Socket", connection.socket), server.second)
    elif entry.error is not None:
        code, text, hint, reason = entry.error
        commit_loop.refuse(connection, PeerError(code, text, hint=hint, reason=reason))
    else:
        commit_loop.lose(connection)


# ── sockets ───────────────────────────────────────────────────────────────────────────────────────


class _Arrival(asyncio.BufferedProtocol):
    """Gathers what comes until the connection is not read any more."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.lost = False
        self._transport: asyncio.Transport | None = None
        self._room = bytearray(4096)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _error: Exception | None) -> None:
        self.lost = True

    def get_buffer(self, _size: int) -> bytearray:
        return self._room

    def buffer_updated(self, size: int) -> None:
        self.data += self._room[:size]
        assert self._transport is not None
        self._transport.pause_reading()


async def enter_sockets(server: Server, body: Body, sockets: dict[int, Socket]) -> None:
    """Go on with the sockets of all connections."""
    server.makes_room = False
    records = [record for record in body.connections if record.socket is not None]
    for record in sorted(records, key=lambda record: _held_since(server, record)):
        assert record.socket is not None
        await _enter_socket(server, sockets[record.number], record.socket)
    server.makes_room = True
    server.make_room()


def _held_since(server: Server, record: ConnectionRecord) -> int:
    assert record.socket is not None
    return server.second if record.socket.held_since is None else record.socket.held_since


async def _enter_socket(server: Server, client: Socket, record: SocketRecord) -> None:
    arrival = _Arrival()
    try:
        own = socket.socket(fileno=record.descriptor)
        own.setblocking(False)
        made: Any = await asyncio.get_running_loop().connect_accepted_socket(lambda: arrival, own)
    except OSError:  # the client has closed it
        arrival.lost = True
    if arrival.lost:
        server.connection_closed(client)
        server.commit_loop.lose(client.connection)
        return
    transport: asyncio.Transport = made[0]
    transport.pause_reading()
    below = PicowsTransport(transport)
    websocket = server.websocket_of(client)
    receiver = ReceiveBuffer(websocket, server.read_budget)
    transport.set_protocol(receiver)
    websocket.connection_made(cast("asyncio.Transport", below))
    below.write = lambda data: None  # noqa: ARG005
    room = websocket.get_buffer(len(REQUEST))
    room[: len(REQUEST)] = REQUEST
    websocket.buffer_updated(len(REQUEST))
    below.write = transport.write
    websocket.transport.request.headers.clear()  # picows keeps the request as long as the connection
    client.restore(record, receiver)
    receiver.take(bytes(arrival.data))
    if not client.read_pauses:
        transport.resume_reading()
