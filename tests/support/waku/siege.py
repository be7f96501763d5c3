"""A node under siege: a process of its own, the pair that must not notice, and what is left when all have gone."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from restante.waku.archive.schema import FILE
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.protocol.packets import Options
from support.bounds import bounded
from support.effort import rounds
from support.mailbox.siege import GIVE_BACK
from support.proc import descriptors, resident
from support.waku.letters import letter
from support.waku.processes import WAKU, NodeProcess, node_process
from support.waku.raw_peer import FULL_NODE, RawPeer

MIB: Final = 1 << 20

OPTIONS: Final = (
    *("--max-peers", "2000", "--max-peers-per-address", "100000"),
    *("--limit", "address_connects=0"),
    *("--limit", f"known_bytes={MIB}", "--limit", f"pool_bytes={2 * MIB}"),
)
"""Attackers come by the hundred. The node's memory of envelopes is small, so that what else it keeps shows."""

SLACK: Final = 8 * MIB
"""How much more a node may hold when all have gone than after its warm-up, besides what SQLite has in its cache: of
what was archived since, no more than that. A large packet that is kept is 10."""

TOPIC: Final = b"pair"

CROWD: Final = rounds(100, 200)
"""Peers at once, before anything is measured: what these took is kept for the next who come."""

NOTHING: Final = Options(pow=0.0, confirmations=True, topics=frozenset())

EVENTS: Final = {"listening", "draining", "stopped", "the last minute"}
"""All that a node logs that serves, whoever comes."""


REMEMBERED: Final = 10
"""Envelopes of the pair that a test can send again."""


