"""The real `wormhole`, one process per call, each in a folder of its own."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from support.bounds import BOUND
from support.ports import kept_port
from support.processes import Child

HOMES: Final = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")

MAIN: Final = "support.mailbox.wormhole:main"


def main() -> object:
    """Be `wormhole`, in a fork, where two of its own limits do not hold.

    It finds a port that is free on 127.0.0.1, and then listens on every address: that fails where the port is in use
    on another one. So it is given a port that is free on all of them. And it waits 5 s for the answer to its request
    of a WebSocket, in which a busy machine may not have started a server.
    """
    import wormhole.transit
    from wormhole import _rendezvous
    from wormhole.cli import cli

    reset = _rendezvous.WSFactory.resetProtocolOptions

    def reset_patiently(factory: Any) -> None:
        reset(factory)
        factory.openHandshakeTimeout = BOUND

    _rendezvous.WSFactory.resetProtocolOptions = reset_patiently
    wormhole.transit.allocate_tcp_port = functools.partial(kept_port, "")
    return cli.wormhole()


class Outcome(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


class Client(Child):
    @classmethod
    async def start(cls, folder: Path, relay_url: str, *command: str, **variables: str) -> Self:
        """Run `wormhole COMMAND` in FOLDER, which is its home too: nothing of the user's is read or written."""
        # An empty transit helper: a file goes from one client to the other directly, never by the public relay.
        words = ("wormhole", "--transit-helper", "", "--relay-url", relay_url, *command)
        return await cls.forked(MAIN, *words, cwd=folder, **dict.fromkeys(HOMES, str(folder)), **variables)

    async def code(self) -> str:
        return (await self.says(r"code is: (\S+)\s"))[1]

    async def leaves(self) -> Outcome:
        return Outcome(await self.ended(), **self.said)
