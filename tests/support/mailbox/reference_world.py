"""The reference server as a world: the same scripts, a foreign peer."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.bounds import BOUND
from support.mailbox.givens import Inbox, Options
from support.mailbox.shells import Clients, SocketInbox
from support.mailbox.tables import Record, Usage
from support.mailbox.worlds import World


class ReferencePeer:
    """The process; one serves all scripts."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__).with_name("reference_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def call(self, *words: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], BOUND)  # an answer is one line, and all of it
        assert ready, f"not within {BOUND:g} s: {words}"
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def stop(self) -> None:
        self.process.communicate()


class ReferenceWorld(World):
    tells_the_lost = False

    def __init__(self, options: Options, peer: ReferencePeer) -> None:
        super().__init__(options)
        self._peer = peer
        self._clients = Clients()
        words = {"blur": options.blur, "motd": options.motd, "error": options.error}
        chosen = [f"{name}={value}" for name, value in words.items() if value]
        self._port = peer.call("fresh", *chosen, *(() if options.lists else ("no_list",)))["port"]

    def close(self) -> None:
        try:
            self.run(self._clients.close())
        finally:
            super().close()

    def connect(self) -> Inbox:
        return self.run(self._clients.connect(self._port, self.options.headers()))

    def say(self, inbox: Inbox, text: str) -> None:
        assert isinstance(inbox, SocketInbox)
        self.run(self._clients.say(inbox, text))

    def lose(self, inbox: Inbox) -> None:
        assert isinstance(inbox, SocketInbox)
        self.run(self._lose(inbox))

    async def _lose(self, inbox: SocketInbox) -> None:
        """Close the socket, and let the server take note of it: the barrier of a new connection comes after it."""
        await self._clients.lose(inbox)
        another = await self._clients.connect(self._port, {})
        await self._clients.hear(self._lose)
        await self._clients.lose(another)

    def flush(self, *, refused: bool = False) -> bool:
        assert not refused
        self.run(self._clients.hear(self._clients.lose))
        return True

    def ended(self, inbox: Inbox) -> int | None:
        assert isinstance(inbox, SocketInbox)
        return self.run(self._clients.ended(inbox))

    def advance(self, seconds: float) -> None:
        self._peer.call("advance", str(seconds))

    def prune(self, *, refused: bool = False) -> bool:
        assert not refused
        self._peer.call("prune")
        return True

    def restart(self, *, crash: bool = False) -> None:
        assert not crash
        self.run(self._clients.close())
        self._port = self._peer.call("restart")["port"]

    def counts(self) -> dict[str, str]:
        counts: dict[str, str] = self._peer.call("look")["rows"]
        return counts

    def usage(self) -> Usage:
        usage: dict[str, list[Record]] = self._peer.call("look")["usage"]
        return Usage(usage["nameplate"], usage["mailbox"], usage["client"])
