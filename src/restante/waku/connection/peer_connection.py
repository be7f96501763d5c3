"""One connection: bytes between a socket and the cores, at the pace that is allowed, and never more than is owed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Protocol, cast

from restante.common.errors import PeerError
from restante.common.net import shown
from restante.waku.connection.deadlines import CLOSE_TIMEOUT, NEVER, STATUS_TIMEOUT, WRITE_STALL_TIMEOUT, Deadlines
from restante.waku.connection.quotas import AddressQuota
from restante.waku.connection.read_pacing import (
    BYTES_PER_COST,
    MAX_TURN_BYTES,
    PAUSED_BY_LARGE_PACKET,
    PAUSED_BY_QUOTA,
    PAUSED_BY_UNREAD,
    ReadPacing,
)
from restante.waku.devp2p.hello import Reason
from restante.waku.devp2p.session import Connected, Devp2p, Disconnected, Packet, SessionEvent
from restante.waku.envelope.envelope import Envelope
from restante.waku.limits import Limits
from restante.waku.protocol.packets import MESSAGES, STATUS, parted, write_envelopes
from restante.waku.protocol.peer import Peer, PeerEvent, Violation


class ConnectionHandler(Protocol):
    """What a connection reports to: the node, or an outbound connection."""

    limits: Limits
    loop: asyncio.AbstractEventLoop
    unfinished: int
    """Bytes of packets that are not complete, of all connections."""

    def too_much(self) -> None:
        """Do something about it: there are more such bytes than there may be."""

    def made(self, connection: PeerConnection) -> bool:
        """Take in a connection, and give it its quota; False where it may not even shake hands."""

    def connected(self, connection: PeerConnection, public: bytes) -> Reason | None:
        """Take note of a peer that has said Hello; gives why it must go, if it must."""

    def status(self) -> bytes:
        """Give the body of our Status."""

    def take(self, connection: PeerConnection, event: PeerEvent, payload: bytes) -> None:
        """Handle what a peer's packet amounts to."""

    def lost(self, connection: PeerConnection, reason: Reason | None, words: str) -> None:
        """Take note that a connection is no more."""

    def caught_up(self, connection: PeerConnection) -> None:
        """Take note that a connection which missed envelopes reads again."""

    def flush_soon(self, connection: PeerConnection) -> None:
        """Call `flush` of the connection when this turn of the loop is over."""


