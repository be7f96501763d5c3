"""P2P Request Complete: how a Mailserver ends its answer to a request (10/WAKU-MAILSERVER).

    as shipped     ID(32) ‖ last hash(32) [‖ cursor]        one string; no cursor: that was all
                   `ERROR=` ‖ ID(32) ‖ words                one string
    as the text    [ID, last hash, cursor]                  a list; nim-waku

Shipped requesters ignore the list, and read no cursor but one of 36 bytes (waku/mailserver.go:139,155). The last hash
is that of the last envelope that was sent, 32 zeros where there was none.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import msgspec

from restante.waku.envelope import rlp
from restante.waku.protocol.packets import HASH
from restante.waku.protocol.request import ID, Answer

NOTHING: Final = bytes(HASH)
"""The last hash of an answer without envelopes."""

ERROR: Final = b"ERROR="

LASTING: Final = {
    "failed to decrypt": "it has another password",
    "failed to decode": "it does not read requests of this form",
    "check message signature failed": "it wants requests to be signed",
    "this server takes no": "ask it in the other form",
    "this server serves those": "it does not know our key",
    "PoW too low": "it asks for more work",
    "request is invalid": "",
    "query range is invalid": "",
}
"""How refusals begin, of shipped servers and ours, that the same request will always be answered with, and what they
mean. Any other may pass: a rate, a full line, a disk."""

MOST: Final = 1024
"""Bytes of words or of a cursor that are read; what a cursor is, is up to the server."""


class Completed(msgspec.Struct, frozen=True):
    """All that is to come of a page was sent."""

    id: bytes
    last: bytes = NOTHING
    """The hash of the last envelope of it."""
    cursor: bytes = b""
    """Where the next page begins; none where there is none."""


class Failed(msgspec.Struct, frozen=True):
    """The server does not answer the request, and says why."""

    id: bytes
    words: str
    """What cannot be printed is escaped."""

    @property
    def lasts(self) -> bool:
        """Whether to ask again is no use."""
        return any(map(self.words.startswith, LASTING))

    @property
    def plainly(self) -> str:
        """The words, and what is known to be meant by them."""
        meant = next((meaning for begin, meaning in LASTING.items() if self.words.startswith(begin)), "")
        return f"{self.words}: {meant}" if meant else self.words


def complete(id: bytes, last: bytes = NOTHING, cursor: bytes = b"", answer: Answer = "string") -> bytes:  # noqa: A002
    """Write the end of a page."""
    return rlp.encode([id, last, cursor] if answer == "list" else id + last + cursor)


def failure(id: bytes, words: str) -> bytes:  # noqa: A002 - the wire's word
    """Write a refusal."""
    return rlp.encode(ERROR + id + words.encode())


def read(payload: bytes, asked: Container[bytes] = ()) -> Completed | Failed:
    """Read a P2P Request Complete. Raises RlpError.

    `asked` are the ids that are waited for: one of them may begin with the bytes that mark a refusal.
    """
    whole = rlp.span(payload)
    if whole.is_list:
        return _list(payload, whole)
    body = payload[whole.start : whole.stop]
    if body.startswith(ERROR) and len(body) >= len(ERROR) + ID and body[:ID] not in asked:
        return Failed(body[len(ERROR) : len(ERROR) + ID], _printable(body[len(ERROR) + ID :][:MOST]))
    if len(body) != ID and not ID + HASH <= len(body) <= ID + HASH + MOST:
        raise rlp.RlpError("the end of an answer has an id, the hash of an envelope and a cursor")
    return Completed(body[:ID], body[ID : ID + HASH] or NOTHING, body[ID + HASH :])


def _list(payload: bytes, whole: rlp.Span) -> Completed:
    if whole.stop - whole.at > 2 * MOST:
        raise rlp.RlpError("the end of an answer is too long")
    fields = rlp.items(rlp.decode(payload[whole.at : whole.stop]), 1, 2, 3)
    id_ = rlp.string(fields[0], ID)
    last = rlp.string(fields[1], 0, HASH) if len(fields) > 1 else b""
    cursor = rlp.string(fields[2]) if len(fields) > 2 else b""
    return Completed(id_, last or NOTHING, cursor)


def _printable(words: bytes) -> str:
    """Read words that a stranger wrote, for somebody's terminal."""
    text = words.decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
