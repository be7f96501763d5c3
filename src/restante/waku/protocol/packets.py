"""Waku v1 packets: a code, and RLP (6/WAKU1, as status-go has shipped it).

    code  packet                  body
    0     Status                  [[key, value] …]
    1     Messages                [envelope …]
    11    Batch Ack               hash of the Messages packet: a bare string; 6/WAKU1 has a list, nobody sends it
    12    Message Response        [1, [hash of the packet, [[hash of the envelope, code, words] …]]]
    22    Status Update           [[key, value] …]; what is not named stays. 6/WAKU1 says 22 and, once, 0x22
    125   P2P Request Complete    see restante.waku.protocol.completion
    126   P2P Request             one envelope, or a plain list of seven: see restante.waku.protocol.request
    127   P2P Message             [envelope …]

Other codes up to 127 are ignored (waku/v1/peer.go:273-277); 124 of 128 were never used, or by Whisper only.
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
CODE_COUNT: Final = 128
"""How many message ids the capability takes (waku/v1/const.go:18)."""

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
"""Bytes of a packet that every shipped node takes: status-go's MaxMessageSize, 1 MiB (waku/common/const.go)."""

LIST_HEAD_BYTES: Final = 4
"""Bytes of it that the head of its list takes, at the most."""

MAX_ENVELOPE_BYTES: Final = MAX_PACKET_BYTES - LIST_HEAD_BYTES
"""Bytes of an envelope that a packet holds: a larger one cannot be handed to anybody."""

MAX_ENVELOPES_BYTES: Final = MAX_PACKET_BYTES - 16
"""Bytes of several envelopes in a packet: room is left for receivers that count more than the body."""

MAX_INTEREST_TOPICS: Final = 10_000
"""Topics of an interest; more end the handshake (waku/v1/status_options.go, MaxTopicInterest)."""

MAX_STATUS_BYTES: Final = 1 << 16
"""Bytes of a Status or a Status Update: as many topics as there may be, and some more. Each byte can be an item, and
to decode an item takes a microsecond."""

MAX_PACKET_ENVELOPES: Final = 50_000
"""Envelopes of a packet. What is sealed has some 300 bytes (7/WAKU-DATA pads), so 10 MiB of them are 35,000; with
more that are next to nothing a peer would have us all to itself for seconds."""

MAX_RESPONSE_BYTES: Final = 1 << 17
"""Bytes of a Message Response: two thousand refusals. To read one takes some microseconds, and a node wants none."""

TIME_ERROR: Final = 21
OTHER_ERROR: Final = 22
"""Codes of a Message Response. 6/WAKU1 says 1; a slip of Go's iota made them these (waku/common/const.go:57-58), and
status-go reports every error as the first."""


