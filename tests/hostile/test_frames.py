"""Bytes that are no frame, frames that are no message, messages that are no JSON object."""

from __future__ import annotations

import asyncio
import struct
from typing import Final

import pytest
from msgspec.structs import replace

from restante.mailbox.core.limits import Limits
from support.mailbox.raw_socket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, RawSocket, frame
from support.mailbox.siege import Siege

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_MESSAGE: Final = 10 << 20
"""More than the default, for the reader's sake."""

LIMITS: Final = replace(Limits(), message_bytes=MAX_MESSAGE)

PROTOCOL_ERROR, UNSUPPORTED, INVALID, TOO_BIG = 1002, 1003, 1007, 1009

PING_COMMAND: Final = b'{"type": "ping", "ping": "now?"}'


def declared(size: int, bits: int, payload: bytes = b"") -> bytes:
    """Return a text frame whose header says its size in so many bits, rightly or wrongly."""
    flag, form = {16: (126, ">H"), 64: (127, ">Q")}[bits]
    return bytes((0x80 | TEXT, 0x80 | flag)) + struct.pack(form, size) + bytes(4) + payload


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack(">H", code) + reason)


NO_FRAMES: Final[dict[str, tuple[bytes, int]]] = {
    **{f"opcode {each}": (frame(each, b"{}"), PROTOCOL_ERROR) for each in (*range(3, 8), *range(11, 16))},
    "unmasked text": (frame(TEXT, PING_COMMAND, mask=False), PROTOCOL_ERROR),
    "unmasked ping": (frame(PING, b"now?", mask=False), PROTOCOL_ERROR),
    "unmasked close": (frame(CLOSE, b"\x03\xe8", mask=False), PROTOCOL_ERROR),
    "a ping in fragments": (frame(PING, b"now?", fin=False), PROTOCOL_ERROR),
    "a close in fragments": (frame(CLOSE, b"\x03\xe8", fin=False), PROTOCOL_ERROR),
    "a ping of 126 bytes": (frame(PING, bytes(126)), PROTOCOL_ERROR),
    "a pong of 64 KiB": (frame(PONG, bytes(1 << 16)), PROTOCOL_ERROR),
    "5 bytes, said in 16 bits": (declared(5, 16, b"12345"), PROTOCOL_ERROR),
    "5 bytes, said in 64 bits": (declared(5, 64, b"12345"), PROTOCOL_ERROR),
    "64 KiB less one, said in 64 bits": (declared((1 << 16) - 1, 64), PROTOCOL_ERROR),
    "2⁶³ bytes": (declared(1 << 63, 64), PROTOCOL_ERROR),
    "2⁶⁴ bytes less one": (declared((1 << 64) - 1, 64), PROTOCOL_ERROR),
    "2⁶³ bytes less one": (declared((1 << 63) - 1, 64), TOO_BIG),
    "a byte more than twice the limit": (declared(2 * MAX_MESSAGE + 1, 64), TOO_BIG),
    "a close of one byte": (frame(CLOSE, b"\x03"), PROTOCOL_ERROR),
    **{f"close {each}": (close(each), PROTOCOL_ERROR) for each in (999, 1004, 1005, 1006, 1015, 2999)},
    "a close whose reason is not UTF-8": (close(1000, b"\xff"), INVALID),
    "a stream of zeros": (bytes(1000), PROTOCOL_ERROR),
    "a stream of ones": (b"\xff" * 1000, PROTOCOL_ERROR),
}
"""Bytes that the frame reader does not take, and the close code."""

NO_MESSAGES: Final[dict[str, tuple[bytes, int]]] = {
    **{
        f"text with reserved bits {each:03b}": (frame(TEXT, b"{}", reserved=each), PROTOCOL_ERROR)
        for each in range(1, 8)
    },
    "binary with a reserved bit": (frame(BINARY, b"{}", reserved=4), PROTOCOL_ERROR),
    "a ping with a reserved bit": (frame(PING, b"", reserved=2), PROTOCOL_ERROR),
    "a pong with a reserved bit": (frame(PONG, b"", reserved=1), PROTOCOL_ERROR),
    "a reserved bit in a fragment": (
        frame(TEXT, b"{", fin=False) + frame(CONTINUATION, b"}", reserved=1),
        PROTOCOL_ERROR,
    ),
    "a continuation of nothing": (frame(CONTINUATION, b"{}"), PROTOCOL_ERROR),
    "an unfinished continuation of nothing": (frame(CONTINUATION, b"{", fin=False), PROTOCOL_ERROR),
    "a message inside another": (frame(TEXT, b"{", fin=False) + frame(TEXT, b"{}"), PROTOCOL_ERROR),
    "a beginning inside another": (frame(TEXT, b"{", fin=False) + frame(BINARY, b"{", fin=False), PROTOCOL_ERROR),
    "a byte more than the limit": (frame(TEXT, b" " * (MAX_MESSAGE + 1)), TOO_BIG),
    "twice the limit": (frame(BINARY, b" " * 2 * MAX_MESSAGE), TOO_BIG),
    "fragments of more than the limit": (
        frame(TEXT, b" " * MAX_MESSAGE, fin=False) + frame(CONTINUATION, b" ", fin=False),
        TOO_BIG,
    ),
}
"""Frames that make no message: an error, and then the close code."""

