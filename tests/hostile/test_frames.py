"""Bytes that are no frame, frames that are no message, messages that are no object; and frames in any order."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from restante.mailbox.core.limits import Limits
from support.effort import examples
from support.mailbox.raw_socket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, frame
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
    "a byte order mark": (b"\xef\xbb\xbf" + PING_COMMAND, INVALID),
    "UTF-16": (PING_COMMAND.decode().encode("utf-16"), INVALID),
    "a control character": (b'{"type": "ping", "ping": "\x00"}', INVALID),
    "Infinity": (b'{"type": "ping", "ping": -Infinity}', INVALID),
    "a byte that is not UTF-8": (b'{"type": "ping", "ping": "\xff"}', INVALID),
    "a letter cut in two": (b'{"type": "ping", "ping": "\xc3', INVALID),
    "a letter that is too long": (b'{"type": "ping", "ping": "\xc0\xaf"}', INVALID),
    "a surrogate in UTF-8": (b'{"type": "ping", "ping": "\xed\xa0\x80"}', INVALID),
    "a letter beyond Unicode": (b'{"type": "ping", "ping": "\xf4\x90\x80\x80"}', INVALID),
    "a million brackets": (b"[" * 10**6, TOO_BIG),
    "a ping of a million strings": (b'{"type": "ping", "ping": [' + b'"",' * 10**6 + b"0]}", TOO_BIG),
    "an id of a million braces": (
        b'{"type": "list", "id": ' + b'{"a":' * 10**6 + b"1" + b"}" * 10**6 + b"}",
        TOO_BIG,
    ),
    "ten million spaces": (b" " * 10**7, TOO_BIG),
    "an array of commands": (b"[" + PING_COMMAND + b"]", UNSUPPORTED),
    "a string": (b'"ping"', UNSUPPORTED),
    "a number of a million digits": (b"1" * 10**6, UNSUPPORTED),
    "null": (b"null", UNSUPPORTED),
    "true": (b"true", UNSUPPORTED),
}
"""Payloads that are no JSON object: an error, and then the close code."""

TABLES: Final = {
    "no frames": (NO_FRAMES, []),
    "no messages": (NO_MESSAGES, [("error", None)]),
    **{
        f"no objects, {kind}": (
            {name: (frame(opcode, payload), code) for name, (payload, code) in NO_OBJECTS.items()},
            [("error", None)],
        )
        for kind, opcode in (("text", TEXT), ("binary", BINARY))
    },
}
"""Each with what the client is told before the close."""


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


async def fates(siege: Siege, streams: dict[str, list[bytes]], *, after: bool) -> dict[str, Fate]:
    """All at once, each on a connection of its own."""
    async with siege.beside_the_pair("broken frames"):
        outcomes = await asyncio.gather(*(fate(siege, pieces, after=after) for pieces in streams.values()))
    return dict(zip(streams, outcomes, strict=True))


@pytest.mark.parametrize("kind", TABLES)
async def test_what_is_no_message_ends_only_its_connection(siege: Siege, kind: str) -> None:
    table, messages = TABLES[kind]
    outcomes = await fates(siege, {name: [stream] for name, (stream, _) in table.items()}, after=bool(messages))
    assert outcomes == {name: (messages, code) for name, (_, code) in table.items()}


async def test_bytes_that_are_no_frame_end_their_connection_also_one_by_one(siege: Siege) -> None:
    streams = {name: [bytes((byte,)) for byte in stream[:40]] for name, (stream, _) in NO_FRAMES.items()}
    for name, (messages, code) in (await fates(siege, streams, after=False)).items():
        assert messages == []
        assert code in {NO_FRAMES[name][1], None}  # the close is drowned where bytes come after the end


async def test_a_message_that_is_too_big_is_refused_with_the_limit(siege: Siege) -> None:
    socket = await siege.enter()
    socket.write(frame(TEXT, b" " * (MAX_MESSAGE + 1)))
    [refused], code = await socket.last_words()
    assert (refused["error"], refused["hint"]) == ("the message is too big", "a message has at most 10485760 bytes")
    assert code == TOO_BIG


async def test_a_close_is_the_last_thing_that_is_read(siege: Siege) -> None:
    socket = await siege.enter()
    socket.write(close(1000), frame(TEXT, PING_COMMAND) * 1000, close(1001), b"\xff" * 1000)
    messages, code = await socket.last_words()
    assert messages == []
    assert code in {1000, None}  # who goes on after the close may have drowned the answer


# ── any frames in any order: read as RFC 6455 has it, to the end or to the first fault ───────────

Written = tuple[int, bytes, bool, int]
"""A frame: its opcode and payload, whether it is the last of its message, and its reserved bits."""

OBJECT: Final = b'{"type": "ping", "ping": 1}'


def answers(message: bytes) -> tuple[list[str], int | None]:
    """Return the types of the answers to a client that is not bound, and the close code, if it is closed."""
    try:
        value = json.loads(message.decode(), parse_constant=int)  # NaN is no JSON: int("NaN") raises ValueError
    except ValueError:
        return ["error"], INVALID
    if not isinstance(value, dict):
        return ["error"], UNSUPPORTED
    if "type" not in value:
        return ["error"], None
    return ["ack", "pong" if value["type"] == "ping" and "ping" in value else "error"], None


def due(frames: list[Written]) -> tuple[list[str], int | None]:
    """Return the types of all answers to such a stream, and the close code, if it is closed."""
    types: list[str] = []
    message: bytes | None = None
    for opcode, payload, fin, reserved in frames:
        if reserved:
            return [*types, "error"], PROTOCOL_ERROR
        if opcode in {PING, PONG}:
            continue
        if (opcode == CONTINUATION) != (message is not None):
            return [*types, "error"], PROTOCOL_ERROR
        message = (message or b"") + payload
        if fin:
            heard, code = answers(message)
            types += heard
            if code is not None:
                return types, code
            message = None
    return types, None


CONTROLS: Final = st.tuples(st.sampled_from((PING, PONG)), st.binary(max_size=20), st.just(True), st.just(0))
ANY_FRAMES: Final = CONTROLS | st.tuples(
    st.sampled_from((TEXT, TEXT, BINARY, CONTINUATION, CONTINUATION)),
    st.sampled_from((OBJECT, OBJECT, b"", OBJECT[:9], OBJECT[9:], b"{}", b"\n", b"7")) | st.binary(max_size=20),
    st.sampled_from((True, True, False)),
    st.sampled_from((0,) * 30 + tuple(range(8))),
)


@st.composite
def streams(draw: st.DrawFn) -> list[Written]:
    """Return frames that make sense, mostly: whole messages, in fragments or not, and then anything."""
    frames: list[Written] = []
    for _ in range(draw(st.integers(0, 5))):
        cuts = [0, *sorted(draw(st.lists(st.integers(0, len(OBJECT)), max_size=3))), len(OBJECT)]
        for number, start in enumerate(cuts[:-1]):
            opcode = CONTINUATION if number else draw(st.sampled_from((TEXT, BINARY)))
            frames.append((opcode, OBJECT[start : cuts[number + 1]], number == len(cuts) - 2, 0))
            frames += draw(st.lists(CONTROLS, max_size=1))
    return frames + draw(st.lists(ANY_FRAMES, max_size=4))


def texts(*payloads: bytes) -> list[Written]:
    return [(TEXT, payload, True, 0) for payload in payloads]


@given(frames=streams(), bite=st.sampled_from((None, None, 1, 7)))
@example(frames=texts(OBJECT + b"\n", b" " + OBJECT), bite=None)
@example(frames=texts(b"{}", b'{"type": 1}', b'{"type": "ping"}', OBJECT), bite=None)
@example(frames=texts(b"[]", OBJECT), bite=None)
@example(frames=texts(b"NaN", OBJECT), bite=None)
@examples(80)
async def test_any_stream_of_frames_is_read_to_its_end_or_its_first_fault(
    siege: Siege, frames: list[Written], bite: int | None
) -> None:
    socket = await siege.enter()
    expected, code = due(frames)
    stream = b"".join(frame(opcode, data, fin=fin, reserved=reserved) for opcode, data, fin, reserved in frames)
    for start in range(0, len(stream), bite or max(1, len(stream))):
        socket.write(stream[start : start + (bite or len(stream))])
    if code is not None:
        socket.say(type="ping", ping="fence")  # an answer to it says at once that the server reads on
        told, closed = await socket.last_words(fence="fence")
        assert [each["type"] for each in told] == expected
        # What begins as a number or a string is closed as one, whatever follows.
        assert closed == code or (closed, code) == (UNSUPPORTED, INVALID)
    else:
        for kind in expected:
            while (heard := await socket.read())[0] == PONG:
                pass
            assert json.loads(heard[1])["type"] == kind
        socket.write(frame(PING, b"the fence"))
        while (heard := await socket.read()) != (PONG, b"the fence"):
            assert heard[0] == PONG
        socket.cut()
