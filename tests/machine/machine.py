"""Everything that clients, clocks, disks and operators may do, in any order, to the server and to the model."""

from __future__ import annotations

import itertools
import json
import random
from collections import deque
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from machine.model import ModelPeer, ModelServer
from restante.mailbox.core.fair_queue import MAX_UNSHARED_COMMANDS
from restante.mailbox.core.model import Now
from support.dice import FakeDice
from support.mailbox.givens import FakeClock, Inbox, Options, mailbox_id
from support.mailbox.worlds import CoreWorld, World

APPS = ("x", "y")
SIDES = ("a", "b", "c", "")

# Who sits at which slot, unless it binds itself otherwise: two connections of one side, three sides of one app, and a
# side of the same name in another app. Few, so that they meet.
SEATS = (("x", "a"), ("x", "a"), ("x", "b"), ("x", "b"), ("x", "c"), ("y", "a"))

NAMEPLATES = ("1", "2", "007", "9" * 40)
MAILBOXES = (mailbox_id(1), mailbox_id(2), "", "é\u2028")
MOODS = ("happy", "lonely", "scary", "errory", "unwelcome", None)

slots = st.integers(0, len(SEATS) - 1)
picks = st.integers(0, 99)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)

FIELDS: dict[str, dict[str, Any]] = {
    "bind": {"appid": "x", "side": "a", "client_version": ["python", "1"]},
    "list": {},
    "allocate": {},
    "claim": {"nameplate": "1"},
    "release": {"nameplate": "1"},
    "open": {"mailbox": MAILBOXES[0]},
    "add": {"phase": "p", "body": "00"},
    "close": {"mailbox": MAILBOXES[0], "mood": "happy"},
    "ping": {"ping": 1},
    "welcome": {},
    "submit-permissions": {"method": "none"},
}
WRONG: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 1e300, [], [None, None], ["python"], {}, {"type": "ping"}, {"": [[]]}),
    *("", " ", "\0", "é", "😀", "x" * 100, "-1", " 1", "1\n", "٣", "1" * 41, "four"),
)


def colliding(seed: int, *, stubborn: bool, drawn: deque[str]) -> FakeDice:
    """Draw every other mailbox id, into `drawn`, from a small pool, so that it may be taken; stubborn dice show 0."""
    chance, turns = random.Random(seed), itertools.count(1)

    def show(_turn: int, bound: int) -> int:
        return 0 if stubborn else chance.randrange(bound)

    def draw(size: int) -> bytes:
        turn = next(turns)
        number = chance.randint(1, 3) if turn % 2 else 100 + turn
        drawn.append(mailbox_id(number))
        return number.to_bytes(size)

    return FakeDice(show, draw)


def _blunders() -> Iterator[dict[str, Any]]:
    yield {}
    for kind, fields in FIELDS.items():
        good = {"id": 7, "type": kind, **fields}
        for field in good:
            yield {name: value for name, value in good.items() if name != field}
            yield from ({**good, field: wrong} for wrong in WRONG)


BLUNDERS = tuple(map(json.dumps, _blunders()))
NOT_MESSAGES = ("", "hello", "{", '{"type": "ping", "ping": }', "[]", "5", "null", '"ping"')


def _choose(pick: int, likely: Sequence[str], others: Sequence[str]) -> str:
    names = [*likely, *likely, *others]
    return names[pick % len(names)]


def _own(error: str) -> str:
    return "not JSON" if error.startswith("not JSON: ") else error


MOTD = "hello"

MOST = MAX_UNSHARED_COMMANDS
"""Entries gathered: one batch, for the commit loop too. Of more, each connection has at most its share in a batch."""


