"""Databases of the reference server, made by its own code; what that cannot make is made by hand."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from wormhole_mailbox_server.database import create_or_upgrade_channel_db, create_or_upgrade_usage_db, get_schema
from wormhole_mailbox_server.server import SidedMessage, make_server

from support.sqlite import alter

APP = "x"


class Their:
    """The reference server on files, without sockets, at times that a test names."""

    def __init__(self, folder: Path, *, blur: int | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.relay = folder / "relay.sqlite"
        self.usage = folder / "usage.sqlite"
        self._channel_db = create_or_upgrade_channel_db(str(self.relay))
        self._usage_db = create_or_upgrade_usage_db(str(self.usage))
        self._server = make_server(self._channel_db, usage_db=self._usage_db, blur_usage=blur)

    def bind(self, side: str, when: float, app: str = APP) -> None:
        self._app(app).log_client_version(when, side, ("python", "0.24.0"))

    def claim(self, side: str, nameplate: str, when: float, app: str = APP) -> str:
        mailbox: str = self._app(app).claim_nameplate(nameplate, side, when)
        return mailbox

    def release(self, side: str, nameplate: str, when: float, app: str = APP) -> None:
        self._app(app).release_nameplate(nameplate, side, when)

    def open(self, side: str, mailbox: str, when: float, app: str = APP) -> Any:
        return self._app(app).open_mailbox(mailbox, side, when)

    def add(
        self, side: str, mailbox: str, phase: Any, body: Any, when: float, msg_id: Any = None, app: str = APP
    ) -> None:
        self.open(side, mailbox, when, app).add_message(SidedMessage(side, phase, body, when, msg_id))

    def close(self, side: str, mailbox: str, mood: str | None, when: float, app: str = APP) -> None:
        self.open(side, mailbox, when, app).close(side, mood, when)

    def prune(self, now: float) -> None:
        """As its timer does, every five minutes."""
        self._server.prune_all_apps(now, now - 660)
        self._server.dump_stats(now, rebooted=0)

    def stop(self) -> None:
        self._channel_db.close()
        self._usage_db.close()

    def _app(self, name: str) -> Any:
        return self._server.get_app(name)


def usage_v1(path: Path) -> None:
    """A usage database as older servers made it."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(get_schema("usage", 1))
    alter(
        path,
        "INSERT INTO version VALUES (1)",
        "INSERT INTO current VALUES (1500000000, 1500000300, NULL, 3)",
        "INSERT INTO nameplates VALUES ('x', 1500000000, 2.5, 10.25, 'happy')",
        "INSERT INTO mailboxes VALUES ('x', 1, 1500000000, 20.5, NULL, 'lonely')",
    )
