"""Outbound connections: a client sends envelopes to a node, requests history from it, or receives live envelopes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import chain
from typing import Final

from restante.common.dice import SystemDice
from restante.common.errors import PeerError, RestanteError, plain
from restante.waku.client.options import DEFAULT_OPTIONS, ConnectionOptions
from restante.waku.connection.peer_connection import ConnectionHandler, PeerConnection
from restante.waku.connection.quotas import AddressQuota
from restante.waku.defaults import new_key
from restante.waku.devp2p.enode import Enode
from restante.waku.devp2p.hello import Capability, Hello, Reason
from restante.waku.devp2p.rlpx import Rlpx, max_frame_bytes
from restante.waku.devp2p.session import Devp2p, SessionLimits
from restante.waku.envelope.envelope import TOPIC, Envelope
from restante.waku.envelope.keccak import keccak
from restante.waku.envelope.keys import Key
from restante.waku.limits import Limits
from restante.waku.protocol import packets
from restante.waku.protocol.interest import WANTS_NOTHING, Interest
from restante.waku.protocol.packets import Options, Response
from restante.waku.protocol.peer import (
    Answered,
    Ended,
    Greeted,
    HistoryReceived,
    Offered,
    OfferedLarge,
    Peer,
    PeerEvent,
)


class NodeUnavailableError(RestanteError):
    """A node could not be reached, or it disconnected. The text says why."""


class SilentError(NodeUnavailableError):
    """Something answers at the node's address but does not greet as the node."""


OnHistory = Callable[[HistoryReceived | Ended], None]
"""Receives the history that a trusted node sends."""

OnEnvelopes = Callable[[list[Envelope]], None]
"""Receives the envelopes that a node relays, before they are judged."""

UNANSWERED: Final = (
    "closed the connection without an answer: its key is not the one in the enode URL, or it has too many connections"
    " from this address, at once or in a minute (Restante's limits are max_peers_per_address and address_connects):"
    " send many envelopes over one connection, or try again in a minute"
)
"""What it means that a node sends nothing and closes. status-go's nodes do this to each connection that an address
makes within 30 s of another (geth p2p/server.go, inboundThrottleTime)."""


