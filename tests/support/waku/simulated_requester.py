"""A requester and its Mailservers, in simulated time: what happens is decided by whoever runs it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from restante.waku.client.actions import (
    Action,
    Budgets,
    Connect,
    FetchReport,
    Finished,
    HandOver,
    Leave,
    Save,
    SendRequest,
    Timeouts,
)
from restante.waku.client.inbox import Inbox
from restante.waku.client.ranges import FetchState, HistoryQuery
from restante.waku.client.requester import Requester
from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol.interest import WANTS_EVERYTHING
from restante.waku.protocol.request import Request
from support.waku.letters import EPOCH
from support.waku.mailservers import Mailserver, Packet

DROP = "drop"
SLOW = "slow"
GO = "go"


def always(_what: str) -> str:
    return GO


@dataclass
class SimulatedRequester:
    """`decide` is asked at each step whether it goes well (GO), the connection drops, or a minute passes."""

    query: HistoryQuery
    servers: Sequence[Mailserver]
    state: FetchState | None = None
    budgets: Budgets | None = None
    timeouts: Timeouts | None = None
    decide: Callable[[str], str] = always
    inbox: Inbox = field(default_factory=lambda: Inbox([WANTS_EVERYTHING]))
    wall: float = EPOCH + 1000.0
    now: float = 0.0
    handed: list[Envelope] = field(default_factory=list)
    saved: list[tuple[FetchState, int]] = field(default_factory=list)
    """And how many were handed over by then."""
    asked: list[tuple[int, Request]] = field(default_factory=list)
    report: FetchReport | None = None
    lines: dict[int, deque[Packet]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.core = Requester(self.query, len(self.servers), self.inbox, self.state, self.budgets, self.timeouts)
        self._ids = itertools.count(1)
        self.do(self.core.start(self.now, self.wall))

    def run(self) -> SimulatedRequester:
        while self.report is None:
            self.step()
        return self

    def step(self) -> None:
        """Carry one packet, or let time pass where there is none."""
        line = next(((server, line) for server, line in self.lines.items() if line), None)
        if line is None:
            self.wait()
            return
        server, packets = line
        match self.decide("packet"):
            case "drop":
                self.drop(server)
            case "slow":
                self.now += 5
                self.do(self.core.handle_timeout(self.now))
            case _:
                self.carry(server, packets.popleft())

    def carry(self, server: int, packet: Packet) -> None:
        self.now += 0.01
        if isinstance(packet, bytes):
            self.do(self.core.ended(server, packet, self.now))
        else:
            self.do(self.core.came(server, packet, self.now))

    def wait(self) -> None:
        due = self.core.next_timeout()
        assert due is not None
        assert due < float("inf")
        self.now = max(self.now, due)
        self.do(self.core.handle_timeout(self.now))

    def drop(self, server: int) -> None:
        del self.lines[server]
        self.do(self.core.lost(server, "the connection was lost", self.now))

    def do(self, actions: list[Action]) -> None:
        for each in actions:
            assert self.report is None, "nothing comes after the report"
            match each:
                case Connect(server):
                    self.lines[server] = deque()
                    if self.decide("connect") == DROP:
                        self.drop(server)
                    else:
                        self.do(self.core.connected(server, self.now))
                case SendRequest(server, request):
                    self._send(server, request)
                case Leave(server):
                    self.lines.pop(server, None)
                case HandOver(envelopes):
                    self.handed += envelopes
                case Save(state):
                    self.saved.append((state, len(self.handed)))
                case Finished(report):
                    self.report = report

    def _send(self, server: int, request: Request) -> None:
        request = msgspec.structs.replace(request, id=next(self._ids).to_bytes(32))
        self.asked.append((server, request))
        self.do(self.core.request_sent(server, request.id, self.now))
        self.lines[server].extend(self.servers[server].packets(request))
