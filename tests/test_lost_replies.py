"""A command whose reply was lost is said again, and it is as if nothing had happened.

A whole session of two sides is cut after each of its commands: the connections are lost, the server ends and is
started again, both sides come back as the real client does (reference client, _nameplate.py:165, _mailbox.py:195),
the last command is said again, and the session goes on to its end.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from restante.mailbox.desk import Desk
from restante.mailbox.store.sqlite import SqliteStore
from worlds import StoreWorld, sql_usage

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


class CrashWorld(StoreWorld):
    """A server that ends without a word: nothing is saved on the way out. (tests/durability kills real ones.)"""

    async def crash(self) -> None:
        self.lines = {}
        await self.store.close()
        self.store = SqliteStore.open(self.data)
        self.desk = Desk(await self.store.view(), self.desk.dice, self.policy)


class Pair:
    """Two sides that play a session, and remember what a real client remembers."""

    def __init__(self, world: CrashWorld) -> None:
        self.world = world
        self.names: dict[str, str] = {}
        self.opened: set[str] = set()

    async def arrive(self) -> None:
        for side in "ab":
            await self.world.connect(side)
            await self.tell(side, {"type": "bind", "appid": APP, "side": side})
            if side in self.opened:
                await self.tell(side, {"type": "open", "mailbox": "$m"})

    async def tell(self, side: str, message: dict[str, Any]) -> None:
        filled = {key: self.names.get(value, value) for key, value in message.items()}
        await self.world.send(side, json.dumps(filled))
        for frame in (await self.world.frames())[side]:
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


def rows(data: Path) -> dict[str, list[Any]]:
    """All live rows but their keys and touches; a message that was said twice is there twice, so: a set."""
    with closing(sqlite3.connect(data / "restante.sqlite")) as database:
        return {
            "mailboxes": database.execute(
                "SELECT app_id, mailbox_id, for_nameplate, crowded, sides FROM mailboxes"
            ).fetchall(),
            "nameplates": database.execute(
                "SELECT app_id, name, mailbox_id, crowded, sides FROM nameplates"
            ).fetchall(),
            "messages": sorted(set(database.execute("SELECT side, phase, body FROM messages").fetchall())),
        }


def ended(data: Path) -> dict[str, Any]:
    """The records of what has ended; a bind more is a client_versions row more, and no matter."""
    usage = sql_usage(data)
    return {"nameplate": usage["nameplate"], "mailbox": usage["mailbox"]}


async def play(data: Path, session: list[tuple[str, dict[str, Any]]], cut: int | None, *, done: bool) -> list[Any]:
    """Play a session, cut at one command: `done` or not before the crash. Gives rows and usage after each."""
    world = CrashWorld({}, data)
    pair = Pair(world)
    seen = []
    try:
        await pair.arrive()
        for number, (side, message) in enumerate(session):
            world.clock.now += 1
            if number == cut:
                if done:  # the command is carried out, and its reply is never read
                    filled = {key: pair.names.get(value, value) for key, value in message.items()}
                    await world.send(side, json.dumps(filled))
                if message["type"] == "close":
                    pair.opened.discard(side)  # who is closing says `close` again without an `open`
                await world.crash()
                await pair.arrive()
            await pair.tell(side, message)
            seen.append((rows(data), ended(data)))
    finally:
        await world.close()
    return seen


@pytest.mark.parametrize("done", [True, False], ids=["reply lost", "command lost"])
@pytest.mark.parametrize("session", [SESSION, AFTER_CLOSE_ONLY], ids=["released", "never released"])
async def test_said_again_after_a_crash_leaves_the_same_rows_and_the_same_usage(
    session: list[tuple[str, dict[str, Any]]], done: bool, tmp_path: Path
) -> None:
    wanted = await play(tmp_path / "uncut", session, None, done=done)
    assert wanted[-1][0] == {"mailboxes": [], "nameplates": [], "messages": []}
    assert [record["result"] for record in wanted[-1][1]["mailbox"]] == ["happy"]
    assert [record["result"] for record in wanted[-1][1]["nameplate"]] == ["happy"]
    for cut in range(len(session)):
        assert await play(tmp_path / str(cut), session, cut, done=done) == wanted, session[cut]
