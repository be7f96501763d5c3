"""The mailbox server as its clients and its operator see it: the spec's nouns in dicts and lists, nothing clever.

It shares no code with the server but the type of a time. Commands and replies are those of spec 000, the words of
errors and the order of checks those of the reference server (server_websocket.py:200-330, 0.8.0); where both leave a
choice, or where we part from the reference, the comment names the decision.

Chance is not predicted. The server says what it drew, and the model says whether it may be so.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from restante.mailbox.core.model import Now
from support.mailbox.givens import Frame
from support.mailbox.tables import Record, Rows, Usage

REFUSED = "the server could not store this, try again"


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """The words of an error."""


@dataclass(eq=False)
class ModelPeer:
    app: str | None = None
    side: str = ""
    allocated: bool = False
    claimed: str | None = None
    released: bool = False
    opened: str | None = None
    listening: ModelMailbox | None = None
    closed: bool = False
    deaf: bool = False
    """It was told that it is being hung up on: nothing more is taken from it."""
    lost: bool = False
    refused: bool = False
    heard: list[Frame] = field(default_factory=list)
    verdict: tuple[int, str] | None = None


@dataclass
class Member:
    side: str
    added: float
    holds: bool = True
    allocated: bool = False
    informed: ModelPeer | None = None
    mood: str | None = None


@dataclass(eq=False)
class ModelMailbox:
    app: str
    name: str
    for_nameplate: bool
    touched: float
    saved: float
    """An earlier touch that a crash must not lose; later ones it may."""
    members: list[Member]
    messages: list[Frame] = field(default_factory=list)
    crowded: bool = False
    shown: set[str] = field(default_factory=set)
    """Sides that were sent another side's message, since they came."""
    visitors: int = 0
    """Of those, the ones that said nothing and gave up their place."""

    def spoke(self) -> set[str]:
        return {message["side"] for message in self.messages}


@dataclass(eq=False)
class Nameplate:
    app: str
    name: str
    mailbox: ModelMailbox
    members: list[Member]
    crowded: bool = False


