"""The session: two clients, 20 commands with `list`, 8 messages stored, 16 delivered.

A's tenth and B's tenth commands stand at the same places, so one table serves both. Everything that comes
back is checked against it; anything else is a failure of the session.
"""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

import words
from wire import Wire, frame

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine

# What a client says, by place; the id of a command is its place.
#   0 bind   1 allocate or list   2 claim   3 open   4 add pake   5 release   6 add version
#   7 add 0   8 add 1   9 close
PLACES = 10
COMMANDS = 2 * PLACES  # acks of a whole session
IDS = tuple(f"{place:04x}" for place in range(PLACES))
REPLY_PLACES = (1, 2, 5, 9)  # the commands with a direct response
PHASES = ("pake", "version", "0", "1")
ADD_PLACES = (4, 6, 7, 8)
_DICE = random.Random("the bodies of the bench")


class Role(NamedTuple):
    """What of a client's words is the same in every session."""

    name: str
    second: bytes
    replies: tuple[type[words.Reply], ...]
    bodies: tuple[str, ...]
    adds: tuple[bytes, ...]


def _say(place: int, type_: str, **keys: object) -> bytes:
    return frame(words.command(type_, id=IDS[place], **keys))


def _role(name: str, second: str, answered_by: type[words.Reply]) -> Role:
    sizes = (81, 120, 300, 300)  # a pake as the real client sends it, its versions, two app messages
    bodies = tuple(_DICE.randbytes(size).hex() for size in sizes)
    adds = zip(ADD_PLACES, PHASES, bodies, strict=True)
    return Role(
        name=name,
        second=_say(1, second),
        replies=(answered_by, words.Claimed, words.Released, words.Closed),
        bodies=bodies,
        adds=tuple(_say(place, "add", phase=phase, body=body) for place, phase, body in adds),
    )


ALLOCATOR = _role("A", "allocate", words.Allocated)
LISTER = _role("B", "list", words.Nameplates)
_sides = itertools.count(random.SystemRandom().randrange(1 << 39))


class Load(Protocol):
    """Who started the session and counts."""

    port: int
    tls: ssl.SSLContext | None
    acks: int

    def spawn(self, connecting: Coroutine[None, None, None]) -> None: ...
    def delivered(self, seconds: float) -> None: ...
    def finished(self, session: Session, failure: str | None) -> None: ...


