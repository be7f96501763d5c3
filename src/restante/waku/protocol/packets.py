"""Waku v1 packets: a code and RLP (6/WAKU1, as status-go ships it).

    code  packet                  body
    0     Status                  [[key, value] …]
    1     Messages                [envelope …]
    11    Batch Ack               hash of the Messages packet, as a string; 6/WAKU1 has a list that no node sends
    12    Message Response        [1, [hash of the packet, [[hash of the envelope, code, text] …]]]
    22    Status Update           [[key, value] …]; absent keys keep their values. 6/WAKU1 says 22 and, once, 0x22
    125   P2P Request Complete    see restante.waku.protocol.completion
    126   P2P Request             one envelope, or a plain list of seven: see restante.waku.protocol.request
    127   P2P Message             [envelope …]

Other codes up to 127 are ignored (waku/v1/peer.go:273-277). They were never used, or only by Whisper.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from restante.waku.envelope import bloom, rlp
from restante.waku.envelope.envelope import TOPIC, Envelope, cut

CAPABILITY: Final = ("waku", 1)

STATUS: Final = 0
MESSAGES: Final = 1
BATCH_ACK: Final = 11
MESSAGE_RESPONSE: Final = 12
STATUS_UPDATE: Final = 22
REQUEST_COMPLETE: Final = 125
REQUEST: Final = 126
P2P_MESSAGE: Final = 127

HASH_BYTES: Final = 32

MAX_PACKET_BYTES: Final = 1 << 20
"""Maximum size in bytes of a packet that every shipped node accepts: status-go's MaxMessageSize, 1 MiB
(waku/common/const.go)."""

LIST_HEAD_BYTES: Final = 4
"""Maximum bytes of a packet that the head of its list takes."""

MAX_ENVELOPE_BYTES: Final = MAX_PACKET_BYTES - LIST_HEAD_BYTES
"""Maximum size in bytes of an envelope that fits into a packet. A larger one cannot be sent to any peer."""

MAX_ENVELOPES_BYTES: Final = MAX_PACKET_BYTES - 16
"""Maximum bytes of several envelopes in a packet. The margin is for receivers that count more than the body."""

MAX_INTEREST_TOPICS: Final = 10_000
"""Maximum topics of an interest; more end the handshake (waku/v1/status_options.go, MaxTopicInterest)."""

MAX_STATUS_BYTES: Final = 1 << 16
"""Maximum size in bytes of a Status or a Status Update: room for MAX_INTEREST_TOPICS topics and some more. Each byte
can be an item, and decoding an item takes a microsecond."""

MAX_PACKET_ENVELOPES: Final = 50_000
"""Maximum envelopes of a packet. A sealed envelope has about 300 bytes (7/WAKU-DATA pads), so 10 MiB hold 35,000.
With a higher limit, one peer could occupy the node for seconds with nearly empty envelopes."""

MAX_RESPONSE_BYTES: Final = 1 << 17
"""Maximum size in bytes of a Message Response that is read: two thousand refusals. Each takes some microseconds, and
this node needs none of them."""

MAX_REFUSALS: Final = 9_000
"""Maximum refusals in a Message Response. With the longest text of this node, its size is below MAX_PACKET_BYTES.
status-go disconnects from a peer that sends a larger packet (waku/v1/peer.go:231)."""

TIME_ERROR: Final = 21
OTHER_ERROR: Final = 22
"""Codes of a Message Response. 6/WAKU1 says 1; because of a mistake with Go's iota the shipped codes are these
(waku/common/const.go:57-58). status-go reports every error with the first one."""


# ── Status ───────────────────────────────────────────────────────────────────────────────────────


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options in a Status or a Status Update. None: the option is absent."""

    pow: float | None = None
    """Minimum work of an envelope to be relayed to the node."""
    bloom: int | None = None
    """The topics that the node wants, as a filter."""
    light: bool | None = None
    """Whether the node is a light node, which relays nothing."""
    confirmations: bool | None = None
    """Whether the node sends Batch Ack and Message Response."""
    packets: tuple[int, int, int] | None = None
    """Maximum packets per second that the node accepts: from an address, from a peer, of a topic. 0: no limit."""
    topics: frozenset[bytes] | None = None
    """The topics that the node wants, as a list. Takes precedence over the filter."""
    bytes: tuple[int, int, int] | None = None
    """Maximum bytes per second that the node accepts, in the same order. Not all nodes know this option."""


