"""Mailservers to ask, honest in either order or not; and a small node over real RLPx that has them answer."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from restante.common.dice import SystemDice
from restante.waku.connection.peer_connection import ConnectionHandler, PeerConnection
from restante.waku.connection.quotas import AddressQuota
from restante.waku.devp2p.enode import Enode
from restante.waku.devp2p.hello import Capability, Hello, Reason
from restante.waku.devp2p.rlpx import Rlpx
from restante.waku.devp2p.session import Devp2p
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keccak import keccak
from restante.waku.envelope.keys import Key, new_key
from restante.waku.envelope.payload import SymmetricKey
from restante.waku.limits import Limits
from restante.waku.protocol import completion, packets, request
from restante.waku.protocol.completion import NO_HASH
from restante.waku.protocol.packets import Options, Refusal, Response
from restante.waku.protocol.peer import Offered, PeerEvent, Requested
from restante.waku.protocol.request import CompletionForm, Demands, Request, RequestError
from support.bounds import BOUND

Packet = list[Envelope] | bytes

Mailserver = Callable[[Request], Iterable[Packet]]


def key(envelope: Envelope) -> bytes:
    return envelope.sent.to_bytes(4) + envelope.hash


@dataclass
class Honest:
    """Answers as status-go does; `size` bounds its pages, whatever the limit asked for."""

    envelopes: list[Envelope]
    downward: bool = False
    size: int = 1000
    answer: CompletionForm = "string"
    packet_envelopes: int = 3

    def page(self, request: Request) -> tuple[list[Envelope], bytes]:
        matching = sorted((one for one in self.envelopes if wanted(request, one)), key=key, reverse=self.downward)
        if request.cursor:
            behind = operator.lt if self.downward else operator.gt
            matching = [one for one in matching if behind(key(one), request.cursor)]
        size = min(self.size, request.limit)
        # A cursor also where nothing is left, if the page is full: as shipped servers do it.
        return matching[:size], key(matching[size - 1]) if len(matching) >= size else b""

    def __call__(self, request: Request) -> Iterator[Packet]:
        matching, cursor = self.page(request)
        for at in range(0, len(matching), self.packet_envelopes):
            yield matching[at : at + self.packet_envelopes]
        yield completion.encode(request.id, matching[-1].hash if matching else NO_HASH, cursor, self.answer)


def wanted(request: Request, envelope: Envelope) -> bool:
    if not request.lower <= envelope.sent <= request.upper:
        return False
    if request.topics:
        return envelope.topic in request.topics
    assert request.bloom is not None
    return bloom.passes(request.bloom, envelope.topic)


def silent(_request: Request) -> list[Packet]:
    return []


def refusing(reason: str = "rate limit exceeded") -> Mailserver:
    return lambda request: [completion.encode_refusal(request.id, reason)]


SHARED = SymmetricKey(b"\5" * 32)


@dataclass
class FakeNode(ConnectionHandler):
    mailserver: Any = None
    confirms: bool = True
    says_so: bool = True
    greets: bool = True
    refuses: str = ""
    archives: bool = True
    pow: float = 0.0
    strict: bool = True
    password: str = ""
    key: Key = field(default_factory=lambda: new_key(SystemDice()))
    limits: Limits = field(default_factory=Limits)
    connections: set[PeerConnection] = field(default_factory=set)
    asked: list[Request] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    known: set[bytes] = field(default_factory=set)
    """Public keys of those that came."""

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.shared = SymmetricKey.from_password(self.password) if self.password else SHARED
        self.was_asked = asyncio.Event()
        self.is_alone = asyncio.Event()

    def reduce_incomplete(self) -> None:
        raise AssertionError("nobody sends this much")

    def admit(self, connection: PeerConnection) -> bool:
        self.connections.add(connection)
        connection.quota = AddressQuota()
        return True

    def receive_hello(self, connection: PeerConnection, public: bytes) -> None:
        self.known.add(public)
        if self.greets:
            connection.accept()
        else:
            connection.disconnect(Reason.TOO_MANY_PEERS)

    def status_body(self) -> bytes:
        return packets.write_options(Options(pow=self.pow, confirmations=self.says_so))

    def handle_event(self, connection: PeerConnection, event: PeerEvent, payload: bytes) -> None:
        if isinstance(event, Offered):
            if self.archives and self.mailserver is not None:
                self.mailserver.envelopes = [*self.mailserver.envelopes, *event.envelopes]
            if self.confirms:
                refusals = tuple(Refusal(one.hash, 22, self.refuses) for one in event.envelopes if self.refuses)
                connection.send(packets.MESSAGE_RESPONSE, packets.write_response(Response(keccak(payload), refusals)))
        elif isinstance(event, Requested) and self.mailserver is not None:
            self._requested(connection, event.payload)

    def connection_closed(self, connection: PeerConnection, _reason: Reason | None, _text: str) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.is_alone.set()

    def _requested(self, connection: PeerConnection, payload: bytes) -> None:
        demands = Demands(keys=(self.shared,), min_pow=self.pow, require_signature=self.strict)
        try:
            asked = request.parse(payload, demands, 0)
        except RequestError as error:
            self.wrong.append(error.text)
            return
        self.asked.append(asked)
        self.was_asked.set()
        for packet in self.mailserver(asked):
            if isinstance(packet, bytes):
                connection.send(packets.REQUEST_COMPLETE, packet)
            else:
                connection.send(packets.P2P_MESSAGE, packets.write_envelopes(envelope.raw for envelope in packet))


@asynccontextmanager
async def listening(mailserver: Mailserver | None = None, **options: Any) -> AsyncIterator[tuple[FakeNode, Enode]]:
    node = FakeNode(mailserver, **options)
    hello = Hello("fake", (Capability("waku", 1),), 0, node.key.public)

    def answer() -> PeerConnection:
        rlpx = Rlpx.recipient(node.key, SystemDice())
        return PeerConnection(node, Devp2p(rlpx, hello, node.loop.time()), dialled=False)

    server = await node.loop.create_server(answer, "127.0.0.1", 0)
    try:
        yield node, Enode(node.key.public, *server.sockets[0].getsockname()[:2])
    finally:
        server.close()
        for connection in list(node.connections):
            connection.abort()
        await server.wait_closed()


@contextmanager
def listening_beside(mailserver: Mailserver | None = None, **options: Any) -> Iterator[tuple[FakeNode, Enode]]:
    loop, listener = asyncio.new_event_loop(), listening(mailserver, **options)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(listener.__aenter__(), loop).result(BOUND)
        asyncio.run_coroutine_threadsafe(listener.__aexit__(None, None, None), loop).result(BOUND)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(BOUND)
        loop.close()
