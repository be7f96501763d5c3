"""Refusals: why a connection, a pair or a usage record is refused, or ended by a limit.

`KINDS` has all kinds, which are counted: the reason, which is their label in metrics, the message to the log, and the
limits that cause them. A refused client gets `bad handshake`, or its connection is closed. A client's mistake is no
refusal: its result is in the usage record.
"""

from __future__ import annotations

from typing import Final

from restante.common.refusals import RefusalKind, kinds_by_reason

TOO_MANY_WAITING: Final = RefusalKind("waiting", "the relay has no room for more waiting connections", ("waiting",))
TOO_MANY_WAITING_FROM_ADDRESS: Final = RefusalKind(
    "address_waiting", "too many waiting connections from an address", ("address_waiting",)
)
TOO_MANY_PENDING: Final = RefusalKind(
    "address_requests", "too many connections of an address that have sent nothing", ("address_waiting",)
)
"""The address has as many connections before their requests, or in a TLS handshake, as it may have waiting ones."""

TOO_MANY_HANDSHAKES: Final = RefusalKind("address_handshakes", "too many TLS handshakes of an address")
"""The connection was closed before another TLS handshake."""

NO_PROXY_HEADER: Final = RefusalKind("no_proxy_header", "no valid PROXY header of a trusted proxy")
"""The connection did not begin with the header that its port demands (--listen proxy:)."""

NO_ROOM: Final = RefusalKind("no_room_for_requests", "there is no room for connections without a request")
"""The connection had sent no request, and was closed for the memory that it took."""

NO_DESCRIPTORS: Final = RefusalKind("descriptors", "a pair was closed, because the process may open no more files")
"""The limit of open files (`ulimit -n`) is reached."""

NO_REQUEST: Final = RefusalKind("handshake", "no request came in time", ("handshake",))
NO_PARTNER: Final = RefusalKind("waiting_seconds", "no other side came in time", ("waiting_seconds",))
TOO_MANY_PAIRS: Final = RefusalKind("pairs", "the relay has no room for more pairs", ("pairs",))
TOO_MANY_PAIRS_OF_ADDRESS: Final = RefusalKind("address_pairs", "too many pairs of an address", ("address_pairs",))
PAIR_TOO_BIG: Final = RefusalKind(
    "pair_bytes", "the pair has passed on as many bytes as one may: it is ended", ("pair_bytes",)
)
ADDRESS_DAY_USED_UP: Final = RefusalKind(
    "address_day_bytes", "an address has used up its bytes of this day", ("address_day_bytes",)
)
MONTH_USED_UP: Final = RefusalKind("month_bytes", "the bytes of this month are used up", ("month_bytes",))
TOO_MANY_RECORDS: Final = RefusalKind(
    "address_records", "too many usage records from an address: this one is left out", ("address_records",)
)
DRAINING: Final = RefusalKind("draining", "the relay is stopping: it makes no more pairs")

KINDS: Final = kinds_by_reason(
    TOO_MANY_WAITING,
    TOO_MANY_WAITING_FROM_ADDRESS,
    TOO_MANY_PENDING,
    TOO_MANY_HANDSHAKES,
    NO_PROXY_HEADER,
    NO_ROOM,
    NO_DESCRIPTORS,
    NO_REQUEST,
    NO_PARTNER,
    TOO_MANY_PAIRS,
    TOO_MANY_PAIRS_OF_ADDRESS,
    PAIR_TOO_BIG,
    ADDRESS_DAY_USED_UP,
    MONTH_USED_UP,
    TOO_MANY_RECORDS,
    DRAINING,
)
"""All kinds, by their reason."""
