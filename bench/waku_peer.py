"""Peers of the Mailserver: they post envelopes made beforehand and count confirmations, or request history."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import cast

from restante.common.dice import SystemDice
from restante.waku.devp2p.enode import Enode
from restante.waku.devp2p.hello import Capability, Hello
from restante.waku.devp2p.rlpx import Rlpx
from restante.waku.devp2p.session import Connected, Devp2p, Disconnected, Packet
from restante.waku.devp2p.snappy import compress
from restante.waku.envelope import rlp
from restante.waku.envelope.keys import new_key
from restante.waku.protocol import packets

DATA = 284
"""Bytes of an envelope's data: a sealed payload of 256 (waku.md of status-go's own requests); 305 with the fields."""

TOPICS = [os.urandom(4) for _ in range(5000)]

# Times are perf_counter's: the loop's own, uvloop's, are whole milliseconds.
_DICE = SystemDice()
_STATUS = packets.write_options(packets.Options(pow=0.0, light=False, confirmations=True, topics=frozenset()))
"""Interested in nothing: what is measured is not relaying to the senders."""


def envelopes(count: int, *, days: float = 30, ahead: int = 5) -> Iterator[bytes]:
    """Make envelopes sent over so many days, in that order give or take 30 s, that expire in so many seconds."""
    now = int(time.time())
    span = int(days * 86400)
    for number in range(count):
        age = max(0, span - span * number // count + (number * 7919) % 61 - 30)
        topic = TOPICS[(number * 2654435761) % len(TOPICS)]
        data = number.to_bytes(8, "big") + os.urandom(16) * ((DATA - 8) // 16 + 1)
        yield rlp.encode([now + ahead, age + ahead, topic, data[:DATA], number])


class BenchPeer(asyncio.Protocol):
    """One peer."""

    def __init__(self, enode: Enode) -> None:
        self._key = new_key(_DICE)
        self._enode = enode
        self.loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = self.loop.create_future()
        self.confirmed = 0
        """Packets."""
        self.delays: list[float] = []
        self._since: deque[float] = deque()
        self._news = asyncio.Event()
        self._came: list[bytes] = []
        self._answer: asyncio.Future[tuple[list[bytes], bytes, float]] | None = None
        self.transport: asyncio.Transport | None = None

    async def connect(self) -> BenchPeer:
        hello = Hello("bench", (Capability(*packets.CAPABILITY),), 0, self._key.public)
        rlpx = Rlpx.initiator(self._key, self._enode.public, _DICE)
        self._session = Devp2p(rlpx, hello, self.loop.time())
        await self.loop.create_connection(lambda: self, self._enode.host, self._enode.port)
        await self.greeted
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by descent
        self.transport.write(self._session.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._session.receive_data(data, self.loop.time()):
            if isinstance(event, Packet):
                self._hear(event)
            elif isinstance(event, Connected):
                self._session.send(packets.STATUS, _STATUS)
            elif isinstance(event, Disconnected) and not self.greeted.done():
                self.greeted.set_exception(ConnectionError(event.words))
        self._flush()

    def _hear(self, packet: Packet) -> None:
        if packet.code == packets.STATUS:
            self.greeted.set_result(None)
        elif packet.code == packets.MESSAGE_RESPONSE:
            if packets.read_response(packet.payload).refusals:
                raise AssertionError(packets.read_response(packet.payload))
            self.confirmed += 1
            self.delays.append(time.perf_counter() - self._since.popleft())
            self._news.set()
        elif packet.code == packets.P2P_MESSAGE:
            self._came.append(packet.payload)
        elif packet.code == packets.REQUEST_COMPLETE and self._answer is not None:
            came, self._came = self._came, []
            self._answer.set_result((came, packet.payload, time.perf_counter()))

    async def request_page(self, request: bytes) -> tuple[list[bytes], bytes, float]:
        """Send a request. Return the packets of the answer and its end, both unparsed, and the seconds it took."""
        self._answer = self.loop.create_future()
        started = time.perf_counter()
        self._session.send(packets.REQUEST, request)
        self._flush()
        came, end, here = await self._answer
        return came, end, here - started

    def _flush(self) -> None:
        data = self._session.data_to_send()
        if data and self.transport is not None:
            self.transport.write(data)

    def hand_over(self, raws: Iterable[bytes]) -> None:
        body = packets.write_envelopes(raws)
        self._since.append(time.perf_counter())
        self._session.send(packets.MESSAGES, body, compressed=compress(body))
        self._flush()

    async def pour(self, packets: Iterator[list[bytes]], at_once: int) -> None:
        """Hand over packets, so many unconfirmed at a time."""
        for packet in packets:
            self.hand_over(packet)
            while len(self._since) >= at_once:
                self._news.clear()
                await self._news.wait()
        while self._since:
            self._news.clear()
            await self._news.wait()

    def leave(self) -> None:
        if self.transport is not None:
            self.transport.abort()