class ModelServer:
    """Everything there is. `prune_after` and the rest are the operator's options."""

    def __init__(self, *, blur: int, lists: bool, prune_after: float, drawn: deque[str]) -> None:
        self.blur = blur
        self.lists = lists
        self.prune_after = prune_after
        self.drawn = drawn
        """Mailbox ids that the server's dice have given and that we have not seen used yet."""
        self.peers: list[ModelPeer] = []
        self.nameplates: dict[tuple[str, str], Nameplate] = {}
        self.mailboxes: dict[tuple[str, str], ModelMailbox] = {}
        self.usage = Usage()
        self.rebooted = 0.0
        self._grace_period_ends_at: float | None = None
        """Service time until which sides that were here before a start may be on their way back."""
        self._returned: set[tuple[str, str]] = set()
        self._allocated_name: Callable[[ModelPeer], str] = lambda _: ""

    def start(self, now: Now) -> None:
        self.peers = []
        for mailbox in self.mailboxes.values():  # who was shown what is not stored: any member may have been
            mailbox.shown = {member.side for member in mailbox.members if mailbox.spoke() - {member.side}}
        for nameplate in self.nameplates.values():
            for member in nameplate.members:
                member.informed = None
        self.rebooted = now.wall
        self._grace_period_ends_at = now.service + min(120.0, self.prune_after)
        self._returned = set()

    def in_grace_period(self, now: Now) -> bool:
        """Return whether it is too early to give away a place or to prune (docs/decisions/mailbox.md)."""
        return self._grace_period_ends_at is not None and now.service < self._grace_period_ends_at

    def save(self) -> None:
        for mailbox in self.mailboxes.values():
            mailbox.saved = mailbox.touched

    def remember(self, touched: dict[tuple[str, str], float]) -> None:
        """Go on with the touches that the server has after it read its store anew: it may have lost late ones."""
        assert touched.keys() == self.mailboxes.keys()
        for key, mailbox in self.mailboxes.items():
            # The last second of service may be lost with a restart, so that a touch may be earlier than one before.
            first, last = sorted((mailbox.saved, mailbox.touched))
            assert first <= touched[key] <= last, (key, mailbox, touched[key])
            mailbox.touched = mailbox.saved = touched[key]

    def prune(self, now: Now) -> None:
        for mailbox in list(self.mailboxes.values()):
            if self._listeners(mailbox):
                mailbox.touched = now.service
            elif now.service - mailbox.touched > self.prune_after and not self.in_grace_period(now):
                self._end(mailbox, now, pruned=True)
        self.save()
        self.usage.current = {
            "rebooted": self.rebooted,
            "updated": now.wall,
            "blur_time": self.blur or None,
            "connections_websocket": sum(peer.listening is not None for peer in self.peers),
        }
        if not self.in_grace_period(now):
            self.usage.pruned = now.wall

    def lose(self, peer: ModelPeer, now: Now) -> None:
        if peer.listening is not None:
            peer.listening.touched = now.service
        peer.listening = None
        peer.lost = True
        self.peers.remove(peer)

    def say(self, peer: ModelPeer, text: str, now: Now, allocated_name: Callable[[ModelPeer], str]) -> None:
        self._allocated_name = allocated_name
        message = self._read(peer, text)
        if message is None:
            return
        peer.refused = False
        try:
            reply = self._carry_out(peer, message, now)
        except Refusal as refusal:
            peer.refused = True
            self._tell(peer, {"type": "error", "error": str(refusal), "orig": message})
            return
        if reply is not None:  # a direct response repeats the id and says when the command came (spec 000, the Hint)
            self._tell(peer, {**reply, "id": message.get("id"), "server_rx": now.wall})

    def _carry_out(self, peer: ModelPeer, message: Frame, now: Now) -> Frame | None:
        if "type" not in message:
            raise Refusal("missing 'type'")
        kind = message["type"]
        if kind == "ping":
            self._need(message, "ping")
            return {"type": "pong", "pong": message["ping"]}
        if kind in ("submit-permissions", "submit-permission"):  # nobody demands any here
            return None
        if kind == "bind":
            self._bind(peer, message, now)
            return None
        if peer.app is None:
            raise Refusal("must bind first")
        if kind not in ("list", "allocate", "claim", "release", "open", "add", "close"):
            raise Refusal("unknown type")
        reply: Frame | None = getattr(self, f"_{kind}")(peer, message, now)
        return reply

    def refuse(self, entries: list[tuple[ModelPeer, str | None, Now]]) -> None:
        """Close the connections of a batch's commands, without an answer; those lost in it (None) stay lost."""
        for peer, text, now in sorted(entries, key=lambda entry: entry[1] is not None):
            if text is None:
                self.lose(peer, now)
            elif not (peer.deaf or peer.lost):
                peer.deaf = True
                peer.verdict = 1012, REFUSED
        self.drawn.clear()

    def _read(self, peer: ModelPeer, text: str) -> Frame | None:
        if peer.deaf or peer.lost:
            return None
        try:
            message = json.loads(text)
        except ValueError:
            self._hang_up(peer, 1007, "not JSON")
            return None
        if not isinstance(message, dict):
            self._hang_up(peer, 1003, "not a JSON object")
            return None
        if "type" in message:  # else no ack (the reference: server_websocket.py:205)
            self._tell(peer, {"type": "ack", "id": message.get("id")})
        return message

    def _hang_up(self, peer: ModelPeer, code: int, error: str) -> None:
        self._tell(peer, {"type": "error", "error": error, "orig": None})
        peer.deaf = True
        peer.verdict = code, error

    def _tell(self, peer: ModelPeer, frame: Frame) -> None:
        if not peer.deaf:
            peer.heard.append(frame)

    def _need(self, message: Frame, *keys: str) -> None:
        for key in keys:
            if key not in message:
                raise Refusal(f"{message['type']} requires '{key}'")

    def _need_text(self, message: Frame, *keys: str) -> None:
        for key in keys:
            if key in message and not isinstance(message[key], str):
                raise Refusal(f"{message['type']}: '{key}' must be a string")
            if "\0" in message.get(key, ""):
                most = "a string of at most 500 characters without NUL"
                raise Refusal(f"{message['type']}: '{key}' must be {most}")

    def _bind(self, peer: ModelPeer, message: Frame, now: Now) -> None:
        if peer.app is not None:
            raise Refusal("already bound")
        self._need(message, "appid", "side")
        self._need_text(message, "appid", "side")
        peer.app, peer.side = message["appid"], message["side"]
        self._returned.add((peer.app, peer.side))
        self.usage.client_versions.append(
            _client_version_record(peer.app, peer.side, now.wall, message.get("client_version"), self.blur)
        )

    def _list(self, peer: ModelPeer, _message: Frame, _now: Now) -> Frame:
        names = sorted(name for app, name in self.nameplates if app == peer.app)
        return {"type": "nameplates", "nameplates": [{"id": name} for name in names if self.lists]}

    def _allocate(self, peer: ModelPeer, _message: Frame, now: Now) -> Frame:
        assert peer.app is not None
        if peer.allocated:
            raise Refusal("you already allocated one, don't be greedy")
        peer.allocated = True
        for nameplate in self.nameplates.values():
            mine = _member(nameplate.members, peer.side) if nameplate.app == peer.app else None
            # Told to a connection that is gone: the answer may be lost, here it is again.
            if mine is not None and mine.allocated and (mine.informed is None or mine.informed.lost):
                mine.informed = peer
                nameplate.mailbox.touched = now.service
                return {"type": "allocated", "nameplate": nameplate.name}
        name = self._allocated_name(peer)
        used = {name for app, name in self.nameplates if app == peer.app}
        assert name in shortest_free(used), f"{name} is no shortest free nameplate"
        self._make(peer, name, Member(peer.side, now.wall, allocated=True, informed=peer), now)
        return {"type": "allocated", "nameplate": name}

    def _make(self, peer: ModelPeer, name: str, member: Member, now: Now) -> ModelMailbox:
        assert peer.app is not None
        mailbox_id = self.drawn.popleft()
        while (peer.app, mailbox_id) in self.mailboxes:  # taken: the server draws again
            mailbox_id = self.drawn.popleft()
        mailbox = self._make_mailbox(peer, mailbox_id, now, for_nameplate=True)
        self.nameplates[peer.app, name] = Nameplate(peer.app, name, mailbox, [member])
        return mailbox

    def _make_mailbox(self, peer: ModelPeer, name: str, now: Now, *, for_nameplate: bool) -> ModelMailbox:
        assert peer.app is not None
        member = Member(peer.side, now.wall)
        mailbox = ModelMailbox(peer.app, name, for_nameplate, now.service, now.service, [member])
        self.mailboxes[peer.app, name] = mailbox
        return mailbox

    def _claim(self, peer: ModelPeer, message: Frame, now: Now) -> Frame:
        assert peer.app is not None
        self._need(message, "nameplate")
        if peer.claimed is not None:
            raise Refusal("only one claim per connection")
        name = message["nameplate"]
        if not (isinstance(name, str) and re.fullmatch(r"[0-9]{1,40}", name)):
            raise Refusal("claim: 'nameplate' must be a string of 1 to 40 digits")
        peer.claimed = name
        nameplate = self.nameplates.get((peer.app, name))
        if nameplate is None:
            mailbox = self._make(peer, name, Member(peer.side, now.wall), now)
            return {"type": "claimed", "mailbox": mailbox.name}
        mailbox = nameplate.mailbox
        mine = _member(nameplate.members, peer.side)
        if mine is not None and not mine.holds:
            raise Refusal("reclaimed")
        # Nobody is turned out of one of them for the sake of a side that the other turns away.
        room = self._room(nameplate.members, mailbox, peer), self._room(mailbox.members, mailbox, peer)
        if not all(room):
            nameplate.crowded |= not room[0]
            mailbox.crowded |= not room[1]
            raise Refusal("crowded")
        self._sit(nameplate.members, mailbox, peer, now).allocated = False
        self._sit(mailbox.members, mailbox, peer, now)
        mailbox.touched = now.service
        return {"type": "claimed", "mailbox": mailbox.name}

    def _release(self, peer: ModelPeer, message: Frame, now: Now) -> Frame:
        if peer.released:
            raise Refusal("only one release per connection")
        if "nameplate" in message:
            if peer.claimed is not None and message["nameplate"] != peer.claimed:
                raise Refusal("release and claim must use same nameplate")
        elif peer.claimed is None:
            raise Refusal("release without nameplate must follow claim")
        self._need_text(message, "nameplate")
        peer.released = True
        nameplate = self.nameplates.get((peer.app or "", message.get("nameplate", peer.claimed or "")))
        mine = _member(nameplate.members, peer.side) if nameplate is not None else None
        if nameplate is not None and mine is not None and mine.holds:
            mine.holds = mine.allocated = False
            if not any(member.holds for member in nameplate.members):
                self._end_nameplate(nameplate, now)
        return {"type": "released"}

    def _open(self, peer: ModelPeer, message: Frame, now: Now) -> None:
        assert peer.app is not None
        if peer.listening is not None:
            raise Refusal("only one open per connection")
        self._need(message, "mailbox")
        self._need_text(message, "mailbox")
        peer.opened = message["mailbox"]
        mailbox = self.mailboxes.get((peer.app, message["mailbox"]))
        if mailbox is None:
            mailbox = self._make_mailbox(peer, message["mailbox"], now, for_nameplate=False)
        elif not self._room(mailbox.members, mailbox, peer):
            mailbox.crowded = True
            raise Refusal("crowded")
        mine = self._sit(mailbox.members, mailbox, peer, now)
        if not mine.holds:  # open after close
            mine.holds, mine.mood = True, None
        mailbox.touched = now.service
        peer.listening = mailbox
        for stored in mailbox.messages:
            self._show(peer, mailbox, stored)

    def _add(self, peer: ModelPeer, message: Frame, now: Now) -> None:
        mailbox = peer.listening
        if mailbox is None:
            raise Refusal("must open mailbox before adding")
        for key in ("phase", "body"):
            if key not in message:
                raise Refusal(f"missing '{key}'")
        stored = {"type": "message", "side": peer.side, "phase": message["phase"], "body": message["body"]}
        stored |= {"id": message.get("id"), "server_rx": now.wall}
        mailbox.messages.append(stored)
        mailbox.touched = now.service
        for listener in self._listeners(mailbox):
            self._show(listener, mailbox, stored)

    def _show(self, listener: ModelPeer, mailbox: ModelMailbox, stored: Frame) -> None:
        self._tell(listener, stored)
        if not listener.deaf and listener.side != stored["side"]:
            mailbox.shown.add(listener.side)

    def _close(self, peer: ModelPeer, message: Frame, now: Now) -> Frame:
        if peer.closed:
            raise Refusal("only one close per connection")
        if "mailbox" in message:
            if peer.opened is not None and message["mailbox"] != peer.opened:
                raise Refusal("open and close must use same mailbox")
        elif peer.opened is None:
            raise Refusal("close without mailbox must follow open")
        self._need_text(message, "mailbox")
        mood = message.get("mood")
        if mood is not None:
            self._need_text(message, "mood")
        peer.closed = True
        peer.listening = None
        mailbox = self.mailboxes.get((peer.app or "", message.get("mailbox", peer.opened or "")))
        mine = _member(mailbox.members, peer.side) if mailbox is not None else None
        if mailbox is not None and mine is not None:
            mine.holds, mine.mood = False, mood
            if not any(member.holds for member in mailbox.members):
                self._end(mailbox, now, pruned=False)
        return {"type": "closed"}

    def _room(self, members: list[Member], mailbox: ModelMailbox, peer: ModelPeer) -> bool:
        seated = [member.side for member in members]
        return peer.side in seated or len(seated) < 2 or self._silent(members, mailbox) is not None

    def _sit(self, members: list[Member], mailbox: ModelMailbox, peer: ModelPeer, now: Now) -> Member:
        mine = _member(members, peer.side)
        if mine is None:
            if len(members) == 2:
                silent = self._silent(members, mailbox)
                assert silent is not None
                members.remove(silent)
                if members is mailbox.members and silent.side in mailbox.shown:
                    mailbox.shown.remove(silent.side)
                    mailbox.visitors += 1
            mine = Member(peer.side, now.wall)
            members.append(mine)
        return mine

    def _silent(self, members: list[Member], mailbox: ModelMailbox) -> Member | None:
        """Who came last goes first: a receiver stopped by Ctrl-C, not the sender that waits for its successor."""
        for member in reversed(members):
            if member.side not in mailbox.spoke() and self._gone(mailbox.app, member.side):
                return member
        return None

    def _gone(self, app: str, side: str) -> bool:
        if any((peer.app, peer.side) == (app, side) for peer in self.peers):
            return False
        return self._grace_period_ends_at is None or (app, side) in self._returned

    def end_grace_period(self, now: Now) -> None:
        if not self.in_grace_period(now):
            self._grace_period_ends_at = None

    def _listeners(self, mailbox: ModelMailbox) -> list[ModelPeer]:
        return [peer for peer in self.peers if peer.listening is mailbox]

    def _end(self, mailbox: ModelMailbox, now: Now, *, pruned: bool) -> None:
        """The nameplate that points there ends too; whoever listens is detached, and is not told."""
        for nameplate in list(self.nameplates.values()):
            if nameplate.mailbox is mailbox:
                self._end_nameplate(nameplate, now, pruned=pruned)
        for peer in self._listeners(mailbox):
            peer.listening = None
        del self.mailboxes[mailbox.app, mailbox.name]
        silent = mailbox.shown.intersection(member.side for member in mailbox.members) - mailbox.spoke()
        record = _ended(mailbox, now.wall, self.blur, pruned=pruned)
        # The reference counts no visitors.
        ours = {"for_nameplate": mailbox.for_nameplate, "visitors": mailbox.visitors + len(silent)}
        self.usage.mailboxes.append(record | ours)

    def _end_nameplate(self, nameplate: Nameplate, now: Now, *, pruned: bool = False) -> None:
        del self.nameplates[nameplate.app, nameplate.name]
        self.usage.nameplates.append(_ended(nameplate, now.wall, self.blur, pruned=pruned))

    def live(self) -> dict[str, Rows]:
        nameplates: Rows = {}
        for key, nameplate in self.nameplates.items():
            sides = [
                {"side": member.side, "added": member.added, "claimed": member.holds, "allocated": member.allocated}
                for member in nameplate.members
            ]
            nameplates[key] = {"mailbox_id": nameplate.mailbox.name, "crowded": nameplate.crowded, "sides": sides}
        mailboxes: Rows = {}
        for key, mailbox in self.mailboxes.items():
            sides = [
                {"side": member.side, "added": member.added, "opened": member.holds, "mood": member.mood}
                for member in mailbox.members
            ]
            mailboxes[key] = {"for_nameplate": mailbox.for_nameplate, "crowded": mailbox.crowded, "sides": sides}
            mailboxes[key] |= {"visitors": mailbox.visitors, "messages": mailbox.messages[:]}
        return {"nameplates": nameplates, "mailboxes": mailboxes}

    def touched(self) -> dict[tuple[str, str], float]:
        return {key: mailbox.touched for key, mailbox in self.mailboxes.items()}