# ── Status ───────────────────────────────────────────────────────────────────────────────────────


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a Status or a Status Update names; None: it does not."""

    pow: float | None = None
    """The least work of an envelope that is to be relayed to the node."""
    bloom: int | None = None
    """The topics it wants, as a filter."""
    light: bool | None = None
    """It relays nothing."""
    confirmations: bool | None = None
    """It sends Batch Ack and Message Response."""
    packets: tuple[int, int, int] | None = None
    """Packets a second that it takes: from an address, from a peer, of a topic. 0: no limit."""
    topics: frozenset[bytes] | None = None
    """The topics it wants, by name; stands above the filter."""
    bytes: tuple[int, int, int] | None = None
    """Bytes a second that it takes, likewise; not known to all."""


_OPTION_KEYS: Final = {
    0: "pow",
    1: "bloom",
    2: "light",
    3: "confirmations",
    4: "packets",
    5: "topics",
    6: "bytes",
}
"""Of the pairs, on the wire (waku/v1/status_options.go:25-75)."""


def write_options(options: Options) -> bytes:
    """Write the body of a Status or a Status Update.

    Nothing unknown may be put in: status-go loses what follows it (waku/v1/status_options.go:195-203).
    """
    pairs = []
    for key, name in _OPTION_KEYS.items():
        value = getattr(options, name)
        if value is None:
            continue
        if name == "pow":
            value = struct.unpack(">Q", struct.pack(">d", value))[0]
        elif name == "bloom":
            value = bloom.write(value)
        elif name == "topics":
            value = sorted(value)
        pairs.append([key, value])
    return rlp.encode(pairs)


def read_options(payload: bytes) -> Options:
    """Read the body of a Status or a Status Update; keys not known to us are skipped. Raises RlpError."""
    if len(payload) > MAX_STATUS_BYTES:
        raise rlp.RlpError(f"a Status has more than {MAX_STATUS_BYTES} bytes")
    named: dict[str, Any] = {}
    for pair in rlp.items(rlp.decode(payload, tail=True)):
        key, value = rlp.items(pair, 2)
        name = _OPTION_KEYS.get(rlp.uint(key, 64))
        if name is not None:
            named[name] = _OPTION_READERS[name](value)
    return Options(**named)


def _read_pow(item: rlp.Item) -> float:
    found: float = struct.unpack(">d", rlp.uint(item, 64).to_bytes(8, "big"))[0]
    if not math.isfinite(found) or math.copysign(1.0, found) < 0:
        raise rlp.RlpError("the work a node wants is no number from 0 up")
    return found


def _read_bloom(item: rlp.Item) -> int:
    return bloom.read(rlp.string(item, 0, bloom.FILTER_BYTES))


def _read_topics(item: rlp.Item) -> frozenset[bytes]:
    found = rlp.items(item)
    if len(found) > MAX_INTEREST_TOPICS:
        raise rlp.RlpError(f"an interest has more than {MAX_INTEREST_TOPICS} topics")
    return frozenset(rlp.string(each, TOPIC) for each in found)


def _read_rates(item: rlp.Item) -> tuple[int, int, int]:
    address, peer, topic = (rlp.uint(each, 64) for each in rlp.items(item, 3))
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
    """Read the body of Messages or of a P2P Message. Raises RlpError.

    One bad envelope spoils the packet, as it does in status-go, whose decoder takes the list as a whole.
    """
    return list(walk_envelopes(payload))


def walk_envelopes(payload: bytes) -> Iterator[Envelope]:
    """Read the envelopes of such a body one by one. Raises RlpError where one is none, or there are too many."""
    for count, each in enumerate(rlp.walk(payload, rlp.span(payload))):
        if count == MAX_PACKET_ENVELOPES:
            raise rlp.RlpError(f"a packet has more than {MAX_PACKET_ENVELOPES} envelopes")
        yield cut(payload, each)


def write_envelopes(raws: Iterable[bytes]) -> bytes:
    """Write the body of Messages or of a P2P Message."""
    return rlp.pack(raws)


def parted(raws: Iterable[bytes], size: int = MAX_ENVELOPES_BYTES) -> Iterator[list[bytes]]:
    """Part envelopes into packets, each of up to so many bytes, or of one envelope.

    One that no packet of 1 MiB holds is left out: a peer that takes no larger ones would disconnect.
    """
    part: list[bytes] = []
    so_far = 0
    for raw in raws:
        if len(raw) > MAX_ENVELOPE_BYTES:
            continue
        if part and so_far + len(raw) > size:
            yield part
            part, so_far = [], 0
        part.append(raw)
        so_far += len(raw)
    if part:
        yield part


def packets(stops: Sequence[int], size: int) -> Iterator[range]:
    """Part envelopes that stand one behind the other, each up to its stop, as `parted` does: by their numbers.

    None is looked at, and those that a packet has are of one piece: one that is left out ends the packet before it.
    """
    here = start = 0
    while here < len(stops):
        after = max(bisect_right(stops, start + size, here), here + 1)
        stop = stops[after - 1]
        if stop - start <= MAX_ENVELOPE_BYTES:
            yield range(here, after)
        here, start = after, stop


# ── confirmations ────────────────────────────────────────────────────────────────────────────────


class Refusal(NamedTuple):
    """Why an envelope of a packet was not taken."""

    hash: bytes
    code: int
    words: str


class Response(NamedTuple):
    """What became of a Messages packet."""

    packet: bytes
    refusals: tuple[Refusal, ...]


_HASH_HEAD: Final = bytes((0x80 + HASH_BYTES,))
"""What stands before a hash."""
_NO_REFUSALS: Final = rlp.encode([])
_ALL_TAKEN: Final = rlp.encode([1, [bytes(HASH_BYTES), []]])[: -HASH_BYTES - len(_NO_REFUSALS)]
"""What stands before the hash of a packet of which nothing was refused: so nearly every answer of a node begins."""


def write_ack(packet: bytes) -> bytes:
    """Write the body of a Batch Ack: the hash of the Messages packet's body (waku/v1/peer.go, SendBatchAck)."""
    return _HASH_HEAD + packet


def read_ack(payload: bytes) -> bytes:
    """Read the body of a Batch Ack, bare or as 6/WAKU1 has it: a list that begins like a Message Response."""
    whole = rlp.span(payload)
    return read_response(payload).packet if whole.is_list else _string(payload, whole, HASH_BYTES)


def write_response(response: Response) -> bytes:
    """Write the body of a Message Response."""
    if not response.refusals:
        return _ALL_TAKEN + response.packet + _NO_REFUSALS
    refusals = [[each.hash, each.code, each.words.encode()] for each in response.refusals]
    return rlp.encode([1, [response.packet, refusals]])


def read_response(payload: bytes) -> Response:
    """Read the body of a Message Response. Raises RlpError."""
    if len(payload) > MAX_RESPONSE_BYTES:
        raise rlp.RlpError(f"a Message Response has more than {MAX_RESPONSE_BYTES} bytes")
    version, body = _fields(payload, rlp.span(payload), 2)
    rlp.uint(_string(payload, version), 64)
    packet, refusals = _fields(payload, body, 2)
    return Response(
        _string(payload, packet, HASH_BYTES), tuple(_refusal(payload, each) for each in rlp.walk(payload, refusals))
    )


def _refusal(payload: bytes, whole: rlp.Span) -> Refusal:
    digest, code, words = _fields(payload, whole, 3)
    return Refusal(
        _string(payload, digest, HASH_BYTES),
        rlp.uint(_string(payload, code), 64),
        _string(payload, words).decode("utf-8", "backslashreplace"),
    )


def _fields(payload: bytes, whole: rlp.Span, count: int) -> list[rlp.Span]:
    """Find so many items of a list. Not by `decode`, which would look at a million before they are one too many."""
    found = list(islice(rlp.walk(payload, whole), count + 1))
    if len(found) != count:
        raise rlp.RlpError(f"a list of {count} items is expected")
    return found


def _string(payload: bytes, item: rlp.Span, *sizes: int) -> bytes:
    if item.is_list:
        raise rlp.RlpError("a string is expected")
    return rlp.string(payload[item.start : item.stop], *sizes)
