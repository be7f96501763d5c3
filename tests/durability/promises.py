"""What a server that was killed still owes: everything that it answered, checked against what is on disk.

What was said and not answered may have happened or not; but if so, then once, whole, and in order.
"""

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from durability.talks import Talk

Members = dict[str, dict[str, Any]]
"""The rows of a mailbox's or nameplate's sides, by name."""


class Kept:
    """The rows of one talk."""

    def __init__(self, db: sqlite3.Connection, app: str) -> None:
        def rows(sql: str) -> list[Any]:
            return db.execute(sql, (app,)).fetchall()

        self.mailboxes = [
            (mailbox, _members(sides))
            for mailbox, sides in rows("SELECT mailbox_id, sides FROM mailboxes WHERE app_id = ?")
        ]
        self.nameplates = [
            (name, mailbox, _members(sides))
            for name, mailbox, sides in rows("SELECT name, mailbox_id, sides FROM nameplates WHERE app_id = ?")
        ]
        self.messages = [
            (side, json.loads(body))
            for side, body in rows(
                "SELECT side, body FROM messages JOIN mailboxes ON key = mailbox WHERE app_id = ? ORDER BY sequence"
            )
        ]
        self.ended_mailboxes = len(rows("SELECT id FROM usage_mailboxes WHERE app_id = ?"))
        self.ended_nameplates = len(rows("SELECT id FROM usage_nameplates WHERE app_id = ?"))
        self.binds = [side for (side,) in rows("SELECT side FROM usage_client_versions WHERE app_id = ?")]


def _members(sides: str) -> Members:
    return {row["side"]: row for row in json.loads(sides)}


def broken_promises(talk: Talk, kept: Kept) -> list[str]:
    """Return, in words, the promises of the server that this conversation found broken."""
    checks = (_binds, _mailbox, _nameplate, _messages)
    return [f"{talk.app}: {problem}" for check in checks for problem in check(talk, kept)]


def _binds(talk: Talk, kept: Kept) -> Iterator[str]:
    for side in talk.sides:
        said, found = len(list(side.said("bind"))), kept.binds.count(side.name)
        # A bind's record waits for the next commit: it is owed when something of its connection was stored after it.
        owed = sum(any(c.kind == "add" and c.ack for c in client.said) for client in side.connections)
        if not owed <= found <= said:
            yield f"{found} records of what must be {owed} to {said} binds of {side.name}"


def _mailbox(talk: Talk, kept: Kept) -> Iterator[str]:
    joining = ("open",) if talk.agreed else ("allocate", "claim")
    members = [side for side in talk.sides if side.acked(*joining)]
    if members:
        yield from _fate(
            "mailbox",
            len(kept.mailboxes),
            kept.ended_mailboxes,
            lives=any(not side.has_said("close") for side in members),
            over=all(side.acked("close") for side in talk.sides if side.has_said(*joining)),
        )
    for mailbox, rows in kept.mailboxes:
        if talk.mailbox not in {None, mailbox}:
            yield "the mailbox's id is not the one that was told"
        for side in members:
            row = rows.get(side.name)
            if row is None:
                yield f"{side.name} is no member of the mailbox"
            elif not row["opened"] and not side.has_said("close"):
                yield f"{side.name} has closed without a word"
            elif side.acked("close") and (row["opened"] or row["mood"] != side.mood):
                yield f"{side.name}'s close is lost"


def _nameplate(talk: Talk, kept: Kept) -> Iterator[str]:
    joining = ("allocate", "claim")
    members = [side for side in talk.sides if side.acked(*joining)]
    if members:
        claimants = [side for side in talk.sides if side.has_said(*joining)]
        yield from _fate(
            "nameplate",
            len(kept.nameplates),
            kept.ended_nameplates,
            lives=not all(side.has_said("close") for side in members)
            and not all(side.has_said("release") for side in members),
            over=all(side.acked("release") for side in claimants) or all(side.acked("close") for side in claimants),
        )
    for name, mailbox, rows in kept.nameplates:
        if talk.nameplate not in {None, name} or talk.mailbox not in {None, mailbox}:
            yield "the nameplate is not the one that was told, or points elsewhere"
        for side in members:
            row = rows.get(side.name)
            if row is None:
                yield f"{side.name} is no member of the nameplate"
            elif not row["claimed"] and not side.has_said("release"):
                yield f"{side.name} has released without a word"
            elif row["claimed"] and side.acked("release"):
                yield f"{side.name}'s release is lost"
            elif row["allocated"] and side.acked("claim"):
                yield f"{side.name}'s claim is lost"


def _fate(what: str, live: int, ended: int, *, lives: bool, over: bool) -> Iterator[str]:
    """Check what was made for sure: it lives, or there is one usage record of its end."""
    if live + ended != 1:
        yield f"the {what} should be there once: {live} live, {ended} usage records"
    if lives and ended:
        yield f"the {what} has ended before everybody left"
    if over and live:
        yield f"the {what} is still there after everybody left"


def _messages(talk: Talk, kept: Kept) -> Iterator[str]:
    if not kept.mailboxes:
        return
    for side in talk.sides:
        stored = [body for name, body in kept.messages if name == side.name]
        said = {command.fields["body"] for command in side.said("add")}
        acked = {command.fields["body"] for command in side.said("add") if command.ack}
        if lost := acked.difference(stored):
            yield f"{len(lost)} messages of {side.name} are lost"
        # Its bodies are said in this order, so they are stored in it, each once and without a gap.
        if stored != side.bodies[: len(stored)] or not said.issuperset(stored):
            yield f"the messages of {side.name} are not what it said, in order: {stored}"
        for client in side.connections:
            heard = [(frame["side"], frame["body"]) for frame in client.heard]
            if heard != kept.messages[: len(heard)]:
                yield f"{side.name} has heard what is not stored, or in another order"
