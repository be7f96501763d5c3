"""Mailservers to ask, in memory: honest ones in either order, and some that are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.protocol import completion
from restante.waku.protocol.completion import NO_HASH
from restante.waku.protocol.request import Answer, Request
from support.waku.letters import TOPIC

Packet = list[Envelope] | bytes
"""A P2P Message, or the body of a P2P Request Complete."""


def key(envelope: Envelope) -> bytes:
    return envelope.sent.to_bytes(4) + envelope.hash


@dataclass
class Honest:
    """Answers as status-go does; `size` bounds its pages, whatever the limit asked for."""

    envelopes: list[Envelope]
    downward: bool = False
    size: int = 1000
    answer: Answer = "string"
    together: int = 3
    """Envelopes of a packet."""

    def page(self, request: Request) -> tuple[list[Envelope], bytes]:
        """The envelopes of a page, and its cursor."""
        found = sorted((each for each in self.envelopes if wanted(request, each)), key=key, reverse=self.downward)
        if request.cursor:
            found = [each for each in found if (key(each) < request.cursor) == self.downward]
            found = [each for each in found if key(each) != request.cursor]
        size = min(self.size, request.limit)
        # A cursor also where nothing is left, if the page is full: as shipped servers do it.
        return found[:size], key(found[size - 1]) if len(found) >= size else b""

    def packets(self, request: Request) -> Iterator[Packet]:
        found, cursor = self.page(request)
        for at in range(0, len(found), self.together):
            yield found[at : at + self.together]
        yield completion.complete(request.id, found[-1].hash if found else NO_HASH, cursor, self.answer)


def wanted(request: Request, envelope: Envelope) -> bool:
    if not request.lower <= envelope.sent <= request.upper:
        return False
    if request.topics:
        return envelope.topic in request.topics
    assert request.bloom is not None
    return bloom.passes(request.bloom, envelope.topic)


@dataclass
class Shuffled(Honest):
    """In no order, with cursors that are its own affair: 10/WAKU-MAILSERVER allows it."""

    long: int = 2
    """Bytes of a cursor."""

    def page(self, request: Request) -> tuple[list[Envelope], bytes]:
        found = sorted((each for each in self.envelopes if wanted(request, each)), key=lambda each: each.hash)
        start = int.from_bytes(request.cursor)
        end = start + min(self.size, request.limit)
        return found[start:end], end.to_bytes(self.long) if end < len(found) else b""


class Silent:
    def packets(self, _request: Request) -> Iterator[Packet]:
        return iter(())


@dataclass
class Refusing:
    words: str = "rate limit exceeded"

    def packets(self, request: Request) -> Iterator[Packet]:
        yield completion.failure(request.id, self.words)


class Junk:
    def packets(self, _request: Request) -> Iterator[Packet]:
        yield b"\x81\x01"


@dataclass
class Endless:
    """Makes up envelopes, page after page."""

    made: int = 0
    page_size: int = 10

    def packets(self, request: Request) -> Iterator[Packet]:
        page = []
        for _ in range(self.page_size):
            self.made += 1
            page.append(make(request.lower + 50, 50, min(request.topics), b"", self.made))
        yield page
        yield completion.complete(request.id, page[-1].hash, self.made.to_bytes(36))


class Stuck:
    """Pages of nothing, the cursor always the same."""

    def packets(self, request: Request) -> Iterator[Packet]:
        yield completion.complete(request.id, NO_HASH, b"\7" * 36)


@dataclass
class Empty:
    """Pages of nothing, the cursor always another."""

    asked: int = 0

    def packets(self, request: Request) -> Iterator[Packet]:
        self.asked += 1
        yield completion.complete(request.id, NO_HASH, self.asked.to_bytes(36))


@dataclass
class Repeating:
    """The same page under ever new cursors."""

    envelopes: list[Envelope]
    asked: int = 0

    def packets(self, request: Request) -> Iterator[Packet]:
        self.asked += 1
        yield self.envelopes
        yield completion.complete(request.id, self.envelopes[-1].hash, self.asked.to_bytes(36))


@dataclass
class Foreign(Honest):
    """Adds what nobody asked for: of other topics, out of range, too large; and everything twice."""

    size_of_large: int = 2000
    others: list[Envelope] = field(default_factory=list)

    def packets(self, request: Request) -> Iterator[Packet]:
        self.others = [
            make(request.lower + 50, 50, b"\xff" * 4, b"f"),
            make(request.upper + 1 + 50, 50, TOPIC, b"o"),
            make(request.lower - 1 + 50, 50, TOPIC, b"u"),
            make(request.lower + 50, 50, TOPIC, bytes(self.size_of_large)),
        ]
        yield self.others
        for packet in super().packets(request):
            yield packet
            if isinstance(packet, list):
                yield packet


class EndFirst(Honest):
    """Says that it has finished, and then sends."""

    def packets(self, request: Request) -> Iterator[Packet]:
        *packets, end = super().packets(request)
        yield end
        yield from packets


class EndOnly(Honest):
    """Says that it has sent what it has not."""

    def packets(self, request: Request) -> Iterator[Packet]:
        *_, end = super().packets(request)
        yield end


class WrongId(Honest):
    """Ends another's answer, before it ends ours."""

    def packets(self, request: Request) -> Iterator[Packet]:
        yield completion.complete(b"\xee" * 32)
        yield completion.failure(b"\xee" * 32, "it is not yours")
        yield from super().packets(request)


Mailserver = (
    Honest | Silent | Refusing | Junk | Endless | Stuck | Empty | Repeating | EndFirst | EndOnly | WrongId | Shuffled
)