_OPTION_KEYS: Final = {
    0: "pow",
    1: "bloom",
    2: "light",
    3: "confirmations",
    4: "packets",
    5: "topics",
    6: "bytes",
}
"""The keys of the pairs on the wire (waku/v1/status_options.go:25-75)."""


def write_options(options: Options) -> bytes:
    """Return the body of a Status or a Status Update.

    It must not contain unknown keys: status-go ignores everything after one (waku/v1/status_options.go:195-203).
    """
    pairs = []
    for key, name in _OPTION_KEYS.items():
        value = getattr(options, name)
        if value is None:
            continue
        if name == "pow":
            value = struct.unpack(">Q", struct.pack(">d", value))[0]
        elif name == "bloom":
            value = bloom.encode(value)
        elif name == "topics":
            value = sorted(value)
        pairs.append([key, value])
    return rlp.encode(pairs)


def read_options(payload: bytes) -> Options:
    """Parse the body of a Status or a Status Update. Unknown keys are skipped. Raises RlpError."""
    if len(payload) > MAX_STATUS_BYTES:
        raise rlp.RlpError(f"a Status has more than {MAX_STATUS_BYTES} bytes")
    values: dict[str, Any] = {}
    for pair in rlp.items(rlp.decode(payload, tail=True)):
        key, value = rlp.items(pair, 2)
        name = _OPTION_KEYS.get(rlp.uint(key, 64))
        if name is not None:
            values[name] = _OPTION_READERS[name](value)
    return Options(**values)


def _read_pow(item: rlp.Item) -> float:
    pow_: float = struct.unpack(">d", rlp.uint(item, 64).to_bytes(8, "big"))[0]
    if not math.isfinite(pow_) or math.copysign(1.0, pow_) < 0:
        raise rlp.RlpError("the required proof of work is negative, infinite or not a number")
    return pow_


def _read_bloom(item: rlp.Item) -> int:
    return bloom.parse(rlp.string(item, 0, bloom.FILTER_BYTES))


def _read_topics(item: rlp.Item) -> frozenset[bytes]:
    topics = rlp.items(item)
    if len(topics) > MAX_INTEREST_TOPICS:
        raise rlp.RlpError(f"an interest has more than {MAX_INTEREST_TOPICS} topics")
    return frozenset(rlp.string(topic, TOPIC) for topic in topics)


def _read_rates(item: rlp.Item) -> tuple[int, int, int]:
    address, peer, topic = (rlp.uint(rate, 64) for rate in rlp.items(item, 3))
    return address, peer, topic


_OPTION_READERS: Final[dict[str, Any]] = {
    "pow": _read_pow,
    "bloom": _read_bloom,
    "light": rlp.boolean,
    "confirmations": rlp.boolean,
    "packets": _read_rates,
    "topics": _read_topics,
    "bytes": _read_rates,
}


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────


def read_envelopes(payload: bytes) -> list[Envelope]:
    """Parse the body of Messages or of a P2P Message. Raises RlpError.

    One invalid envelope invalidates the packet, as in status-go, which decodes the whole list at once.
    """
    return list(walk_envelopes(payload))


def walk_envelopes(payload: bytes) -> Iterator[Envelope]:
    """Yield the envelopes of such a body one by one. Raises RlpError for an invalid envelope or too many of them."""
    for count, span in enumerate(rlp.walk(payload, rlp.item_span(payload))):
        if count == MAX_PACKET_ENVELOPES:
            raise rlp.RlpError(f"a packet has more than {MAX_PACKET_ENVELOPES} envelopes")
        yield cut(payload, span)


def write_envelopes(raws: Iterable[bytes]) -> bytes:
    """Return the body of Messages or of a P2P Message."""
    return rlp.pack(raws)


