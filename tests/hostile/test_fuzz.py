"""Any frames in any order: each stream is read as RFC 6455 has it, to its end or to its first fault."""

from __future__ import annotations

import itertools
import json
import struct
from typing import Final, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.effort import examples
from support.mailbox.raw_socket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, frame
from support.mailbox.siege import Siege

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROTOCOL_ERROR, UNSUPPORTED, INVALID = 1002, 1003, 1007

OBJECT: Final = b'{"type": "ping", "ping": 1}'

FENCE: Final = frame(TEXT, b'{"type": "ping", "ping": "fence"}')
PING_FENCE: Final = frame(PING, b"fence")


class Piece(NamedTuple):
    """A frame as it is written, rightly or wrongly."""

    opcode: int
    payload: bytes
    fin: bool
    reserved: int
    mask: bytes | None
    bits: int
    """In how many its size is written: 7, 16 or 64."""

    def written(self) -> bytes:
        first = self.fin << 7 | self.reserved << 4 | self.opcode
        flag = {7: len(self.payload), 16: 126, 64: 127}[self.bits]
        size = {7: b"", 16: struct.pack(">H", len(self.payload)), 64: struct.pack(">Q", len(self.payload))}[self.bits]
        key = self.mask or bytes(4)
        payload = bytes(byte ^ key[i % 4] for i, byte in enumerate(self.payload))
        return bytes((first, (self.mask is not None) << 7 | flag)) + size + (self.mask or b"") + payload

    def breaks_off(self) -> bool:
        """Return whether the frame reader stops here: it is no frame of a client (RFC 6455 sections 5.1, 5.2 and
        5.5), or a close.
        """
        return (
            self.opcode not in {CONTINUATION, TEXT, BINARY, PING, PONG}
            or self.mask is None
            or self.bits != 7
            or (self.opcode in {PING, PONG} and not self.fin)
        )


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


def due(pieces: list[Piece]) -> tuple[list[str], int | None]:
    """Return the types of all answers to such a stream, up to where the reader breaks off, and the close code."""
    told: list[str] = []
    message: bytes | None = None
    for piece in pieces:
        if piece.reserved:
            return [*told, "error"], PROTOCOL_ERROR
        if piece.opcode in {PING, PONG}:
            continue
        if (piece.opcode == CONTINUATION) != (message is not None):
            return [*told, "error"], PROTOCOL_ERROR
        message = (message or b"") + piece.payload
        if piece.fin:
            heard, code = answers(message)
            told += heard
            if code is not None:
                return told, code
            message = None
    return told, None


PIECES: Final = st.builds(
    Piece,
    st.sampled_from((TEXT, TEXT, BINARY, CONTINUATION, CONTINUATION, CLOSE, PING, PONG)) | st.integers(0, 15),
    st.sampled_from((OBJECT, OBJECT, b"", OBJECT[:9], OBJECT[9:], b"{}", b"\n", b"7", b"\x03\xe8"))
    | st.binary(max_size=20),
    st.sampled_from((True, True, False)),
    st.sampled_from((0,) * 30 + tuple(range(8))),
    st.binary(min_size=4, max_size=4),
    st.sampled_from((7,) * 20 + (16, 64)),
)


@st.composite
def streams(draw: st.DrawFn) -> list[Piece]:
    """Return frames that make sense, mostly: whole messages, in fragments or not, and then anything."""
    pieces: list[Piece] = []
    for _ in range(draw(st.integers(0, 5))):
        cuts = sorted(draw(st.lists(st.integers(0, len(OBJECT)), max_size=3)))
        ends = [*cuts, len(OBJECT)]
        for number, (start, end) in enumerate(zip([0, *cuts], ends, strict=True)):
            opcode = draw(st.sampled_from((TEXT, BINARY))) if number == 0 else CONTINUATION
            mask = draw(st.binary(min_size=4, max_size=4))
            pieces.append(Piece(opcode, OBJECT[start:end], end == ends[-1] and number == len(cuts), 0, mask, 7))
            if draw(st.booleans()):
                pieces.append(Piece(draw(st.sampled_from((PING, PONG))), b"", True, 0, mask, 7))
    pieces += draw(st.lists(PIECES, max_size=4))
    if pieces and not draw(st.integers(0, 9)):
        pieces[-1] = pieces[-1]._replace(mask=None)
    return pieces


def whole(message: bytes) -> Piece:
    return Piece(TEXT, message, True, 0, bytes(4), 7)


@given(pieces=streams(), bite=st.sampled_from((None, None, 1, 7)))
@example(pieces=[whole(OBJECT + b"\n"), whole(b" " + OBJECT)], bite=None)
@example(pieces=[whole(b"{}"), whole(b'{"type": 1}'), whole(b'{"type": "ping"}'), whole(OBJECT)], bite=None)
@example(pieces=[whole(b"[]"), whole(OBJECT)], bite=None)
@example(pieces=[whole(b"NaN"), whole(OBJECT)], bite=None)
@examples(80)
async def test_any_stream_of_frames_is_read_to_its_end_or_its_first_fault(
    siege: Siege, pieces: list[Piece], bite: int | None
) -> None:
    socket = await siege.enter()
    read = list(itertools.takewhile(lambda piece: not piece.breaks_off(), pieces))
    expected, code = due(read)
    stream = b"".join(piece.written() for piece in pieces)
    for start in range(0, len(stream), bite or max(1, len(stream))):
        socket.write(stream[start : start + (bite or len(stream))])
    if len(read) < len(pieces):
        # At once: what was not answered by then is not answered any more.
        told, closed = await socket.last_words()
        last = ["error"] if pieces[len(read)].reserved else []  # a close with reserved bits is read
        assert [each["type"] for each in told] == [*expected, *last][: len(told)]
        assert closed in {code, PROTOCOL_ERROR, UNSUPPORTED, None} or pieces[len(read)].opcode == CLOSE
    elif code is not None:
        socket.write(FENCE)  # an answer to it says at once that the server reads on
        told, closed = await socket.last_words(fence="fence")
        assert [each["type"] for each in told] == expected
        # What begins as a number or a string is closed as one, whatever follows.
        assert closed == code or (closed, code) == (UNSUPPORTED, INVALID)
    else:
        for kind in expected:
            while (heard := await socket.read())[0] == PONG:
                pass
            assert json.loads(heard[1])["type"] == kind
        socket.write(PING_FENCE)
        while (heard := await socket.read()) != (PONG, b"fence"):
            assert heard[0] == PONG
        socket.cut()


async def test_the_honest_pair_beside_the_fuzzing_is_not_affected(siege: Siege) -> None:
    async with siege.beside_the_pair("what is left of it"):
        pass
