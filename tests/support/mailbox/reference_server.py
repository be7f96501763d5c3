"""The reference server, 0.8.0, as a peer for conversations: told what to do on standard input, a line at a time.

    fresh [no_list] [blur=N]   a new server with empty databases → {"port": N}
    restart                    the same databases, new connections → {"port": N}
    advance SECONDS            its clock, which stands still otherwise
    prune                      as its timer does
    look                       → {"rows": {...}, "usage": {...}}

Each command is answered with one line of JSON.
"""

from __future__ import annotations

import json
import sys
import types
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet import stdio
from twisted.protocols.basic import LineReceiver
from wormhole_mailbox_server import server_websocket
from wormhole_mailbox_server.database import create_or_upgrade_channel_db, create_or_upgrade_usage_db
from wormhole_mailbox_server.server import make_server
from wormhole_mailbox_server.web import make_web_server

reactor: Any = _reactor
EPOCH = 1_000_000_000.0


class Peer(LineReceiver):
    delimiter = b"\n"

    def __init__(self) -> None:
        self.now = EPOCH
        self.port: Any = None
        server_websocket.time = types.SimpleNamespace(time=lambda: self.now)

    def lineReceived(self, line: bytes) -> None:  # noqa: N802 - Twisted's name
        command, *words = line.decode().split()
        answer = getattr(self, command)(*words) or {}
        self.sendLine(json.dumps(answer).encode())  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: object = None) -> None:  # noqa: N802
        reactor.stop()

    def fresh(self, *options: str) -> dict[str, Any]:
        self.now = EPOCH
        self.options = options
        self.channel = create_or_upgrade_channel_db(":memory:")
        self.usage = create_or_upgrade_usage_db(":memory:")
        return self.restart()

    def restart(self) -> dict[str, Any]:
        if self.port is not None:
            self.port.stopListening()
        options = dict(option.partition("=")[::2] for option in self.options)
        self.server = make_server(
            self.channel,
            allow_list="no_list" not in options,
            blur_usage=int(options["blur"]) if "blur" in options else None,
            usage_db=self.usage,
            welcome_motd=options.get("motd"),
            signal_error=options.get("error"),
        )
        site = make_web_server(self.server, log_requests=False, websocket_protocol_options=())
        self.port = reactor.listenTCP(0, site, interface="127.0.0.1")
        return {"port": self.port.getHost().port}

    def advance(self, seconds: str) -> None:
        self.now += float(seconds)

    def prune(self) -> None:
        self.server.prune_all_apps(self.now, self.now - 660)

    def look(self) -> dict[str, Any]:
        count = {
            name: str(self.channel.execute(f"SELECT count(*) AS n FROM {table}").fetchone()["n"])
            for name, table in {
                "nameplates": "nameplates",
                "mailboxes": "mailboxes",
                "messages": "messages",
                "sides": "mailbox_sides",
            }.items()
        }
        usage = {
            kind: [dict(row) for row in self.usage.execute(f"SELECT * FROM {table} ORDER BY rowid")]
            for kind, table in {
                "nameplate": "nameplates",
                "mailbox": "mailboxes",
                "client": "client_versions",
            }.items()
        }
        return {"rows": count, "usage": usage}


if __name__ == "__main__":
    stdio.StandardIO(Peer())  # type: ignore[no-untyped-call]
    reactor.run()
    sys.exit(0)
