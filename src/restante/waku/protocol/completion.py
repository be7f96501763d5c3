"""P2P Request Complete: how a Mailserver ends its answer to a request (10/WAKU-MAILSERVER).

    as shipped     ID(32) ‖ last hash(32) [‖ cursor]        one string; no cursor: no more pages
                   `ERROR=` ‖ ID(32) ‖ reason               one string
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
from restante.waku.protocol.request import (
    ID_BYTES,
    NO_PLAIN_REQUESTS,
    NO_SEALED_REQUESTS,
    NOT_ALLOWED,
    CompletionForm,
)

NO_HASH: Final = bytes(HASH_BYTES)
"""The last hash of an answer without envelopes."""

ERROR_PREFIX: Final = b"ERROR="

PERMANENT_REFUSALS: Final = {
    "failed to decrypt": "the server uses another password",
    "failed to decode": "the server does not support requests of this form",
    "check message signature failed": "the server requires signed requests",
    NO_PLAIN_REQUESTS: "use the other form of requests",
    NO_SEALED_REQUESTS: "use the other form of requests",
    NOT_ALLOWED: "the server does not accept this key",
    "PoW too low": "the server requires more proof of work",
    "request is invalid": "",
    "query range is invalid": "",
}
"""How permanent refusals begin, from shipped servers and from this one, and their explanations. The server will
always refuse the same request. Any other refusal may be temporary: a rate limit, a full queue, a disk error."""

MAX_REASON_BYTES: Final = 1024
"""Maximum bytes of the reason and of a cursor that are read. The server chooses the format of its cursors."""


class Completed(msgspec.Struct, frozen=True):
    """The server has sent everything that belongs to a page."""

    id: bytes
    last_hash: bytes = NO_HASH
    """The hash of the page's last envelope."""
    cursor: bytes = b""
    """The cursor of the next page; empty if there is none."""


class RequestRefused(msgspec.Struct, frozen=True):
    """The server refuses the request, with its reason."""

    id: bytes
    reason: str
    """The server's reason. Unprintable characters are escaped."""

    @property
    def is_permanent(self) -> bool:
        """Whether the server will always refuse the same request."""
        return any(map(self.reason.startswith, PERMANENT_REFUSALS))

    @property
    def explained(self) -> str:
        """The server's reason, and its explanation if there is one."""
        for begin, explanation in PERMANENT_REFUSALS.items():
            if explanation and self.reason.startswith(begin):
                return f"{self.reason}: {explanation}"
        return self.reason


def encode(id: bytes, last_hash: bytes = NO_HASH, cursor: bytes = b"", answer: CompletionForm = "string") -> bytes:  # noqa: A002
    """Return the payload that ends a page."""
    return rlp.encode([id, last_hash, cursor] if answer == "list" else id + last_hash + cursor)


def encode_refusal(id: bytes, reason: str) -> bytes:  # noqa: A002 - the protocol's name
    """Return the payload of a refusal."""
    return rlp.encode(ERROR_PREFIX + id + reason.encode())


def parse(payload: bytes, pending_ids: Container[bytes] = ()) -> Completed | RequestRefused:
    """Parse a P2P Request Complete. Raises RlpError.

    `pending_ids` are the ids of pending requests. An id may begin with the bytes that mark a refusal.
    """
    span = rlp.item_span(payload)
    if span.is_list:
        return _parse_list(payload, span)
    body = payload[span.start : span.stop]
    is_pending = body[:ID_BYTES] in pending_ids
    if body.startswith(ERROR_PREFIX) and len(body) >= len(ERROR_PREFIX) + ID_BYTES and not is_pending:
        return RequestRefused(
            body[len(ERROR_PREFIX) : len(ERROR_PREFIX) + ID_BYTES],
            _escape(body[len(ERROR_PREFIX) + ID_BYTES :][:MAX_REASON_BYTES]),
        )
    if len(body) != ID_BYTES and not ID_BYTES + HASH_BYTES <= len(body) <= ID_BYTES + HASH_BYTES + MAX_REASON_BYTES:
        raise rlp.RlpError("a P2P Request Complete has an id, the hash of an envelope and a cursor")
    return Completed(
        body[:ID_BYTES], body[ID_BYTES : ID_BYTES + HASH_BYTES] or NO_HASH, body[ID_BYTES + HASH_BYTES :]
    )


def _parse_list(payload: bytes, span: rlp.ItemSpan) -> Completed:
    if span.stop - span.at > 2 * MAX_REASON_BYTES:
        raise rlp.RlpError("a P2P Request Complete is too long")
    fields = rlp.items(rlp.decode(payload[span.at : span.stop]), 1, 2, 3)
    id_ = rlp.string(fields[0], ID_BYTES)
    last_hash = rlp.string(fields[1], 0, HASH_BYTES) if len(fields) > 1 else b""
    cursor = rlp.string(fields[2]) if len(fields) > 2 else b""
    return Completed(id_, last_hash or NO_HASH, cursor)


def _escape(encoded: bytes) -> str:
    """Return a stranger's text with unprintable characters escaped, so that it can be shown in a terminal."""
    text = encoded.decode("utf-8", "backslashreplace")
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