NO_OBJECTS: Final[dict[str, tuple[bytes, int]]] = {
    "nothing": (b"", INVALID),
    "a word": (b"hello", INVALID),
    "half an object": (b'{"type": "ping", "ping": 1', INVALID),
    "two objects": (PING_COMMAND * 2, INVALID),
    "a comma too many": (b'{"type": "list",}', INVALID),
    "single quotes": (b"{'type': 'list'}", INVALID),
    "a comment": (b'{"type": "list"} // all', INVALID),
    "a byte order mark": (b"\xef\xbb\xbf" + PING_COMMAND, INVALID),
    "UTF-16": (PING_COMMAND.decode().encode("utf-16"), INVALID),
    "a control character": (b'{"type": "ping", "ping": "\x00"}', INVALID),
    "NaN": (b'{"type": "ping", "ping": NaN}', INVALID),
    "Infinity": (b'{"type": "ping", "ping": -Infinity}', INVALID),
    "a number that begins with 0": (b'{"type": "ping", "ping": 01}', INVALID),
    "a number that ends too early": (b'{"type": "ping", "ping": 1.}', INVALID),
    "half a pair of surrogates": (b'{"type": "ping", "ping": "\\ud83d"}', INVALID),
    "a byte that is not UTF-8": (b'{"type": "ping", "ping": "\xff"}', INVALID),
    "a letter cut in two": (b'{"type": "ping", "ping": "\xc3', INVALID),
    "a letter that is too long": (b'{"type": "ping", "ping": "\xc0\xaf"}', INVALID),
    "a surrogate in UTF-8": (b'{"type": "ping", "ping": "\xed\xa0\x80"}', INVALID),
    "a letter beyond Unicode": (b'{"type": "ping", "ping": "\xf4\x90\x80\x80"}', INVALID),
    "a million brackets": (b"[" * 10**6, TOO_BIG),
    "a million brackets, closed": (b"[" * 10**6 + b"]" * 10**6, TOO_BIG),
    "a million braces": (b'{"a":' * 10**6, TOO_BIG),
    "a ping of a million brackets": (b'{"type": "ping", "ping": ' + b"[" * 10**6 + b"]" * 10**6 + b"}", TOO_BIG),
    "a ping of a million strings": (b'{"type": "ping", "ping": [' + b'"",' * 10**6 + b"0]}", TOO_BIG),
    "an id of a million braces": (
        b'{"type": "list", "id": ' + b'{"a":' * 10**6 + b"1" + b"}" * 10**6 + b"}",
        TOO_BIG,
    ),
    "ten million spaces": (b" " * 10**7, TOO_BIG),
    "an array": (b"[]", UNSUPPORTED),
    "an array of commands": (b"[" + PING_COMMAND + b"]", UNSUPPORTED),
    "a string": (b'"ping"', UNSUPPORTED),
    "a number": (b"1", UNSUPPORTED),
    "a number of a million digits": (b"1" * 10**6, UNSUPPORTED),
    "null": (b"null", UNSUPPORTED),
    "true": (b"true", UNSUPPORTED),
}
"""Payloads that are no JSON object: an error, and then the close code."""


Fate = tuple[list[tuple[str, object]], int | None]
"""What somebody was told in the end: types of messages with their `orig`; and the close code."""


async def fate(siege: Siege, pieces: list[bytes], *, after: bool) -> Fate:
    """Say something good, the pieces one by one, and something good again; give what came after the first."""
    socket = await siege.enter()
    socket.say(type="ping", ping="before")
    assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "pong"]
    for piece in pieces:
        socket.write(piece)
    if after:
        socket.say(type="ping", ping="after")
    messages, code = await socket.last_words()
    return [(message["type"], message.get("orig", "nothing")) for message in messages], code


