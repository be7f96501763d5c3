"""Two sides of a transfer at a real mailbox server, of which one is played by a test."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Final

from client.live import wormhole
from client.programs import CODE
from restante.client import Wormhole
from restante.client.transfer.receiving import OfferedDirectory, OfferedFile, receive
from restante.client.transfer.stream import OnProgress
from restante.client.transit.connecting import Transit, TransitOptions
from restante.client.transit.hints import Hints, parse_hints, transit_message
from restante.client.transit.pipe import RecordPipe
from restante.client.transit.records import PURPOSE, Role, TransitKeys
from restante.common.dice import SystemDice
from support.bounds import bounded
from support.mailbox.days import ServerOfDays

DIRECT: Final = TransitOptions(relays=())
Script = Callable[[RecordPipe], None]
"""What a side does with the connection, in a thread."""

Messages = list[dict[str, Any]]


@asynccontextmanager
async def pair(server: ServerOfDays) -> AsyncIterator[tuple[Wormhole, Wormhole]]:
    """Our side and the peer's. At the end nothing of a transfer is left in this process."""
    async with bounded("the end of a transfer"), wormhole(server.url) as ours, wormhole(server.url) as theirs:
        await asyncio.gather(ours.set_code(CODE), theirs.set_code(CODE))
        yield ours, theirs
    gc.collect()  # an open socket is a warning, and a warning an error
    assert [each for each in threading.enumerate() if each.name == "restante"] == []


async def say(wormhole: Wormhole, **message: Any) -> None:
    await wormhole.send(json.dumps(message).encode())


async def heard(wormhole: Wormhole, key: str) -> tuple[Any, Hints]:
    """Wait for a message with this key. Return what it has, and the hints before it."""
    hints = Hints()
    while True:
        message = json.loads(await wormhole.receive())
        if "transit" in message:
            hints = parse_hints(message["transit"])
        if key in message:
            return message[key], hints


async def play(wormhole: Wormhole, role: Role, script: Script, offer: dict[str, Any] | None = None) -> None:
    """Play the peer: honest messages, then the script on the connection, which is closed behind it.

    A receiver that is given the offer has heard it already, and dials nobody.
    """
    keys = TransitKeys.of(await wormhole.derive_key(PURPOSE), role)
    with Transit(DIRECT, SystemDice()) as transit:
        await say(wormhole, transit=transit_message(transit.hints))
        if role is Role.SENDER:
            await say(wormhole, offer=offer)
            _, hints = await heard(wormhole, "answer")
        else:
            hints = Hints() if offer is not None else (await heard(wormhole, "offer"))[1]
            await say(wormhole, answer={"file_ack": "ok"})
        pipe = await transit.connect(keys, role, hints)
    with closing(pipe):
        await asyncio.to_thread(script, pipe)


async def stored(wormhole: Wormhole, folder: Path, on_progress: OnProgress | None = None) -> Path:
    """Receive what is offered, and store it in a folder."""
    offered = await receive(wormhole, DIRECT)
    assert isinstance(offered, OfferedFile | OfferedDirectory)
    await offered.accept(folder / offered.name, on_progress=on_progress)
    return folder / offered.name


def names(folder: Path) -> list[str]:
    """Return what is in a folder, also drafts."""
    return sorted(each.name for each in folder.iterdir())


def until_closed(pipe: RecordPipe) -> None:
    """Read until the other side closes the connection."""
    with suppress(ConnectionResetError):
        while pipe._socket.recv(1 << 16):
            pass
