"""No answer leaves before what it says is flushed: a preloaded library notes every write, flush and send."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import signal
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from restante.common.errors import PeerError
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.protocol import packets
from restante.waku.protocol.packets import Options
from support.bounds import bounded
from support.faulty_disk import compiled
from support.mailbox.clients import Clients
from support.mailbox.raw_socket import TEXT
from support.processes import altered, serving
from support.waku.archives import raws_of
from support.waku.letters import letter
from support.waku.processes import NodeProcess, node_process
from support.waku.raw_peer import GoneError, RawPeer

PAIRS: Final = 5
BURSTS: Final = 4

TOKEN: Final = re.compile(rb"token-[0-9]+-")
"""What each body begins with, to be found again in the pages of the log."""


class Call(NamedTuple):
    """A system call that ended. `begin` and `end` count the begins and the ends of all noted calls."""

    begin: int
    end: int
    kind: str
    """`write`, to a write-ahead log; `send`, to a socket; or `sync`."""
    file: str
    """The path of a file, or `socket:[inode]`."""
    data: bytes


def noting(folder: Path) -> dict[str, str]:
    return {"LD_PRELOAD": compiled(folder), "DISK_SHIM_NOTES": str(folder / "notes")}


def read_notes(folder: Path) -> list[Call]:
    notes, head = (folder / "notes").read_bytes(), struct.Struct("=5Q")
    calls: list[Call] = []
    at = 0
    while at < len(notes):
        begin, end, kind, name, size = head.unpack_from(notes, at)
        data = at + head.size + name
        kinds = ("write", "send", "sync")
        calls.append(Call(begin, end, kinds[kind], notes[data - name : data].decode(), notes[data : data + size]))
        at = data + size
    return sorted(calls)


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
        self.texts: dict[str, list[str]] = defaultdict(list)
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
            writes = [write for write in self._unflushed if write.end < call.begin]
            self._unflushed = self._unflushed[len(writes) :]
            for write in writes:
                self._on_disk.update(TOKEN.findall(write.data))
        elif self._log.startswith(f"{call.file}/"):
            self._named = True

    def _judge(self, socket: str, text: str) -> None:
        self.texts[socket].append(text)
        frame: dict[str, Any] = json.loads(text)
        if frame["type"] == "welcome":
            return
        if self._unflushed:
            self.broken.append(("left between a write to the log and its flush", text))
        if not self._named:  # its directory was not flushed (fsync(2), NOTES)
            self.broken.append(("left before the log's name was on disk", text))
        if frame["type"] == "message" and not self._on_disk.issuperset(TOKEN.findall(text.encode())):
            self.broken.append(("delivered before it was on disk", text))


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


@pytest.mark.parametrize("disk", ["slow-disk", "fast-disk"])
async def test_no_answer_leaves_before_its_commit_is_on_disk(tmp_path: Path, disk: str) -> None:
    bodies = (f"token-{number}-" for number in itertools.count())
    async with serving(tmp_path / "data", altered(disk), (), **noting(tmp_path)) as server, Clients() as clients:
        await one_by_one(clients, server.url, bodies)
        await all_at_once(clients, server.url, bodies)
        for client in clients.all:
            await client.fence()
        await server.stop()
    audit = Audit(read_notes(tmp_path))
    assert audit.broken == []
    # The audit has looked at all there was: each client's frames left on one of the sockets.
    assert sorted(client.texts for client in clients.all) == sorted(audit.texts.values())
    assert sum(map(len, audit.texts.values())) > 100 * PAIRS


PACKETS: Final = 10


async def talk(node: NodeProcess, number: int) -> tuple[str, list[bytes]]:
    peer = await node.greet(Options(pow=0.0, confirmations=True, topics=frozenset()))
    tokens = [f"<sender {number} packet {packet}>".encode() for packet in range(PACKETS)]
    for token in tokens:
        now = int(time.time())
        await peer.post(*(make(now + 50, 50, b"\1\2\3\4", token + bytes([number])) for number in range(3)))
    return f"socket:[{inode(node.enode.port, peer)}]", tokens


def inode(port: int, peer: RawPeer) -> int:
    """Find the node's end of a connection (man 5 proc_net, tcp: local and remote address, and the inode)."""
    other = peer.writer.get_extra_info("sockname")[1]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if (fields[1], fields[2]) == (f"0100007F:{port:04X}", f"0100007F:{other:04X}"):
            return int(fields[9])
    raise AssertionError("no such connection")