class Conversation(RuleBasedStateMachine):
    kind: ClassVar[type[World] | partial[Any]] = CoreWorld
    gathers = False
    """What is said waits until a rule flushes; elsewhere each command is a batch."""

    @initialize(
        options=st.builds(
            lambda **chosen: Options(motd=MOTD, **chosen),
            blur=st.sampled_from((0, 0, 60, 3600)),
            lists=st.sampled_from((True, True, False)),
            prune_after=st.sampled_from((660.0, 660.0, 30.0)),
            binary=st.booleans(),
        ),
        seed=st.integers(0, 2**32),
        stubborn=st.sampled_from((False, False, True)),
    )
    def begin(self, options: Options, seed: int, stubborn: bool) -> None:
        self.entries: list[tuple[ModelPeer, str | None, Now]] = []
        """What happened on connections; a text of None: it was lost."""
        self.clock = FakeClock(uptime=5000.0)
        drawn: deque[str] = deque()
        dice = colliding(seed, stubborn=stubborn, drawn=drawn)
        self.world = self.kind(options, self.clock, dice)
        self.model = ModelServer(blur=options.blur, lists=options.lists, prune_after=options.prune_after, drawn=drawn)
        self.model.rebooted = self.clock.wall()
        if self.world.durable:
            self.model.start(self.world.now())
        self.seated: list[ModelPeer | None] = [None] * len(SEATS)
        self.inboxes: dict[ModelPeer, Inbox] = {}
        self.last: tuple[int, str] | None = None
        """The command that was carried out just now, and by whom: it may be sent again."""

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self._flush()
            finally:
                self.world.close()

    def _arrive(self, slot: int, *, bound: bool = True) -> ModelPeer:
        peer = self.seated[slot]
        if peer is None:
            peer, inbox = ModelPeer(), self.world.connect()
            address = dict(zip(("ipv4", "port"), inbox.address, strict=True))
            [welcome] = inbox.frames
            assert welcome.pop("server_tx") == self.clock.wall()
            assert welcome == {"type": "welcome", "welcome": {"motd": MOTD, "your-address": address}}
            inbox.frames.clear()
            self.seated[slot] = peer
            self.inboxes[peer] = inbox
            self.model.peers.append(peer)
            if bound:
                self.bind(slot, *SEATS[slot])
        return peer

    def _names(self, slot: int) -> list[str]:
        return sorted(name for app, name in self.model.nameplates if app == SEATS[slot][0])

    def _listening(self, slot: int) -> int:
        listening = [at for at, peer in enumerate(self.seated) if peer is not None and peer.listening]
        return listening[slot % len(listening)] if listening else slot

    def _say(self, slot: int, text: str, *, bound: bool = True) -> None:
        peer = self._arrive(slot, bound=bound)
        if self.gathers and all(said is None for _, said, _ in self.entries):
            self.world.gather()
        self.entries.append((peer, text, self.world.now()))
        self.world.say(self.inboxes[peer], text)
        self._flush_unless_gathering()

    def _command(self, slot: int, kind: str, message_id: Any = None, **keys: Any) -> None:
        self._arrive(slot)
        message = {"type": kind, **keys}
        if message_id is not None:
            message["id"] = message_id
        text = json.dumps(message, ensure_ascii=len(self.entries) % 2 == 0)
        self._say(slot, text)
        self.last = slot, text

    def _flush_unless_gathering(self) -> None:
        if not self.gathers or len(self.entries) >= MOST:
            self._flush()

    def _flush(self, *, refused: bool = False) -> None:
        entries, self.entries = self.entries, []
        self.last = None
        if self.world.flush(refused=refused):
            for peer, text, now in entries:
                self.model.end_grace_period(now)
                if text is None:
                    self.model.lose(peer, now)
                else:
                    self.model.say(peer, text, now, self._allocated_name)
        else:
            self.model.refuse(entries)
        self._compare()

    def _allocated_name(self, peer: ModelPeer) -> str:
        frame = self.inboxes[peer].frames[len(peer.heard)]
        assert frame["type"] == "allocated", frame
        name: str = frame["nameplate"]
        return name

    def _compare(self) -> None:
        assert not self.model.drawn, "a mailbox id was drawn for nothing"
        server_tx = self.clock.wall()
        for peer, inbox in self.inboxes.items():
            if peer.lost and not self.world.tells_the_lost:
                assert inbox.frames == []
            else:
                for frame in inbox.frames:
                    assert frame.pop("server_tx") == server_tx
                    if frame["type"] == "error":
                        frame["error"] = _own(frame["error"])
                assert inbox.frames == peer.heard
                verdict = inbox.verdict and (inbox.verdict[0], _own(inbox.verdict[1]))
                assert verdict == peer.verdict
            inbox.frames.clear()
            peer.heard.clear()
        for peer in [peer for peer in self.inboxes if peer.lost]:
            del self.inboxes[peer]
        if self.world.hanging_up_loses:
            for slot, seated in enumerate(self.seated):
                if seated is not None and seated.deaf:
                    self.seated[slot] = None
                    del self.inboxes[seated]
                    self.model.lose(seated, self.world.now())
        assert self.world.live() == self.model.live()
        usage = self.world.usage()
        if usage != self.model.usage:
            assert usage.in_any_order() == self.model.usage.in_any_order()
            self.model.usage = deepcopy(usage)  # in its order, so that the next comparison need not sort
        assert self.world.touched() == self.model.touched()

    @rule(slot=slots)
    def allocate(self, slot: int) -> None:
        self._command(slot, "allocate")

    @rule(slot=slots, pick=picks)
    def claim(self, slot: int, pick: int) -> None:
        self._command(slot, "claim", nameplate=_choose(pick, self._names(slot), NAMEPLATES))

    @rule(slot=slots)
    def open(self, slot: int) -> None:
        for nameplate in self.model.nameplates.values():
            for member in nameplate.members:
                if (nameplate.app, member.side) == SEATS[slot] and not member.allocated:
                    self._command(slot, "open", mailbox=nameplate.mailbox.name)
                    return

    @rule(slot=slots, phase=anything, body=anything, message_id=anything)
    def add(self, slot: int, phase: Any, body: Any, message_id: Any) -> None:
        self._command(self._listening(slot), "add", message_id, phase=phase, body=body)

    @rule(slot=slots)
    def release(self, slot: int) -> None:
        self._command(slot, "release")

    @rule(slot=slots, mood=st.sampled_from(MOODS))
    def close(self, slot: int, mood: str | None) -> None:
        self._command(self._listening(slot), "close", **({} if mood is None else {"mood": mood}))

    @rule(slot=slots)
    def lose(self, slot: int) -> None:
        said = "".join(text or "" for _, text, _ in self.entries)
        if said and (self.world.hanging_up_loses or ('"allocate"' in said and not self.world.tells_the_lost)):
            self._flush()  # a socket is lost at once; elsewhere nobody could tell what was allocated
        peer = self.seated[slot]
        if peer is None:
            return
        self.seated[slot] = None
        self.entries.append((peer, None, self.world.now()))
        self.world.lose(self.inboxes[peer])
        self._flush_unless_gathering()

    def _meet(self, slot: int, name: str, *, opens: bool, talks: bool) -> None:
        self._command(slot, "claim", nameplate=name)
        self._flush()
        nameplate = self.model.nameplates.get((SEATS[slot][0], name))
        if nameplate is not None and opens:
            self._command(slot, "open", mailbox=nameplate.mailbox.name)
            if talks:
                self._command(slot, "add", phase="pake", body="00")

    @rule(first=slots, second=slots, pick=picks, talks=st.booleans())
    def rendezvous(self, first: int, second: int, pick: int, talks: bool) -> None:
        for slot in (first, second):
            if self.seated[slot] is not None and pick % 2:
                self.lose(slot)
            self._meet(slot, _choose(pick, self._names(slot), NAMEPLATES), opens=True, talks=talks)

    @rule(pick=picks, moods=st.tuples(st.sampled_from(MOODS), st.sampled_from(MOODS)), last=st.booleans())
    def part(self, pick: int, moods: tuple[str | None, ...], last: bool) -> None:
        self._flush()
        mailboxes = list(self.model.mailboxes.values())
        listening = [
            slot
            for slot, seated in enumerate(self.seated)
            if seated is not None and mailboxes and seated.listening is mailboxes[pick % len(mailboxes)]
        ]
        for slot in listening:
            if last and slot == listening[-1]:
                self._command(slot, "add", phase="late", body="00")
            else:
                self._command(slot, "close", mood=moods[slot % 2])

    @rule(first=st.sampled_from((0, 2)), lost=st.booleans(), refused=st.booleans())
    def allocate_twice(self, first: int, lost: bool, refused: bool) -> None:
        for slot in (first, first + 1):
            self.lose(slot)
        self._command(first, "allocate")
        self._flush()
        if lost:
            self.lose(first)
        if refused and self.gathers and not self.model.in_grace_period(self.world.now()):
            self._command(4, "open", mailbox=MAILBOXES[1])
            self._flush(refused=True)
        self._command(first + 1, "allocate")

    @rule(stays=slots, longer=st.sampled_from((None, 0.0, 0.25, 300.0)))
    def leave(self, stays: int, longer: float | None) -> None:
        for slot in range(len(SEATS)):
            if slot != stays:
                self.lose(slot)
        if longer is not None:
            self.wait(self.model.prune_after + longer)
            self.prune(refused=False)

    @rule(slot=slots, most=st.sampled_from((6, 8, 9)))
    def take_the_digits(self, slot: int, most: int) -> None:
        for number in range(1, most + 1):
            self.lose(slot)
            self._command(slot, "claim", nameplate=str(number))

    @rule(slot=slots, app=st.sampled_from(APPS), side=st.sampled_from(SIDES))
    def bind(self, slot: int, app: str, side: str) -> None:
        self._say(slot, json.dumps({"type": "bind", "appid": app, "side": side}), bound=False)

    @rule(
        slot=slots,
        pick=picks,
        kind=st.sampled_from(("list", "release", "open", "close", "close")),
        mood=st.sampled_from(MOODS),
    )
    def name(self, slot: int, pick: int, kind: str, mood: str | None) -> None:
        app, side = SEATS[slot]
        if kind == "list":
            self._command(slot, kind, "l")
        elif kind == "release":
            self._command(slot, kind, nameplate=_choose(pick, self._names(slot), NAMEPLATES))
        else:
            mailboxes = [mailbox for mailbox in self.model.mailboxes.values() if mailbox.app == app]
            mine = [mailbox for mailbox in mailboxes if side in [member.side for member in mailbox.members]]
            likely = sorted(mailbox.name for mailbox in mailboxes + mine + mine)
            more = {"mood": mood} if kind == "close" else {}
            self._command(slot, kind, mailbox=_choose(pick, likely, MAILBOXES), **more)

    @rule(slot=slots, ping=anything, message_id=anything, bound=st.booleans())
    def ping(self, slot: int, ping: Any, message_id: Any, bound: bool) -> None:
        self._say(slot, json.dumps({"type": "ping", "ping": ping, "id": message_id}), bound=bound)

    @rule(
        slot=slots,
        text=st.sampled_from(BLUNDERS) | st.sampled_from(NOT_MESSAGES),
        bound=st.sampled_from((True, True, False)),
    )
    def blunder(self, slot: int, text: str, bound: bool) -> None:
        self._say(slot, text, bound=bound)

    @precondition(lambda self: self.last is not None)
    @rule(restarted=st.booleans())
    def lose_the_answer(self, restarted: bool) -> None:
        """The client says it again: rows and usage stay, but for the bind, unless it adds a message."""
        assert self.last is not None
        slot, text = self.last
        seated = self.seated[slot]
        self._flush()
        if seated is None or seated.deaf or seated.refused or json.loads(text)["type"] == "add":
            return
        before = self.model.live(), self.model.usage.nameplates[:], self.model.usage.mailboxes[:]
        self.lose(slot)
        if restarted and self.world.durable:
            self.restart(crash=True)
        self.bind(slot, seated.app or "", seated.side)
        self._say(slot, text)
        self._flush()
        assert before == (self.model.live(), self.model.usage.nameplates, self.model.usage.mailboxes)

    @rule(seconds=st.sampled_from((0.25, 1.0, 29.75, 60.0, 120.0, 300.0, 660.0, 660.25, 1000.0)))
    def wait(self, seconds: float) -> None:
        if self.model.in_grace_period(self.world.now()):
            self._flush()  # a batch is taken at one moment: who is gone must not change within it
        self.world.advance(seconds)

    @rule(seconds=st.sampled_from((-86400.0, -3600.0, -0.5, 0.5, 3600.0)))
    def set_the_wall_clock(self, seconds: float) -> None:
        self.clock.skew += seconds

    @precondition(lambda self: self.entries)
    @rule()
    def flush(self) -> None:
        self._flush()

    @rule(refused=st.sampled_from((False, False, False, True)))
    def prune(self, refused: bool) -> None:
        self._flush()
        if refused and (not self.world.durable or self.model.in_grace_period(self.world.now())):
            return
        if self.world.prune(refused=refused):
            self.model.end_grace_period(self.world.now())
            self.model.prune(self.world.now())
        else:
            self.model.refuse([])
        self._compare()

    @rule()
    def save(self) -> None:
        self._flush()
        self.world.save()
        self.model.save()
        self._compare()

    @precondition(lambda self: self.world.durable)
    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        self._flush()
        if not crash:
            self.model.save()
        served = self.world.now().service
        self.world.restart(crash=crash)
        now = self.world.now()
        assert now.service <= served
        self.model.remember(self.world.touched())
        self.model.start(now)
        self.seated = [None] * len(SEATS)
        self.inboxes.clear()
        self._compare()

    @precondition(
        lambda self: self.world.durable and self.entries and not self.model.in_grace_period(self.world.now())
    )
    @rule()
    def refuse(self) -> None:
        self._flush(refused=True)


class BatchedConversation(Conversation):
    gathers = True


class RestartedConversation(Conversation):
    """Before each command the server is restarted, and all come again as clients do."""

    _returning = False
    _crash = False

    def _say(self, slot: int, text: str, *, bound: bool = True) -> None:
        if not self._returning:
            self._returning = self.gathers = True
            self._come_again()
            self._arrive(slot, bound=bound)
            self._flush()
            self._returning = self.gathers = False
        super()._say(slot, text, bound=bound)

    def _come_again(self) -> None:
        peers = [(slot, peer) for slot, peer in enumerate(self.seated) if peer is not None and peer.app is not None]
        self._crash = not self._crash
        self.world.advance(0.25)  # so that a touch can be told from the one before
        self.restart(crash=self._crash)
        for slot, peer in peers:
            self.bind(slot, peer.app or "", peer.side)
            if peer.claimed is not None and not peer.released:
                self._command(slot, "claim", nameplate=peer.claimed)
            if peer.listening is not None:
                self._command(slot, "open", mailbox=peer.listening.name)
