"""Two sides of a transfer that have met at a server in memory, of which one is played by a test."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

from client.live import CODE, wormhole
from restante.client import Wormhole
from restante.client.errors import TransferError
from restante.client.transfer.receiving import OfferedDirectory, OfferedFile, receive
from restante.client.transfer.stream import OnProgress
from restante.client.transit import connecting
from restante.client.transit.connecting import Transit, TransitOptions
from restante.client.transit.hints import Hints, parse_hints, transit_message
from restante.client.transit.pipe import RecordPipe
from restante.client.transit.records import PURPOSE, Role, TransitKeys
from restante.common.dice import SystemDice
from support.bounds import BOUND, bounded

DIRECT: Final = TransitOptions(relays=())
CONTENT: Final = b"0123456789"
OFFER: Final = {"file": {"filename": "parcel", "filesize": len(CONTENT)}}
LARGE: Final = 64 << 20
"""More than the buffers of a connection hold (tcp_wmem, tcp_rmem of Linux)."""


class Played(RecordPipe):
    def __init__(self, connected: socket.socket, keys: TransitKeys, stall_seconds: float) -> None:
        super().__init__(connected, keys, stall_seconds)
        self.socket, self.keys = connected, keys


Script = Callable[[Played], object]


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[tuple[Wormhole, Wormhole]]:
    """Our side and the peer's. At the end nothing of a transfer is left in this process."""
    async with bounded("the end of a transfer"), wormhole(**options) as ours, wormhole() as theirs:
        await asyncio.gather(ours.set_code(CODE), theirs.set_code(CODE))
        yield ours, theirs
    gc.collect()  # an open socket is a warning, and a warning an error
    for thread in threading.enumerate():
        if thread.name == "restante":
            thread.join(BOUND)
            assert not thread.is_alive()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


async def say(wormhole: Wormhole, **message: Any) -> None:
    await wormhole.send(json.dumps(message).encode())


async def heard(wormhole: Wormhole, key: str) -> tuple[Any, Hints]:
    hints = Hints()
    while True:
        message = json.loads(await wormhole.receive())
        if "transit" in message:
            hints = parse_hints(message["transit"])
        if key in message:
            return message[key], hints


async def play(wormhole: Wormhole, role: Role, script: Script, offer: dict[str, Any] | None = None) -> None:
    """Play the peer, which closes the connection after the script. A receiver with an offer dials nobody."""
    keys = TransitKeys.derive(await wormhole.derive_key(PURPOSE), role)
    with Transit(DIRECT, SystemDice()) as transit, patch.object(connecting, "RecordPipe", Played):
        await say(wormhole, transit=transit_message(transit.hints))
        if role is Role.SENDER:
            await say(wormhole, offer=offer)
            _, hints = await heard(wormhole, "answer")
        else:
            hints = Hints() if offer is not None else (await heard(wormhole, "offer"))[1]
            await say(wormhole, answer={"file_ack": "ok"})
        pipe = await transit.connect(keys, role, hints)
    assert isinstance(pipe, Played)
    with closing(pipe):
        await asyncio.to_thread(script, pipe)


def sends(wormhole: Wormhole, script: Script, offer: dict[str, Any] = OFFER) -> asyncio.Task[None]:
    return asyncio.create_task(play(wormhole, Role.SENDER, script, offer))


def receives(wormhole: Wormhole, script: Script) -> asyncio.Task[None]:
    return asyncio.create_task(play(wormhole, Role.RECEIVER, script))


async def offered_file(wormhole: Wormhole) -> OfferedFile:
    offered = await receive(wormhole, DIRECT)
    assert isinstance(offered, OfferedFile)
    return offered


async def stored(
    wormhole: Wormhole, folder: Path, on_progress: OnProgress | None = None, transit: TransitOptions = DIRECT
) -> Path:
    offered = await receive(wormhole, transit)
    assert isinstance(offered, OfferedFile | OfferedDirectory)
    await offered.accept(folder / offered.name, on_progress=on_progress)
    return folder / offered.name


async def gives_up(ending: Coroutine[Any, Any, object] | asyncio.Task[Any], words: str) -> TransferError:
    with pytest.raises(TransferError, match=rf"^the other side gave up: {words}") as ended:
        await ending
    return ended.value


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def until_closed(pipe: Played) -> None:
    with suppress(ConnectionResetError):
        while pipe.socket.recv(1 << 16):
            pass


def records(*contents: bytes) -> Script:
    def script(pipe: Played) -> None:
        for content in contents:
            pipe.send(content)
        until_closed(pipe)

    return script


sends_it, sends_half = records(CONTENT), records(CONTENT[:5])


def stopped_halfway(begin: Script) -> tuple[Script, asyncio.Event, threading.Event]:
    loop, begun, over = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def script(pipe: Played) -> None:
        begin(pipe)
        loop.call_soon_threadsafe(begun.set)
        over.wait()

    return script, begun, over


def sparse(path: Path, size: int = LARGE) -> Path:
    path.touch()
    os.truncate(path, size)
    return path
