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
from restante.waku.protocol.packets import HASH_BYTES
from restante.waku.protocol.request import ID_BYTES, Answer

NO_HASH: Final = bytes(HASH_BYTES)
"""The last hash of an answer without envelopes."""

ERROR_PREFIX: Final = b"ERROR="

PERMANENT_REFUSALS: Final = {
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

MAX_WORDS_BYTES: Final = 1024
"""Bytes of words or of a cursor that are read; what a cursor is, is up to the server."""


class Completed(msgspec.Struct, frozen=True):
    """All that is to come of a page was sent."""

    id: bytes
    last: bytes = NO_HASH
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
        return any(map(self.words.startswith, PERMANENT_REFUSALS))

    @property
    def plainly(self) -> str:
        """The words, and what is known to be meant by them."""
        meant = next((meaning for begin, meaning in PERMANENT_REFUSALS.items() if self.words.startswith(begin)), "")
        return f"{self.words}: {meant}" if meant else self.words


def complete(id: bytes, last: bytes = NO_HASH, cursor: bytes = b"", answer: Answer = "string") -> bytes:  # noqa: A002
    """Write the end of a page."""
    return rlp.encode([id, last, cursor] if answer == "list" else id + last + cursor)


def failure(id: bytes, words: str) -> bytes:  # noqa: A002 - the wire's word
    """Write a refusal."""
    return rlp.encode(ERROR_PREFIX + id + words.encode())


def read(payload: bytes, asked: Container[bytes] = ()) -> Completed | Failed:
    """Read a P2P Request Complete. Raises RlpError.

    `asked` are the ids that are waited for: one of them may begin with the bytes that mark a refusal.
    """
    whole = rlp.span(payload)
    if whole.is_list:
        return _list(payload, whole)
    body = payload[whole.start : whole.stop]
    if body.startswith(ERROR_PREFIX) and len(body) >= len(ERROR_PREFIX) + ID_BYTES and body[:ID_BYTES] not in asked:
        return Failed(
            body[len(ERROR_PREFIX) : len(ERROR_PREFIX) + ID_BYTES],
            _printable(body[len(ERROR_PREFIX) + ID_BYTES :][:MAX_WORDS_BYTES]),
        )
    if len(body) != ID_BYTES and not ID_BYTES + HASH_BYTES <= len(body) <= ID_BYTES + HASH_BYTES + MAX_WORDS_BYTES:
        raise rlp.RlpError("the end of an answer has an id, the hash of an envelope and a cursor")
    return Completed(
        body[:ID_BYTES], body[ID_BYTES : ID_BYTES + HASH_BYTES] or NO_HASH, body[ID_BYTES + HASH_BYTES :]
    )


def _list(payload: bytes, whole: rlp.Span) -> Completed:
    if whole.stop - whole.at > 2 * MAX_WORDS_BYTES:
        raise rlp.RlpError("the end of an answer is too long")
    fields = rlp.items(rlp.decode(payload[whole.at : whole.stop]), 1, 2, 3)
    id_ = rlp.string(fields[0], ID_BYTES)
    last = rlp.string(fields[1], 0, HASH_BYTES) if len(fields) > 1 else b""
    cursor = rlp.string(fields[2]) if len(fields) > 2 else b""
    return Completed(id_, last or NO_HASH, cursor)


def _printable(words: bytes) -> str:
    """Read words that a stranger wrote, for somebody's terminal."""
    text = words.decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
