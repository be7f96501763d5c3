"""Mailservers to ask, in memory: honest ones in either order, and some that are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol import completion
from restante.waku.protocol.completion import NO_HASH
from restante.waku.protocol.request import Answer, Request

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


class Silent:
    def packets(self, _request: Request) -> Iterator[Packet]:
        return iter(())


@dataclass
class Refusing:
    words: str = "rate limit exceeded"

    def packets(self, request: Request) -> Iterator[Packet]:
        yield completion.failure(request.id, self.words)


class Mailserver(Protocol):
    """Whatever answers a request."""

    def packets(self, request: Request) -> Iterator[Packet]: ...
