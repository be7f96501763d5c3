"""What a mailbox server holds and records, as an operator's SQL sees it, in plain data."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from restante.common import usage_records
from restante.mailbox.core import model
from restante.mailbox.core.model import Change
from restante.mailbox.core.state import State
from support.mailbox.givens import EPOCH

Record = dict[str, Any]
Rows = dict[tuple[str, str], Any]

read_json = lru_cache(maxsize=10_000)(json.loads)
"""Nobody alters what this gives: the same rows are read after every step of a test."""


@dataclass
class Usage:
    """All that was recorded, oldest first."""

    nameplates: list[Record] = field(default_factory=list)
    mailboxes: list[Record] = field(default_factory=list)
    client_versions: list[Record] = field(default_factory=list)
    current: Record | None = None
    pruned: float | None = None

    def in_any_order(self) -> tuple[Any, ...]:
        """Return the same for the same records: pruning may end two mailboxes in either order."""
        tables = self.nameplates, self.mailboxes, self.client_versions
        ordered = (sorted(table, key=lambda record: repr(sorted(record.items()))) for table in tables)
        return *ordered, self.current, self.pruned


async def usage_rows(select: Callable[[str], Awaitable[Sequence[Sequence[Any]]]]) -> Usage:
    async def table(name: str, columns: str, rest: str = "") -> list[Record]:
        names = columns.split(", ")
        return [dict(zip(names, row, strict=True)) for row in await select(f"SELECT {columns} FROM {name}{rest}")]

    times = "started, waiting_time, total_time, result, blur_time"
    usage = Usage(
        await table("usage_nameplates", f"app_id, {times}", " ORDER BY id"),
        await table("usage_mailboxes", f"app_id, for_nameplate, {times}, visitors", " ORDER BY id"),
        await table(
            "usage_client_versions",
            "app_id, side, connect_time, implementation, version, blur_time",
            " ORDER BY id",
        ),
    )
    for row in usage.mailboxes:
        row["for_nameplate"] = bool(row["for_nameplate"])
    current = await table("usage_current", "rebooted, updated, blur_time, connections_websocket")
    usage.current = current[0] if current else None
    [[usage.pruned]] = await select("SELECT pruned FROM service")
    return usage


def live_state(state: State) -> dict[str, Rows]:
    return {
        "nameplates": {
            (app.app_id, name): {
                "mailbox_id": nameplate.mailbox_id,
                "crowded": nameplate.crowded,
                "sides": [msgspec.structs.asdict(row) for row in nameplate.sides],
            }
            for app in state.apps.values()
            for name, nameplate in app.nameplates.items()
        },
        "mailboxes": {
            (mailbox.app_id, mailbox.mailbox_id): {
                "for_nameplate": mailbox.for_nameplate,
                "crowded": mailbox.crowded,
                "visitors": mailbox.visitors,
                "sides": [msgspec.structs.asdict(row) for row in mailbox.sides],
                "messages": [read_json(message.wire + b"}") for message in mailbox.messages],
            }
            for mailbox in state.mailboxes()
        },
    }


def note(usage: Usage, changes: Sequence[Change]) -> None:
    tables: dict[type, list[dict[str, Any]]] = {
        usage_records.NameplateUsage: usage.nameplates,
        usage_records.MailboxUsage: usage.mailboxes,
        usage_records.ClientVersion: usage.client_versions,
    }
    for change in changes:
        if isinstance(change, model.Pruned):
            usage.pruned = change.wall
        elif isinstance(change, usage_records.CurrentUsage):
            usage.current = msgspec.structs.asdict(change)
        usage_record: Any = getattr(change, "usage", change)
        if type(usage_record) in tables:
            record = msgspec.structs.asdict(usage_record)
            record.pop("address_id", None)  # a secret makes it, and no rule looks at it
            tables[type(usage_record)].append(record)


def counted(live: dict[str, Rows]) -> dict[str, str]:
    """Count rows. Scripts write numbers as text."""
    boxes = live["mailboxes"].values()
    return {
        "nameplates": str(len(live["nameplates"])),
        "mailboxes": str(len(boxes)),
        "messages": str(sum(len(box["messages"]) for box in boxes)),
        "sides": str(sum(len(box["sides"]) for box in boxes)),
    }


def shown(usage: Usage) -> dict[str, list[Record]]:
    """Return usage records with times in seconds since the script began, everything as text."""
    kinds = {"nameplate": usage.nameplates, "mailbox": usage.mailboxes, "client": usage.client_versions}
    return {kind: [_shown(record) for record in table] for kind, table in kinds.items()}


def _shown(record: Record) -> Record:
    started, waiting = record.get("started", record.get("connect_time")), record.get("waiting_time")
    return {
        "app": record["app_id"],
        "result": record.get("result"),
        "started": f"{(started or 0.0) - EPOCH:g}",
        "waiting": "none" if waiting is None else f"{waiting:g}",
        "total": f"{record.get('total_time', 0):g}",
        "for_nameplate": "yes" if record.get("for_nameplate") else "no",
        **{name: str(record.get(name)) for name in ("visitors", "side", "implementation", "version")},
    }
