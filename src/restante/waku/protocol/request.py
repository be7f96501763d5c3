"""P2P Requests: requests for history to a Mailserver, in all forms ever sent (10/WAKU-MAILSERVER).

Two packets have the code 126. Their number of items distinguishes them:

    plain      7   [ID, Lower, Upper, Limit, Cursor, Bloom, Topics]            status-go since November 2019
    envelope   5   an envelope; its sealed payload is one of

        7   [Lower, Upper, Bloom, Topics, Limit, Cursor, Batch]                status-go since January 2020
        6   [Lower, Upper, Bloom, Limit, Cursor, Batch]                        status-go since October 2018
        6   [Lower, Upper, Bloom, Limit, Cursor, [Topic …]]                    as specified in 8/WAKU-MAIL
        5   [Lower, Upper, Bloom, Limit, Cursor]                               10/WAKU-MAILSERVER, nim-waku
        4   [Lower, Upper, Bloom, Limit]                                       the same, without a cursor
        -   Lower(4) ‖ Upper(4) [‖ Bloom(64) [‖ Limit(4) [‖ Cursor(36 or 40)]]]    before October 2018

The last form begins with a byte of a timestamp, all others with the tag of a list. Refusals use the words of
status-go if it has any, and the checks run in its order (mailserver/mailserver.go:271-303, 446-496).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple

import msgspec

from restante.common.dice import Dice
from restante.common.errors import PeerError
from restante.waku.envelope import bloom, rlp
from restante.waku.envelope.envelope import TOPIC, Envelope, cut, make
from restante.waku.envelope.keys import Key
from restante.waku.envelope.payload import SymmetricKey, UnreadableError, WrongKeyError, open_sealed, seal
from restante.waku.protocol.policy import TTL_SECONDS

Form = Literal["plain", "envelope"]
CompletionForm = Literal["string", "list"]

ID_BYTES: Final = 32
CURSOR_BYTES: Final = 36
"""Size of a cursor in bytes: the time at which the envelope was sent, and its hash (mailserver/db_key.go:40-43)."""

PLAIN_ITEMS: Final = 7
"""Items of a plain request. An envelope has 5."""

MAX_PAGE_ENVELOPES: Final = 1000
"""Maximum envelopes of a page, and the default (mailserver/mailserver.go, maxMessagesRequestPayloadLimit)."""

MAX_REQUEST_TOPICS: Final = 1000

OPEN_END_MARGIN_SECONDS: Final = 60
"""Seconds from now of the upper end if a request has none (mailserver/mailserver.go, whisperTTLSafeThreshold)."""

NO_PLAIN_REQUESTS: Final = "this server takes no plain requests"
NO_SEALED_REQUESTS: Final = "this server takes no requests in envelopes"
NOT_ALLOWED: Final = "this server serves those that it was told to"
"""Refusals that only this server sends. Its requesters recognise them (`completion.PERMANENT_REFUSALS`)."""

NO_TOPIC: Final = bytes(TOPIC)
"""The topic of a request's envelope (services/wakuext/api.go:43-128). Servers do not check it, nor the ttl."""


class RequestError(PeerError):
    """A request that cannot be served.

    `id` is the request's id, and the sender is answered with `text`. None: the id is unknown, so the error is only
    counted.
    """

    def __init__(self, text: str, id: bytes | None = None) -> None:  # noqa: A002 - the protocol's name
        super().__init__(rlp.BREACH, text)
        self.id = id


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. Times are seconds since 1970; both ends are inclusive."""

    id: bytes
    """32 bytes that identify the request in the answer: in the plain form chosen by the sender, otherwise the
    envelope's hash."""
    lower: int
    upper: int
    bloom: int | None = None
    """The filter that the envelopes' topics must pass. Used if `topics` is empty."""
    topics: frozenset[bytes] = frozenset()
    """The topics of the envelopes. They take precedence over `bloom` (mailserver/mailserver_db_leveldb.go)."""
    limit: int = MAX_PAGE_ENVELOPES
    """Maximum envelopes of a page, 1 to 1,000."""
    cursor: bytes = b""
    """The end of the previous page, 36 bytes; empty for the first page."""
    batch: bool = True
    """Whether a packet may contain several envelopes."""
    form: Form = "plain"
    answer: CompletionForm = "string"
    """The form of completion that the sender reads: status-go ignores the specified list, nim-waku the string."""
    signer: bytes | None = None
    """The signer's public key, 64 bytes; None if the request is not signed."""


class Demands(msgspec.Struct, frozen=True, kw_only=True):
    """What a Mailserver requires of a request."""

    keys: Sequence[SymmetricKey | Key] = ()
    """The keys for which an envelope may be sealed, in the order in which they are tried."""
    min_pow: float = 0.0
    """Minimum work of an envelope."""
    require_signature: bool = False
    """Whether an envelope must be signed. status-go requires it. 10/WAKU-MAILSERVER does not, and nim-waku does not
    sign."""
    forms: frozenset[Form] = frozenset(("plain", "envelope"))


