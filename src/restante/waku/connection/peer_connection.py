"""A connection to one peer: it moves bytes between a socket and the protocol, within the peer's rates and limits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, cast

from restante.common.errors import PeerError
from restante.common.net import household_text
from restante.common.token_bucket import Bucket
from restante.waku.connection.quotas import AddressQuota
from restante.waku.connection.read_pacing import (
    BYTES_PER_COST,
    MAX_TURN_BYTES,
    PAUSED_BY_DECISION,
    PAUSED_BY_LARGE_PACKET,
    PAUSED_BY_QUOTA,
    PAUSED_BY_UNREAD,
    ReadPacing,
)
from restante.waku.connection.sender_pace import SenderPace
from restante.waku.devp2p.hello import Reason
from restante.waku.devp2p.session import Connected, Devp2p, Disconnected, Packet, SessionEvent
from restante.waku.limits import Limits
from restante.waku.protocol.packets import MESSAGES, STATUS
from restante.waku.protocol.peer import Peer, PeerEvent, Violation

NEVER: Final = math.inf

WRITE_STALL_TIMEOUT: Final = 20.0
"""Seconds within which a peer must read something when more than it may owe is unread (geth p2p/server.go:65)."""

CLOSE_TIMEOUT: Final = 5.0
"""Seconds within which a Disconnect must reach the peer."""

STATUS_TIMEOUT: Final = 10.0
"""Seconds after its Hello within which a peer must send its Status. status-go waits without a limit."""

TIMER_STEP: Final = 0.1
"""Seconds to which the session's deadlines are rounded up, so that those of many connections are handled together. To
wake up for each of a thousand silent peers, and again for each answer, takes as long as to ping them."""

EARLY: Final = 0.001
"""Seconds by which a timer may fire early: the loop counts in whole milliseconds."""

MAX_UNREAD_PAGE_BYTES: Final = 64 * 1024
"""Unread bytes above which no more of a page or a backlog is sent to a peer. Confirmations are sent after these, and
after what the kernel has taken."""

LOST_TEXT: Final = "the connection was lost"
"""Why a connection ended without a Disconnect."""


class ConnectionHandler:
    """Receives the events of a connection: the node, or an outbound connection.

    By default it accepts every Hello, and has no backlog.
    """

    limits: Limits
    loop: asyncio.AbstractEventLoop
    close_seconds: float = CLOSE_TIMEOUT
    status_seconds: float = STATUS_TIMEOUT
    incomplete_bytes: int = 0
    """Bytes of incomplete packets on all connections."""

    def reduce_incomplete(self) -> None:
        """Reduce the bytes of incomplete packets: they are more than the limit, as only many connections can have."""

    def admit(self, connection: PeerConnection) -> bool:
        """Accept a connection and set its quota. Return False if it may not begin the handshake."""
        raise NotImplementedError

    def receive_hello(self, connection: PeerConnection, _public: bytes) -> None:
        """Handle the Hello of a peer: call the connection's `accept` or `disconnect`, now or later."""
        connection.accept()

    def status_body(self) -> bytes:
        """Return the body of our Status."""
        raise NotImplementedError

    def handle_event(self, connection: PeerConnection, event: PeerEvent, payload: bytes) -> None:
        """Handle an event of a peer and the packet that caused it."""

    def connection_closed(self, connection: PeerConnection, reason: Reason | None, text: str) -> None:
        """Handle the end of a connection. `text` says why it ended."""

    def writing_resumed(self, connection: PeerConnection) -> None:
        """Handle that more of pages and backlogs may be sent, because the peer has read."""

    def flush_soon(self, connection: PeerConnection) -> None:
        """Call the connection's `flush` at the end of this turn of the loop."""
        self.loop.call_soon(connection.flush)


