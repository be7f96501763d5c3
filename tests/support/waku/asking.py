"""A requester who asks in the open, and reads pages to their end."""

from __future__ import annotations

from typing import Any

from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol import completion, request
from restante.waku.protocol import packets as waku_packets
from restante.waku.protocol.completion import Completed, Failed
from restante.waku.protocol.request import Request
from support.waku.letters import EPOCH, TOPIC
from support.waku.raw_peer import RawPeer

ID = b"\x11" * 32


def plain(**given: Any) -> bytes:
    """Write a request: of one topic, till now, if nothing else is said."""
    return request.write(Request(**{"id": ID, "lower": 0, "upper": EPOCH, "topics": frozenset((TOPIC,)), **given}))


async def page(peer: RawPeer) -> tuple[list[list[Envelope]], Completed | Failed]:
    """Wait for an answer: the packets of envelopes, and what it ends with."""
    packets: list[list[Envelope]] = []
    while True:
        code, body = await peer.hear()
        if code == waku_packets.REQUEST_COMPLETE:
            return packets, completion.read(body)
        assert code == waku_packets.P2P_MESSAGE
        packets.append(waku_packets.read_envelopes(body))


async def ask(peer: RawPeer, body: bytes | None = None) -> tuple[list[list[Envelope]], Completed | Failed]:
    """Request this, or the usual page, and wait for the answer."""
    peer.say(waku_packets.REQUEST, plain() if body is None else body)
    return await page(peer)


def flat(packets: list[list[Envelope]]) -> list[Envelope]:
    return [each for packet in packets for each in packet]


async def fetch_page(peer: RawPeer, **given: Any) -> tuple[list[Envelope], bytes]:
    """Request a page. Return its envelopes and its cursor, after its end was checked."""
    packets, end = await ask(peer, plain(**given))
    assert isinstance(end, Completed), end
    envelopes = flat(packets)
    assert end == Completed(ID, envelopes[-1].hash if envelopes else completion.NO_HASH, end.cursor)
    return envelopes, end.cursor


async def walk(peer: RawPeer, cursor: bytes = b"", **given: Any) -> list[Envelope]:
    """Go from cursor to cursor, until there is none. Return the envelopes of all pages."""
    envelopes, cursor = await fetch_page(peer, cursor=cursor, **given)
    while cursor:
        more, cursor = await fetch_page(peer, cursor=cursor, **given)
        envelopes += more
    return envelopes
