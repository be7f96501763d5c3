"""Histories of mailboxes and nameplates: what clients called and were answered, and whether one server, which carries
out a command at one moment between call and answer, could have answered so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Add(NamedTuple):
    """A message that was sent. Its answer may be lost: then it may be stored at any time, or never."""

    side: str
    began: float
    ended: float = math.inf


class Read(NamedTuple):
    """The answer to a ping of a connection that has the mailbox open, or a refusal of its open."""

    side: str
    began: float
    number: int | None
    """How many messages the connection had received; None: it was refused."""


class Claim(NamedTuple):
    side: str
    began: float
    ended: float
    mailbox_id: str | None
    """None: the claim was refused."""


@dataclass
class MailboxHistory:
    """Of one mailbox that nobody closes."""

    adds: dict[str, Add] = field(default_factory=dict)
    """By their bodies, which differ."""
    reads: list[Read] = field(default_factory=list)
    received: list[list[tuple[float, str, str]]] = field(default_factory=list)
    """What each connection received: the time, the side and the body."""

    def contradictions(self) -> Iterator[str]:
        """Yield what is wrong. The longest sequence of messages that a connection received is taken for the truth."""
        log = [body for _, _, body in max(self.received, key=len, default=[])]
        position = {body: number for number, body in enumerate(log)}
        known = {body: add.ended for body, add in self.adds.items()}
        if len(position) < len(log):
            yield f"a message came twice: {log}"
        for messages in self.received:
            bodies = [body for _, _, body in messages]
            if bodies != log[: len(bodies)]:
                yield f"two orders, or a message is missing: {bodies}, {log}"
            for at, side, body in messages:
                if (add := self.adds.get(body)) is None or add.side != side or at < add.began:
                    yield f"nobody sent {body}"
                known[body] = min(known.get(body, math.inf), at)
        members = {self.adds[body].side for body in log if body in self.adds}
        if len(members) > 2:
            yield f"three sides sent: {members}"
        latest = -math.inf
        for body in log:
            add = self.adds.get(body, Add("", -math.inf))
            if add.ended < latest:
                yield f"{body} was answered before an earlier message was sent"
            latest = max(latest, add.began)
        for read in self.reads:
            before = {body for body, at in known.items() if at < read.began}
            if read.number is None:
                if any(
                    self.adds[body].side == read.side and self.adds[body].ended < read.began for body in self.adds
                ):
                    yield f"member {read.side} was refused"
            elif missing := before - set(log[: read.number]):
                yield f"{read.side} was answered without {missing}"
            elif len({self.adds[body].side for body in before if body in self.adds} - {read.side}) > 1:
                yield f"a third side opened the mailbox: {read.side}"


def contradictions_of_claims(claims: Sequence[Claim]) -> Iterator[str]:
    """Yield what is wrong with the claims of one nameplate that nobody releases."""
    mailbox_ids = {claim.mailbox_id for claim in claims} - {None}
    if len(mailbox_ids) > 1:
        yield f"one nameplate, two mailboxes: {claims}"


class Lifetime(NamedTuple):
    """A nameplate: when its allocation was called and answered, and when the first release of it was called."""

    name: str
    began: float
    allocated: float
    released: float = math.inf


def contradictions_of_nameplates(
    lifetimes: Sequence[Lifetime], lists: Sequence[tuple[float, float, set[str]]]
) -> Iterator[str]:
    """Yield what is wrong with allocations, and with lists of nameplates (call, answer, names)."""
    for number, first in enumerate(lifetimes):
        for second in lifetimes[:number]:
            if first.name == second.name and max(first.allocated, second.allocated) < min(
                first.released, second.released
            ):
                yield f"allocated twice: {first}, {second}"
    for began, ended, names in lists:
        if missing := {life.name for life in lifetimes if life.allocated < began and ended < life.released} - names:
            yield f"a list without {missing}"