async def fates(siege: Siege, streams: dict[str, list[bytes]], *, after: bool = True) -> dict[str, Fate]:
    """All at once, each on a connection of its own."""
    async with siege.beside_the_pair("broken frames"):
        outcomes = await asyncio.gather(*(fate(siege, pieces, after=after) for pieces in streams.values()))
    return dict(zip(streams, outcomes, strict=True))


async def test_bytes_that_are_no_frame_end_only_their_connection(siege: Siege) -> None:
    streams = {name: [stream] for name, (stream, _) in NO_FRAMES.items()}
    assert await fates(siege, streams, after=False) == {name: ([], code) for name, (_, code) in NO_FRAMES.items()}


async def test_bytes_that_are_no_frame_end_their_connection_also_one_by_one(siege: Siege) -> None:
    streams = {name: [bytes((byte,)) for byte in stream[:40]] for name, (stream, _) in NO_FRAMES.items()}
    for name, (messages, code) in (await fates(siege, streams, after=False)).items():
        assert messages == []
        assert code in {NO_FRAMES[name][1], None}  # the close is drowned where bytes come after the end


async def test_frames_that_make_no_message_get_an_error_and_are_closed(siege: Siege) -> None:
    streams = {name: [stream] for name, (stream, _) in NO_MESSAGES.items()}
    assert await fates(siege, streams) == {name: ([("error", None)], code) for name, (_, code) in NO_MESSAGES.items()}


@pytest.mark.parametrize("opcode", [TEXT, BINARY], ids=["text", "binary"])
async def test_json_that_is_no_object_gets_an_error_and_is_closed(siege: Siege, opcode: int) -> None:
    streams = {name: [frame(opcode, payload)] for name, (payload, _) in NO_OBJECTS.items()}
    assert await fates(siege, streams) == {name: ([("error", None)], code) for name, (_, code) in NO_OBJECTS.items()}


async def test_a_close_is_the_last_thing_that_is_read(siege: Siege) -> None:
    socket = await siege.enter()
    socket.write(close(1000), frame(TEXT, PING_COMMAND) * 1000, close(1001), b"\xff" * 1000)
    messages, code = await socket.last_words()
    assert messages == []
    assert code in {1000, None}  # who goes on after the close may have drowned the answer


# ── what is strange and legal ────────────────────────────────────────────────────────────────────


async def assert_echoed(socket: RawSocket, ping: bytes, stream: bytes) -> None:
    """Say a ping command in these frames; the answer must have the very same text."""
    socket.write(stream)
    assert (await socket.hear())["type"] == "ack"
    _, payload = await socket.read()
    assert b'"pong":' + ping + b"}" in payload.replace(b',"server_tx"', b"},")


HUGE: Final[dict[str, bytes]] = {
    "a million digits": b"1" * 10**6,
    "a million digits after the point": b"0." + b"1" * 10**6,
    "an exponent beyond every float": b"-1e999999999",
    "a string of ten million letters": b'"' + b"x" * (10**7) + b'"',
    "thirty thousand strings": b"[" + b",".join([b'""'] * 30_000) + b"]",
    "nine hundred brackets": b"[" * 900 + b"]" * 900,
    "a NUL": b'"\\u0000"',
}


async def test_huge_json_is_echoed_unchanged(siege: Siege) -> None:
    async with siege.beside_the_pair("huge values"):
        for value in HUGE.values():
            await assert_echoed(await siege.enter(), value, frame(TEXT, b'{"type": "ping", "ping": ' + value + b"}"))


async def test_a_message_may_come_in_hundreds_of_fragments_with_pings_between_them(siege: Siege) -> None:
    value = b'"' + b"x" * 300 + b'"'
    text = b'{"type": "ping", "ping": ' + value + b"}"
    pieces = [frame(CONTINUATION, text[i : i + 1], fin=False) + frame(PING, b"%d" % i) for i in range(len(text))]
    async with siege.beside_the_pair("hundreds of fragments"):
        socket = await siege.enter()
        socket.write(frame(TEXT, fin=False), *pieces)
        while await socket.read() != (PONG, b"%d" % (len(text) - 1)):
            pass  # one pong may answer for many pings (RFC 6455 section 5.5.3)
        await assert_echoed(socket, value, frame(CONTINUATION))
