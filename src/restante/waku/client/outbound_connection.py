"""A connection that we dial: to hand envelopes over to a node, to ask it for history, or to listen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from restante.common.errors import PeerError, RestanteError, plain
from restante.waku.connection.peer_connection import PeerConnection
from restante.waku.connection.quotas import AddressQuota
from restante.waku.devp2p.enode import Enode
from restante.waku.devp2p.hello import CLIENT, Capability, Hello, Reason
from restante.waku.devp2p.rlpx import Rlpx, max_frame_bytes
from restante.waku.devp2p.session import Devp2p
from restante.waku.dice import SystemDice
from restante.waku.envelope.envelope import TOPIC, Envelope
from restante.waku.envelope.keccak import keccak
from restante.waku.envelope.keys import Key
from restante.waku.limits import Limits
from restante.waku.protocol import packets
from restante.waku.protocol.interest import Interest
from restante.waku.protocol.packets import Options, Response
from restante.waku.protocol.peer import Answered, Brought, Ended, Greeted, Offered, Peer, PeerEvent, Poured


class NodeUnavailableError(RestanteError):
    """A node could not be reached, or went away; says why."""


class SilentError(NodeUnavailableError):
    """Somebody answers at the node's address, and does not greet as the node."""


OnHistory = Callable[[Brought | Ended], None]
"""To be told what a trusted node sends of history."""

OnEnvelopes = Callable[[list[Envelope]], None]
"""To be handed what a node relays, unjudged."""


class OutboundConnection:
    """One connection that we dialled. Use `connect`."""

    def __init__(
        self, interest: Interest, on_history: OnHistory | None = None, on_envelopes: OnEnvelopes | None = None
    ) -> None:
        self.limits = Limits(address_bytes=0, address_envelopes=0)
        self.loop = asyncio.get_running_loop()
        self.unfinished = 0
        self.connection: PeerConnection | None = None
        self._interest = interest
        self._on_history = on_history
        self._on_envelopes = on_envelopes
        self._greeted: asyncio.Future[None] = self.loop.create_future()
        self._answers: dict[bytes, asyncio.Future[Response]] = {}

    @property
    def node(self) -> Peer:
        """What the node said of itself."""
        assert self.connection is not None
        return self.connection.peer

    async def offer(self, envelopes: Iterable[Envelope]) -> Response:
        """Hand over envelopes, in one packet; gives what became of them. Raises NodeUnavailableError.

        Only a node that `confirms` ever says so.
        """
        answer: asyncio.Future[Response] = self.loop.create_future()
        packet = self.hand_over(envelopes)
        self._answers[packet] = answer
        try:
            return await answer
        finally:
            self._answers.pop(packet, None)  # who waited may have given up

    def hand_over(self, envelopes: Iterable[Envelope]) -> bytes:
        """Hand over envelopes, in one packet; return its hash. Raises NodeUnavailableError where the node is gone."""
        assert self.connection is not None
        if not self.connection.here:
            raise NodeUnavailableError(f"the node went away: {self.connection.parting}")
        body = packets.write_envelopes(each.raw for each in envelopes)
        self.connection.send(packets.MESSAGES, body)
        return keccak(body)

    def request(self, body: bytes) -> None:
        """Send a P2P Request, given its body."""
        assert self.connection is not None
        self.connection.send(packets.REQUEST, body)

    async def gone(self) -> str:
        """Wait until the node is gone; tells why."""
        assert self.connection is not None
        assert self.connection.gone is not None
        await asyncio.shield(self.connection.gone)
        return f"it went away: {self.connection.parting}"

    # ── what the connection calls (ConnectionHandler) ─────────────────────────────────────────────────────────────

    def made(self, connection: PeerConnection) -> bool:
        """Take in the connection."""
        self.connection = connection
        connection.quota = AddressQuota()
        connection.peer.trusted = self._on_history is not None
        return True

    def too_much(self) -> None:
        """One connection cannot have too much: a packet has an end."""

    def caught_up(self, _connection: PeerConnection) -> None:
        """Nothing is relayed to a node that we dialled."""

    def connected(self, _connection: PeerConnection, _public: bytes) -> Reason | None:
        """Take note that the node has said Hello."""
        return None

    def status(self) -> bytes:
        """Give the body of our Status."""
        topics = self._interest.topics
        return packets.write_options(
            Options(
                pow=0.0,
                bloom=self._interest.bloom if topics is None else None,
                light=False,
                confirmations=self._on_envelopes is None,  # who listens sends no Batch Ack
                packets=(0, 0, 0),
                topics=None if topics is None else frozenset(each.to_bytes(TOPIC) for each in topics),
                bytes=(0, 0, 0),
            )
        )

    def take(self, connection: PeerConnection, event: PeerEvent, _payload: bytes) -> None:
        """Handle what the node's packet amounts to."""
        if isinstance(event, Greeted) and not self._greeted.done():
            self._greeted.set_result(None)
        elif isinstance(event, Answered):
            waiting = self._answers.get(event.response.packet)
            if waiting is not None and not waiting.done():
                waiting.set_result(event.response)
        elif isinstance(event, (Brought, Ended)) and self._on_history is not None:
            self._on_history(event)
        elif isinstance(event, Offered) and self._on_envelopes is not None:
            self._on_envelopes(event.envelopes)
        elif isinstance(event, Poured) and self._on_envelopes is not None:
            try:
                self._on_envelopes(list(packets.walk_envelopes(event.payload)))
            except PeerError as error:
                connection.peer.blame(error.words)

    def lost(self, _connection: PeerConnection, _reason: Reason | None, words: str) -> None:
        """Take note that the connection is no more."""
        gone = NodeUnavailableError(f"the node went away: {words}")
        if not self._greeted.done():
            self._greeted.set_exception(SilentError(str(gone)))
        for answer in self._answers.values():
            if not answer.done():  # nobody waits any more
                answer.set_exception(gone)

    def flush_soon(self, connection: PeerConnection) -> None:
        """Have the connection write when this turn of the loop is over."""
        self.loop.call_soon(connection.flush)

    async def leave(self, seconds: float) -> None:
        """Say goodbye, if anybody is there, and wait until that was heard."""
        if self.connection is not None and self.connection.gone is not None:
            self.connection.disconnect(Reason.CLIENT_QUITTING)
            await asyncio.wait((self.connection.gone,), timeout=seconds)

    async def greeted(self) -> None:
        """Wait until the node has greeted. Raises NodeUnavailableError."""
        await self._greeted