def shortest_free(used: Collection[str]) -> list[str]:
    length = 1
    while True:
        free = [str(number) for number in range(10 ** (length - 1), 10**length) if str(number) not in used]
        if free:
            return free
        length += 1


def _member(members: list[Member], side: str) -> Member | None:
    return next((member for member in members if member.side == side), None)


# ── usage records, by the formulas of the reference server (server.py:353 and :430, 0.8.0) ───────

# We differ in two points: a mark says that somebody was turned away, since there is no third row to count, and no
# duration is negative when the clock was set back.


def _ended(owner: Nameplate | ModelMailbox, now: float, blur: int, *, pruned: bool) -> Record:
    added = [member.added for member in owner.members]
    moods = [member.mood for member in owner.members]
    result = "happy" if len(added) == 2 else "lonely"
    for mood in ("lonely", "errory", "scary"):  # in this order: the last one that was said counts
        if mood in moods:
            result = mood
    if pruned:
        result = "pruney"
    if owner.crowded:
        result = "crowded"
    return {
        "app_id": owner.app,
        "started": _blurred(min(added), blur),
        "waiting_time": max(added) - min(added) if len(added) == 2 else None,
        "total_time": max(0.0, now - min(added)),
        "blur_time": float(blur),
        "result": result,
    }


def _client_version_record(app: str, side: str, now: float, client_version: Any, blur: int) -> Record:
    """One row per bind; its client_version is [implementation, version], or anything at all."""
    implementation = version = None
    if isinstance(client_version, list) and len(client_version) >= 2:
        implementation, version = (
            text.replace("\0", "�") if isinstance(text, str) else None for text in client_version[:2]
        )
    return {
        "app_id": app,
        "side": side,
        "connect_time": _blurred(now, blur),
        "blur_time": float(blur),
        "implementation": implementation,
        "version": version,
    }


def _blurred(when: float, blur: int) -> float:
    return float(blur * (when // blur)) if blur else when