class OutboundConnection(ConnectionHandler):
    """One connection that the client dialled. `connect` makes it."""

    def __init__(
        self,
        address: str,
        options: ConnectionOptions,
        interest: Interest,
        on_history: OnHistory | None,
        on_envelopes: OnEnvelopes | None,
    ) -> None:
        self.address = address
        self.options = options
        self.status_seconds, self.close_seconds = options.connect_seconds, options.close_seconds
        self.limits = Limits(address_bytes=0, address_envelopes=0)
        self.loop = asyncio.get_running_loop()
        self.connected = False
        self.connection: PeerConnection
        """Set when the node's address accepts the connection."""
        self._interest = interest
        self._on_history = on_history
        self._on_envelopes = on_envelopes
        self.greeted: asyncio.Future[None] = self.loop.create_future()
        self._sending = asyncio.Lock()
        self._responses: dict[bytes, set[asyncio.Future[Response]]] = {}
        """By the hash of a packet: those that wait for its response. Several may have sent the same."""

    @property
    def peer(self) -> Peer:
        """The peer's side of the conversation, with the options of its Status."""
        return self.connection.peer

    async def offer(self, envelope: Envelope) -> Response | None:
        """Send an envelope and return the node's response, or None from a node that never confirms.

        It is sent when the node has read what was sent before. Raises NodeUnavailableError, and TimeoutError if the
        node does not respond in time.
        """
        async with self._sending:
            await self.connection.writable()
        if not self.connection.ready:
            raise NodeUnavailableError(f"the node disconnected: {self.connection.end_reason}")
        body = packets.write_envelopes([envelope.raw])
        self.connection.send(packets.MESSAGES, body)
        if not self.peer.confirms:
            return None
        response: asyncio.Future[Response] = self.loop.create_future()
        packet_hash = keccak(body)
        waiting = self._responses.setdefault(packet_hash, set())
        waiting.add(response)
        try:
            async with asyncio.timeout(self.options.answer_seconds):
                return await response
        finally:
            waiting.discard(response)
            if not waiting:
                self._responses.pop(packet_hash, None)

    def send_request(self, body: bytes) -> None:
        """Send a P2P Request with this body."""
        self.connection.send(packets.REQUEST, body)

    async def wait_closed(self) -> str:
        """Wait until the connection is closed and return why."""
        assert self.connection.closed is not None
        await asyncio.shield(self.connection.closed)
        return f"it disconnected: {self.connection.end_reason}"

    # ── ConnectionHandler, whose methods the connection calls ──────────────────────────────────────

    def admit(self, connection: PeerConnection) -> bool:
        self.connected, self.connection = True, connection
        connection.quota = AddressQuota()
        connection.peer.trusted = self._on_history is not None
        return True

    def status_body(self) -> bytes:
        topics = self._interest.topics
        return packets.write_options(
            Options(
                pow=0.0,
                bloom=self._interest.bloom if topics is None else None,
                light=False,
                confirmations=self._on_envelopes is None,  # a client that receives live envelopes sends no Batch Ack
                packets=(0, 0, 0),
                topics=None if topics is None else frozenset(topic.to_bytes(TOPIC) for topic in topics),
                bytes=(0, 0, 0),
            )
        )

    def handle_event(self, _connection: PeerConnection, event: PeerEvent, _payload: bytes) -> None:
        if isinstance(event, Greeted) and not self.greeted.done():
            self.greeted.set_result(None)
        elif isinstance(event, Answered):
            for response in self._responses.get(event.response.packet, ()):
                if not response.done():  # the caller was cancelled
                    response.set_result(event.response)
        elif isinstance(event, (HistoryReceived, Ended)) and self._on_history is not None:
            self._on_history(event)
        elif isinstance(event, Offered) and self._on_envelopes is not None:
            self._on_envelopes(event.envelopes)
        elif isinstance(event, OfferedLarge) and self._on_envelopes is not None:
            with suppress(PeerError):
                self._on_envelopes(list(packets.walk_envelopes(event.payload)))

    def connection_closed(self, connection: PeerConnection, reason: Reason | None, text: str) -> None:
        """End all waiting calls with an error, because the connection is closed."""
        text = f"the node disconnected: {text}"
        if not self.greeted.done():
            unanswered = reason is None and not connection.answered
            self.greeted.set_exception(SilentError(f"{self.address} {UNANSWERED}" if unanswered else text))
        for response in chain.from_iterable(self._responses.values()):
            if not response.done():
                response.set_exception(NodeUnavailableError(text))

    async def disconnect(self) -> None:
        """Send a Disconnect if the connection was made, and wait until it is closed."""
        if self.connected and self.connection.closed is not None:
            self.connection.disconnect(Reason.CLIENT_QUITTING)
            await asyncio.wait((self.connection.closed,))


@asynccontextmanager
async def connect(
    enode: Enode,
    key: Key | None = None,
    *,
    options: ConnectionOptions = DEFAULT_OPTIONS,
    interest: Interest = WANTS_NOTHING,
    on_history: OnHistory | None = None,
    on_envelopes: OnEnvelopes | None = None,
) -> AsyncIterator[OutboundConnection]:
    """Yield a connection to a node that has greeted. Disconnect at the end. Raises NodeUnavailableError.

    `key` identifies us to the node; by default it is a new one. With `on_history`, the node is trusted and may send
    history. With `on_envelopes`, it may relay envelopes of `interest`. SilentError means that something answers but
    does not greet.
    """
    connection = OutboundConnection(enode.address, options, interest, on_history, on_envelopes)
    try:
        await _dial(connection, enode, key or new_key())
        yield connection
    finally:
        await connection.disconnect()


async def _dial(connection: OutboundConnection, enode: Enode, key: Key) -> None:
    options, seconds = connection.options, connection.options.connect_seconds
    session_limits = SessionLimits(hello=seconds / 2, ping=options.ping_seconds, silence=2 * options.ping_seconds)
    rlpx = Rlpx.initiator(key, enode.public, SystemDice(), cap=max_frame_bytes(connection.limits.packet_bytes))
    hello = Hello(options.user_agent, (Capability(*packets.CAPABILITY),), 0, key.public)
    try:
        async with asyncio.timeout(seconds):
            await connection.loop.create_connection(
                lambda: PeerConnection(
                    connection, Devp2p(rlpx, hello, connection.loop.time(), session_limits), dialled=True
                ),
                enode.host,
                enode.port,
            )
            await connection.greeted
    except TimeoutError:
        if not connection.connected:
            raise NodeUnavailableError(f"cannot connect to {enode.address}: no answer within {seconds:g} s") from None
        raise SilentError(f"{enode.address} did not greet within {seconds:g} s") from None
    except OSError as error:
        raise NodeUnavailableError(f"cannot connect to {enode.address}: {plain(error)}") from error
