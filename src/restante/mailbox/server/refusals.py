"""Refusals for lack of permission or room: the server's words for them, and their short names in metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from restante.mailbox.core import admission, quotas, rules
from restante.mailbox.core.session import DENIED
from restante.mailbox.protocol.parsing import TOO_EXPENSIVE

TOO_MANY_WITHOUT_REQUEST: Final = "too many connections without a request"
"""Log text for an address that has as many connections without a request as it may have with one."""

NO_ROOM_FOR_REQUESTS: Final = "there is no room for connections without a request"
"""Log text for an address whose connections without a request are closed for the memory that they take."""

TOO_MANY_HANDSHAKES: Final = "too many TLS handshakes from an address"
"""Log text for an address whose connection is closed before another TLS handshake."""

NO_PROXY_HEADER: Final = "no valid PROXY header of a trusted proxy"
"""Log text for a connection that did not begin with the header that its port demands (--listen proxy:)."""

NOT_READ: Final = "what was sent was not read"
NO_ROOM_FOR_LARGE: Final = "there is no room for large messages"
"""Why a connection is closed, for the client and for the log."""

TOO_BIG: Final = "the message is too big"
MUST_BIND: Final = "must bind first"
"""Errors for a message above `message_bytes`, and for a client that did not bind in time."""

REASONS: Final = {
    admission.TOO_MANY_CONNECTIONS: "connections",
    admission.TOO_MANY_FROM_ADDRESS: "address_connections",
    TOO_MANY_WITHOUT_REQUEST: "address_requests",
    NO_ROOM_FOR_REQUESTS: "no_room_for_requests",
    TOO_MANY_HANDSHAKES: "address_handshakes",
    NO_PROXY_HEADER: "no_proxy_header",
    NO_ROOM_FOR_LARGE: "no_room_for_large_messages",
    NOT_READ: "not_read",
    MUST_BIND: "bind",
    TOO_BIG: "message_bytes",
    TOO_EXPENSIVE: "message_cost",
    DENIED: "permission",
    quotas.TOO_MANY_CLAIMS: "address_claims",
    quotas.TOO_MANY_NAMEPLATES: "address_nameplates",
    quotas.TOO_MUCH_STORED: "address_bytes",
    quotas.TOO_MANY_RECORDS: "address_records",
    rules.SERVER_FULL: "server_full",
    rules.MAILBOX_FULL: "mailbox_full",
}
"""The reason of each refusal, by the error that clients and the log get."""

OTHER: Final = "other"
"""The reason of an error that is not in the table."""

LIMITS: Final[Mapping[str, tuple[str, ...]]] = {
    "connections": ("connections",),
    "address_connections": ("address_connections", "address_connects", "address_connects_at_once"),
    "address_requests": ("address_connections",),
    "address_handshakes": ("address_connects", "address_connects_at_once"),
    "no_room_for_requests": ("held_bytes",),
    "no_room_for_large_messages": ("held_bytes",),
    "not_read": ("mailbox_bytes", "held_bytes"),
    "bind": ("bind",),
    "message_bytes": ("message_bytes",),
    "address_claims": ("address_claims", "address_claims_at_once"),
    "address_nameplates": ("address_nameplates",),
    "address_bytes": ("address_bytes",),
    "address_records": ("address_records",),
    "server_full": ("stored_bytes", "free_disk"),
    "mailbox_full": ("mailbox_messages", "mailbox_bytes"),
}
"""The limits that cause refusals of each reason. `message_cost`, `no_proxy_header` and `permission` have none."""


def by_reason(refusals: Mapping[str, int]) -> dict[str, int]:
    """Return the number of refusals by reason, from `Quotas.refusals`. Each reason is there."""
    counts = dict.fromkeys((*REASONS.values(), OTHER), 0)
    for words, times in dict(refusals).items():
        counts[REASONS.get(words, OTHER)] += times
    return counts