class PeerConnection(asyncio.Protocol):
    """One connection to one peer."""

    __slots__ = (
        "_backlog",
        "_counted",
        "_deadlines",
        "_ended",
        "_frames",
        "_handler",
        "_pumping",
        "_room",
        "_session",
        "_transport",
        "_unsent_before",
        "address",
        "confirmed",
        "dialled",
        "gone",
        "held",
        "missed",
        "node_id",
        "peer",
        "quota",
        "reading",
    )

    def __init__(self, handler: ConnectionHandler, session: Devp2p, *, dialled: bool) -> None:
        self.peer = Peer()
        self.node_id = b""
        self.address = ""
        """Whom to count it with."""
        self.quota: AddressQuota
        """What all from that address have used up; the handler says whose it is."""
        self.missed: int | None = None
        """The first live envelope, by number, that it was not sent because it did not read."""
        self.dialled = dialled
        self.confirmed = -math.inf
        """When its last packet was confirmed, in seconds of the monotonic clock."""
        self.held = 0
        """Bytes of a packet of its that is not complete."""
        self._handler = handler
        self._session = session
        self._transport: asyncio.Transport | None = None
        self._room: asyncio.Future[None] | None = None
        self.reading = ReadPacing()
        self._deadlines = Deadlines()
        self._unsent_before = 0
        """Bytes that it had not read when we looked last, while it is stuck."""
        self._frames = 0
        self._ended: tuple[Reason | None, str] | None = None
        self._counted = False
        self.gone: asyncio.Future[None] | None = handler.loop.create_future() if dialled else None
        """Done when it is no more; of those that we dialled."""
        self._backlog: Iterator[list[Envelope]] | None = None
        self._pumping = False
        """Whether `_pump` is to be called in the next turn of the loop."""

    # ── the socket's side ────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self.reading.transport = cast("asyncio.Transport", transport)
        self.address = shown(str((transport.get_extra_info("peername") or ("",))[0]))
        if not self._handler.made(self):
            self._ended = (None, "turned away")
            self.drop()
            return
        self._counted = True
        self._transport.set_write_buffer_limits(high=self._handler.limits.owed_bytes)
        if self.dialled:
            self._handler.flush_soon(self)  # who dials speaks first
        self._deadlines.set_session(self._session.next_timeout())
        self._arm()

    def data_received(self, data: bytes) -> None:
        now = self._handler.loop.time()
        session = self._session
        events = session.receive_data(data, now)
        if session.held or self.held:
            self._count_held(session.held)
        inflated = sum([len(event.payload) for event in events if isinstance(event, Packet)])
        frames, self._frames = session.frames - self._frames, session.frames
        self.quota.charge(now, self._handler.limits, max(len(data), inflated), frames)
        for event in events:
            self._happen(event)
        self._pace(now, len(data))
        self._speak_soon()

    def _speak_soon(self) -> None:
        """Have what the wire says by itself written, a Pong or a Disconnect; most of what comes has no answer yet."""
        if self._session.speaks or self._ended is not None:
            self._handler.flush_soon(self)

    def _count_held(self, held: int) -> None:
        handler = self._handler
        handler.unfinished += held - self.held
        self.held = held
        if held and handler.unfinished > handler.limits.unfinished_bytes:
            handler.too_much()

    def pause_writing(self) -> None:
        """Stop reading, too: what it would be answered has no room."""
        self.reading.pause(PAUSED_BY_UNREAD)
        if self._ended is None:
            self._watch()
            self._arm()

    def _watch(self) -> None:
        """Look after a while whether it has read anything; what it reads of much may be slow."""
        self._unsent_before = self.unsent()
        self._deadlines.stall = self._handler.loop.time() + WRITE_STALL_TIMEOUT

    def resume_writing(self) -> None:
        self._deadlines.stall = NEVER
        self._arm()
        self.wait_no_more()
        self.reading.resume(PAUSED_BY_UNREAD)
        if self.missed is not None:
            self._handler.caught_up(self)
        if self._backlog is not None:
            self._pump_soon()

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = self.reading.transport = None
        self._deadlines.clear()
        self._arm()
        self._count_held(0)
        self._backlog = None
        self.wait_no_more()
        self._ended = self._ended or (None, "the connection was lost")
        if self._counted:
            self._handler.lost(self, *self._ended)
        if self.gone is not None and not self.gone.done():
            self.gone.set_result(None)

    # ── what the cores say ───────────────────────────────────────────────────────────────────────

    def _happen(self, event: SessionEvent) -> None:
        if isinstance(event, Packet):
            self._hear(event.code, event.payload)
        elif isinstance(event, Connected):
            refused = self._handler.connected(self, event.hello.public)
            if refused is not None:
                self.disconnect(refused)
            else:
                self._deadlines.status = self._handler.loop.time() + STATUS_TIMEOUT
                self._arm()
                self.send(STATUS, self._handler.status())
        elif isinstance(event, Disconnected):
            self._ended = self._ended or (event.reason, event.words)

    def _hear(self, code: int, payload: bytes) -> None:
        try:
            event = self.peer.receive(code, payload)
        except PeerError as error:
            self.disconnect(Reason(error.code), error.words)
            return
        if code != MESSAGES or isinstance(event, Violation):
            self.charge(len(payload) // BYTES_PER_COST)
        if event is not None and self._ended is None:
            if self._deadlines.status != NEVER:
                self._deadlines.status = NEVER
                self._arm()
            self._handler.take(self, event, payload)

    # ── deadlines ────────────────────────────────────────────────────────────────────────────────

    def _arm(self) -> None:
        self._deadlines.arm(self._handler.loop, self._on_time)

    def _on_time(self) -> None:
        now, deadlines = self._handler.loop.time(), self._deadlines
        over = deadlines.went_off(now)
        if deadlines.close <= over or (deadlines.stall <= over and not self._check_reading()):
            self.drop()
            return
        if deadlines.status <= over:
            deadlines.status = NEVER
            self.disconnect(Reason.PING_TIMEOUT, "there was no Status in time")
        if deadlines.resume <= over:
            deadlines.resume = NEVER
            self.reading.resume(PAUSED_BY_QUOTA)
        if deadlines.session <= over:
            self._run_session(now)
        self._arm()

    def _check_reading(self) -> bool:
        """Return whether it has read anything since the last look, and look again later where it has."""
        if self.unsent() >= self._unsent_before:
            self._ended = self._ended or (Reason.PING_TIMEOUT, "it does not read")
            return False
        self._watch()
        return True

    def _run_session(self, now: float) -> None:
        if self.reading.paused:
            self._session.excuse(now)  # it may have said something: it is we who do not listen
        for event in self._session.handle_timeout(now):
            self._happen(event)
        self._speak_soon()
        self._deadlines.set_session(self._session.next_timeout())

    # ── pace ─────────────────────────────────────────────────────────────────────────────────────

    def charge(self, envelopes: int) -> None:
        """Count what it brought; all from its address are left unread for a while when it is too much."""
        self.quota.charge(self._handler.loop.time(), self._handler.limits, 0, envelopes)

    def _pace(self, now: float, size: int) -> None:
        if self._transport is None:
            return  # gone, while a large packet of its was taken in
        wait = self.quota.wait(now, self._handler.limits)
        if wait > 0:
            self.reading.pause(PAUSED_BY_QUOTA)
            # An earlier deadline was for a part of what is counted now: a large packet is, slice by slice.
            self._deadlines.resume = now + wait
            self._arm()
        elif size >= MAX_TURN_BYTES:
            self.reading.yield_turn(self._handler.loop)

    def digested(self) -> None:
        """Read on after a large packet, if what it counts for allows that."""
        self._pace(self._handler.loop.time(), 0)
        self.reading.resume(PAUSED_BY_LARGE_PACKET)

    # ── our side ─────────────────────────────────────────────────────────────────────────────────

    @property
    def silent(self) -> bool:
        """Tell whether it was asked if it is there, and did not answer yet."""
        return self._session.asking

    @property
    def parting(self) -> str:
        """Why it ended, in words."""
        return self._ended[1] if self._ended is not None else ""

    @property
    def ending(self) -> bool:
        """Tell whether it has said goodbye, or we have."""
        return self._ended is not None

    @property
    def here(self) -> bool:
        """Tell whether it has greeted, and is not gone."""
        return self.peer.greeted and self._ended is None and self._transport is not None

    def send(self, code: int, payload: bytes, compressed: bytes | None = None) -> None:
        """Send a packet when this turn is over; nothing is sent to who is gone."""
        if self._ended is None:
            self._session.send(code, payload, compressed=compressed)
            self._handler.flush_soon(self)

    def send_whole(self, code: int, head: bytes, body: memoryview) -> None:
        """Send a large packet of two pieces at once, without a copy of it; what was said before goes first."""
        self.flush()
        if self._ended is None:
            self._session.send_whole(code, head, body)
            self.flush()

    async def writable(self) -> None:
        """Wait until the peer has read so much that more may be sent, or is gone; for one who waits at a time."""
        self.flush()
        if self.reading.stuck and self._transport is not None:
            self._room = self._handler.loop.create_future()
            await self._room

    def wait_no_more(self) -> None:
        """End the wait for `writable`, whether there is room or not."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    @property
    def in_arrears(self) -> bool:
        """Tell whether it has not been sent all of its backlog yet."""
        return self._backlog is not None

    def send_backlog(self, parts: Iterator[list[Envelope]]) -> None:
        """Send these as it reads, one part in a turn of the loop, instead of what is left of the last backlog."""
        if self._backlog is None:
            self._pump_soon()
        self._backlog = parts

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._handler.loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self._backlog is None or self.reading.stuck or not self.here:
            return
        part = next(self._backlog, None)
        if part is None:
            self._backlog = None
            return
        for some in parted(each.raw for each in part):
            self.send(MESSAGES, write_envelopes(some))
        self.flush()
        self._pump_soon()

    def disconnect(self, reason: Reason, words: str = "") -> None:
        """Say goodbye, and close."""
        if self._ended is None:
            self._ended = (reason, words or reason.name.lower())
            self._session.disconnect(reason)
            self._handler.flush_soon(self)

    def flush(self) -> None:
        """Write what was said; close where that was the last."""
        transport = self._transport
        if transport is None:
            return
        if not transport.is_closing():
            data = self._session.data_to_send()
            if data:
                transport.write(data)
        if self._ended is not None and self._deadlines.close == NEVER:
            transport.close()
            if transport.get_write_buffer_size():  # also where the peer closed its half long ago, and does not read
                self._deadlines.stall = NEVER
                self._deadlines.close = self._handler.loop.time() + CLOSE_TIMEOUT
                self._arm()

    def unsent(self) -> int:
        """Give the bytes that did not reach the kernel yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def drop(self) -> None:
        """Close without a word."""
        if self._transport is not None:
            self._transport.abort()
