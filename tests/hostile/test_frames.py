"""Bytes that are no frame, frames that are no message, messages that are no object; and messages in any frames."""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hostile.conftest import Siege
from restante.mailbox.core.limits import Limits
from support.effort import examples
from support.mailbox.raw_socket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, frame

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_MESSAGE: Final = 10 << 20
"""More than the default, for the reader's sake."""

LIMITS: Final = replace(Limits(), message_bytes=MAX_MESSAGE)

PROTOCOL_ERROR, UNSUPPORTED, INVALID, TOO_BIG = 1002, 1003, 1007, 1009

PING_COMMAND: Final = b'{"type": "ping", "ping": "now?"}'


def declared(size: int, bits: int, payload: bytes = b"") -> bytes:
    flag, form = {16: (126, ">H"), 64: (127, ">Q")}[bits]
    return bytes((0x80 | TEXT, 0x80 | flag)) + struct.pack(form, size) + bytes(4) + payload


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack(">H", code) + reason)


NO_FRAMES: Final[dict[str, tuple[bytes, int]]] = {
    **{f"opcode {code}": (frame(code, b"{}"), PROTOCOL_ERROR) for code in (*range(3, 8), *range(11, 16))},
    "unmasked text": (frame(TEXT, PING_COMMAND, mask=False), PROTOCOL_ERROR),
    "a ping in fragments": (frame(PING, b"now?", fin=False), PROTOCOL_ERROR),
    "a ping of 126 bytes": (frame(PING, bytes(126)), PROTOCOL_ERROR),
    "a pong of 64 KiB": (frame(PONG, bytes(1 << 16)), PROTOCOL_ERROR),
    "5 bytes, said in 16 bits": (declared(5, 16, b"12345"), PROTOCOL_ERROR),
    "64 KiB less one, said in 64 bits": (declared((1 << 16) - 1, 64), PROTOCOL_ERROR),
    "2⁶³ bytes": (declared(1 << 63, 64), PROTOCOL_ERROR),
    "2⁶³ bytes less one": (declared((1 << 63) - 1, 64), TOO_BIG),
    "a byte more than twice the limit": (declared(2 * MAX_MESSAGE + 1, 64), TOO_BIG),
    "a close of one byte": (frame(CLOSE, b"\x03"), PROTOCOL_ERROR),
    **{f"close {code}": (close(code), PROTOCOL_ERROR) for code in (999, 1004, 1005, 1006, 1015, 2999)},
    "a close whose reason is not UTF-8": (close(1000, b"\xff"), INVALID),
    "a stream of zeros": (bytes(1000), PROTOCOL_ERROR),
}
"""Bytes that the frame reader does not take, and the close code."""

NO_MESSAGES: Final[dict[str, tuple[bytes, int]]] = {
    **{f"reserved bits {bits:03b}": (frame(TEXT, b"{}", reserved=bits), PROTOCOL_ERROR) for bits in range(1, 8)},
    "binary with a reserved bit": (frame(BINARY, b"{}", reserved=4), PROTOCOL_ERROR),
    "a ping with a reserved bit": (frame(PING, b"", reserved=2), PROTOCOL_ERROR),
    "a later reserved bit": (frame(TEXT, b"{", fin=False) + frame(CONTINUATION, b"}", reserved=1), PROTOCOL_ERROR),
    "a continuation of nothing": (frame(CONTINUATION, b"{}"), PROTOCOL_ERROR),
    "a message inside another": (frame(TEXT, b"{", fin=False) + frame(TEXT, b"{}"), PROTOCOL_ERROR),
    "a byte more than the limit": (frame(TEXT, b" " * (MAX_MESSAGE + 1)), TOO_BIG),
    "fragments of more than the limit": (
        frame(TEXT, b" " * MAX_MESSAGE, fin=False) + frame(CONTINUATION, b" ", fin=False),
        TOO_BIG,
    ),
}
"""Frames that make no message: an error, and then the close code."""

NO_OBJECTS: Final[dict[str, tuple[bytes, int]]] = {
    "half an object": (b'{"type": "ping", "ping": 1', INVALID),
    "two objects": (PING_COMMAND * 2, INVALID),
    "UTF-16": (PING_COMMAND.decode().encode("utf-16"), INVALID),
    "a control character": (b'{"type": "ping", "ping": "\x00"}', INVALID),
    "a byte that is not UTF-8": (b'{"type": "ping", "ping": "\xff"}', INVALID),
    "a surrogate in UTF-8": (b'{"type": "ping", "ping": "\xed\xa0\x80"}', INVALID),
    "a million brackets": (b"[" * 10**6, TOO_BIG),
    "a ping of a million strings": (b'{"type": "ping", "ping": [' + b'"",' * 10**6 + b"0]}", TOO_BIG),
    "an id of a million braces": (b'{"type": "list", "id": ' + b'{"a":' * 10**6 + b"1" + b"}" * (10**6 + 1), TOO_BIG),
    "ten million spaces": (b" " * 10**7, TOO_BIG),
    "an array of commands": (b"[" + PING_COMMAND + b"]", UNSUPPORTED),
    "a number of a million digits": (b"1" * 10**6, UNSUPPORTED),
}
"""Payloads that are no JSON object: an error, and then the close code."""

