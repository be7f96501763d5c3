"""Refusals: why a command, a frame, a usage record or a connection is refused.

`KINDS` has the kinds that are counted, for lack of permission or room: the reason, which is their label in metrics,
the message to the client or the log, and the limits that cause them. A client's mistake is a `Refusal` without a
reason.
"""

from __future__ import annotations

from typing import Final

from restante.common.refusals import RefusalKind, kinds_by_reason

TOO_MANY_CONNECTIONS: Final = RefusalKind(
    "connections", "the server has no room for more connections", ("connections",)
)
TOO_MANY_FROM_ADDRESS: Final = RefusalKind(
    "address_connections",
    "too many connections from your address",
    ("address_connections", "address_connects", "address_connects_at_once"),
)
TOO_MANY_WITHOUT_REQUEST: Final = RefusalKind(
    "address_requests", "too many connections without a request", ("address_connections",)
)
"""The address has as many connections without a request as it may have with one."""

NO_ROOM_FOR_REQUESTS: Final = RefusalKind(
    "no_room_for_requests", "there is no room for connections without a request", ("held_bytes",)
)
"""The connection had sent no request, and was closed for the memory that it took."""

TOO_MANY_HANDSHAKES: Final = RefusalKind(
    "address_handshakes",
    "too many TLS handshakes from an address",
    ("address_connects", "address_connects_at_once"),
)
"""The connection was closed before another TLS handshake."""

NO_PROXY_HEADER: Final = RefusalKind("no_proxy_header", "no valid PROXY header of a trusted proxy")
"""The connection did not begin with the header that its port demands (--listen proxy:)."""

NO_ROOM_FOR_LARGE: Final = RefusalKind(
    "no_room_for_large_messages", "there is no room for large messages", ("held_bytes",)
)
NOT_READ: Final = RefusalKind("not_read", "what was sent was not read", ("mailbox_bytes", "held_bytes"))
MUST_BIND: Final = RefusalKind("bind", "must bind first", ("bind",))
"""The client did not bind in time."""

TOO_BIG: Final = RefusalKind("message_bytes", "the message is too big", ("message_bytes",))
TOO_EXPENSIVE: Final = RefusalKind("message_cost", "the message is too expensive to decode")
DENIED: Final = RefusalKind("permission", "permission denied")
"""The client has not shown the work that was demanded. Its connection is closed."""

TOO_MANY_CLAIMS: Final = RefusalKind(
    "address_claims",
    "too many different nameplates claimed from your address",
    ("address_claims", "address_claims_at_once"),
)
TOO_MANY_NAMEPLATES: Final = RefusalKind(
    "address_nameplates", "too many nameplates from your address", ("address_nameplates",)
)
TOO_MUCH_STORED: Final = RefusalKind("address_bytes", "too much is kept for your address", ("address_bytes",))
TOO_MANY_RECORDS: Final = RefusalKind(
    "address_records", "too many usage records from an address: this one is left out", ("address_records",)
)
SERVER_FULL: Final = RefusalKind("server_full", "the server is full", ("stored_bytes", "free_disk"))
MAILBOX_FULL: Final = RefusalKind("mailbox_full", "the mailbox is full", ("mailbox_messages", "mailbox_bytes"))

KINDS: Final = kinds_by_reason(
    TOO_MANY_CONNECTIONS,
    TOO_MANY_FROM_ADDRESS,
    TOO_MANY_WITHOUT_REQUEST,
    NO_ROOM_FOR_REQUESTS,
    TOO_MANY_HANDSHAKES,
    NO_PROXY_HEADER,
    NO_ROOM_FOR_LARGE,
    NOT_READ,
    MUST_BIND,
    TOO_BIG,
    TOO_EXPENSIVE,
    DENIED,
    TOO_MANY_CLAIMS,
    TOO_MANY_NAMEPLATES,
    TOO_MUCH_STORED,
    TOO_MANY_RECORDS,
    SERVER_FULL,
    MAILBOX_FULL,
)
"""All kinds, by their reason."""
