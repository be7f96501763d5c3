"""Two ends of devp2p, joined by a pipe that cuts bytes anywhere; time is a number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from restante.waku.devp2p.hello import Capability, Hello
from restante.waku.devp2p.rlpx import Rlpx
from restante.waku.devp2p.session import SESSION_LIMITS, Devp2p, SessionEvent, SessionLimits
from restante.waku.envelope.keys import Key
from support.dice import Seeded

A, B = Key(b"\1" * 32), Key(b"\2" * 32)
WAKU = (Capability("waku", 0), Capability("waku", 1))
HELLO_A = Hello("a", WAKU, 30303, A.public)
HELLO_B = Hello("b", WAKU, 30304, B.public)


def cut(data: bytes | bytearray, places: Iterable[int]) -> Iterator[bytes | bytearray]:
    """The same bytes in parts."""
    begin = 0
    for place in sorted({place % (len(data) + 1) for place in places} | {len(data)}):
        yield data[begin:place]
        begin = place


@dataclass
class Pair:
    """A dials B. What each was told is in `heard_by_a` and `heard_by_b`."""

    hello_a: Hello = HELLO_A
    hello_b: Hello = HELLO_B
    limits: SessionLimits = SESSION_LIMITS
    places: tuple[int, ...] = ()
    now: float = 0.0
    heard_by_a: list[SessionEvent] = field(default_factory=list)
    heard_by_b: list[SessionEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.a = Devp2p(Rlpx.initiator(A, B.public, Seeded(1)), self.hello_a, self.now, self.limits)
        self.b = Devp2p(Rlpx.recipient(B, Seeded(2)), self.hello_b, self.now, self.limits)

    def carry(self) -> Pair:
        """Until neither has anything to say."""
        while self._one_way() + self._other_way():
            pass
        return self

    def _one_way(self) -> int:
        data = self.a.data_to_send()
        for part in cut(data, self.places):
            self.heard_by_b += self.b.receive_data(part, self.now)
        return len(data)

    def _other_way(self) -> int:
        data = self.b.data_to_send()
        for part in cut(data, self.places):
            self.heard_by_a += self.a.receive_data(part, self.now)
        return len(data)

    def forget(self) -> Pair:
        """What was heard so far is not of interest."""
        self.heard_by_a.clear()
        self.heard_by_b.clear()
        return self


class Bare:
    """The initiator without devp2p: says what it likes, frame by frame, and reads the frames that come back."""

    def __init__(self, hello: Hello = HELLO_B, limits: SessionLimits = SESSION_LIMITS) -> None:
        self.rlpx = Rlpx.initiator(A, B.public, Seeded(1))
        self.peer = Devp2p(Rlpx.recipient(B, Seeded(2)), hello, 0.0, limits)
        self.peer.receive_data(self.rlpx.data_to_send(), 0.0)
        self.frames = self.rlpx.receive_data(self.peer.data_to_send())

    def say(self, *frames: bytes) -> list[SessionEvent]:
        """What the peer makes of it; what it answers is in `frames`."""
        events = self.peer.receive_data(b"".join(map(self.rlpx.seal, frames)), 1.0)
        self.frames = self.rlpx.receive_data(self.peer.data_to_send())
        return events

    def connected(self) -> Bare:
        self.say(b"\x80" + HELLO_A.encode())
        return self
