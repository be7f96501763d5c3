"""What every world of the mailbox server is given: time, chance, the operator's options, and clients to speak to."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from restante.mailbox.core.admission import Admission
from restante.mailbox.core.connection_state import ConnectionState
from restante.mailbox.core.limits import UNLIMITED, Limits
from restante.mailbox.core.model import Policy
from restante.mailbox.core.rules import new_mailbox_id
from restante.mailbox.protocol.hashcash import Mode
from restante.mailbox.server.running_settings import admission_terms
from restante.mailbox.server.server import WelcomeOptions
from restante.mailbox.settings import Serve
from support.dice import FakeDice

Frame = dict[str, Any]

EPOCH: Final = 1_000_000_000.0
"""Wall time at which every fake clock starts, and every script."""


class FakeClock:
    """Stands still until it is moved: `now` moves both clocks, `skew` the wall clock only."""

    def __init__(self, epoch: float = EPOCH, uptime: float = 0.0) -> None:
        self.now = 0.0
        self.skew = 0.0
        self._epoch = epoch
        self._uptime = uptime

    def wall(self) -> float:
        return self._epoch + self.now + self.skew

    def monotonic(self) -> float:
        return self._uptime + self.now


def mailbox_id(number: int) -> str:
    """Return the id of the mailbox for which the dice drew this number. Fresh `FakeDice` draw 1, 2, …"""
    return new_mailbox_id(FakeDice(draw=number.to_bytes))


class Options(NamedTuple):
    blur: int = 0
    lists: bool = True
    prune_after: float = 660.0
    limits: Limits = UNLIMITED
    permission: Mode = "none"
    bits: int = 20
    binary: bool = False
    """The frames that the server sends; it takes either."""
    motd: str | None = None
    error: str | None = None
    parting: float = 0.05
    """Seconds for which the server still answers a client that it sends away."""
    address: str | None = None
    """Where a proxy says that all clients come from; None: there is no proxy."""
    in_grace_period: bool = True
    """Whether sides that were here before a start are waited for."""

    def policy(self) -> Policy:
        return Policy(self.blur, self.lists, self.limits)

    def welcome_options(self) -> WelcomeOptions:
        return WelcomeOptions(motd=self.motd, error=self.error)

    def admission(self) -> Admission:
        """Return an admission whose secrets are all alike, so that scripts can have stamps in them."""
        settings = Serve(permission=self.permission, permission_bits=self.bits, trust_proxy=("127.0.0.0/8",))
        return Admission(admission_terms(settings), lambda: bytes(32), self.policy())

    def headers(self) -> dict[str, str]:
        """Return the headers with which a proxy says where clients come from."""
        return {} if self.address is None else {"X-Real-IP": self.address, "X-Real-Port": "1"}


class Inbox:
    """A client's end of a connection: all that came out of it, and how it was ended."""

    address: tuple[str, int] = "127.0.0.1", 1

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.verdict: tuple[int, str] | None = None
        """The code and the words of the close; None: the server did not close it."""
        self.paused = False
        self.ignored = False
        self.connection = ConnectionState(self)

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        self.frames += [json.loads(body + stamp) for body in bodies]

    def ignore(self) -> None:
        self.ignored = True

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def large_messages_done(self) -> None:
        pass

    def hang_up(self, code: int, reason: str) -> None:
        assert reason
        self.verdict = code, reason
