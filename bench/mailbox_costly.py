"""What texts that are cheap to send and dear to decode cost others: each of 2 MiB, in every form known to be dear.

python bench/mailbox_costly.py PORT CONNECTIONS    sends them until it is ended
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import words
from mailbox_connection import Connection
from mailbox_stall import LoopPinger
from wire import BadWireError, frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SIZE = 2 * 1024 * 1024 - 1000
"""Below the limit of a message, so that it is read."""
CONNECTIONS = 20
REST = 0.3
ROUNDS = 3

# A beginning, what is repeated until the text is long enough (%d: a number), an end. The mixed ones have nearly as
# many commas, brackets, escapes and spaces as the server allows; it refuses more before it decodes anything.
FORMS = {
    "add, of digits": ('{"type":"add","phase":"1","body":"', "7", '"}'),
    "add, of escapes": ('{"type":"add","phase":"1","body":"', '\\"', '"}'),
    "add, of lists": ('{"type":"add","phase":"1","body":[', "[],", "0]}"),
    "add, mixed": ('{"type":"add","phase":"1","body":[', '["\\n' + "a" * 249 + '" ],', "0]}"),
    "add, mixed, with emojis": ('{"type":"add","phase":"1","body":[', '["\\n' + "😀" * 47 + '"],', "0]}"),
    "add, of ids": ('{"type":"add","phase":"1","body":0,', '"id":0,', '"a":0}'),
    "add, of keys": ('{"type":"add","phase":"1","body":0,', '"":0,', '"a":0}'),
    "no type, of keys": ("{", '"%d":0,', '"a":0}'),
    "type, of lists": ('{"type":[', "[],", "0]}"),
    "type, of escapes": ('{"type":"', '\\"', '"}'),
    "bind, of lists": ('{"type":"bind","appid":"a","side":"b","client_version":[', "[],", "0]}"),
    "bind, of keys": ('{"type":"bind","appid":"a","side":"b","client_version":{', '"%d":{},', '"a":0}}'),
    "submit, of lists": ('{"type":"submit-permissions","method":"hashcash","stamp":[', "[],", "0]}"),
    "claim, of digits": ('{"type":"claim","nameplate":"', "1", '"}'),
    "ping, of lists": ('{"type":"ping","ping":[', "[],", "0]}"),
}


def text(form: str) -> bytes:
    begin, middle, end = FORMS[form]
    if "%d" in middle:
        parts, size, numbers = [begin], len(begin), itertools.count()
        while size < SIZE:
            parts.append(middle % next(numbers))
            size += len(parts[-1])
        return "".join([*parts, end]).encode()
    return (begin + middle * (SIZE // len(middle.encode())) + end).encode()


class Sender(Connection):
    """Sends, and takes no interest in the answers."""

    async def enter(self) -> None:
        """Connect, and open a mailbox of its own: what it adds is stored, and delivered to it."""
        await self.greet()
        await self.bind()
        await self.call(words.Ack, "open", mailbox=os.urandom(8).hex())

    def data_received(self, data: bytes) -> None:
        if self._answer is not None and not self._answer.done():
            super().data_received(data)

    async def drained(self) -> None:
        while not self.over and self.transport is not None and self.transport.get_write_buffer_size():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


async def send_for_ever(port: int, frames: list[bytes], first: int) -> None:
    """Send one text after the other, as fast as the server reads; it may close the connection for one."""
    texts = itertools.cycle(frames[first:] + frames[:first])
    while True:
        sender = Sender(port)
        with contextlib.suppress(BadWireError, TimeoutError):
            await sender.enter()
            while not sender.over:
                sender.write(next(texts))
                await sender.drained()
        sender.end()


async def main(port: int, connections: int) -> None:
    frames = [frame(text(form)) for form in FORMS]
    os.nice(19)  # the pair's process is on the same cpu, and goes first
    print("ready", flush=True)
    async with asyncio.TaskGroup() as group:
        for number in range(connections):
            group.create_task(send_for_ever(port, frames, number % len(frames)))


@contextlib.asynccontextmanager
async def senders(port: int) -> AsyncIterator[None]:
    """Let another process send them, because long texts would block this one's event loop."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__)), str(port), str(CONNECTIONS), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    await asyncio.sleep(1)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def longest_hold(port: int) -> tuple[str, float]:
    """Return the form whose single message holds the server's loop longest, and for how long.

    It is how long another client's ping frame waits, which is answered without a commit.

    The least of some rounds: what else the machine does makes it longer, never shorter.
    """
    pinger = LoopPinger(port)
    await pinger.greet()
    await pinger.longest(0.5)
    holds: dict[str, float] = {}
    for form in FORMS:
        sent, seconds = frame(text(form)), []
        for _ in range(ROUNDS):
            sender = Sender(port)
            await sender.enter()
            ping = asyncio.create_task(pinger.longest(REST))
            await asyncio.sleep(REST / 3)
            sender.write(sent)
            seconds.append(await ping)
            sender.end()
        holds[form] = min(seconds)
    pinger.end()
    worst = max(holds, key=lambda form: holds[form])
    return worst, holds[worst]


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
