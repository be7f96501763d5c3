"""P2P Requests: what a Mailserver is asked for, in every shape that was ever sent (10/WAKU-MAILSERVER).

Two packets have the code 126, told apart by how many items they have:

    plain      7   [ID, Lower, Upper, Limit, Cursor, Bloom, Topics]            status-go from November 2019 on
    envelope   5   an envelope; sealed in it is one of

        7   [Lower, Upper, Bloom, Topics, Limit, Cursor, Batch]                status-go from January 2020 on
        6   [Lower, Upper, Bloom, Limit, Cursor, Batch]                        status-go from October 2018 on
        6   [Lower, Upper, Bloom, Limit, Cursor, [Topic …]]                    8/WAKU-MAILSERVER's text
        5   [Lower, Upper, Bloom, Limit, Cursor]                               10/WAKU-MAILSERVER, nim-waku
        4   [Lower, Upper, Bloom, Limit]                                       the same, without a cursor
        -   Lower(4) ‖ Upper(4) [‖ Bloom(64) [‖ Limit(4) [‖ Cursor(36 or 40)]]]    before October 2018

The last begins with a byte of a time stamp, all others with that of a list. Where status-go has words for a refusal
they are used, in the order of its checks (mailserver/mailserver.go:271-303, 446-496).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple

import msgspec

from restante.common.errors import PeerError
from restante.waku.envelope import bloom, rlp
from restante.waku.envelope.envelope import TOPIC, Envelope, cut, make
from restante.waku.envelope.keys import Dice, Key
from restante.waku.envelope.payload import SymmetricKey, UnreadableError, WrongKeyError, open_sealed, seal

Form = Literal["plain", "envelope"]
Answer = Literal["string", "list"]

ID_BYTES: Final = 32
CURSOR_BYTES: Final = 36
"""Bytes of a cursor: when the envelope was sent, and its hash (mailserver/db_key.go:40-43)."""

PLAIN_ITEMS: Final = 7
"""Items of a plain request; an envelope has 5."""

MAX_PAGE_ENVELOPES: Final = 1000
"""Envelopes of a page, at most and where none is said (mailserver/mailserver.go, maxMessagesRequestPayloadLimit)."""

MAX_REQUEST_TOPICS: Final = 1000

OPEN_END_MARGIN_SECONDS: Final = 60
"""Seconds from now, that no upper end means (mailserver/mailserver.go, whisperTTLSafeThreshold)."""

REQUEST_TTL_SECONDS: Final = 50
"""Seconds that the envelope of a request lives; nobody looks (waku/common/const.go, DefaultTTL)."""

NO_TOPIC: Final = bytes(TOPIC)
"""The topic of a request's envelope (services/wakuext/api.go:43-128); nobody looks."""


class RequestError(PeerError):
    """A request that cannot be served.

    `id` is what its sender calls it, who is to be answered with `words`; None: nobody knows, so it is only counted.
    """

    def __init__(self, words: str, id: bytes | None = None) -> None:  # noqa: A002 - the wire's word
        super().__init__(rlp.BREACH, words)
        self.id = id


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. Times are seconds since 1970, both ends are asked for too."""

    id: bytes
    """32 bytes that the answer names: the sender's choice in the plain form, else the hash of the envelope."""
    lower: int
    upper: int
    bloom: int | None = None
    """What a topic's bloom must be part of, where none are named."""
    topics: frozenset[bytes] = frozenset()
    """Only these; stand above the bloom (mailserver/mailserver_db_leveldb.go)."""
    limit: int = MAX_PAGE_ENVELOPES
    """Envelopes of a page, 1 to 1,000."""
    cursor: bytes = b""
    """Where the last page ended, 36 bytes; none for the first."""
    batch: bool = True
    """Whether a packet may have several envelopes."""
    form: Form = "plain"
    answer: Answer = "string"
    """What its sender can read: status-go ignores the list of the text, nim-waku the string."""
    signer: bytes | None = None
    """The public key of who signed it, 64 bytes; None where nobody did."""


class Demands(msgspec.Struct, frozen=True, kw_only=True):
    """What a Mailserver wants of a request."""

    keys: Sequence[SymmetricKey | Key] = ()
    """What an envelope may be sealed for; tried in this order."""
    min_pow: float = 0.0
    """Of an envelope."""
    require_signature: bool = False
    """Of an envelope. status-go does; 10/WAKU-MAILSERVER does not ask for it, and nim-waku does not sign."""
    forms: frozenset[Form] = frozenset(("plain", "envelope"))


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


