"""One direction of a WebSocket connection, followed without touching it: RFC 6455 section 5, no I/O."""

from collections.abc import Iterator
from typing import NamedTuple

HEAD_END = b"\r\n\r\n"
CONTINUATION = 0x0
FIRST_CONTROL_OPCODE = 0x8  # RFC 6455 5.5: control frames may stand between the fragments of a message


class Piece(NamedTuple):
    """What can be forwarded as a whole: the HTTP head, a control frame, or all frames of one message."""

    raw: bytes
    payload: bytes | None = None
    """The message, unmasked and put together; None for everything that is not a message."""


class _Frame(NamedTuple):
    raw: bytes
    last: bool
    opcode: int
    payload: bytes


class Follower:
    """Turns the bytes of one direction into pieces; `raw` of all pieces joined is what was fed.

    One liberty: a control frame between two fragments comes out before the message it interrupted.
    """

    def __init__(self) -> None:
        self.head: bytes | None = None
        self._bytes = bytearray()
        self._fragments: list[_Frame] = []

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Yield what DATA completes; raise ValueError when it is not a WebSocket as browsers speak it."""
        self._bytes += data
        if self.head is None:
            end = self._bytes.find(HEAD_END)
            if end < 0:
                return
            self.head = self._take(end + len(HEAD_END))
            yield Piece(self.head)
        while (frame := self._frame()) is not None:
            if frame.opcode >= FIRST_CONTROL_OPCODE:
                yield Piece(frame.raw)
                continue
            if (frame.opcode == CONTINUATION) != bool(self._fragments):
                raise ValueError(f"opcode {frame.opcode} after {len(self._fragments)} fragments")
            self._fragments.append(frame)
            if frame.last:
                whole, self._fragments = self._fragments, []
                yield Piece(b"".join(f.raw for f in whole), b"".join(f.payload for f in whole))

    def _take(self, size: int) -> bytes:
        taken = bytes(self._bytes[:size])
        del self._bytes[:size]
        return taken

    def _frame(self) -> _Frame | None:
        # FIN(1) RSV(3) OPCODE(4) | MASK(1) LENGTH(7) | 0, 2 or 8 bytes of length | 0 or 4 of mask | payload
        data = self._bytes
        if len(data) < 2:
            return None
        if data[0] & 0x70:
            raise ValueError("a reserved bit is set, but no extension was agreed on")
        masked, length, at = bool(data[1] & 0x80), data[1] & 0x7F, 2
        if length >= 126:
            wide = 2 if length == 126 else 8
            if len(data) < at + wide:
                return None
            length, at = int.from_bytes(data[at : at + wide], "big"), at + wide
        start = at + (4 if masked else 0)
        if len(data) < start + length:
            return None
        mask, payload = bytes(data[at:start]), bytes(data[start : start + length])
        if masked:
            payload = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
        first = data[0]
        return _Frame(self._take(start + length), bool(first & 0x80), first & 0x0F, payload)
