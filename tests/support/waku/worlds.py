"""What conversations are replayed on: the cores with next to nothing around them, and the node over sockets."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from restante.common.errors import PeerError
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keccak import keccak
from restante.waku.limits import Limits
from restante.waku.node.mailserver import FULL_WORDS, ArchiveTerms, Mailserver
from restante.waku.node.pool import Pool
from restante.waku.protocol import packets
from restante.waku.protocol.acceptance import Policy
from restante.waku.protocol.interest import Interest, Interests
from restante.waku.protocol.packets import Options, Response
from restante.waku.protocol.peer import Changed, Greeted, Offered, Peer
from support.waku.inside import TURNS, Inside, inside
from support.waku.letters import EPOCH
from support.waku.raw_peer import GoneError, Packet, RawPeer

DEFAULT_WORK = 2e-6
NOTHING = Interest.named([])


def policy_of(options: dict[str, str]) -> Policy:
    return Policy(min_pow=float(options.get("min_pow", DEFAULT_WORK)), max_ttl=int(options.get("max_ttl", 7 * 86400)))


def terms_of(options: dict[str, str]) -> ArchiveTerms:
    topics = frozenset(bytes.fromhex(each) for each in options.get("topics", "").split(",") if each)
    return ArchiveTerms(
        retention=int(options["retention"]) if "retention" in options else None, topics=topics or None
    )


def limits_of(options: dict[str, str]) -> Limits:
    return Limits(**{name: int(value) for name, value in options.items() if name in Limits.__struct_fields__})


class JoinedCores:
    """Peers, Mailserver and Interests, joined as simply as they can be: everything is done at once."""

    def __init__(self, options: dict[str, str]) -> None:
        self.now = EPOCH
        limits = limits_of(options)
        self.mailserver = Mailserver(
            msgspec.structs.replace(policy_of(options), max_size=limits.envelope_bytes),
            terms_of(options),
            Pool(limits.known_bytes, limits.pool_bytes),
        )
        self.interests: Interests[str] = Interests()
        self.peers: dict[str, Peer] = {}
        self.inboxes: dict[str, list[Packet]] = defaultdict(list)
        self.reasons: dict[str, int] = {}
        self.saved: dict[bytes, None] = {}
        self.full = False

    async def enter(self, name: str) -> None:
        self.peers[name] = Peer()
        status = Options(
            pow=self.mailserver.policy.min_pow,
            bloom=bloom.ALL_BITS,
            light=False,
            confirmations=True,
            packets=(0, 0, 0),
            bytes=(0, 0, 0),
        )
        self.inboxes[name].append((packets.STATUS, packets.write_options(status)))

    async def say(self, name: str, *packets: Packet) -> None:
        changes = [self._hear(name, *packet) for packet in packets]
        before = [change for change in changes if change is not None]
        if before:
            self._wants(name, before[0])

    def _hear(self, name: str, code: int, payload: bytes) -> Interest | None:
        """Handle a packet. Return what the peer wanted before it, if it wants something else now."""
        peer = self.peers[name]
        try:
            event = peer.receive(code, payload)
        except PeerError as error:
            self.reasons[name] = error.code
            return None
        if isinstance(event, Offered):
            response = self.mailserver.offer(name.encode(), keccak(payload), event.envelopes, self.now)
            if response is not None:
                self._confirm(name, response)
            self._relay()
            self._save()
        elif isinstance(event, Greeted):
            return NOTHING
        elif isinstance(event, Changed):
            return event.before
        return None

    async def lose(self, name: str) -> None:
        self.interests.drop(name)

    async def advance(self, seconds: int) -> None:
        self.now += seconds
        self.mailserver.pool.expire(self.now)

    def fill(self, full: bool) -> None:
        self.full = full

    async def packets(self) -> dict[str, list[Packet]]:
        got, self.inboxes = self.inboxes, defaultdict(list)
        return got

    async def cut(self, name: str) -> int | None:
        return self.reasons.get(name)

    async def archived(self) -> list[bytes]:
        return list(self.saved)

    def _relay(self) -> None:
        fresh, self.mailserver.fresh = self.mailserver.fresh, []
        outgoing: dict[str, list[Envelope]] = defaultdict(list)
        for live in fresh:
            for name in self.interests.wanting(live.envelope.topic):
                if name.encode() != live.origin and live.pow >= self.peers[name].pow:
                    outgoing[name].append(live.envelope)
        for name, envelopes in outgoing.items():
            self._send(name, envelopes)

    def _save(self) -> None:
        batch = self.mailserver.take()
        if batch is None:
            return
        if self.full:
            answers = self.mailserver.refuse(batch, self.now, FULL_WORDS)
        else:
            self.saved.update(dict.fromkeys(each.hash for each in batch.envelopes))
            answers = self.mailserver.confirm(batch)
        for origin, response in answers:
            self._confirm(origin.decode(), response)

    def _wants(self, name: str, before: Interest) -> None:
        peer = self.peers[name]
        self.interests.put(name, peer.interest)
        living = [
            live.envelope
            for topic in self.mailserver.pool.live.values()
            for live in topic.values()
            if peer.interest.wants(live.envelope.topic)
            and not before.wants(live.envelope.topic)
            and live.origin != name.encode()
            and live.pow >= peer.pow
        ]
        self._send(name, living)

    def _send(self, name: str, envelopes: list[Envelope]) -> None:
        for part in packets.split_for_packets(each.raw for each in envelopes):
            self.inboxes[name].append((packets.MESSAGES, packets.write_envelopes(part)))

    def _confirm(self, name: str, response: Response) -> None:
        self.inboxes[name].append((packets.MESSAGE_RESPONSE, packets.write_response(response)))
        self.inboxes[name].append((packets.BATCH_ACK, packets.write_ack(response.packet)))


class LiveNode:
    """The whole node, spoken to over real sockets."""

    def __init__(self, here: Inside, pieces: int | None = None) -> None:
        self.here = here
        self.pieces = pieces
        """Bytes that are written at a time, each in a turn of the loop of its own."""
        self.peers: dict[str, RawPeer] = {}
        self.reasons: dict[str, int | None] = {}

    @property
    def now(self) -> int:
        return self.here.clock.now

    async def enter(self, name: str) -> None:
        self.peers[name] = await self.here.enter()

    async def say(self, name: str, *packets: Packet) -> None:
        data = self.peers[name].sealed(packets)
        size = self.pieces or len(data)
        for at in range(0, len(data), size):
            self.peers[name].writer.write(data[at : at + size])
            await asyncio.sleep(0)

    async def lose(self, name: str) -> None:
        connections = len(self.here.node.connections)
        self.peers.pop(name).cut()
        await self.here.until("the loss of a connection", lambda: len(self.here.node.connections) < connections)

    async def advance(self, seconds: int) -> None:
        self.here.clock.now += seconds
        self.here.node.tick()

    def fill(self, full: bool) -> None:
        self.here.archive.full = full

    async def packets(self) -> dict[str, list[Packet]]:
        for _ in range(TURNS):
            for name, peer in self.peers.items():
                try:
                    await peer.fence()
                except GoneError as gone:
                    self.reasons[name] = gone.reason
            await self.here.archived()
        got = {}
        for name, peer in self.peers.items():
            got[name], peer.inbox = peer.inbox, []
        return got

    async def cut(self, name: str) -> int | None:
        return self.reasons.get(name)

    async def archived(self) -> list[bytes]:
        return await self.here.archive.hashes()


@asynccontextmanager
async def live_node(options: dict[str, str], data: Path, pieces: int | None = None) -> AsyncIterator[LiveNode]:
    limits = limits_of(options)
    policy = msgspec.structs.replace(policy_of(options), max_size=limits.envelope_bytes)
    async with inside(data, policy=policy, terms=terms_of(options), limits=limits) as here:
        yield LiveNode(here, pieces)