# ── Parsing ──────────────────────────────────────────────────────────────────────────────────────


class _Draft(NamedTuple):
    """The fields of a request before they are checked."""

    lower: int
    upper: int
    bloom: bytes
    topics: list[bytes]
    limit: int
    cursor: bytes
    batch: bool = True
    answer: CompletionForm = "string"


def parse(payload: bytes, demands: Demands, now: int) -> Request:
    """Parse a P2P Request. Raises only RequestError.

    Bytes after the packet's one item are ignored, as by status-go's decoder.
    """
    try:
        span = rlp.item_span(payload)
        outer = _read_items(payload, span, PLAIN_ITEMS)
        if len(outer) == PLAIN_ITEMS:
            # padded or cut as go-ethereum does it (common.BytesToHash)
            digest = rlp.string_at(payload, outer[0])[-ID_BYTES:].rjust(ID_BYTES, b"\0")
        else:
            envelope = cut(payload, span)
    except rlp.RlpError as error:
        raise RequestError(f"no request: {error.text}") from None
    if len(outer) == PLAIN_ITEMS:
        return _parse_plain(payload, outer, digest, demands, now)
    return _parse_sealed(envelope, demands, now)


def _parse_plain(payload: bytes, outer: list[rlp.ItemSpan], digest: bytes, demands: Demands, now: int) -> Request:
    if "plain" not in demands.forms:
        raise RequestError(NO_PLAIN_REQUESTS, digest)
    _, lower, upper, limit, cursor, filter_, topics = outer
    try:
        draft = _read_draft(payload, lower, upper, filter_, limit, cursor, topics)
    except rlp.RlpError as error:
        raise RequestError(f"failed to decode data: {error.text}", digest) from None
    return _check_draft(draft, digest, "plain", None, now)


def _parse_sealed(envelope: Envelope, demands: Demands, now: int) -> Request:
    digest = envelope.hash
    if "envelope" not in demands.forms:
        raise RequestError(NO_SEALED_REQUESTS, digest)
    if demands.min_pow > 0 and envelope.pow() < demands.min_pow:
        raise RequestError("PoW too low", digest)
    try:
        opened = open_sealed(envelope.data, *demands.keys)
    except (WrongKeyError, UnreadableError):
        raise RequestError("failed to decrypt p2p request", digest) from None
    if demands.require_signature and opened.signer is None:
        raise RequestError("check message signature failed: wrong signature of p2p request", digest)
    try:
        draft = _parse_body(opened.payload)
    except rlp.RlpError as error:
        raise RequestError(f"failed to decode data: {error.text}", digest) from None
    return _check_draft(draft, digest, "envelope", opened.signer, now)


def _check_draft(draft: _Draft, digest: bytes, form: Form, signer: bytes | None, now: int) -> Request:
    """Check the fields that both forms share. Checks that status-go does not make come last."""
    upper = draft.upper or now + OPEN_END_MARGIN_SECONDS
    if upper < draft.lower:
        prefix = "request is invalid: " if form == "plain" else ""
        raise RequestError(f"{prefix}query range is invalid: lower > upper", digest)
    if not draft.bloom and not draft.topics:
        raise RequestError("request is invalid: bloom filter and topics is empty", digest)
    if draft.limit > MAX_PAGE_ENVELOPES:
        raise RequestError("request is invalid: limit exceeds the maximum allowed value", digest)
    if len(draft.bloom) not in {0, bloom.FILTER_BYTES}:  # any other size crashes status-go's process
        raise RequestError(f"request is invalid: a bloom filter has {bloom.FILTER_BYTES} bytes or none", digest)
    if len(draft.topics) > MAX_REQUEST_TOPICS:
        raise RequestError(f"request is invalid: more than {MAX_REQUEST_TOPICS} topics", digest)
    if any(len(topic) != TOPIC for topic in draft.topics):
        raise RequestError(f"request is invalid: a topic has {TOPIC} bytes", digest)
    if len(draft.cursor) not in {0, CURSOR_BYTES}:  # status-go would silently start over from the first page
        raise RequestError(f"request is invalid: a cursor has {CURSOR_BYTES} bytes or none", digest)
    return Request(
        id=digest,
        lower=draft.lower,
        upper=upper,
        bloom=bloom.parse(draft.bloom) if draft.bloom else None,
        topics=frozenset(draft.topics),
        limit=draft.limit or MAX_PAGE_ENVELOPES,
        cursor=draft.cursor,
        batch=draft.batch,
        form=form,
        answer=draft.answer,
        signer=signer,
    )


# ── Parsing of sealed payloads ────────────────────────────────────────────────────────────────────


