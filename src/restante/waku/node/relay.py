"""Relaying: what is new goes to who wants it, and who comes to want more gets what lives of that."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from restante.waku.connection.peer_connection import PeerConnection
from restante.waku.devp2p.snappy import compress
from restante.waku.envelope.envelope import Envelope
from restante.waku.node.mailserver import Mailserver
from restante.waku.node.pool import LiveEnvelope
from restante.waku.protocol import packets
from restante.waku.protocol.interest import WANTS_NOTHING, Interest, Interests

TOPICS_PER_TURN: Final = 500
"""Topics looked at for a peer in one turn of the loop."""

MAX_RELAY_PACKET_BYTES: Final = 1 << 17
"""Bytes of envelopes in a packet; and sent of a backlog in one turn of the loop."""

FLUSH_PACKET_BYTES: Final = 1 << 14
"""Bytes of a packet that is written at once, and not with what else the turn brings."""

CHECKS_PER_TURN: Final = 20_000
"""Envelopes times peers that are looked at in one turn of the loop: some milliseconds, if few are sent."""


class Relay:
    """Who wants what, and what goes to them. Nothing is kept of what a peer has had already."""

    def __init__(self, mailserver: Mailserver, loop: asyncio.AbstractEventLoop) -> None:
        self.interests: Interests[PeerConnection] = Interests()
        """Of those that have greeted."""
        self.counts: Counter[str] = Counter()
        """What became of envelopes, for each peer."""
        self._mailserver = mailserver
        self._loop = loop
        self._pushing = False
        self._pushed = 0
        """The number of the last envelope that was pushed."""
        self._minds: dict[PeerConnection, Interest] = {}
        """What those who changed their minds in this turn of the loop wanted before."""

    def drop(self, connection: PeerConnection) -> None:
        """Forget a peer."""
        self.interests.drop(connection)

    def push_soon(self) -> None:
        """Push what is new when this turn of the loop is over: to each in as few packets as there can be.

        Most envelopes are wanted by nobody who is here. Where that is soon found out, no other turn is needed.
        """
        if self._pushing:
            return
        fresh, wanted = self._mailserver.fresh, self.interests.wanted
        if len(fresh) <= self._at_once() and not any(wanted(live.envelope.topic) for live in fresh):
            self._pushed = fresh[-1].number
            fresh.clear()
            return
        self._pushing = True
        self._loop.call_soon(self._push)

    def _at_once(self) -> int:
        """Tell how many envelopes a turn of the loop has time for."""
        return max(1, CHECKS_PER_TURN // max(1, len(self.interests)))

    def _push(self) -> None:
        """Push what is new to those who want it, as much as a turn of the loop has time for."""
        fresh = self._mailserver.fresh
        count = self._at_once()
        some, self._mailserver.fresh = fresh[:count], fresh[count:]
        self._pushing = bool(self._mailserver.fresh)
        if self._pushing:
            self._loop.call_soon(self._push)
        if some:
            self._pushed = some[-1].number
        outgoing: dict[PeerConnection, list[LiveEnvelope]] = {}
        for live in some:
            for connection in self.interests.wanting(live.envelope.topic):
                if live.pow >= connection.peer.pow and connection.node_id != live.origin:
                    outgoing.setdefault(connection, []).append(live)
        compressed: dict[tuple[int, ...], list[tuple[bytes, bytes]]] = {}
        for connection, wanted in outgoing.items():
            numbers = tuple([live.number for live in wanted])
            bodies = compressed.get(numbers)
            if bodies is None:
                bodies = compressed[numbers] = [(body, compress(body)) for body in _bodies(wanted)]
            self._send(connection, bodies, numbers)

    def _send(self, connection: PeerConnection, bodies: list[tuple[bytes, bytes]], numbers: tuple[int, ...]) -> None:
        """Send to a peer what it has room for; the rest it has missed, until it reads."""
        for body, squeezed in bodies:
            if connection.reading.stuck:
                self.counts["relayed later, when the peer reads"] += len(numbers)
                if connection.missed is None:
                    connection.missed = numbers[0]
                return
            connection.send(packets.MESSAGES, body, squeezed)
            if len(squeezed) > FLUSH_PACKET_BYTES:
                connection.flush()  # so that it is known whether there is room for more
        self.counts["relayed"] += len(numbers)

    def catch_up(self, connection: PeerConnection) -> None:
        """Send a peer that reads again what it has missed and still lives."""
        since, connection.missed = connection.missed or 0, None
        if connection.in_arrears:
            since = 0  # what it gets of its last backlog is not known
        connection.send_backlog(self._living(connection, WANTS_NOTHING, since, self._pushed))

    def turn_to(self, connection: PeerConnection, before: Interest) -> None:
        """Note that a peer wants something else than before: once in a turn of the loop, however often it says so."""
        if not self._minds:
            self._loop.call_soon(self._change)
        self._minds.setdefault(connection, before)

    def _change(self) -> None:
        """Relay to those who changed their minds from now on, and what lives that they did not want before."""
        minds, self._minds = self._minds, {}
        for connection, before in minds.items():
            if connection.here:
                self.interests.put(connection, connection.peer.interest)
                connection.send_backlog(
                    self._living(connection, WANTS_NOTHING if connection.in_arrears else before, 0, self._pushed)
                )

    def _living(
        self, connection: PeerConnection, before: Interest, since: int, until: int
    ) -> Iterator[list[Envelope]]:
        """Give what lives of what a peer wants now, in parts that take a millisecond to find.

        Not of topics that it wanted before; from number `since` to `until`, for what is pushed later it gets anyway.
        """
        live, interest = self._mailserver.pool.live, connection.peer.interest
        few = interest.few()
        found: list[Envelope] = []
        size = 0
        for looked, topic in enumerate(list(live) if few is None else few, 1):
            if interest.wants(topic) and not before.wants(topic):
                for each in list(live.get(topic, {}).values()):
                    if (
                        since <= each.number <= until
                        and each.pow >= connection.peer.pow
                        and each.origin != connection.node_id
                    ):
                        found.append(each.envelope)
                        size += len(each.envelope.raw)
                        if size > MAX_RELAY_PACKET_BYTES:
                            yield found
                            found, size = [], 0
            if looked % TOPICS_PER_TURN == 0:
                yield found
                found, size = [], 0
        yield found


def _bodies(live: Iterable[LiveEnvelope]) -> Iterator[bytes]:
    for part in packets.parted((each.envelope.raw for each in live), MAX_RELAY_PACKET_BYTES):
        yield packets.write_envelopes(part)
