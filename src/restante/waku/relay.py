"""Relaying: what is new goes to who wants it, and who comes to want more gets what lives of that."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from restante.waku import wire
from restante.waku.envelope import Envelope
from restante.waku.interest import Interest, Interests
from restante.waku.link import Link
from restante.waku.mailserver import Mailserver
from restante.waku.packed import pack
from restante.waku.pool import Live

LOOKS: Final = 500
"""Topics looked at for a peer in one turn of the loop."""

PART: Final = 1 << 18
"""Bytes of envelopes sent of a backlog in one turn of the loop."""

NOTHING: Final = Interest.named(())


class Relay:
    """Who wants what, and what goes to them. Nothing is kept of what a peer has had already."""

    def __init__(self, mailserver: Mailserver, loop: asyncio.AbstractEventLoop) -> None:
        self.interests: Interests[Link] = Interests()
        """Of those that have greeted."""
        self.counts: Counter[str] = Counter()
        """What became of envelopes, for each peer."""
        self._mailserver = mailserver
        self._loop = loop
        self._pushing = False
        self._minds: dict[Link, Interest] = {}
        """What those who changed their minds in this turn of the loop wanted before."""

    def drop(self, link: Link) -> None:
        """Forget a peer."""
        self.interests.drop(link)

    def push_soon(self) -> None:
        """Push what is new when this turn of the loop is over: to each in as few packets as there can be."""
        if not self._pushing:
            self._pushing = True
            self._loop.call_soon(self._push)

    def _push(self) -> None:
        """Push what is new to those who want it."""
        self._pushing = False
        fresh, self._mailserver.fresh = self._mailserver.fresh, []
        outgoing: dict[Link, list[Live]] = {}
        for live in fresh:
            for link in self.interests.wanting(live.envelope.topic):
                if link is not live.origin and live.pow >= link.peer.pow:
                    outgoing.setdefault(link, []).append(live)
        packed: dict[tuple[int, ...], list[tuple[bytes, bytes]]] = {}
        for link, wanted in outgoing.items():
            if link.stuck:
                self.counts["not relayed, the peer does not read"] += len(wanted)
                continue
            same = tuple(map(id, wanted))
            bodies = packed.get(same)
            if bodies is None:
                bodies = packed[same] = [(body, pack(body)) for body in _bodies(live.envelope for live in wanted)]
            for body, squeezed in bodies:
                link.send(wire.MESSAGES, body, squeezed)
            self.counts["relayed"] += len(wanted)

    def turn_to(self, link: Link, before: Interest) -> None:
        """Note that a peer wants something else than before: once in a turn of the loop, however often it says so."""
        if not self._minds:
            self._loop.call_soon(self._change)
        self._minds.setdefault(link, before)

    def _change(self) -> None:
        """Relay to those who changed their minds from now on, and what lives that they did not want before."""
        minds, self._minds = self._minds, {}
        for link, before in minds.items():
            if link.here:
                self.interests.put(link, link.peer.interest)
                link.send_backlog(self._living(link, NOTHING if link.in_arrears else before))

    def _living(self, link: Link, before: Interest) -> Iterator[list[Envelope]]:
        """Give what lives of what a peer wants now, in parts that take a millisecond to find."""
        live, interest = self._mailserver.pool.live, link.peer.interest
        few = interest.few()
        found: list[Envelope] = []
        size = 0
        for looked, topic in enumerate(list(live) if few is None else few, 1):
            if interest.wants(topic) and not before.wants(topic):
                for each in list(live.get(topic, {}).values()):
                    if each.origin is not link and each.pow >= link.peer.pow:
                        found.append(each.envelope)
                        size += len(each.envelope.raw)
                        if size > PART:
                            yield found
                            found, size = [], 0
            if looked % LOOKS == 0:
                yield found
                found, size = [], 0
        yield found


def _bodies(envelopes: Iterable[Envelope]) -> Iterator[bytes]:
    for part in wire.parted(each.raw for each in envelopes):
        yield wire.write_envelopes(part)
