"""What a client is measured at, by itself in one process: `client_restante.py` and `client_reference.py` run it.

    python client_restante.py TASK URL COUNT [CODE]

It prints one line of JSON when it has ended. Imports do not count: the CPU time is that since they ended.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Protocol

import msgspec

APPID = "restante.example/bench"
MESSAGE_BYTES = 300
THANKS = b"all came"
EXCHANGES_BEFORE = 2
"""Exchanges that are not counted: the first one still loads modules."""


class Side(Protocol):
    """One client, by whichever library. Each method is a coroutine on that library's own event loop."""

    async def allocate_code(self) -> str: ...

    async def set_code(self, code: str) -> None: ...

    async def verifier(self) -> bytes: ...

    async def send(self, message: bytes) -> None: ...

    async def receive(self) -> bytes: ...

    async def close(self) -> None: ...


class Connect(Protocol):
    """Return a client that connects to a server."""

    async def __call__(self, url: str) -> Side: ...


class Exchange(msgspec.Struct):
    """Two clients of one process, from nothing to a key that both have verified. In seconds."""

    cpu: float
    """CPU of both, from the first one's start to the key."""
    cpu_of_code: float
    """The part of it after the first has the code: the second one's start, and the key."""
    cpu_in_all: float
    """The same as `cpu`, until both have closed and left nothing at the server."""
    seconds: float
    """Wall time from the code to the key."""


class Poured(msgspec.Struct):
    """What one of two clients, each in a process, did for many messages."""

    began: float
    ended: float
    """By the clock that all processes share."""
    cpu: float


def cpu() -> float:
    """Return the seconds of CPU that this process has used, with the kernel's on its behalf."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def message(number: int) -> bytes:
    """Return a message that no other equals."""
    return number.to_bytes(8, "big") * (MESSAGE_BYTES // 8) + bytes(MESSAGE_BYTES % 8)


async def exchange(connect: Connect, url: str) -> Exchange:
    start = cpu()
    first = await connect(url)
    code = await first.allocate_code()
    coded, coded_at = cpu(), time.perf_counter()
    second = await connect(url)
    await second.set_code(code)
    ours, theirs = await first.verifier(), await second.verifier()
    seconds, verified = time.perf_counter() - coded_at, cpu()
    assert ours == theirs, "the sides have different keys"
    await first.close()
    await second.close()
    return Exchange(verified - start, verified - coded, cpu() - start, seconds)


async def exchanges(connect: Connect, url: str, count: int, _code: str) -> list[Exchange]:
    """Let two clients of this process meet, again and again."""
    for _ in range(EXCHANGES_BEFORE):
        await exchange(connect, url)
    return [await exchange(connect, url) for _ in range(count)]


async def sender(connect: Connect, url: str, count: int, code: str) -> Poured:
    """Send messages, and wait until the other side says that it has them all."""
    side = await connect(url)
    await side.set_code(code)
    await side.verifier()
    began, before = time.monotonic(), cpu()
    for number in range(count):
        await side.send(message(number))
    assert await side.receive() == THANKS, "another message came"
    poured = Poured(began, time.monotonic(), cpu() - before)
    await side.close()
    return poured


async def receiver(connect: Connect, url: str, count: int, code: str) -> Poured:
    """Receive messages, each once and in order, and say when all have come."""
    side = await connect(url)
    await side.set_code(code)
    await side.verifier()
    began, before = time.monotonic(), cpu()
    for number in range(count):
        assert await side.receive() == message(number), f"another message came instead of number {number}"
    poured = Poured(began, time.monotonic(), cpu() - before)
    await side.send(THANKS)
    await side.close()
    return poured


TASKS = {"exchanges": exchanges, "sender": sender, "receiver": receiver}


async def task(connect: Connect) -> None:
    """Do what the command line says, and print what it took."""
    name, url, count, code = (*sys.argv[1:], "")[:4]
    print(msgspec.json.encode(await TASKS[name](connect, url, int(count), code)).decode())