class Pair:
    """One posts, and the other one reads; each envelope is confirmed, and relayed, and nothing else comes."""

    def __init__(self, poster: RawPeer, reader: RawPeer) -> None:
        self.poster = poster
        self.reader = reader
        self.posted: list[Envelope] = []
        self.delays: list[float] = []
        self._numbers = itertools.count(1)
        self._on = False
        self._playing: asyncio.Task[None] | None = None
        self._played = asyncio.Event()

    async def play(self) -> None:
        """Post an envelope."""
        data = f"of the pair {next(self._numbers)}".encode()
        envelope = make(int(time.time()) + 30, 30, TOPIC, data)
        self.posted = [*self.posted[1 - REMEMBERED :], envelope]
        began = time.perf_counter()
        # Both read all the time, so both answer the node's Pings however long the other one waits.
        response, relayed = await asyncio.gather(self.poster.post(envelope), self.reader.relayed(1))
        assert not response.refusals
        assert relayed == [envelope]
        self.delays.append(time.perf_counter() - began)
        self._played.set()

    async def plays(self, count: int) -> None:
        """Wait until it has posted so many more."""
        wanted = len(self.delays) + count
        while len(self.delays) < wanted:
            assert self._playing is not None
            self._played.clear()
            waiting = asyncio.ensure_future(self._played.wait())
            await asyncio.wait((waiting, self._playing), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self._playing.done():
                self._playing.result()

    def start(self) -> None:
        """Post one after the other, until `stop`."""

        async def play_on() -> None:
            while self._on:
                await self.play()

        self._on = True
        self.delays = []
        self._playing = asyncio.create_task(play_on())

    async def stop(self) -> None:
        """Finish what is under way, and post no more."""
        assert self._playing is not None
        self._on = False
        await self._playing


class Siege:
    """A node, the pair, and whoever attacks."""

    def __init__(self, node: NodeProcess, pair: Pair) -> None:
        self.node = node
        self.pair = pair
        self.resident = 0
        self.archived = 0
        """Bytes of the archive's files."""
        self.descriptors = 0
        self.attackers: list[RawPeer] = []
        self.source = "127.0.3.1"
        """The address that attackers come from: another one for each attack, and none is the pair's."""
        self.secrets: set[str] = set()
        """What nobody may read in the log."""

    @property
    def public(self) -> bytes:
        return self.node.enode.public

    # ── attackers ────────────────────────────────────────────────────────────────────────────────

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, and say nothing."""
        return await asyncio.open_connection("127.0.0.1", self.node.port, local_addr=(self.source, 0))

    async def knock(self) -> RawPeer:
        """Connect, with our half of a handshake."""
        return self._one_more(await RawPeer.knock(self.node.port, self.public, source=self.source))

    async def enter(self) -> RawPeer:
        return self._one_more(await RawPeer.enter(self.node.port, self.public, source=self.source))

    async def greet(self, options: Options = FULL_NODE, source: str | None = None) -> RawPeer:
        """Connect a peer from this address, or from the attackers' one, and wait until the node knows it."""
        peer = self._one_more(await RawPeer.greet(self.node.port, self.public, options, source=source or self.source))
        await peer.fence()
        return peer

    async def greet_many(self, count: int, options: Options = NOTHING) -> list[RawPeer]:
        return [await self.greet(options) for _ in range(count)]

    def _one_more(self, peer: RawPeer) -> RawPeer:
        self.attackers.append(peer)
        self.secrets.add(peer.key.public.hex())
        return peer

    def everybody_goes(self) -> None:
        for attacker in self.attackers:
            attacker.cut()
        self.attackers = []

    # ── the pair ─────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def beside_the_pair(self, attack: str) -> AsyncIterator[Pair]:
        """The pair posts as long as the block lasts, and after; it may notice nothing."""
        self.source = f"127.0.3.{next(_sources)}"
        self.pair.start()
        try:
            await self.pair.plays(1)
            yield self.pair
            await self.pair.plays(2)
        except BaseException as error:
            error.add_note(f"beside {attack}")
            raise
        finally:
            await self.pair.stop()
            self.everybody_goes()

    # ── what is left ─────────────────────────────────────────────────────────────────────────────

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for something that only shows from outside; between two looks the node's loop turns."""
        async with bounded(what):
            while not holds():
                await self.pair.poster.fence()

    def empty(self) -> bool:
        """Return whether it holds no more descriptors than before anybody connected."""
        return descriptors(self.node.pid) <= self.descriptors

    async def warm_up(self) -> None:
        for _ in range(20):
            await self.pair.play()
        self.descriptors = descriptors(self.node.pid)
        await self.greet_many(CROWD)
        flood = await self.greet()
        for part in floods(2000, 500):
            await flood.post(*part)
        self.everybody_goes()
        await self.until("an empty house", self.empty)
        self.resident, self.archived = resident(self.node.pid), self.archive_size()

    def archive_size(self) -> int:
        return sum(each.stat().st_size for each in self.node.serving.data.glob(f"{FILE}*"))

    async def ends_well(self) -> None:
        """Everybody has gone: the node holds what it held before, ends as it promises, and told its log nothing.

        A page that is in the making when its peer goes is let go of when it is made.
        """
        await self.pair.play()
        await self.until("an empty house", self.empty)
        await self.until(f"{self.resident / MIB:.1f} MiB, as before", lambda: self.held() - self.resident < SLACK)
        self.check_log_is_of(await self._stopped())

    def held(self) -> int:
        """Return the bytes that the node holds, besides what SQLite has of what was archived since the warm-up."""
        return resident(self.node.pid) - (self.archive_size() - self.archived)

    async def _stopped(self) -> list[str]:
        await self.node.serving.stop()
        return self.node.serving.log

    def check_log_is_of(self, lines: list[str]) -> None:
        told = [json.loads(line) for line in lines]
        assert {each["event"] for each in told} <= EVENTS, told
        heard = "\n".join(lines)
        hashes = {each.hash.hex() for each in self.pair.posted}
        for secret in ("127.0.", TOPIC.hex(), "pair", *hashes, *self.secrets):
            assert secret not in heard


_numbers = itertools.count(1)
_sources = itertools.count(2)


def floods(count: int, part: int, **fields: int) -> Iterator[list[Envelope]]:
    """Make envelopes that nobody had, each of a topic of its own, in packets of so many."""
    now = int(time.time())
    for _ in range(0, count, part):
        some = itertools.islice(_numbers, part)
        yield [letter(number, topic=number.to_bytes(4, "big"), now=now, **fields) for number in some]


@asynccontextmanager
async def besieged(data: Path, *options: str, program: tuple[str, ...] = WAKU) -> AsyncIterator[Siege]:
    """Start a node and warm it up; at the end it must be as it was."""
    async with node_process(data, *OPTIONS, *options, program=program, variables=GIVE_BACK) as node:
        reader = await node.greet(Options(pow=0.0, confirmations=True, topics=frozenset([TOPIC])))
        siege = Siege(node, Pair(await node.greet(NOTHING), reader))
        try:
            await siege.warm_up()
            yield siege
        finally:
            siege.everybody_goes()
        await siege.ends_well()