def split_for_packets(raws: Iterable[bytes], size: int = MAX_ENVELOPES_BYTES) -> Iterator[list[bytes]]:
    """Yield envelopes in groups for packets: each of at most `size` bytes, or of one envelope.

    An envelope that does not fit into a packet of 1 MiB is left out, because peers with that limit would disconnect.
    """
    group: list[bytes] = []
    group_bytes = 0
    for raw in raws:
        if len(raw) > MAX_ENVELOPE_BYTES:
            continue
        if group and group_bytes + len(raw) > size:
            yield group
            group, group_bytes = [], 0
        group.append(raw)
        group_bytes += len(raw)
    if group:
        yield group


def packet_ranges(stops: Sequence[int], size: int) -> Iterator[range]:
    """Yield the index ranges of envelopes for packets, with the limits of `split_for_packets`.

    `stops` are the end offsets of the envelopes, which are concatenated and are not read. Each range is contiguous:
    an envelope that is left out ends the packet before it.
    """
    index = start = 0
    while index < len(stops):
        next_index = max(bisect_right(stops, start + size, index), index + 1)
        stop = stops[next_index - 1]
        if stop - start <= MAX_ENVELOPE_BYTES:
            yield range(index, next_index)
        index, start = next_index, stop


# ── Confirmations ────────────────────────────────────────────────────────────────────────────────


class Refusal(NamedTuple):
    """Why an envelope of a packet was refused."""

    hash: bytes
    code: int
    text: str


class Response(NamedTuple):
    """The result of a Messages packet."""

    packet: bytes
    refusals: tuple[Refusal, ...]


_HASH_HEAD: Final = bytes((0x80 + HASH_BYTES,))
"""The head of a hash."""
_NO_REFUSALS: Final = rlp.encode([])
_NO_REFUSALS_HEAD: Final = rlp.encode([1, [bytes(HASH_BYTES), []]])[: -HASH_BYTES - len(_NO_REFUSALS)]
"""The bytes before the packet's hash in a Message Response without refusals, which nearly every one is."""


def write_ack(packet: bytes) -> bytes:
    """Return the body of a Batch Ack: the hash of the Messages packet's body (waku/v1/peer.go, SendBatchAck)."""
    return _HASH_HEAD + packet


def read_ack(payload: bytes) -> bytes:
    """Parse the body of a Batch Ack: a string, or the list of 6/WAKU1, which has the form of a Message Response."""
    span = rlp.item_span(payload)
    return read_response(payload).packet if span.is_list else rlp.string_at(payload, span, HASH_BYTES)


def write_response(response: Response) -> bytes:
    """Return the body of a Message Response."""
    if not response.refusals:
        return _NO_REFUSALS_HEAD + response.packet + _NO_REFUSALS
    refusals = [[refusal.hash, refusal.code, refusal.text.encode()] for refusal in response.refusals]
    return rlp.encode([1, [response.packet, refusals]])


def read_response(payload: bytes) -> Response:
    """Parse the body of a Message Response. Raises RlpError."""
    if len(payload) > MAX_RESPONSE_BYTES:
        raise rlp.RlpError(f"a Message Response has more than {MAX_RESPONSE_BYTES} bytes")
    version, body = _read_fields(payload, rlp.item_span(payload), 2)
    rlp.uint(rlp.string_at(payload, version), 64)
    packet, refusals = _read_fields(payload, body, 2)
    return Response(
        rlp.string_at(payload, packet, HASH_BYTES),
        tuple(_read_refusal(payload, span) for span in rlp.walk(payload, refusals)),
    )


def _read_refusal(payload: bytes, span: rlp.ItemSpan) -> Refusal:
    digest, code, text = _read_fields(payload, span, 3)
    return Refusal(
        rlp.string_at(payload, digest, HASH_BYTES),
        rlp.uint(rlp.string_at(payload, code), 64),
        rlp.string_at(payload, text).decode("utf-8", "backslashreplace"),
    )


def _read_fields(payload: bytes, span: rlp.ItemSpan, count: int) -> list[rlp.ItemSpan]:
    """Return the spans of exactly `count` items of a list.

    Unlike `decode`, this stops at the first surplus item instead of decoding a million of them.
    """
    fields = list(islice(rlp.walk(payload, span), count + 1))
    if len(fields) != count:
        raise rlp.RlpError(f"a list of {count} items is expected")
    return fields
