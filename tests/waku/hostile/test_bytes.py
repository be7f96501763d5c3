"""Bytes that are no handshake, no frame or no packet end their connection, and nothing else."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Final

import pytest

from restante.waku.devp2p import frames
from restante.waku.devp2p.handshake import MAX_HANDSHAKE_BYTES
from restante.waku.devp2p.hello import CAPABILITY_LENGTHS, Capability, Hello, Reason
from restante.waku.devp2p.snappy import compress
from restante.waku.envelope import rlp
from restante.waku.envelope.keys import Key
from restante.waku.protocol import packets
from support.waku.raw_peer import BASE, RawPeer
from support.waku.siege import Siege

pytestmark = pytest.mark.asyncio(loop_scope="module")

DICE: Final = random.Random(5)

NO_HANDSHAKE: Final[dict[str, bytes]] = {
    "nothing at all": b"",
    "a byte": b"\0",
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 30,
    "zeros": bytes(3000),
    "ones": b"\xff" * 3000,
    "noise": DICE.randbytes(3000),
    "the form before EIP-8": b"\4" + DICE.randbytes(306),
    "a size that is too small": (113).to_bytes(2, "big") + b"\4" + DICE.randbytes(112),
    "a size that is too large": (MAX_HANDSHAKE_BYTES + 1).to_bytes(2, "big")
    + b"\4"
    + DICE.randbytes(MAX_HANDSHAKE_BYTES),
    "a point that is none": (400).to_bytes(2, "big") + b"\4" + bytes(399),
    "a good point and no good MAC": (400).to_bytes(2, "big") + b"\4" + Key(b"\1" * 32).public + DICE.randbytes(335),
}


async def told(siege: Siege, stream: bytes) -> bytes:
    """Say this, and nothing more; give all that comes until the end."""
    reader, writer = await siege.connect()
    try:
        writer.write(stream)
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def test_bytes_that_are_no_handshake_are_not_answered(siege: Siege) -> None:
    async with siege.beside_the_pair("no handshake"):
        for name, stream in NO_HANDSHAKE.items():
            assert await told(siege, stream) == b"", name


async def test_an_auth_packet_with_a_byte_changed_is_not_answered(siege: Siege) -> None:
    async with siege.beside_the_pair("an auth with a byte changed"):
        peer = await siege.knock()
        auth = peer.rlpx._proposal.packet if peer.rlpx._proposal else b""
        assert auth
        for at in (0, 2, 40, 70, 100, len(auth) - 1):
            assert await told(siege, auth[:at] + bytes((auth[at] ^ 1,)) + auth[at + 1 :]) == b""


Breaks = Callable[[RawPeer], None]


def altered(at: int) -> Breaks:
    """A frame of which one bit is another."""

    def send(peer: RawPeer) -> None:
        sealed = bytearray(peer.rlpx.seal(b"\2" + compress(b"\xc0")))
        sealed[at] ^= 0x10
        peer.writer.write(bytes(sealed))

    return send


def framed(frame: bytes) -> Breaks:
    return lambda peer: peer.frame(frame)


def packet(code: int, payload: bytes) -> Breaks:
    """A packet whose compressed payload is this."""
    return framed(rlp.encode(BASE + code) + payload)


def sized(size: int) -> Breaks:
    """The header of a frame that is to have so many bytes, with a good MAC, and no frame."""

    def send(peer: RawPeer) -> None:
        assert peer.rlpx._frames is not None
        sealing = peer.rlpx._frames
        sealed = sealing._encrypt(size.to_bytes(3, "big") + b"\xc2\x80\x80" + bytes(10))
        peer.writer.write(sealed + sealing._egress.add_header(sealed))

    return send


ENDS: Final[dict[str, Breaks]] = {
    "a header with a bit changed": altered(0),
    "a header's MAC with a bit changed": altered(20),
    "a frame with a bit changed": altered(33),
    "a frame's MAC with a bit changed": altered(-1),
    "a frame of no bytes": sized(0),
    "a frame of 16 MiB": sized(frames.MAX_FRAME_BYTES),
    "a message id that is too high": packet(CAPABILITY_LENGTHS["waku"], compress(b"\xc0")),
    "a message id of three bytes": framed(b"\x82\x01\x00" + compress(b"\xc0")),
    "a message id with a leading zero": framed(b"\x81\x10" + compress(b"\xc0")),
    "what is not compressed": packet(packets.MESSAGES, b"\xff" * 20),
    "a bomb of 16 MiB": packet(packets.MESSAGES, compress(bytes(1 << 24))),
    "a size of 4 GiB and a few bytes": packet(packets.MESSAGES, b"\xff\xff\xff\xff\x0f" + bytes(10)),
    "a size of 9 MiB and a few bytes": packet(packets.MESSAGES, b"\x80\x80\xc0\x04" + bytes(10)),
}


async def test_a_broken_frame_ends_its_connection(siege: Siege) -> None:
    async with siege.beside_the_pair("a broken transport"):
        for name, breaks in ENDS.items():
            peer = await siege.greet()
            breaks(peer)
            assert await peer.ended() is Reason.BREACH, name


HELLOS: Final[dict[str, tuple[bytes, Reason]]] = {
    "no list": (b"\x80\x80", Reason.BREACH),
    "four items": (b"\x80" + rlp.encode([5, b"x", [], 0]), Reason.BREACH),
    "another key": (
        b"\x80" + Hello("x", (Capability("waku", 1),), 0, Key(b"\1" * 32).public).encode(),
        Reason.UNEXPECTED_IDENTITY,
    ),
    "no key": (b"\x80" + Hello("x", (Capability("waku", 1),), 0, b"").encode(), Reason.NULL_IDENTITY),
    "a packet of Waku": (b"\x10" + compress(b"\xc0"), Reason.BREACH),
    "a Ping": (b"\2" + compress(b"\xc0"), Reason.BREACH),
    "too long": (b"\x80" + bytes(2048 + 1), Reason.BREACH),
    "ten thousand lists in each other": (b"\x80" + b"\xc1" * 2000 + b"\xc0", Reason.BREACH),
}


async def test_a_packet_that_is_no_hello_is_answered_with_the_reason(siege: Siege) -> None:
    async with siege.beside_the_pair("no Hello"):
        for name, (frame, reason) in HELLOS.items():
            peer = await siege.knock()
            while not peer.rlpx.ready:
                await peer._read()
            peer.frame(frame)
            assert (await peer._frame())[0] == 0x80  # its Hello
            assert await peer.ended() is reason, name


NO_PACKETS: Final = [
    bytes.fromhex(each)
    for each in (
        "",
        "80",
        "c1",
        "c180",
        "8100",
        "b800",
        "f800",
        "f80180",
        "b90001ff",
        "c3820001",
        "ff" * 9,
        "c1" * 40,
    )
]
"""None is the body of any packet that is looked into."""


async def test_a_non_canonical_packet_ends_no_connection(siege: Siege) -> None:
    codes = (packets.MESSAGES, packets.BATCH_ACK, packets.MESSAGE_RESPONSE, packets.STATUS_UPDATE)
    async with siege.beside_the_pair("RLP that is not canonical"):
        peer = await siege.greet()
        for code, body in itertools.product(codes, NO_PACKETS):
            peer.say(code, body)
        await peer.fence()
        assert not (await peer.post()).refusals


async def test_random_bytes_in_any_packet_end_no_connection(siege: Siege) -> None:
    async with siege.beside_the_pair("noise in packets"):
        peer = await siege.greet()
        for code in range(1, CAPABILITY_LENGTHS["waku"]):
            for size in (1, 30, 300):
                peer.say(code, DICE.randbytes(size))
            await asyncio.sleep(0)
        await peer.fence()
