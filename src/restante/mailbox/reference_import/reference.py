"""The reference server's databases, as far as we read them: tables, columns, and what a row must be to be of use.

Source: magic-wormhole-mailbox-server 0.8.0, db-schemas/. Channel v2, which its unreleased head writes, adds tables
of connections: no post is in them. SQLite lets any value stand in any column, so every row is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from restante.common.usage_records import Result

Row = tuple[Any, ...]
"""As SQLite gives it."""

Time = Annotated[float, Meta(ge=-1e15, le=1e15)]
"""Seconds; not infinite, which JSON cannot say."""

Truth = Any
"""As they ask it: neither NULL nor 0. A strange flag costs nobody a place."""

Text = str | int | Time | None
"""What a client sent, after the column's affinity: text, but for NULL."""


class DatabaseKind(msgspec.Struct, frozen=True):
    """A kind of database."""

    name: str
    tables: Mapping[str, type[tuple[Any, ...]]]
    """What is read, each with the shape of its rows; the fields are named like the columns."""
    since: Mapping[str, int]
    """Tables that came with a later version."""
    versions: tuple[int, ...] = (1, 2)

    @property
    def flag(self) -> str:
        return f"--{self.name}"


# ── channel: what is live ────────────────────────────────────────────────────────────────────────


class ReferenceMailbox(NamedTuple):
    app_id: str
    id: str
    for_nameplate: Truth


class ReferenceMailboxSide(NamedTuple):
    mailbox_id: str
    opened: Truth
    side: str
    added: Time
    mood: Any


class ReferenceNameplate(NamedTuple):
    id: int
    app_id: str
    name: str
    mailbox_id: str


class ReferenceNameplateSide(NamedTuple):
    nameplates_id: int
    claimed: Truth
    side: str
    added: Time


class ReferenceMessage(NamedTuple):
    app_id: str
    mailbox_id: str
    side: str
    phase: Text
    body: Text
    server_rx: Time
    msg_id: Text


CHANNEL: Final = DatabaseKind(
    "channel",
    {
        "mailboxes": ReferenceMailbox,
        "mailbox_sides": ReferenceMailboxSide,
        "nameplates": ReferenceNameplate,
        "nameplate_sides": ReferenceNameplateSide,
        "messages": ReferenceMessage,
    },
    {},
)

# ── usage: what has ended ────────────────────────────────────────────────────────────────────────


class ReferenceNameplateUsage(NamedTuple):
    app_id: str
    started: Time
    waiting_time: Time | None
    total_time: Time
    result: Result


class ReferenceMailboxUsage(NamedTuple):
    app_id: str
    for_nameplate: Literal[0, 1]
    started: Time
    total_time: Time
    waiting_time: Time | None
    result: Result


class ReferenceClientVersion(NamedTuple):
    app_id: str
    side: str
    connect_time: Time
    implementation: str | None
    version: str | None


USAGE: Final = DatabaseKind(
    "usage",
    {
        "nameplates": ReferenceNameplateUsage,
        "mailboxes": ReferenceMailboxUsage,
        "client_versions": ReferenceClientVersion,
    },
    {"client_versions": 2},
)
