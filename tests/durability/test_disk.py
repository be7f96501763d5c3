"""A commit means disk: no answer leaves the machine before what it says is flushed.

A preloaded library notes every write to the log, every flush and every send of the server, in order.
That nothing is answered before its commit begins is for test_gate.py and test_kill.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from support.faulty_disk import Call, noting, read_notes
from support.mailbox.clients import Client, Clients
from support.mailbox.raw_socket import TEXT
from support.processes import altered, serving

PAIRS: Final = 5
BURSTS: Final = 4

EARLY: Final = "left between a write to the log and its flush"
UNWRITTEN: Final = "delivered before it was on disk"
UNNAMED: Final = "left before the log's name was on disk"
"""Its directory was not flushed (fsync(2), NOTES)."""

TOKEN: Final = re.compile(rb"token-[0-9]+-")
"""What each body begins with, to be found again in the pages of the log."""


def taken_texts(stream: bytearray) -> Iterator[str]:
    """Take what is whole from what a server sends: the HTTP head, and frames (RFC 6455, section 5.2)."""
    if stream.startswith(b"HTTP"):
        del stream[: stream.index(b"\r\n\r\n") + 4]
    while len(stream) >= 2:
        start = {126: 4, 127: 10}.get(stream[1], 2)
        end = start + (int.from_bytes(stream[2:start]) if start > 2 else stream[1])
        if len(stream) < end:
            return
        opcode, payload = stream[0] & 0x0F, bytes(stream[start:end])
        del stream[:end]
        if opcode == TEXT:
            yield payload.decode()


class Audit:
    """What a server did, call by call. Every answer but a greeting must have waited for the disk."""

    def __init__(self, calls: list[Call]) -> None:
        self.broken: list[tuple[str, str]] = []
        """Rules, and the texts that broke them."""
        self.texts: dict[str, list[str]] = defaultdict(list)
        """What left on each socket."""
        self._sockets: dict[str, bytearray] = defaultdict(bytearray)
        self._log = ""
        self._named = False
        self._unflushed: list[Call] = []
        self._on_disk: set[bytes] = set()
        moments = [(call.begin, False, call) for call in calls] + [(call.end, True, call) for call in calls]
        for _, ends, call in sorted(moments):
            if call.kind == "write" and not ends:
                self._log = call.file
                self._unflushed.append(call)
            elif call.kind == "sync" and ends:
                self._flush(call)
            elif call.kind == "send" and not ends:
                self._sockets[call.file] += call.data
                for text in taken_texts(self._sockets[call.file]):
                    self._judge(call.file, text)

    def _flush(self, call: Call) -> None:
        if call.file == self._log:
            written = [write for write in self._unflushed if write.end < call.begin]
            self._unflushed = self._unflushed[len(written) :]
            for write in written:
                self._on_disk.update(TOKEN.findall(write.data))
        elif self._log.startswith(f"{call.file}/"):
            self._named = True

    def _judge(self, socket: str, text: str) -> None:
        self.texts[socket].append(text)
        frame: dict[str, Any] = json.loads(text)
        if frame["type"] == "welcome":
            return
        if self._unflushed:
            self.broken.append((EARLY, text))
        if not self._named:
            self.broken.append((UNNAMED, text))
        if frame["type"] == "message" and not self._on_disk.issuperset(TOKEN.findall(text.encode())):
            self.broken.append((UNWRITTEN, text))


async def one_by_one(clients: Clients, url: str, bodies: Iterator[str]) -> None:
    """Run a session in which every command waits for the answer to the previous one: each has its own commit."""
    a = await clients.bind(url, "light", "a")
    b = await clients.bind(url, "light", "b")
    nameplate = (await a.call("allocate"))["nameplate"]
    for client in (a, b):
        claimed = await client.call("claim", nameplate=nameplate)
        await client.call("open", mailbox=claimed["mailbox"])
    for client in (a, b, a, b):
        await client.call("add", phase="pake", body=next(bodies))
    for client in (a, b):
        await client.call("release")
    for client in (a, b):
        await client.call("close", mood="happy")


async def all_at_once(clients: Clients, url: str, bodies: Iterator[str]) -> None:
    """Run many sessions whose commands do not wait, with clients that connect in between."""

    async def talk(mailbox: str, side: str) -> None:
        client = await clients.opened(url, "heavy", side, mailbox)
        for _ in range(BURSTS):
            added = [await client.say("add", phase="0", body=next(bodies)) for _ in range(5)]
            newcomer = await clients.connect(url)
            await newcomer.say("ping", ping=1)
            await client.answers(added[-1])
        await client.call("close", mood="happy")

    async with asyncio.TaskGroup() as talks:
        for number in range(PAIRS):
            for side in ("a", "b"):
                talks.create_task(talk(f"mailbox-{number}", side))


async def audited(folder: Path, program: tuple[str, ...]) -> tuple[Audit, list[Client]]:
    """Run the load on a server; return the clients, too, with all that they received."""
    bodies = (f"token-{number}-" for number in itertools.count())
    async with serving(folder / "data", program, (), **noting(folder)) as server, Clients() as clients:
        await one_by_one(clients, server.url, bodies)
        await all_at_once(clients, server.url, bodies)
        for client in clients.all:
            await client.fence()
        await server.stop()
    return Audit(read_notes(folder)), clients.all


@pytest.mark.parametrize("disk", ["slow-disk", "fast-disk"])
async def test_no_answer_leaves_before_its_commit_is_on_disk(tmp_path: Path, disk: str) -> None:
    audit, clients = await audited(tmp_path, altered(disk))
    assert audit.broken == []
    # The audit has looked at all there was: each client's frames left on one of the sockets.
    assert sorted(client.texts for client in clients) == sorted(audit.texts.values())
    assert sum(map(len, audit.texts.values())) > 100 * PAIRS