TABLES: Final = {
    "no frames": NO_FRAMES,
    "no messages": NO_MESSAGES,
    "no objects, text": {name: (frame(TEXT, payload), code) for name, (payload, code) in NO_OBJECTS.items()},
    "no objects, binary": {name: (frame(BINARY, payload), code) for name, (payload, code) in NO_OBJECTS.items()},
}

Fate = tuple[list[tuple[str, object]], int | None]
"""What somebody was told in the end: types of messages with their `orig`; and the close code."""


async def fate(siege: Siege, pieces: list[bytes], *, after: bool) -> Fate:
    socket = await siege.live.enter()
    socket.say(type="ping", ping="before")
    assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "pong"]
    for piece in pieces:
        socket.write(piece)
    if after:
        socket.say(type="ping", ping="after")
    messages, code = await socket.last_words()
    return [(message["type"], message.get("orig", "nothing")) for message in messages], code


async def fates(siege: Siege, streams: dict[str, list[bytes]], *, after: bool) -> dict[str, Fate]:
    async with siege.beside_the_pair("broken frames"):
        outcomes = await asyncio.gather(*(fate(siege, pieces, after=after) for pieces in streams.values()))
    return dict(zip(streams, outcomes, strict=True))


@pytest.mark.parametrize("kind", TABLES)
async def test_what_is_no_message_ends_only_its_connection(siege: Siege, kind: str) -> None:
    table, messages = TABLES[kind], [] if kind == "no frames" else [("error", None)]
    outcomes = await fates(siege, {name: [stream] for name, (stream, _) in table.items()}, after=bool(messages))
    assert outcomes == {name: (messages, code) for name, (_, code) in table.items()}


async def test_bytes_that_are_no_frame_end_their_connection_also_one_by_one(siege: Siege) -> None:
    streams = {name: [bytes((byte,)) for byte in stream[:40]] for name, (stream, _) in NO_FRAMES.items()}
    for name, (messages, code) in (await fates(siege, streams, after=False)).items():
        assert messages == []
        assert code in {NO_FRAMES[name][1], None}  # the close is drowned where bytes come after the end


async def test_a_close_is_the_last_thing_that_is_read(siege: Siege) -> None:
    socket = await siege.live.enter()
    socket.write(close(1000), frame(TEXT, PING_COMMAND) * 1000, close(1001), b"\xff" * 1000)
    messages, code = await socket.last_words()
    assert messages == []
    assert code in {1000, None}  # who goes on after the close may have drowned the answer


MESSAGES: Final = {
    b'{"type": "ping", "ping": 1}': ["ack", "pong"],
    b'\n{"ping": "\xc3\xa9",\t"type": "ping"} ': ["ack", "pong"],
    b'{"type": "ping"}': ["ack", "error"],
    b'{"type": 1}': ["ack", "error"],
    b"{}": ["error"],
}

CONTROLS: Final = st.lists(st.builds(frame, st.sampled_from((PING, PONG)), st.binary(max_size=20)), max_size=1)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    stream, types = b"", []
    for message in draw(st.lists(st.sampled_from(sorted(MESSAGES)), max_size=5)):
        cuts = [0, *sorted(draw(st.lists(st.integers(0, len(message)), max_size=3))), len(message)]
        for number, (start, end) in enumerate(itertools.pairwise(cuts), 2):
            opcode = CONTINUATION if number > 2 else draw(st.sampled_from((TEXT, BINARY)))
            stream += b"".join(draw(CONTROLS)) + frame(opcode, message[start:end], fin=number == len(cuts))
        types += MESSAGES[message]
    return stream, types


@given(sent=streams(), bite=st.sampled_from((None, None, 1, 7)))
@examples(80)
async def test_messages_may_come_in_any_frames(siege: Siege, sent: tuple[bytes, list[str]], bite: int | None) -> None:
    socket = await siege.live.enter()
    stream, types = sent
    for start in range(0, len(stream), bite or max(1, len(stream))):
        socket.write(stream[start : start + (bite or len(stream))])
    socket.write(frame(PING, b"the fence"))
    answers = []
    while (answer := await socket.read()) != (PONG, b"the fence"):
        answers += [json.loads(answer[1])["type"]] if answer[0] == TEXT else []
    while len(answers) < len(types):  # a pong may come before what waits for a batch
        answers.append((await socket.hear())["type"])
    assert answers == types
    socket.cut()