async def test_no_confirmation_leaves_before_its_commit_is_on_disk(tmp_path: Path) -> None:
    async with node_process(tmp_path / "data", variables=noting(tmp_path)) as node:
        talks = await asyncio.gather(*(talk(node, number) for number in range(3)))
        await node.serving.stop()
    calls = read_notes(tmp_path)
    flushes = [call for call in calls if call.kind == "sync" and call.file.endswith("-wal")]
    for socket, tokens in talks:
        sends = [call for call in calls if call.kind == "send" and call.file == socket]
        confirmations = sends[-PACKETS - 1 : -1]  # the last is the goodbye
        for token, send in zip(tokens, confirmations, strict=True):
            writes = [call for call in calls if call.kind == "write" and token in call.data and call.end < send.begin]
            assert writes, "confirmed, and not written"
            assert any(writes[0].end < flush.begin and flush.end < send.begin for flush in flushes)


class PostingRounds:
    def __init__(self, seed: int, data: Path) -> None:
        self.data = data
        self.confirmed: set[bytes] = set()
        self.offered: set[bytes] = set()
        self.interrupted = 0
        self._dice = random.Random(seed)
        self._letters: list[Envelope] = []

    async def until_killed(self, left: int) -> None:
        async with node_process(self.data) as node:

            def count() -> None:
                nonlocal left
                left -= 1
                if not left:
                    node.serving.process.kill()

            async with bounded("the kill"), asyncio.TaskGroup() as senders:
                for _ in range(4):
                    senders.create_task(self._send(node, count))
            assert await node.serving.ended() == -signal.SIGKILL, node.serving.log

    async def _send(self, node: NodeProcess, count: Callable[[], None]) -> None:
        peer = await node.greet()
        under_way: dict[bytes, set[bytes]] = {}
        try:
            while True:
                while len(under_way) < 4:
                    envelopes = self._some()
                    under_way[peer.offer(envelopes)] = {envelope.raw for envelope in envelopes}
                code, body = await peer.hear()
                if code == packets.MESSAGE_RESPONSE:
                    response = packets.read_response(body)
                    assert not response.refusals, response
                    self.confirmed |= under_way.pop(response.packet)
                    count()
        except (GoneError, PeerError, ConnectionError):
            self.interrupted += len(under_way)

    def _some(self) -> list[Envelope]:
        dice = self._dice
        fresh = [
            letter(
                len(self.offered) + number,
                topic=bytes((dice.randrange(3), 0, 0, 0)),
                age=dice.randrange(20),
                size=dice.randrange(400),
                now=int(time.time()),
            )
            for number in range(dice.randrange(1, 6))
        ]
        copies = dice.sample(self._letters, min(len(self._letters), dice.randrange(4)))
        self._letters = (self._letters + fresh)[-50:]
        self.offered |= {envelope.raw for envelope in fresh}
        envelopes = fresh + copies
        dice.shuffle(envelopes)
        return envelopes

    async def check(self) -> None:
        there = Counter(await asyncio.to_thread(raws_of, self.data))
        assert self.confirmed <= there.keys() <= self.offered
        assert set(there.values()) == {1}


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.thorough)])
async def test_every_confirmed_envelope_survives_every_kill(tmp_path: Path, kills: int) -> None:
    load = PostingRounds(20261121 + kills, tmp_path / "data")
    # The senders throw other dice, in the order in which they are answered.
    for confirmations in random.Random(kills).choices(range(1, 150), k=kills):
        await load.until_killed(confirmations)
        await load.check()
    assert load.interrupted, "no kill hit a packet under way"
    assert len(load.confirmed) > 20 * kills
