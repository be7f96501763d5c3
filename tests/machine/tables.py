"""What is kept, as an operator's SQL sees it, in the words of the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from machine.model import Frame, Now, Rows
from machine.records import Usage
from restante import records
from restante.mailbox import model
from restante.mailbox.model import Change
from restante.mailbox.state import State
from restante.mailbox.store.sqlite import SqliteStore
from stores.picture import picture


def live_rows(store: SqliteStore) -> dict[str, Rows]:
    messages: dict[int, list[Frame]] = {}
    for key, side, phase, body, msg_id, server_rx in store.database.execute(
        "SELECT mailbox, side, phase, body, msg_id, server_rx FROM messages ORDER BY mailbox, sequence"
    ):
        frame = {"type": "message", "side": side, "phase": json.loads(phase), "body": json.loads(body)}
        messages.setdefault(key, []).append(frame | {"id": json.loads(msg_id), "server_rx": server_rx})
    live: dict[str, Rows] = {"nameplates": {}, "mailboxes": {}}
    for app_id, name, mailbox_id, crowded, sides in store.database.execute(
        "SELECT app_id, name, mailbox_id, crowded, sides FROM nameplates"
    ):
        row = {"mailbox_id": mailbox_id, "crowded": bool(crowded), "sides": json.loads(sides)}
        assert live["nameplates"].setdefault((app_id, name), row) is row, "two rows for one nameplate"
    for key, app_id, mailbox_id, for_nameplate, crowded, sides in store.database.execute(
        "SELECT key, app_id, mailbox_id, for_nameplate, crowded, sides FROM mailboxes"
    ):
        row = {"for_nameplate": bool(for_nameplate), "crowded": bool(crowded), "sides": json.loads(sides)}
        row["messages"] = messages.pop(key, [])
        assert live["mailboxes"].setdefault((app_id, mailbox_id), row) is row, "two rows for one mailbox"
    assert messages == {}, "messages of no mailbox"
    return live


def usage_rows(store: SqliteStore) -> Usage:
    def table(name: str, columns: str) -> list[dict[str, Any]]:
        found = store.database.execute(f"SELECT {columns} FROM {name} ORDER BY id")
        return [dict(zip(columns.split(", "), row, strict=True)) for row in found]

    usage = Usage(
        table("usage_nameplates", "app_id, started, waiting_time, total_time, result"),
        table("usage_mailboxes", "app_id, for_nameplate, started, waiting_time, total_time, result"),
        table("usage_client_versions", "app_id, side, connect_time, implementation, version"),
    )
    for row in usage.mailboxes:
        row["for_nameplate"] = bool(row["for_nameplate"])
    columns = ("rebooted", "updated", "blur_time", "connections_websocket")
    for row in store.database.execute(f"SELECT {', '.join(columns)} FROM usage_current"):
        usage.current = dict(zip(columns, row, strict=True))
    usage.pruned = store.database.execute("SELECT pruned FROM service").fetchone()[0]
    return usage


def check_store(store: SqliteStore, found: State, state: State, now: Now) -> None:
    """What a restart would find is what is in memory, but for late touches; service time is not ahead of itself."""
    assert picture(found, touches=False) == picture(state, touches=False)
    assert store.database.execute("SELECT seconds FROM service").fetchone()[0] <= now.service


def note(usage: Usage, changes: Sequence[Change]) -> None:
    """Gather the records among changes."""
    for change in changes:
        if isinstance(change, model.Pruned):
            usage.pruned = change.wall
        elif isinstance(change, records.NameplateUsage):
            usage.nameplates.append(msgspec.structs.asdict(change))
        elif isinstance(change, records.MailboxUsage):
            usage.mailboxes.append(msgspec.structs.asdict(change))
        elif isinstance(change, records.ClientVersion):
            record = msgspec.structs.asdict(change)
            del record["address_id"]  # a secret makes it, and no rule looks at it
            usage.client_versions.append(record)
        elif isinstance(change, records.CurrentUsage):
            usage.current = msgspec.structs.asdict(change)