def _parse_body(body: bytes) -> _Draft:
    """Parse the sealed payload in any of its forms. Raises RlpError."""
    if body[:1] < b"\xc0":
        return _parse_fixed_width(body)
    span = rlp.item_span(body)
    if span.stop != len(body):
        raise rlp.RlpError("bytes follow the request")
    fields = _read_items(body, span, 7)
    if len(fields) == 7:
        lower, upper, filter_, topics, limit, cursor, batch = fields
        return _read_draft(body, lower, upper, filter_, limit, cursor, topics, batch=batch)
    if len(fields) == 6 and not fields[5].is_list:
        return _read_draft(body, *fields[:5], batch=fields[5])
    if len(fields) in {4, 5, 6}:
        return _read_draft(body, *fields, answer="list")
    raise rlp.RlpError(f"a request has 4 to 7 items, not {len(fields)}")


def _read_draft(
    data: bytes,
    lower: rlp.ItemSpan,
    upper: rlp.ItemSpan,
    filter_: rlp.ItemSpan,
    limit: rlp.ItemSpan,
    cursor: rlp.ItemSpan | None = None,
    topics: rlp.ItemSpan | None = None,
    *,
    batch: rlp.ItemSpan | None = None,
    answer: CompletionForm = "string",
) -> _Draft:
    """Read the fields of a request. The parameters are in the order of the specification."""
    return _Draft(
        _read_number(data, lower),
        _read_number(data, upper),
        rlp.string_at(data, filter_),
        [] if topics is None else _read_topics(data, topics),
        _read_number(data, limit),
        b"" if cursor is None else rlp.string_at(data, cursor),
        batch=batch is None or rlp.boolean(rlp.string_at(data, batch)),
        answer=answer,
    )


def _parse_fixed_width(body: bytes) -> _Draft:
    """Parse fields of fixed width (mailserver/mailserver.go:176-224).

    Without a filter the request is for all topics.
    """
    if len(body) not in {8, 72, 76, 112, 116}:
        raise rlp.RlpError("a request without a list has 8, 72, 76, 112 or 116 bytes")
    return _Draft(
        int.from_bytes(body[:4]),
        int.from_bytes(body[4:8]),
        body[8:72] or bloom.encode(bloom.ALL_BITS),
        [],
        int.from_bytes(body[72:76]),
        body[76:112],  # the last four of 40 bytes are the topic, which does not affect the order
        batch=False,
    )


# ── Parsing of items ──────────────────────────────────────────────────────────────────────────────


def _read_items(data: bytes, span: rlp.ItemSpan, count: int) -> list[rlp.ItemSpan]:
    """Return the spans of a list's items.

    Raises RlpError if there are more than `count`, without reading all of them.
    """
    items = list(islice(rlp.walk(data, span), count + 1))
    if len(items) > count:
        raise rlp.RlpError(f"a list of at most {count} items is expected")
    return items


def _read_number(data: bytes, item: rlp.ItemSpan) -> int:
    """Parse a number of 32 bits: canonical, or four bytes wide as specified."""
    encoded = rlp.string_at(data, item)
    return int.from_bytes(encoded) if len(encoded) == 4 else rlp.uint(encoded, 32)


_TOPIC_HEADER: Final = bytes((0x80 + TOPIC,))
"""The byte before a topic in a list: a string of its size."""


def _read_topics(data: bytes, span: rlp.ItemSpan) -> list[bytes]:
    """Parse topics, at most one more than the limit."""
    size = 1 + TOPIC
    items = data[span.start : min(span.stop, span.start + (MAX_REQUEST_TOPICS + 1) * size)]
    if span.is_list and len(items) % size == 0 and items[::size].count(_TOPIC_HEADER) == len(items) // size:
        # Each item has the size of a topic. To walk the list takes 0.1 ms longer for 500 topics.
        return [items[at : at + TOPIC] for at in range(1, len(items), size)]
    return [rlp.string_at(data, item) for item in islice(rlp.walk(data, span), MAX_REQUEST_TOPICS + 1)]


# ── Encoding ──────────────────────────────────────────────────────────────────────────────────────


def encode(request: Request) -> bytes:
    """Return the body of a plain request. It is neither sealed nor signed, and needs no work."""
    return rlp.encode(
        [
            request.id,
            request.lower,
            request.upper,
            request.limit,
            request.cursor,
            _filter(request),
            sorted(request.topics),
        ]
    )


def seal_request(
    request: Request, to: SymmetricKey | bytes, *, now: int, dice: Dice, sign: Key | None = None
) -> Envelope:
    """Return a request as an envelope. Its `raw` is the packet's body, and its hash is the request's id.

    The caller must still mine it. status-go refuses unsigned requests. It opens only requests that are sealed with
    the key of its password, none that are sealed for a public key (mailserver/mailserver.go:96-104).
    """
    body = rlp.encode(
        [
            request.lower,
            request.upper,
            _filter(request),
            sorted(request.topics),
            request.limit,
            request.cursor,
            int(request.batch),
        ]
    )
    return make(now + TTL_SECONDS, TTL_SECONDS, NO_TOPIC, seal(body, to=to, dice=dice, sign=sign))


def _filter(request: Request) -> bytes:
    return b"" if request.bloom is None else bloom.encode(request.bloom)
