"""The tasks of one client in a process of its own, which bench/client.py runs.

    python client_side.py restante|reference TASK URL COUNT [CODE]

It prints one line of JSON when it has ended. Imports do not count: the CPU time begins after them. `restante.client`
runs on asyncio's own event loop, the Python client on Twisted's default reactor.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, Self

import msgspec

APPID = "restante.example/bench"
MESSAGE_BYTES = 300
THANKS = b"all messages arrived"
UNCOUNTED_EXCHANGES = 2
"""The first exchange still loads modules."""
REFERENCE_AT_A_TIME = 100
"""Messages that are sent before the reactor has a turn: `send_message` of the Python client waits for nothing."""


class Exchange(msgspec.Struct):
    """Two clients of one process, from nothing to a key that both have verified. In seconds."""

    cpu: float
    """CPU of both, from the start of the first to the key."""
    cpu_of_code: float
    """The part of it after the first has the code: the start of the second, and the key."""
    cpu_with_closing: float
    """The same as `cpu`, until both have closed and left nothing at the server."""
    seconds: float
    """Wall time from the code to the key."""


class Transmission(msgspec.Struct):
    """What one of two clients, each in a process, did for many messages."""

    started: float
    ended: float
    """By the clock that all processes share."""
    cpu: float


class Side(Protocol):
    """A client of either library. Each method is a coroutine on that library's own event loop."""

    async def allocate_code(self) -> str: ...
    async def set_code(self, code: str) -> None: ...
    async def verifier(self) -> bytes: ...
    async def send(self, message: bytes) -> object: ...
    async def receive(self) -> bytes: ...
    async def close(self) -> None: ...


Connect = Callable[[str], Awaitable[Side]]
"""Returns a client that connects to a server."""


def cpu_seconds() -> float:
    """Return the CPU time of this process, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def message(number: int) -> bytes:
    """Return a message that no other equals."""
    return number.to_bytes(8, "big") * (MESSAGE_BYTES // 8) + bytes(MESSAGE_BYTES % 8)


async def exchange(connect: Connect, url: str) -> Exchange:
    start = cpu_seconds()
    allocator = await connect(url)
    code = await allocator.allocate_code()
    cpu_at_code, time_at_code = cpu_seconds(), time.perf_counter()
    user = await connect(url)
    await user.set_code(code)
    verifiers = await allocator.verifier(), await user.verifier()
    seconds, verified = time.perf_counter() - time_at_code, cpu_seconds()
    assert verifiers[0] == verifiers[1], "the sides have different keys"
    await allocator.close()
    await user.close()
    return Exchange(verified - start, verified - cpu_at_code, cpu_seconds() - start, seconds)


async def exchanges(connect: Connect, url: str, count: int, _code: str) -> list[Exchange]:
    """Let two clients of this process meet, again and again."""
    for _ in range(UNCOUNTED_EXCHANGES):
        await exchange(connect, url)
    return [await exchange(connect, url) for _ in range(count)]


async def sender(connect: Connect, url: str, count: int, code: str) -> Transmission:
    """Send messages, and wait until the other side says that it has them all."""
    side = await connect(url)
    await side.set_code(code)
    await side.verifier()
    started, before = time.monotonic(), cpu_seconds()
    for number in range(count):
        await side.send(message(number))
    assert await side.receive() == THANKS, "another message arrived"
    transmission = Transmission(started, time.monotonic(), cpu_seconds() - before)
    await side.close()
    return transmission


async def receiver(connect: Connect, url: str, count: int, code: str) -> Transmission:
    """Receive messages, each once and in order, and say when all have arrived."""
    side = await connect(url)
    await side.set_code(code)
    await side.verifier()
    started, before = time.monotonic(), cpu_seconds()
    for number in range(count):
        assert await side.receive() == message(number), f"another message arrived instead of number {number}"
    transmission = Transmission(started, time.monotonic(), cpu_seconds() - before)
    await side.send(THANKS)
    await side.close()
    return transmission


TASKS = {"exchanges": exchanges, "sender": sender, "receiver": receiver}


async def run_task(connect: Connect) -> None:
    """Do what the command line says, and print what it took."""
    name, url, count, code = (*sys.argv[2:], "")[:4]
    print(msgspec.json.encode(await TASKS[name](connect, url, int(count), code)).decode())


def run_restante() -> None:
    from restante.client import Wormhole

    async def connect(url: str) -> Side:
        return await Wormhole.create(APPID, server=url).__aenter__()

    asyncio.run(run_task(connect))


def run_reference() -> None:
    import wormhole
    from twisted.internet import defer, reactor
    from twisted.internet import task as tasks

    class ReferenceSide:
        """A wormhole of `wormhole.create`, by its Deferred interface."""

        def __init__(self, url: str) -> None:
            self._wormhole: Any = wormhole.create(APPID, url, reactor)
            self._sent = 0

        @classmethod
        async def connect(cls, url: str) -> Self:
            return cls(url)

        async def allocate_code(self) -> str:
            self._wormhole.allocate_code()
            code: str = await self._wormhole.get_code()
            return code

        async def set_code(self, code: str) -> None:
            self._wormhole.set_code(code)

        async def verifier(self) -> bytes:
            verifier: bytes = await self._wormhole.get_verifier()
            return verifier

        async def send(self, message: bytes) -> None:
            self._wormhole.send_message(message)
            self._sent += 1
            if self._sent % REFERENCE_AT_A_TIME == 0:
                await tasks.deferLater(reactor, 0)

        async def receive(self) -> bytes:
            message: bytes = await self._wormhole.get_message()
            return message

        async def close(self) -> None:
            await self._wormhole.close()

    tasks.react(lambda _reactor: defer.ensureDeferred(run_task(ReferenceSide.connect)))


if __name__ == "__main__":
    {"restante": run_restante, "reference": run_reference}[sys.argv[1]]()
