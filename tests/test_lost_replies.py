"""A command whose reply was lost is said again, and it is as if nothing had happened.

A whole session of two sides is cut after each of its commands: the connections are lost, the server ends and is
started again, both sides come back as the real client does (reference client, _nameplate.py:165, _mailbox.py:195),
the last command is said again, and the session goes on to its end.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from support.mailbox.givens import Inbox, Options
from support.mailbox.worlds import StoreWorld

APP = "x"

SESSION: list[tuple[str, dict[str, Any]]] = [
    ("a", {"type": "allocate"}),
    ("a", {"type": "claim", "nameplate": "$n"}),
    ("a", {"type": "open", "mailbox": "$m"}),
    ("a", {"type": "add", "phase": "pake", "body": "a0"}),
    ("b", {"type": "claim", "nameplate": "$n"}),
    ("b", {"type": "open", "mailbox": "$m"}),
    ("b", {"type": "add", "phase": "pake", "body": "b0"}),
    ("a", {"type": "release", "nameplate": "$n"}),
    ("b", {"type": "release", "nameplate": "$n"}),
    ("b", {"type": "add", "phase": "version", "body": "b1"}),
    ("a", {"type": "add", "phase": "0", "body": "a2"}),
    ("a", {"type": "close", "mailbox": "$m", "mood": "happy"}),
    ("b", {"type": "close", "mailbox": "$m", "mood": "happy"}),
]

AFTER_CLOSE_ONLY = [step for step in SESSION if step[1]["type"] != "release"]
"""The same with nameplates that nobody releases: the last close does."""


class Pair:
    """Two sides that play a session, and remember what a real client remembers."""

    def __init__(self, world: StoreWorld) -> None:
        self.world = world
        self.inboxes: dict[str, Inbox] = {}
        self.names: dict[str, str] = {}
        self.opened: set[str] = set()

    def arrive(self) -> None:
        for side in "ab":
            self.inboxes[side] = self.world.connect()
            self.tell(side, {"type": "bind", "appid": APP, "side": side})
            if side in self.opened:
                self.tell(side, {"type": "open", "mailbox": "$m"})

    def say(self, side: str, message: dict[str, Any]) -> None:
        filled = {key: self.names.get(value, value) for key, value in message.items()}
        self.world.say(self.inboxes[side], json.dumps(filled))
        self.world.flush()

    def tell(self, side: str, message: dict[str, Any]) -> None:
        inbox = self.inboxes[side]
        inbox.frames.clear()
        self.say(side, message)
        for frame in inbox.frames:
            assert frame["type"] != "error", frame
            if frame["type"] == "allocated":
                self.names.setdefault("$n", frame["nameplate"])
                assert self.names["$n"] == frame["nameplate"]
            elif frame["type"] == "claimed":
                self.names.setdefault("$m", frame["mailbox"])
                assert self.names["$m"] == frame["mailbox"]
        if message["type"] == "open":
            self.opened.add(side)
        elif message["type"] == "close":
            self.opened.discard(side)


def rows(world: StoreWorld) -> dict[str, Any]:
    """All live rows but their keys and touches; a message that was said twice is there twice, so: a set."""
    live = world.live()
    messages = [message for mailbox in live["mailboxes"].values() for message in mailbox["messages"]]
    return {
        "mailboxes": {key: {**row, "messages": None} for key, row in live["mailboxes"].items()},
        "nameplates": live["nameplates"],
        "messages": {(message["side"], message["phase"], message["body"]) for message in messages},
    }


def ended(world: StoreWorld) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The records of what has ended; a bind more is a client_versions row more, and no matter."""
    usage = world.usage()
    return usage.nameplates, usage.mailboxes


def play(session: list[tuple[str, dict[str, Any]]], cut: int | None, *, done: bool) -> list[Any]:
    """Play a session, cut at one command: `done` or not before the crash. Gives rows and usage after each.

    A crash ends the server without a word: nothing is saved on the way out. (tests/durability kills real ones.)
    """
    seen = []
    with closing(StoreWorld(Options(in_grace_period=False))) as world:
        pair = Pair(world)
        pair.arrive()
        for number, (side, message) in enumerate(session):
            world.advance(1)
            if number == cut:
                if done:  # the command is carried out, and its reply is never read
                    pair.say(side, message)
                if message["type"] == "close":
                    pair.opened.discard(side)  # who is closing says `close` again without an `open`
                world.restart(crash=True)
                pair.arrive()
            pair.tell(side, message)
            seen.append((rows(world), ended(world)))
    return seen


@pytest.mark.parametrize("done", [True, False], ids=["reply lost", "command lost"])
@pytest.mark.parametrize("session", [SESSION, AFTER_CLOSE_ONLY], ids=["released", "never released"])
def test_commands_repeated_after_a_crash_leave_the_same_rows_and_usage(
    session: list[tuple[str, dict[str, Any]]], done: bool
) -> None:
    wanted = play(session, None, done=done)
    last, (nameplates, mailboxes) = wanted[-1]
    assert last == {"mailboxes": {}, "nameplates": {}, "messages": set()}
    assert [record["result"] for record in mailboxes] == ["happy"]
    assert [record["result"] for record in nameplates] == ["happy"]
    for cut in range(len(session)):
        assert play(session, cut, done=done) == wanted, session[cut]
