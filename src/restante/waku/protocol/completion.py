"""P2P Request Complete: how a Mailserver ends its answer to a request (10/WAKU-MAILSERVER).

    as shipped     ID(32) ‖ last hash(32) [‖ cursor]        one string; no cursor: no more pages
                   `ERROR=` ‖ ID(32) ‖ words                one string
    as specified   [ID, last hash, cursor]                  a list; nim-waku

Shipped requesters ignore the list, and accept only cursors of 36 bytes (waku/mailserver.go:139,155). The last hash is
the hash of the last envelope sent, or 32 zeros if none was sent.
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
    "failed to decrypt": "the server uses another password",
    "failed to decode": "the server does not support requests of this form",
    "check message signature failed": "the server requires signed requests",
    "this server takes no": "use the other form of requests",
    "this server serves those": "the server does not accept this key",
    "PoW too low": "the server requires more proof of work",
    "request is invalid": "",
    "query range is invalid": "",
}
"""How permanent refusals begin, from shipped servers and from this one, and their explanations. The server will
always refuse the same request. Any other refusal may be temporary: a rate limit, a full queue, a disk error."""

MAX_WORDS_BYTES: Final = 1024
"""Maximum bytes of the words and of a cursor that are read. The server chooses the format of its cursors."""


class Completed(msgspec.Struct, frozen=True):
    """The server has sent everything that belongs to a page."""

    id: bytes
    last: bytes = NO_HASH
    """The hash of the page's last envelope."""
    cursor: bytes = b""
    """The cursor of the next page; empty if there is none."""


class Failed(msgspec.Struct, frozen=True):
    """The server refuses the request, with its reason."""

    id: bytes
    words: str
    """The server's reason. Unprintable characters are escaped."""

    @property
    def lasts(self) -> bool:
        """Whether the server will always refuse the same request."""
        return any(map(self.words.startswith, PERMANENT_REFUSALS))

    @property
    def plainly(self) -> str:
        """The server's reason, and its explanation if it is known."""
        meant = next((meaning for begin, meaning in PERMANENT_REFUSALS.items() if self.words.startswith(begin)), "")
        return f"{self.words}: {meant}" if meant else self.words


def complete(id: bytes, last: bytes = NO_HASH, cursor: bytes = b"", answer: Answer = "string") -> bytes:  # noqa: A002
    """Return the payload that ends a page."""
    return rlp.encode([id, last, cursor] if answer == "list" else id + last + cursor)


def failure(id: bytes, words: str) -> bytes:  # noqa: A002 - the protocol's name
    """Return the payload of a refusal."""
    return rlp.encode(ERROR_PREFIX + id + words.encode())


def read(payload: bytes, asked: Container[bytes] = ()) -> Completed | Failed:
    """Parse a P2P Request Complete. Raises RlpError.

    `asked` has the ids of pending requests. An id may begin with the bytes that mark a refusal.
    """
    whole = rlp.item_span(payload)
    if whole.is_list:
        return _list(payload, whole)
    body = payload[whole.start : whole.stop]
    if body.startswith(ERROR_PREFIX) and len(body) >= len(ERROR_PREFIX) + ID_BYTES and body[:ID_BYTES] not in asked:
        return Failed(
            body[len(ERROR_PREFIX) : len(ERROR_PREFIX) + ID_BYTES],
            _printable(body[len(ERROR_PREFIX) + ID_BYTES :][:MAX_WORDS_BYTES]),
        )
    if len(body) != ID_BYTES and not ID_BYTES + HASH_BYTES <= len(body) <= ID_BYTES + HASH_BYTES + MAX_WORDS_BYTES:
        raise rlp.RlpError("a P2P Request Complete has an id, the hash of an envelope and a cursor")
    return Completed(
        body[:ID_BYTES], body[ID_BYTES : ID_BYTES + HASH_BYTES] or NO_HASH, body[ID_BYTES + HASH_BYTES :]
    )


def _list(payload: bytes, whole: rlp.ItemSpan) -> Completed:
    if whole.stop - whole.at > 2 * MAX_WORDS_BYTES:
        raise rlp.RlpError("a P2P Request Complete is too long")
    fields = rlp.items(rlp.decode(payload[whole.at : whole.stop]), 1, 2, 3)
    id_ = rlp.string(fields[0], ID_BYTES)
    last = rlp.string(fields[1], 0, HASH_BYTES) if len(fields) > 1 else b""
    cursor = rlp.string(fields[2]) if len(fields) > 2 else b""
    return Completed(id_, last or NO_HASH, cursor)


def _printable(words: bytes) -> str:
    """Return a stranger's text with unprintable characters escaped, so that it can be shown in a terminal."""
    text = words.decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