class Session:
    """Two clients who share a nameplate and a mailbox."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.nameplate = ""
        self.mailbox = ""
        self.a = Client(self, ALLOCATOR)
        self.b = Client(self, LISTER)
        self.a.peer, self.b.peer = self.b, self.a
        self._closed = 0

    def start(self) -> None:
        self.load.spawn(self.a.connect())

    def allocated(self, nameplate: str) -> None:
        self.nameplate = nameplate
        self.load.spawn(self.b.connect())

    def closed(self) -> None:
        self._closed += 1
        if self._closed == 2:
            self.load.finished(self, None)

    def failed(self, why: str) -> None:
        self.a.end()
        self.b.end()
        self.load.finished(self, why)


class Client(Wire):
    """One side. Says the next thing as soon as the real client would."""

    peer: Client

    def __init__(self, session: Session, role: Role) -> None:
        super().__init__(session.load.port, session.load.tls)
        self.session = session
        self.side = f"{next(_sides):010x}"
        self.sent_at = [0.0] * len(PHASES)
        self.role = role
        self._welcome = False
        self._sent = self._acked = self._replied = 0
        self._echoed = self._heard = 0  # messages of our own, of the peer

    def failed(self, why: str) -> None:
        self.session.failed(f"{self.role.name} after {self._sent} commands, {self._acked} acks: {why}")

    def received(self, payload: bytes, now: float) -> None:
        try:
            reply = words.parse(payload)
        except msgspec.DecodeError as error:
            self.fail(f"{error}: {payload[:200]!r}")
            return
        kind = type(reply)
        if kind is words.Ack:
            self._take_ack(reply)
        elif isinstance(reply, words.Message):
            self._take_message(reply, now)
        elif kind is words.Welcome and not self._welcome:
            self._welcome = True
            bind = _say(0, "bind", appid=words.APPID, side=self.side, client_version=["python", "0.24.0"])
            self._speak(2, bind + self.role.second)
        else:
            self._take_reply(reply)

    def _speak(self, commands: int, frames: bytes) -> None:
        self._sent += commands
        self.write(frames)

    def _take_ack(self, ack: words.Reply) -> None:
        if self._acked >= self._sent or ack.id != IDS[self._acked]:
            self.fail(f"ack {ack.id!r} out of turn")
            return
        self._acked += 1
        self.session.load.acks += 1

    def _take_reply(self, reply: words.Reply) -> None:
        place = REPLY_PLACES[self._replied] if self._replied < len(REPLY_PLACES) else PLACES
        if (
            place >= self._acked
            or type(reply) is not self.role.replies[self._replied]
            or reply.id not in (None, IDS[place])
        ):
            self.fail(f"out of turn: {reply}")
            return
        self._replied += 1
        self._act_on(reply)

    def _act_on(self, reply: words.Reply) -> None:
        session = self.session
        if isinstance(reply, words.Allocated):
            session.allocated(reply.nameplate)
            self._speak(1, _say(2, "claim", nameplate=reply.nameplate))
        elif isinstance(reply, words.Nameplates):
            if f'"{session.nameplate}"'.encode() not in bytes(reply.nameplates):
                self.fail(f"nameplate {session.nameplate} is not in the list")
                return
            self._speak(1, _say(2, "claim", nameplate=session.nameplate))
        elif isinstance(reply, words.Claimed):
            self._take_mailbox(reply.mailbox)
        elif isinstance(reply, words.Closed):
            self._leave()

    def _take_mailbox(self, mailbox: str) -> None:
        if self.session.mailbox not in ("", mailbox):
            self.fail(f"two mailboxes on nameplate {self.session.nameplate}")
            return
        self.session.mailbox = mailbox
        self._add(2, 0, 1, _say(3, "open", mailbox=mailbox))

    def _add(self, commands: int, first: int, last: int, before: bytes = b"") -> None:
        """Add the phases `first` up to `last`, in one write with what goes before them."""
        self._speak(commands, before + b"".join(self.role.adds[first:last]))
        self.sent_at[first:last] = [time.perf_counter()] * (last - first)

    def _take_message(self, message: words.Message, now: float) -> None:
        own = message.side == self.side
        author = self if own else self.peer
        nth = self._echoed if own else self._heard
        if not (
            nth < len(PHASES)
            and message.side == author.side
            and message.phase == PHASES[nth]
            and message.body == author.role.bodies[nth]
            and message.id == IDS[ADD_PLACES[nth]]
            and self._acked > (ADD_PLACES[nth] if own else 3)
        ):
            self.fail(f"message not expected: {message.side} {message.phase} {message.id}")
        elif own:
            self._echoed += 1
        else:
            self._heard += 1
            self._act_on_peer(nth, now)

    def _act_on_peer(self, nth: int, now: float) -> None:
        if nth:  # the pake may have waited for us; the others found us subscribed
            self.session.load.delivered(now - self.peer.sent_at[nth])
        if nth == 0:
            self._add(2, 1, 2, _say(5, "release", nameplate=self.session.nameplate))
        elif nth == 1:
            self._add(2, 2, 4)
        elif nth == 3:
            self._speak(1, _say(9, "close", mailbox=self.session.mailbox, mood="happy"))

    def _leave(self) -> None:
        if self._echoed != len(PHASES) or self._heard != len(PHASES) or self._acked != PLACES:
            self.fail("closed before everything was delivered")
            return
        self.end()
        self.session.closed()
