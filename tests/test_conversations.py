"""Every conversation, in every world: one by one and as one batch."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from wormhole_mailbox_server import server_websocket
from wormhole_mailbox_server.database import create_or_upgrade_channel_db, create_or_upgrade_usage_db
from wormhole_mailbox_server.server import make_server

from support.mailbox.conversation import Mismatch, Script, ScriptReplay, read_scripts
from support.mailbox.databases import PostgresDatabase
from support.mailbox.givens import Inbox, Options
from support.mailbox.shells import CommitLoopWorld, HandedOverWorld, SocketWorld
from support.mailbox.tables import Usage
from support.mailbox.worlds import CoreWorld, StoreWorld, World
from support.postgres import Cluster

every_script = pytest.mark.parametrize("script", read_scripts(), ids=lambda script: script.name)


@pytest.mark.parametrize("world", [CoreWorld, StoreWorld, SocketWorld, HandedOverWorld])
@every_script
def test_here(script: Script, world: type[World]) -> None:
    """In a first world, each line is done before the next is said; in another one they are said in batches."""
    with closing(world(script.options)) as server:
        first = ScriptReplay(script, server)
        first.one_by_one()
    with closing(world(script.options)) as server:
        ScriptReplay(script, server, first.variables).as_batches()


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("batches", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_over_postgresql(postgres: Cluster, subtests: pytest.Subtests, batches: bool) -> None:
    """What ends in the batch in which it began is never written, so the quick run has each line by itself."""
    begin = partial(PostgresDatabase.begin, postgres.url)
    for script in read_scripts():
        with subtests.test(script.name), closing(CommitLoopWorld(script.options, begin=begin)) as server:
            if batches:
                ScriptReplay(script, server, variables_of(script)).as_batches()
            else:
                ScriptReplay(script, server).one_by_one()


def variables_of(script: Script) -> dict[str, Any]:
    """Return what a replay on the core binds. All worlds draw the same."""
    with closing(CoreWorld(script.options)) as core:
        replay = ScriptReplay(script, core)
        replay.one_by_one()
        return replay.variables


ROWS = {"nameplates": "nameplates", "mailboxes": "mailboxes", "messages": "messages", "sides": "mailbox_sides"}


class ReferenceInbox(Inbox):
    def __init__(self, server: Any, options: Options) -> None:
        super().__init__()
        self.lost = False
        self.protocol: Any = server_websocket.WebSocketServer()
        self.protocol.factory = SimpleNamespace(_server=server, reactor=None)
        self.protocol.sendMessage = lambda payload, _binary: self.frames.append(json.loads(payload))
        headers = {name.lower(): value for name, value in options.headers().items()}
        host, port = self.address
        self.protocol.onConnect(SimpleNamespace(headers=headers, peer=f"tcp4:{host}:{port}"))


class ReferenceWorld(World):
    """The reference server, 0.8.0: its own code runs in this process."""

    tells_the_lost = False

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._channel = create_or_upgrade_channel_db(":memory:")
        self._usage = create_or_upgrade_usage_db(":memory:")
        self._inboxes: list[ReferenceInbox] = []
        self._time = patch.object(server_websocket, "time", SimpleNamespace(time=self.clock.wall))
        self._time.start()
        self._start()

    def _start(self) -> None:
        self._server = make_server(
            self._channel,
            allow_list=self.options.lists,
            blur_usage=self.options.blur or None,
            usage_db=self._usage,
            welcome_motd=self.options.motd,
            signal_error=self.options.error,
        )

    def close(self) -> None:
        self._time.stop()
        self._channel.close()
        self._usage.close()
        super().close()

    def connect(self) -> Inbox:
        inbox = ReferenceInbox(self._server, self.options)
        self._inboxes.append(inbox)
        inbox.protocol.onOpen()
        return inbox

    def say(self, inbox: Inbox, text: str) -> None:
        """If a handler raises, Autobahn closes the connection, and what it was about to send is lost."""
        assert isinstance(inbox, ReferenceInbox)
        if inbox.lost:
            return
        before = len(inbox.frames)
        try:
            inbox.protocol.onMessage(text.encode(), False)
        except Exception as error:  # noqa: BLE001 - whatever it is
            del inbox.frames[before:]
            inbox.hang_up(1011, repr(error))
            self.lose(inbox)

    def lose(self, inbox: Inbox) -> None:
        assert isinstance(inbox, ReferenceInbox)
        if not inbox.lost:
            inbox.lost = True
            inbox.protocol.onClose(True, 1000, "")

    def flush(self, *, refused: bool = False) -> bool:
        assert not refused
        return True

    def prune(self, *, refused: bool = False) -> bool:
        assert not refused
        now = self.clock.wall()
        self._server.prune_all_apps(now, now - self.options.prune_after)
        return True

    def restart(self, *, crash: bool = False) -> None:
        assert not crash
        for inbox in self._inboxes:
            self.lose(inbox)
        self._start()

    def counts(self) -> dict[str, str]:
        count = "SELECT count(*) AS n FROM {}"
        return {name: str(self._channel.execute(count.format(table)).fetchone()["n"]) for name, table in ROWS.items()}

    def usage(self) -> Usage:
        def rows(table: str) -> list[dict[str, Any]]:
            return [dict(row) for row in self._usage.execute(f"SELECT * FROM {table} ORDER BY rowid")]

        return Usage(rows("nameplates"), rows("mailboxes"), rows("client_versions"))


@every_script
def test_against_the_reference_server(script: Script) -> None:
    """It passes, or the script says why it does not; a reason that no longer holds is a failure, too."""
    with closing(ReferenceWorld(script.options)) as world:
        replay = ScriptReplay(script, world)
        if script.reference_differs is None:
            replay.one_by_one()
        else:
            with pytest.raises(Mismatch) as mismatch:
                replay.one_by_one()
            assert mismatch.value.line == script.reference_fails_at
