"""The conversation with one peer, above devp2p: its greeting, its interest, its packets.

    greeting ──Status──▶ greeted ──▶ …

`receive` turns each packet into an event. Only an invalid first packet ends the conversation
(waku/v1/peer.go:470-540). After any other violation the conversation goes on. status-go does the same,
although its log says otherwise (waku/v1/peer.go:229-231).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from restante.common.errors import PeerError
from restante.waku.devp2p.hello import Reason
from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol import packets
from restante.waku.protocol.interest import WANTS_EVERYTHING, WANTS_NOTHING, Interest
from restante.waku.protocol.packets import Options

LARGE_PACKET_BYTES: Final = 1 << 16
"""Maximum size in bytes of a Messages packet that is parsed at once: about 200 envelopes, or 3,000 nearly empty
ones."""

DEFAULT_POW: Final = 0.001
"""Minimum work that a peer wants if its Status has no such option (waku/v1/status_options.go:106-134)."""


class Greeted(msgspec.Struct, frozen=True):
    """The peer has sent its Status. Envelopes may be relayed to it."""


class Changed(msgspec.Struct, frozen=True):
    """The peer wants other envelopes than before."""

    before: Interest


class Offered(msgspec.Struct, frozen=True):
    """The peer has sent envelopes."""

    envelopes: list[Envelope]


class OfferedLarge(msgspec.Struct, frozen=True):
    """The peer has sent a large packet. Its envelopes are parsed in slices, with `packets.walk_envelopes`."""

    payload: bytes


class Answered(msgspec.Struct, frozen=True):
    """The peer reports the result of our packet."""

    response: packets.Response


class Requested(msgspec.Struct, frozen=True):
    """The peer requests history."""

    payload: bytes


class HistoryReceived(msgspec.Struct, frozen=True):
    """A trusted peer has sent history."""

    envelopes: list[Envelope]


class Ended(msgspec.Struct, frozen=True):
    """A trusted peer ends its answer to a request. `restante.waku.protocol.completion` parses the payload."""

    payload: bytes


class Violation(msgspec.Struct, frozen=True):
    """The peer violated the protocol. The conversation goes on."""

    code: int
    """The code of the invalid packet."""


PeerEvent = Greeted | Changed | Offered | OfferedLarge | Answered | Requested | HistoryReceived | Ended | Violation


class Peer:
    """The conversation with one peer."""

    __slots__ = ("confirms", "greeted", "interest", "pow", "trusted")

    def __init__(self) -> None:
        self.greeted = False
        self.pow = DEFAULT_POW
        self.trusted = False
        """Whether the peer may send P2P Messages and P2P Request Complete. By default no peer may
        (10/WAKU-MAILSERVER)."""
        self.confirms = False
        """Whether the peer answers each Messages packet with a Batch Ack and a Message Response."""
        self.interest = WANTS_EVERYTHING

    def receive(self, code: int, payload: bytes) -> PeerEvent | None:
        """Return the event of a packet; None if there is none. Raises PeerError if the conversation must end."""
        if not self.greeted:
            return self._receive_status(code, payload)
        read = _PACKET_READERS.get(code) or (_TRUSTED_READERS.get(code) if self.trusted else None)
        if read is None:
            return None
        try:
            return read(self, payload)
        except PeerError:
            return Violation(code)

    def _receive_status(self, code: int, payload: bytes) -> Greeted:
        if code != packets.STATUS:
            raise PeerError(Reason.SUBPROTOCOL, "the first packet must be a Status")
        try:
            options = packets.read_options(payload)
        except PeerError as error:
            raise PeerError(Reason.SUBPROTOCOL, f"Status: {error.text}") from None
        self._apply(options)
        self.greeted = True
        return Greeted()

    def _receive_update(self, payload: bytes) -> Changed | None:
        previous, previous_pow = self.interest, self.pow
        self._apply(packets.read_options(payload))
        if self.pow < previous_pow:
            return Changed(WANTS_NOTHING)  # for every topic, envelopes with less work are new to the peer
        return Changed(previous) if self.interest != previous else None

    def _check_ack(self, payload: bytes) -> None:
        """Check a Batch Ack. What became of our packet is in the Message Response."""
        packets.read_ack(payload)

    def _apply(self, options: Options) -> None:
        if options.pow is not None:
            self.pow = options.pow
        if options.confirmations is not None:
            self.confirms = options.confirmations
        if options.topics is not None:
            self.interest = Interest.of_topics(options.topics)
        elif options.bloom is not None:
            self.interest = Interest(bloom=options.bloom)


_PACKET_READERS: Final[dict[int, Callable[[Peer, bytes], PeerEvent | None]]] = {
    packets.MESSAGES: lambda _peer, payload: (
        Offered(packets.read_envelopes(payload)) if len(payload) <= LARGE_PACKET_BYTES else OfferedLarge(payload)
    ),
    packets.BATCH_ACK: Peer._check_ack,
    packets.MESSAGE_RESPONSE: lambda _peer, payload: (
        Answered(packets.read_response(payload)) if len(payload) <= packets.MAX_RESPONSE_BYTES else None
    ),
    packets.STATUS_UPDATE: Peer._receive_update,
    packets.REQUEST: lambda _peer, payload: Requested(payload),
}
"""The parser of each packet. A second Status and unknown packets are ignored (waku/v1/peer.go:273-277)."""

_TRUSTED_READERS: Final[dict[int, Callable[[Peer, bytes], PeerEvent | None]]] = {
    packets.P2P_MESSAGE: lambda _peer, payload: HistoryReceived(packets.read_envelopes(payload)),
    packets.REQUEST_COMPLETE: lambda _peer, payload: Ended(payload),
}
"""The parsers of packets that only a trusted peer may send."""