class PeerConnection(asyncio.Protocol):
    """One connection to one peer, accepted or dialled."""

    __slots__ = (
        "_admitted",
        "_deadlines",
        "_end",
        "_frames",
        "_handler",
        "_page_bytes",
        "_read_before",
        "_sent_bytes",
        "_session",
        "_transport",
        "_undecided_events",
        "_writable",
        "active_at",
        "address",
        "closed",
        "dialled",
        "errors",
        "incomplete_bytes",
        "node_id",
        "pace",
        "peer",
        "quota",
        "reading",
        "writing_paused",
    )

    def __init__(self, handler: ConnectionHandler, session: Devp2p, *, dialled: bool, address: str = "") -> None:
        """Prepare a connection. `address`: the peer's, if the transport does not know it."""
        self.peer = Peer()
        self.node_id = b""
        self.address = address
        """The peer's address, by which it is counted."""
        self.quota: AddressQuota
        """What all peers of that address have used up. The handler sets it."""
        self.dialled = dialled
        self.pace = SenderPace()
        """Whether the peer waits for confirmations, by the monotonic clock."""
        self.active_at = -math.inf
        """When the peer was admitted, or last sent an accepted envelope or a request, in seconds of the loop's
        clock."""
        self.errors = Bucket()
        """The packets of the peer that could not be read. They are forgotten one after the other."""
        self.incomplete_bytes = 0
        """Bytes of an incomplete packet of the peer."""
        self._handler = handler
        self._session = session
        self._transport: asyncio.Transport | None = None
        self._writable: asyncio.Future[None] | None = None
        """What `writable` waits for."""
        self.reading = ReadPacing()
        self._deadlines = Deadlines()
        self.writing_paused = False
        """Whether the peer has so much unread that pages and backlogs wait, so that confirmations need not."""
        self._page_bytes = 0
        """Bytes of the part of a page that is unread."""
        self._sent_bytes = 0
        """Bytes that were sent, whether or not they have reached the kernel."""
        self._read_before = 0
        """Bytes that had reached the kernel when `stall` was set."""
        self._frames = 0
        """Frames that were charged."""
        self._end: tuple[Reason | None, str] | None = None
        """Why the connection is ending, with a text for the log."""
        self._admitted = False
        self.closed: asyncio.Future[None] | None = handler.loop.create_future() if dialled else None
        """Done when the connection is closed. Only connections that we dialled have it."""
        self._undecided_events: list[SessionEvent] | None = None
        """What the peer sent after its Hello before the handler decided; None before the Hello and after the
        decision."""

    @property
    def ping_pending(self) -> bool:
        """Return whether the peer was pinged and has not answered yet."""
        return self._session.ping_pending

    @property
    def answered(self) -> bool:
        """Return whether the peer has sent a frame: its Hello, or a Disconnect."""
        return self._session.frames > 0

    @property
    def end_reason(self) -> str:
        """Return why the connection ended, or an empty text."""
        return self._end[1] if self._end is not None else ""

    @property
    def ending(self) -> bool:
        """Return whether either side has disconnected."""
        return self._end is not None

    @property
    def ready(self) -> bool:
        """Return whether the peer has greeted and is still connected."""
        return self.peer.greeted and self._end is None and self._transport is not None

    # ── what asyncio calls ───────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self.reading.transport = cast("asyncio.Transport", transport)
        self.address = household_text(self.address or str((transport.get_extra_info("peername") or ("",))[0]))
        if not self._handler.admit(self):
            self._end = (None, "turned away")
            self.abort()
            return
        self._admitted = True
        self._transport.set_write_buffer_limits(high=min(MAX_UNREAD_PAGE_BYTES, self._handler.limits.owed_bytes))
        if self.dialled:
            self._handler.flush_soon(self)  # the side that dials speaks first
        self._deadlines.set_session(self._session.next_timeout())
        self._arm()

    def data_received(self, data: bytes) -> None:
        now = self._handler.loop.time()
        session = self._session
        events = session.receive_data(data, now)
        if session.buffered_bytes or self.incomplete_bytes:
            self._count_incomplete(session.buffered_bytes)
        decompressed = sum([len(event.payload) for event in events if isinstance(event, Packet)])
        frames, self._frames = session.frames - self._frames, session.frames
        self.quota.charge(now, self._handler.limits, max(len(data), decompressed), frames)
        for event in events:
            self._handle_session_event(event)
        self._apply_quota(now, len(data))
        self._flush_if_needed()

    def _flush_if_needed(self) -> None:
        """Flush soon if the session itself has something to write, like a Pong or a Disconnect.

        Most packets need no answer yet.
        """
        if self._session.has_output or self._end is not None:
            self._handler.flush_soon(self)

    def _count_incomplete(self, size: int) -> None:
        handler = self._handler
        handler.incomplete_bytes += size - self.incomplete_bytes
        self.incomplete_bytes = size
        if size and handler.incomplete_bytes > handler.limits.unfinished_bytes:
            handler.reduce_incomplete()

    def pause_writing(self) -> None:
        """Send no more of pages and backlogs until the peer has read. Still read the peer if answers have room."""
        self.writing_paused = True
        self._check_unread()
        if self._end is None:
            self._restart_stall_timer()
            self._arm()

    def _check_unread(self) -> None:
        """Stop reading the peer if it has more unread than it may, so that there is no room for answers."""
        if self.unsent_bytes() > self._handler.limits.owed_bytes + self._page_bytes:
            self.reading.pause(PAUSED_BY_UNREAD)

    def _restart_stall_timer(self) -> None:
        """Check later whether the peer has read anything. It may read a large amount slowly."""
        self._read_before = self._sent_bytes - self.unsent_bytes()
        self._deadlines.stall = self._handler.loop.time() + WRITE_STALL_TIMEOUT

    def resume_writing(self) -> None:
        self.writing_paused, self._page_bytes = False, 0
        self._deadlines.stall = NEVER
        self._arm()
        self.end_wait()
        self.reading.resume(PAUSED_BY_UNREAD)
        self._handler.writing_resumed(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = self.reading.transport = None
        self._deadlines.clear()
        self._arm()
        self._count_incomplete(0)
        self.end_wait()
        self._end = self._end or (None, LOST_TEXT)
        if self._admitted:
            self._handler.connection_closed(self, *self._end)
        if self.closed is not None and not self.closed.done():
            self.closed.set_result(None)

    # ── events of the session and of the peer ────────────────────────────────────────────────────

    def _handle_session_event(self, event: SessionEvent) -> None:
        if isinstance(event, Disconnected):
            self._end = self._end or (event.reason, event.text)
        elif self._undecided_events is not None:
            self._undecided_events.append(event)
        elif isinstance(event, Packet):
            self._handle_packet(event.code, event.payload)
        elif isinstance(event, Connected):
            self._undecided_events = []
            self._handler.receive_hello(self, event.hello.public)
            if self._undecided_events is not None:
                self.reading.pause(PAUSED_BY_DECISION)

    def accept(self) -> None:
        """Send our Status to a peer that has said Hello, and handle what it has sent since."""
        events, self._undecided_events = self._undecided_events or [], None
        self._deadlines.status = self._handler.loop.time() + self._handler.status_seconds
        self._arm()
        self.send(STATUS, self._handler.status_body())
        self.reading.resume(PAUSED_BY_DECISION)
        for event in events:
            self._handle_session_event(event)

    def ping(self) -> None:
        """Ping the peer. `ping_pending` is true until something comes from it."""
        self._session.send_ping()
        self._handler.flush_soon(self)

    def _handle_packet(self, code: int, payload: bytes) -> None:
        try:
            event = self.peer.receive(code, payload)
        except PeerError as error:
            self.disconnect(Reason(error.code), error.text)
            return
        if code != MESSAGES or isinstance(event, Violation):
            self.charge(len(payload) // BYTES_PER_COST)
        if event is not None and self._end is None:
            if self._deadlines.status != NEVER:
                self._deadlines.status = NEVER
                self._arm()
            self._handler.handle_event(self, event, payload)

    # ── deadlines ────────────────────────────────────────────────────────────────────────────────

    def _arm(self) -> None:
        self._deadlines.arm(self._handler.loop, self._on_deadline)

    def _on_deadline(self) -> None:
        now, deadlines = self._handler.loop.time(), self._deadlines
        time = deadlines.fired(now)
        if deadlines.close <= time or (deadlines.stall <= time and not self._check_reading()):
            self.abort()
            return
        if deadlines.status <= time:
            deadlines.status = NEVER
            self.disconnect(Reason.PING_TIMEOUT, "no Status arrived in time")
        if deadlines.resume <= time:
            deadlines.resume = NEVER
            self.reading.resume(PAUSED_BY_QUOTA)
        if deadlines.session <= time:
            self._run_session(now)
        self._arm()

    def _check_reading(self) -> bool:
        """Return whether the peer has read anything since `stall` was set. If it has, check again later."""
        if self._sent_bytes - self.unsent_bytes() <= self._read_before:
            self._end = self._end or (Reason.PING_TIMEOUT, "the peer does not read")
            return False
        self._restart_stall_timer()
        return True

    def _run_session(self, now: float) -> None:
        if self.reading.paused or self.writing_paused:
            # The peer may have sent something that we have not read, or a Ping waits behind what it has not read.
            self._session.restart_silence_timer(now)
        for event in self._session.handle_timeout(now):
            self._handle_session_event(event)
        self._flush_if_needed()
        self._deadlines.set_session(self._session.next_timeout())

    # ── rates ────────────────────────────────────────────────────────────────────────────────────

    def charge(self, envelopes: int) -> None:
        """Charge the peer's address for envelopes. The next `_apply_quota` stops reading if these are too many."""
        self.quota.charge(self._handler.loop.time(), self._handler.limits, 0, envelopes)

    def _apply_quota(self, now: float, size: int) -> None:
        """Stop reading the peer for as long as its address has used up its quota, or for a turn after a long read."""
        if self._transport is None:
            return  # the connection was closed while its large packet was handled
        wait = self.quota.wait(now, self._handler.limits)
        if wait > 0:
            self.reading.pause(PAUSED_BY_QUOTA)
            # An earlier deadline covered only a part of what is charged now: a large packet is charged slice by
            # slice.
            self._deadlines.resume = now + wait
            self._arm()
        elif size >= MAX_TURN_BYTES:
            self.reading.yield_turn(self._handler.loop)

    def large_packet_handled(self) -> None:
        """Resume reading after a large packet, unless the address has used up its quota."""
        self._apply_quota(self._handler.loop.time(), 0)
        self.reading.resume(PAUSED_BY_LARGE_PACKET)

    # ── sending ──────────────────────────────────────────────────────────────────────────────────

    def send(self, code: int, payload: bytes, compressed: bytes | None = None) -> None:
        """Send a packet at the end of this turn of the loop, unless the connection is ending.

        `compressed` is its payload after `compress`.
        """
        if self._end is None:
            self._session.send(code, payload, compressed=compressed)
            self._handler.flush_soon(self)

    def send_large(self, code: int, head: bytes, body: memoryview) -> None:
        """Write a large packet of two parts at once, without copying it, after all packets sent before."""
        self.flush()
        if self._end is None:
            self._session.send_pieces(code, head, body)
            self._page_bytes = len(head) + len(body)
            self.flush()
            if not self.writing_paused:
                self._page_bytes = 0

    async def writable(self) -> None:
        """Wait until more may be sent, because the peer has read or is disconnected. Only one task may wait."""
        self.flush()
        if self.writing_paused and self._transport is not None:
            self._writable = self._handler.loop.create_future()
            await self._writable

    def end_wait(self) -> None:
        """End the wait of `writable`, whether there is room or not."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def disconnect(self, reason: Reason, text: str = "") -> None:
        """Send a Disconnect and close the connection. `text` says why, for the log."""
        if self._end is None:
            self._end = (reason, text or reason.name.lower())
            self._session.disconnect(reason)
            self._handler.flush_soon(self)

    def flush(self) -> None:
        """Write the packets that were sent. Close the connection if it is ending."""
        transport = self._transport
        if transport is None:
            return
        if not transport.is_closing():
            data = self._session.data_to_send()
            if data:
                self._sent_bytes += len(data)
                transport.write(data)
                if self.writing_paused:
                    self._check_unread()
        if self._end is not None and self._deadlines.close == NEVER:
            transport.close()
            if transport.get_write_buffer_size():  # the peer may also have closed its half long ago, and not read
                self._deadlines.stall = NEVER
                self._deadlines.close = self._handler.loop.time() + self._handler.close_seconds
                self._arm()

    def unsent_bytes(self) -> int:
        """Return the bytes that have not reached the kernel yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def abort(self) -> None:
        """Close the connection without a Disconnect."""
        if self._transport is not None:
            self._transport.abort()


class Deadlines:
    """The deadlines of one connection, in seconds of the loop's clock, and the timer of the next. `NEVER`: none.

    Call `arm` after a change. When the timer fires, call `fired` first.
    """

    __slots__ = ("_armed", "_timer", "close", "resume", "session", "stall", "status")

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._armed = NEVER
        """When the timer fires."""
        self.clear()

    def clear(self) -> None:
        """Remove all deadlines."""
        self.session = NEVER
        """When to call the session's `handle_timeout`."""
        self.status = NEVER
        """The peer's Status must have arrived."""
        self.resume = NEVER
        """The peer may be read again, after its address has sent more than it may."""
        self.stall = NEVER
        """The peer must have read something."""
        self.close = NEVER
        """The Disconnect must have reached the peer."""

    def set_session(self, time: float | None) -> None:
        """Set when to call the session's `handle_timeout`, rounded up to a multiple of `TIMER_STEP`. None: never."""
        self.session = NEVER if time is None else math.ceil(time / TIMER_STEP) * TIMER_STEP

    def arm(self, loop: asyncio.AbstractEventLoop, on_deadline: Callable[[], None]) -> None:
        """Set the timer to the next deadline."""
        deadline = min(self.session, self.status, self.resume, self.stall, self.close)
        if deadline == self._armed:
            return
        self._armed = deadline
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if deadline == NEVER else loop.call_at(deadline, on_deadline)

    def fired(self, now: float) -> float:
        """Record that the timer has fired. Return the time up to which deadlines have passed."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._armed = None, NEVER
        return now + EARLY
