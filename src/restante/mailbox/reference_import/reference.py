"""The tables and columns of the reference server's databases that the import reads, and which rows are usable.

Source: magic-wormhole-mailbox-server 0.8.0, db-schemas/. Channel version 2, which its unreleased head writes, adds
tables of connections; they contain no messages. SQLite allows any value in any column, so the import checks every
row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from restante.common.usage_records import Result

Row = tuple[Any, ...]
"""A row as SQLite returns it."""

Time = Annotated[float, Meta(ge=-1e15, le=1e15)]
"""Seconds. Infinity is excluded, because JSON has no form for it."""

Truth = Any
"""A flag. As in the reference, any value but NULL and 0 is true, so an unexpected value excludes no side."""

Text = str | int | Time | None
"""A value that a client sent. The column's affinity turns all values but NULL into text."""


class DatabaseKind(msgspec.Struct, frozen=True):
    """A kind of database of the reference server."""

    name: str
    tables: Mapping[str, type[tuple[Any, ...]]]
    """The tables that are read, each with the type of its rows. The fields have the names of the columns."""
    since: Mapping[str, int]
    """Tables that a later version added, each with that version."""
    versions: tuple[int, ...] = (1, 2)

    @property
    def flag(self) -> str:
        """Return the flag that names a database of this kind."""
        return f"--{self.name}"


# ── channel: live data ───────────────────────────────────────────────────────────────────────────


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

# ── usage records ────────────────────────────────────────────────────────────────────────────────


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
