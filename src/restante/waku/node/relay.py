"""Relaying: new envelopes go to the peers that want them, and live ones to peers that begin to want them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from restante.waku.connection.peer_connection import PeerConnection
from restante.waku.devp2p.snappy import compress
from restante.waku.envelope.envelope import Envelope
from restante.waku.node.mailserver import Mailserver
from restante.waku.node.pool import LiveEnvelope
from restante.waku.protocol import packets
from restante.waku.protocol.interest import WANTS_NOTHING, Interest, Interests

TOPICS_PER_TURN: Final = 500
"""Topics examined for a peer in one turn of the loop."""

MAX_RELAY_PACKET_BYTES: Final = 1 << 17
"""Bytes of envelopes in a packet, and bytes of a backlog sent in one turn of the loop."""

FLUSH_PACKET_BYTES: Final = 1 << 14
"""Compressed bytes of a packet above which it is written at once, not at the end of the turn."""

CHECKS_PER_TURN: Final = 20_000
"""Envelopes times peers that are checked in one turn of the loop: some milliseconds if few are sent."""


class RelayCount(StrEnum):
    """What became of envelopes for a peer. The values are the names in the log of a minute."""

    RELAYED = "relayed"
    DELAYED = "relayed later, because the peer did not read"


class EnvelopeRelay:
    """The interests of all peers, and what is sent to them. It does not record what a peer has received.

    A peer that begins to want a topic, or that has missed envelopes, has a backlog: live envelopes that are sent as
    it reads, one part per turn of the loop.
    """

    def __init__(self, mailserver: Mailserver, loop: asyncio.AbstractEventLoop) -> None:
        self.interests: Interests[PeerConnection] = Interests()
        """The interests of the peers that have greeted."""
        self.counts: Counter[RelayCount] = Counter()
        """Numbers of envelopes relayed or delayed, counted for each peer."""
        self.missed: dict[PeerConnection, int] = {}
        """The number of the first live envelope that was not sent to a peer because it did not read."""
        self.backlogs: dict[PeerConnection, Iterator[list[Envelope]]] = {}
        """The parts of a backlog that have not been sent."""
        self._scheduled: set[PeerConnection] = set()
        """Peers to which `_send_part` will be called in the next turn of the loop."""
        self._mailserver = mailserver
        self._loop = loop
        self._pushing = False
        self._pushed = 0
        """The number of the last pushed envelope."""
        self._changed_interests: dict[PeerConnection, Interest] = {}
        """The previous interests of peers that have changed them in this turn of the loop."""

    def forget(self, connection: PeerConnection) -> None:
        """Forget a closed connection."""
        self.interests.drop(connection)
        self.missed.pop(connection, None)
        self.backlogs.pop(connection, None)

    def push_soon(self) -> None:
        """Push new envelopes at the end of this turn of the loop, in as few packets per peer as possible.

        Most envelopes are wanted by no connected peer. If that can be checked quickly, they are dropped at once.
        """
        if self._pushing:
            return
        unrelayed, is_wanted = self._mailserver.unrelayed, self.interests.any_peer_wants
        can_check = len(unrelayed) <= self._envelopes_per_turn()
        if can_check and not any(is_wanted(live.envelope.topic) for live in unrelayed):
            self._pushed = unrelayed[-1].number
            unrelayed.clear()
            return
        self._pushing = True
        self._loop.call_soon(self._push)

    def _envelopes_per_turn(self) -> int:
        """Return how many envelopes can be checked in one turn of the loop."""
        return max(1, CHECKS_PER_TURN // max(1, len(self.interests)))

    def _push(self) -> None:
        """Push new envelopes to the peers that want them, as many as one turn of the loop can check."""
        unrelayed, count = self._mailserver.unrelayed, self._envelopes_per_turn()
        pushed, self._mailserver.unrelayed = unrelayed[:count], unrelayed[count:]
        self._pushing = bool(self._mailserver.unrelayed)
        if self._pushing:
            self._loop.call_soon(self._push)
        if pushed:
            self._pushed = pushed[-1].number
        outgoing: dict[PeerConnection, list[LiveEnvelope]] = {}
        for live in pushed:
            for connection in self.interests.peers_wanting(live.envelope.topic):
                if live.pow >= connection.peer.pow and connection.node_id != live.origin:
                    outgoing.setdefault(connection, []).append(live)
        compressed: dict[tuple[int, ...], list[tuple[bytes, bytes]]] = {}
        for connection, envelopes in outgoing.items():
            numbers = tuple([live.number for live in envelopes])
            bodies = compressed.get(numbers)
            if bodies is None:
                raws = packets.split_for_packets((live.envelope.raw for live in envelopes), MAX_RELAY_PACKET_BYTES)
                packet_bodies = map(packets.write_envelopes, raws)
                bodies = compressed[numbers] = [(body, compress(body)) for body in packet_bodies]
            self._send(connection, bodies, numbers)

    def _send(self, connection: PeerConnection, bodies: list[tuple[bytes, bytes]], numbers: tuple[int, ...]) -> None:
        """Send packets until the peer has too much unread. Then record the first envelope that it misses."""
        for body, compressed in bodies:
            if connection.reading.paused_by_unread:
                self.counts[RelayCount.DELAYED] += len(numbers)
                self.missed.setdefault(connection, numbers[0])
                return
            connection.send(packets.MESSAGES, body, compressed)
            if len(compressed) > FLUSH_PACKET_BYTES:
                connection.flush()  # the flush shows whether the peer can receive more
        self.counts[RelayCount.RELAYED] += len(numbers)

    def catch_up(self, connection: PeerConnection) -> None:
        """Send a peer that has read what it has missed and is still live, and the rest of its backlog."""
        since = self.missed.pop(connection, None)
        if since is not None:
            if connection in self.backlogs:
                since = 0  # the new backlog contains the rest of this one
            self.backlogs[connection] = self._backlog(connection, WANTS_NOTHING, since, self._pushed)
        self._schedule(connection)

    def _schedule(self, connection: PeerConnection) -> None:
        if connection in self.backlogs and connection not in self._scheduled:
            self._scheduled.add(connection)
            self._loop.call_soon(self._send_part, connection)

    def _send_part(self, connection: PeerConnection) -> None:
        """Send a part of the peer's backlog, unless the peer must read first. Then `catch_up` continues."""
        self._scheduled.discard(connection)
        backlog = self.backlogs.get(connection)
        if backlog is None or connection.writing_paused or not connection.ready:
            return
        part = next(backlog, None)
        if part is None:
            del self.backlogs[connection]
            return
        for raws in packets.split_for_packets(envelope.raw for envelope in part):
            connection.send(packets.MESSAGES, packets.write_envelopes(raws))
        connection.flush()
        self._schedule(connection)

    def interest_changed(self, connection: PeerConnection, before: Interest) -> None:
        """Record that a peer has changed its interest. Changes are handled once per turn of the loop."""
        if not self._changed_interests:
            self._loop.call_soon(self._apply_changes)
        self._changed_interests.setdefault(connection, before)

    def _apply_changes(self) -> None:
        """Apply changed interests, and send these peers the live envelopes that they did not want before."""
        changed, self._changed_interests = self._changed_interests, {}
        for connection, before in changed.items():
            if connection.ready:
                self.interests.put(connection, connection.peer.interest)
                sent_interest = WANTS_NOTHING if connection in self.backlogs else before
                self.backlogs[connection] = self._backlog(connection, sent_interest, 0, self._pushed)
                self._schedule(connection)

    def _backlog(
        self, connection: PeerConnection, before: Interest, since: int, until: int
    ) -> Iterator[list[Envelope]]:
        """Yield the live envelopes that a peer wants now, in parts that take a millisecond to find.

        Topics that it wanted before are left out. Numbers are from `since` to `until`, because later envelopes are
        pushed in any case.
        """
        live, interest = self._mailserver.pool.live, connection.peer.interest
        few = interest.listed_topics()
        part: list[Envelope] = []
        size = 0
        for count, topic in enumerate(list(live) if few is None else few, 1):
            if interest.wants(topic) and not before.wants(topic):
                for candidate in list(live.get(topic, {}).values()):
                    if (
                        since <= candidate.number <= until
                        and candidate.pow >= connection.peer.pow
                        and candidate.origin != connection.node_id
                    ):
                        part.append(candidate.envelope)
                        size += len(candidate.envelope.raw)
                        if size > MAX_RELAY_PACKET_BYTES:
                            yield part
                            part, size = [], 0
            if count % TOPICS_PER_TURN == 0:
                yield part
                part, size = [], 0
        yield part
