"""A peer whose every frame the test decides: RLPx over a socket, and above it bytes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable
from typing import Any, Final

from restante.waku.devp2p.enode import Enode
from restante.waku.devp2p.hello import Capability, Hello, Reason
from restante.waku.devp2p.rlpx import Rlpx
from restante.waku.devp2p.snappy import compress, decompress
from restante.waku.envelope import rlp
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keccak import keccak
from restante.waku.envelope.keys import Key, new_key
from restante.waku.protocol import completion, packets, request
from restante.waku.protocol.completion import Completed, RequestRefused
from restante.waku.protocol.packets import Options, Response
from restante.waku.protocol.request import Request
from support.bounds import bounded
from support.dice import Seeded
from support.waku.letters import EPOCH, TOPIC

Packet = tuple[int, bytes]

FULL_NODE: Final = Options(pow=0.0, light=False, confirmations=True, packets=(0, 0, 0), bytes=(0, 0, 0))

NOTHING: Final = Options(pow=0.0, confirmations=True, topics=frozenset())
"""Of a peer to which nothing is relayed."""

DISCONNECT, PING, PONG, BASE = 1, 2, 3, 16


_seeds = itertools.count(1)
_connected: list[RawPeer] = []


async def everybody_goes() -> None:
    while _connected:
        peer = _connected.pop()
        peer.cut()
        with contextlib.suppress(ConnectionError):
            await peer.writer.wait_closed()


class GoneError(Exception):
    """The node closed the connection; `reason` if it said why."""

    def __init__(self, reason: Reason | None) -> None:
        super().__init__(f"gone: {reason}")
        self.reason = reason


class RawPeer:
    """One connection. What comes is read only when it is waited for."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rlpx: Rlpx, key: Key) -> None:
        self.writer = writer
        self.rlpx = rlpx
        self.key = key
        self.inbox: list[Packet] = []
        """What came while something else was waited for."""
        self.gone: GoneError | None = None
        self._reader = reader
        self._frames: list[bytes] = []
        self._pongs = 0

    @classmethod
    async def knock(cls, port: int, node: bytes, key: Key | None = None, source: str = "127.0.0.1") -> RawPeer:
        dice = Seeded(next(_seeds))
        own = key or new_key(dice)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        _connected.append(peer := cls(reader, writer, Rlpx.initiator(own, node, dice), own))
        writer.write(peer.rlpx.data_to_send())
        return peer

    def frame(self, frame: bytes) -> None:
        self.writer.write(self.rlpx.seal(frame))

    def say(self, code: int, payload: bytes) -> None:
        self.say_all([(code, payload)])

    def say_all(self, packets: Iterable[Packet]) -> None:
        frames = [self.rlpx.seal(rlp.encode(BASE + code) + compress(payload)) for code, payload in packets]
        self.writer.write(b"".join(frames))

    def offer(self, envelopes: Iterable[Envelope]) -> bytes:
        """Send Messages; gives the packet's hash."""
        body = packets.write_envelopes(envelope.raw for envelope in envelopes)
        self.say(packets.MESSAGES, body)
        return keccak(body)

    async def hear(self) -> Packet:
        async with bounded("a packet"):
            while not self.inbox:
                self._take(await self._frame())
        return self.inbox.pop(0)

    async def confirmed(self, packet: bytes) -> Response:
        """Wait until a packet is confirmed, both ways; relayed ones may come before and stay in `inbox`."""
        kept = []
        while (heard := await self.hear())[0] != packets.MESSAGE_RESPONSE:
            kept.append(heard)
        response = packets.read_response(heard[1])
        assert response.packet == packet
        code, body = await self.hear()
        assert code == packets.BATCH_ACK
        assert packets.read_ack(body) == packet
        self.inbox = kept + self.inbox
        return response

    async def post(self, *envelopes: Envelope) -> Response:
        return await self.confirmed(self.offer(envelopes))

    async def relayed(self, count: int) -> list[Envelope]:
        envelopes: list[Envelope] = []
        while len(envelopes) < count:
            code, body = await self.hear()
            assert code == packets.MESSAGES, (code, body)
            envelopes += packets.read_envelopes(body)
        return envelopes

    async def fence(self) -> None:
        """Wait until all was taken in that we said, and what was said before is in `inbox`."""
        wanted = self._pongs + 1
        self.frame(b"\2" + compress(b"\xc0"))
        async with bounded("a Pong"):
            while self._pongs < wanted:
                self._take(await self._frame())

    async def ended(self) -> Reason | None:
        """Wait until the node closes the connection; gives the reason, if it says one. Packets are kept."""
        async with bounded("the end of the connection"):
            try:
                while True:
                    self._take(await self._frame())
            except GoneError as gone:
                return gone.reason
            finally:
                self.cut()

    def cut(self) -> None:
        self.writer.transport.abort()

    async def shake_hands(self) -> None:
        """Have both Hellos said. Raises GoneError where the node says something else."""
        async with bounded("the handshake"):
            while not self.rlpx.ready:
                await self.read()
        hello = Hello("test", (Capability(*packets.CAPABILITY),), 0, self.key.public)
        self.frame(b"\x80" + hello.encode())
        frame = await self._frame()
        if frame[0] != 0x80:
            raise self._parted(frame[1:])

    async def read(self) -> None:
        if self.gone is not None:
            raise self.gone
        try:
            data = await self._reader.read(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self.gone = GoneError(None)
            raise self.gone
        self._frames += self.rlpx.receive_data(data)
        if self.rlpx.violation is not None:
            raise self.rlpx.violation

    async def answer(self) -> None:
        """Take in a frame: answer a Ping, and leave another packet in the inbox."""
        self._take(await self._frame())

    async def _frame(self) -> bytes:
        while not self._frames:
            await self.read()
        return self._frames.pop(0)

    def _take(self, frame: bytes) -> None:
        if frame[0] == 0x80:
            return  # a Hello: nobody waits for it, or it would not come here
        long = frame[0] == 0x81
        message, payload = frame[long], decompress(frame[1 + long :], 1 << 24)
        if message == DISCONNECT:
            raise self._parted(payload)
        if message == PING:
            self.frame(b"\3" + compress(b"\xc0"))
        elif message == PONG:
            self._pongs += 1
        else:
            self.inbox.append((message - BASE, payload))

    def _parted(self, payload: bytes) -> GoneError:
        self.gone = GoneError(Reason.parse(payload))
        return self.gone


class Reachable:
    enode: Enode

    async def enter(self, key: Key | None = None, source: str = "127.0.0.1") -> RawPeer:
        peer = await RawPeer.knock(self.enode.port, self.enode.public, key, source)
        await peer.shake_hands()
        return peer

    async def greet(self, options: Options = FULL_NODE, key: Key | None = None, source: str = "127.0.0.1") -> RawPeer:
        peer = await self.enter(key, source)
        peer.say(packets.STATUS, packets.write_options(options))
        code, _ = await peer.hear()
        assert code == packets.STATUS
        await peer.fence()
        return peer


ID = b"\x11" * 32


def plain(**fields: Any) -> bytes:
    return request.encode(Request(**{"id": ID, "lower": 0, "upper": EPOCH, "topics": frozenset((TOPIC,)), **fields}))


async def page(peer: RawPeer) -> tuple[list[list[Envelope]], Completed | RequestRefused]:
    parts: list[list[Envelope]] = []
    while True:
        code, body = await peer.hear()
        if code == packets.REQUEST_COMPLETE:
            return parts, completion.parse(body)
        assert code == packets.P2P_MESSAGE
        parts.append(packets.read_envelopes(body))


async def ask(peer: RawPeer, body: bytes | None = None) -> tuple[list[list[Envelope]], Completed | RequestRefused]:
    peer.say(packets.REQUEST, plain() if body is None else body)
    return await page(peer)


def flat(parts: list[list[Envelope]]) -> list[Envelope]:
    return [envelope for part in parts for envelope in part]


async def fetch_page(peer: RawPeer, **fields: Any) -> tuple[list[Envelope], bytes]:
    parts, end = await ask(peer, plain(**fields))
    assert isinstance(end, Completed), end
    envelopes = flat(parts)
    assert end == Completed(ID, envelopes[-1].hash if envelopes else completion.NO_HASH, end.cursor)
    return envelopes, end.cursor


async def walk(peer: RawPeer, cursor: bytes = b"", **fields: Any) -> list[Envelope]:
    envelopes, cursor = await fetch_page(peer, cursor=cursor, **fields)
    while cursor:
        more, cursor = await fetch_page(peer, cursor=cursor, **fields)
        envelopes += more
    return envelopes