class _Draft(NamedTuple):
    """What stands in a request, before anybody looked whether it makes sense."""

    lower: int
    upper: int
    bloom: bytes
    topics: list[bytes]
    limit: int
    cursor: bytes
    batch: bool = True
    answer: Answer = "string"


def read(payload: bytes, demands: Demands, now: int) -> Request:
    """Read a P2P Request. Raises RequestError, and nothing else.

    Bytes behind the packet's one item are passed over, as status-go's decoder does.
    """
    try:
        whole = rlp.span(payload)
        outer = _first(payload, whole, PLAIN_ITEMS)
        if len(outer) == PLAIN_ITEMS:
            digest = _as_hash(_string(payload, outer[0]))
        else:
            envelope = cut(payload, whole)
    except rlp.RlpError as error:
        raise RequestError(f"no request: {error.words}") from None
    if len(outer) == PLAIN_ITEMS:
        return _plain(payload, outer, digest, demands, now)
    return _sealed(envelope, demands, now)


def _as_hash(id: bytes) -> bytes:  # noqa: A002 - the wire's word
    """Give 32 bytes, as go-ethereum makes them of what has more or fewer (common.BytesToHash)."""
    return id[-ID_BYTES:].rjust(ID_BYTES, b"\0")


def _plain(payload: bytes, outer: list[rlp.Span], digest: bytes, demands: Demands, now: int) -> Request:
    if "plain" not in demands.forms:
        raise RequestError("this server takes no plain requests", digest)
    _, lower, upper, limit, cursor, filter_, topics = outer
    try:
        draft = _Draft(
            _number(payload, lower),
            _number(payload, upper),
            _string(payload, filter_),
            _topics(payload, topics),
            _number(payload, limit),
            _string(payload, cursor),
        )
    except rlp.RlpError as error:
        raise RequestError(f"failed to decode data: {error.words}", digest) from None
    return _judged(draft, digest, "plain", None, now)


def _sealed(envelope: Envelope, demands: Demands, now: int) -> Request:
    digest = envelope.hash
    if "envelope" not in demands.forms:
        raise RequestError("this server takes no requests in envelopes", digest)
    if demands.min_pow > 0 and envelope.pow() < demands.min_pow:
        raise RequestError("PoW too low", digest)
    body, signer = _opened(envelope, demands.keys)
    if demands.require_signature and signer is None:
        raise RequestError("check message signature failed: wrong signature of p2p request", digest)
    try:
        draft = _draft(body)
    except rlp.RlpError as error:
        raise RequestError(f"failed to decode data: {error.words}", digest) from None
    return _judged(draft, digest, "envelope", signer, now)


def _opened(envelope: Envelope, keys: Sequence[SymmetricKey | Key]) -> tuple[bytes, bytes | None]:
    data = envelope.data
    for key in keys:
        try:
            opened = open_sealed(data, key)
        except WrongKeyError:
            continue
        except UnreadableError:
            break
        return opened.payload, opened.signer
    raise RequestError("failed to decrypt p2p request", envelope.hash)


def _judged(draft: _Draft, digest: bytes, form: Form, signer: bytes | None, now: int) -> Request:
    """Look at what both forms have in common; what status-go does not look at comes last."""
    upper = draft.upper or now + OPEN_END_MARGIN_SECONDS
    if upper < draft.lower:
        where = "request is invalid: " if form == "plain" else ""
        raise RequestError(f"{where}query range is invalid: lower > upper", digest)
    if not draft.bloom and not draft.topics:
        raise RequestError("request is invalid: bloom filter and topics is empty", digest)
    if draft.limit > MAX_PAGE_ENVELOPES:
        raise RequestError("request is invalid: limit exceeds the maximum allowed value", digest)
    if len(draft.bloom) not in {0, bloom.FILTER_BYTES}:  # any other ends status-go's process with a panic
        raise RequestError(f"request is invalid: a bloom filter has {bloom.FILTER_BYTES} bytes or none", digest)
    if len(draft.topics) > MAX_REQUEST_TOPICS:
        raise RequestError(f"request is invalid: more than {MAX_REQUEST_TOPICS} topics", digest)
    if any(len(each) != TOPIC for each in draft.topics):
        raise RequestError(f"request is invalid: a topic has {TOPIC} bytes", digest)
    if len(draft.cursor) not in {0, CURSOR_BYTES}:  # status-go would begin again from the start, and say nothing
        raise RequestError(f"request is invalid: a cursor has {CURSOR_BYTES} bytes or none", digest)
    return Request(
        id=digest,
        lower=draft.lower,
        upper=upper,
        bloom=bloom.read(draft.bloom) if draft.bloom else None,
        topics=frozenset(draft.topics),
        limit=draft.limit or MAX_PAGE_ENVELOPES,
        cursor=draft.cursor,
        batch=draft.batch,
        form=form,
        answer=draft.answer,
        signer=signer,
    )