@asynccontextmanager
async def connect(
    enode: Enode,
    key: Key,
    interest: Interest,
    seconds: float = 10.0,
    on_history: OnHistory | None = None,
    on_envelopes: OnEnvelopes | None = None,
) -> AsyncIterator[OutboundConnection]:
    """Connect to a node and greet; goes away politely. Raises NodeUnavailableError, also when that takes longer.

    With `on_history` the node is trusted, and may send history; with `on_envelopes` it may relay what is of interest.
    SilentError tells that it is there, and does not greet.
    """
    connection = OutboundConnection(interest, on_history, on_envelopes)
    try:
        await _reach(connection, enode, key, seconds)
        yield connection
    finally:
        await connection.leave(seconds)


async def _reach(connection: OutboundConnection, enode: Enode, key: Key, seconds: float) -> None:
    rlpx = Rlpx.initiator(key, enode.public, SystemDice(), cap=max_frame_bytes(connection.limits.packet_bytes))
    hello = Hello(CLIENT, (Capability(*packets.CAPABILITY),), 0, key.public)
    try:
        async with asyncio.timeout(seconds):
            await connection.loop.create_connection(
                lambda: PeerConnection(connection, Devp2p(rlpx, hello, connection.loop.time()), dialled=True),
                enode.host,
                enode.port,
            )
            await connection.greeted()
    except TimeoutError:
        if connection.connection is None:
            raise NodeUnavailableError(
                f"cannot connect to {enode.address}: nobody answered within {seconds:g} s"
            ) from None
        raise SilentError(f"{enode.address} did not greet within {seconds:g} s") from None
    except OSError as error:
        raise NodeUnavailableError(f"cannot connect to {enode.address}: {plain(error)}") from error