# ── what was sealed ──────────────────────────────────────────────────────────────────────────────


def _draft(body: bytes) -> _Draft:
    """Read what was sealed, in any of its shapes. Raises RlpError."""
    if body[:1] < b"\xc0":
        return _legacy(body)
    whole = rlp.span(body)
    if whole.stop != len(body):
        raise rlp.RlpError("bytes follow the request")
    fields = _first(body, whole, 7)
    if len(fields) == 7:
        return _with_topics(body, fields)
    if len(fields) == 6 and not fields[5].is_list:
        *before, batch = fields
        return _literal(body, before, batch=rlp.boolean(_string(body, batch)), answer="string")
    if len(fields) == 6:
        *before, topics = fields
        return _literal(body, before)._replace(topics=_topics(body, topics))
    if len(fields) in {4, 5}:
        return _literal(body, fields)
    raise rlp.RlpError(f"a request has 4 to 7 items, not {len(fields)}")


def _with_topics(body: bytes, fields: list[rlp.Span]) -> _Draft:
    lower, upper, filter_, topics, limit, cursor, batch = fields
    return _Draft(
        _number(body, lower),
        _number(body, upper),
        _string(body, filter_),
        _topics(body, topics),
        _number(body, limit),
        _string(body, cursor),
        batch=rlp.boolean(_string(body, batch)),
    )


def _literal(body: bytes, fields: list[rlp.Span], *, batch: bool = True, answer: Answer = "list") -> _Draft:
    """Read the fields of the text; the cursor may be left out."""
    lower, upper, filter_, limit, *cursor = fields
    return _Draft(
        _number(body, lower),
        _number(body, upper),
        _string(body, filter_),
        [],
        _number(body, limit),
        _string(body, cursor[0]) if cursor else b"",
        batch=batch,
        answer=answer,
    )


def _legacy(body: bytes) -> _Draft:
    """Read fields of fixed width (mailserver/mailserver.go:176-224); no bloom at all is everything."""
    if len(body) not in {8, 72, 76, 112, 116}:
        raise rlp.RlpError("a request without a list has 8, 72, 76, 112 or 116 bytes")
    return _Draft(
        int.from_bytes(body[:4]),
        int.from_bytes(body[4:8]),
        body[8:72] or bloom.write(bloom.ALL_BITS),
        [],
        int.from_bytes(body[72:76]),
        body[76:112],  # of 40 bytes, the last four are the topic: it takes no part in the order
        batch=False,
    )


# ── items ────────────────────────────────────────────────────────────────────────────────────────


def _first(data: bytes, whole: rlp.Span, count: int) -> list[rlp.Span]:
    """Find the items of a list. Raises RlpError where there are more than `count`, without a look at them all."""
    found = list(islice(rlp.walk(data, whole), count + 1))
    if len(found) > count:
        raise rlp.RlpError(f"a list of at most {count} items is expected")
    return found


def _string(data: bytes, item: rlp.Span) -> bytes:
    if item.is_list:
        raise rlp.RlpError("a string is expected")
    return data[item.start : item.stop]


def _number(data: bytes, item: rlp.Span) -> int:
    """Read a number of 32 bits, canonical, or four bytes wide as the text has it."""
    found = _string(data, item)
    return int.from_bytes(found) if len(found) == 4 else rlp.uint(found, 32)


def _topics(data: bytes, whole: rlp.Span) -> list[bytes]:
    """Read topics, up to the first that is one too many."""
    return [_string(data, each) for each in islice(rlp.walk(data, whole), MAX_REQUEST_TOPICS + 1)]


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def write(request: Request) -> bytes:
    """Write a plain request: the packet's body. It is neither sealed nor signed, and needs no work."""
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


def enclose(request: Request, to: SymmetricKey | bytes, *, now: int, dice: Dice, sign: Key | None = None) -> Envelope:
    """Write a request as an envelope, whose `raw` is the packet's body and whose hash is the request's id.

    The work is still to be done. status-go refuses what nobody signed, and opens only what is sealed with the key of
    its password, whatever a public key may be said to do (mailserver/mailserver.go:96-104).
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
    return make(now + REQUEST_TTL_SECONDS, REQUEST_TTL_SECONDS, NO_TOPIC, seal(body, to=to, dice=dice, sign=sign))


def _filter(request: Request) -> bytes:
    return b"" if request.bloom is None else bloom.write(request.bloom)
