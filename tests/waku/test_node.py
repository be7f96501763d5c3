"""The node over sockets: who may come, who stays, what goes round between nodes, and what is left when one goes."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import pytest
import structlog

from restante.common.listening import parse_listen_address
from restante.common.net import parse_networks
from restante.waku.archive.schema import ARCHIVE_FILE
from restante.waku.connection import quotas
from restante.waku.connection.peer_connection import (
    CLOSE_TIMEOUT,
    EARLY,
    STATUS_TIMEOUT,
    TIMER_STEP,
    WRITE_STALL_TIMEOUT,
    Deadlines,
    PeerConnection,
)
from restante.waku.connection.quotas import AddressQuotas
from restante.waku.connection.read_pacing import PAUSED_BY_ARCHIVE
from restante.waku.connection.sender_pace import SenderPace
from restante.waku.devp2p import session
from restante.waku.devp2p.hello import Reason
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keys import Key, node_id
from restante.waku.limits import MIB, Limits
from restante.waku.node import admission, main, node, relay, save_schedule
from restante.waku.node.admission import ConnectionCount, PeerLimits
from restante.waku.node.mailserver import (
    AGE_TEXT,
    ARCHIVE_RETRY_DELAY,
    FULL_TEXT,
    LOCKED_TEXT,
    TOPIC_TEXT,
    ArchiveTerms,
    EnvelopeCount,
)
from restante.waku.node.save_schedule import MIN_BATCH_ENVELOPES
from restante.waku.protocol import packets as waku_packets
from restante.waku.protocol.acceptance import EXPIRED, Policy
from restante.waku.protocol.packets import Options
from restante.waku.protocol.peer import Offered
from support.bounds import bounded
from support.dice import Seeded
from support.loops import meanwhile, on_uvloop, slow_clock
from support.proxy_headers import header, line
from support.sqlite import LOCK, beside
from support.waku.inside import TURNS, Inside, inside
from support.waku.letters import EPOCH, TOPIC, letter
from support.waku.raw_peer import FULL_NODE, NOTHING, GoneError, RawPeer

KEY = Key(b"\x77" * 32)
PING = session.SessionLimits().ping + TIMER_STEP
FEW_OWED = Limits(owed_bytes=64 * 1024, address_bytes=0, address_envelopes=0)
FREE = Policy(min_pow=0.0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "REDIAL_DELAY", 0.0)


async def both_know(one: Inside, other: Inside) -> None:
    for here, there in ((one, other), (other, one)):
        await here.until("a peer", lambda here=here, there=there: knows(here, there))  # type: ignore[misc]


def knows(here: Inside, there: Inside) -> bool:
    peer = here.node.peers.get(node_id(there.node.key.public))
    return peer is not None and peer.ready


def keeping(here: Inside, there: Inside) -> AbstractAsyncContextManager[None]:
    return meanwhile(here.node.stay_connected(there.enode))


async def has(here: Inside, *envelopes: Envelope) -> None:
    async with bounded("the archive"):
        while len(await here.archive.hashes()) < len(envelopes):  # noqa: ASYNC110 - it is another thread's
            await asyncio.sleep(0)
    assert sorted(await here.archive.hashes()) == sorted(envelope.hash for envelope in envelopes)


def unread(here: Inside) -> list[PeerConnection]:
    return [connection for connection in here.node.connections if connection.reading.paused]


async def deaf_reader(
    here: Inside, enough: Callable[[PeerConnection], bool]
) -> tuple[RawPeer, RawPeer, PeerConnection]:
    poster, reader = await here.greet(NOTHING), await here.greet()
    [connection] = [reading for reading in here.node.connections if reading.peer.interest.wants(b"1234")]
    here.narrow(reader)
    number = 0
    while not enough(connection):
        await poster.post(letter(number := number + 1, size=500_000))
    return poster, reader, connection


async def test_an_envelope_goes_along_a_row_of_nodes_and_is_archived_at_each_once(tmp_path: Path) -> None:
    async with (
        inside(tmp_path / "a", number=1) as a,
        inside(tmp_path / "b", number=2) as b,
        inside(tmp_path / "c", number=3) as c,
        keeping(a, b),
        keeping(b, c),
    ):
        await both_know(a, b)
        await both_know(b, c)
        at_a, at_c = await a.greet(), await c.greet()
        await at_a.post(letter(1), letter(2))
        assert await at_c.relayed(2) == [letter(1), letter(2)]
        await at_c.post(letter(3), letter(1))
        assert await at_a.relayed(1) == [letter(3)]
        for here in (a, b, c):
            await has(here, letter(1), letter(2), letter(3))
        await a.settled(at_a)
        await c.settled(at_c)
        assert (at_a.inbox, at_c.inbox) == ([], [])


async def test_a_lost_static_peer_is_dialled_until_it_is_back(tmp_path: Path) -> None:
    async with inside(tmp_path / "a") as a:
        async with inside(tmp_path / "b", number=2) as b, keeping(a, b):
            await both_know(a, b)
            enode = b.enode
        assert not a.node.peers
        with structlog.testing.capture_logs() as logs:
            task = asyncio.create_task(a.node.stay_connected(enode))
            await a.until("the log", lambda: bool(logs))
        assert (logs[0]["peer"], logs[0]["reason"]) == (enode.address, "Connection refused")
        async with inside(tmp_path / "b", number=2, port=enode.port) as b:
            await both_know(a, b)
            await (await a.greet(NOTHING)).post(letter(1))
            await has(b, letter(1))
            for connection in list(b.node.connections):
                connection.abort()
            await b.until("the loss", lambda: not knows(b, a))
            await both_know(a, b)
            task.cancel()


@pytest.mark.parametrize("first", [0, 1])
async def test_of_two_connections_made_at_once_both_keep_the_same(tmp_path: Path, first: int) -> None:
    numbers = sorted((1, 2), key=lambda number: node_id(Key(bytes([number]) * 32).public))
    async with inside(tmp_path / "a", number=numbers[0]) as low, inside(tmp_path / "b", number=numbers[1]) as high:
        dials = [(low, high), (high, low)]
        for here, there in (dials[first], dials[1 - first]):
            await here.node.dial(there.enode)
        await both_know(low, high)
        await low.until("the end of one", lambda: len(low.node.connections) == len(high.node.connections) == 1)
        assert [connection.dialled for connection in (*low.node.connections, *high.node.connections)] == [True, False]


async def test_a_static_peer_that_has_dialled_is_not_dialled(tmp_path: Path) -> None:
    async with inside(tmp_path / "a") as a, inside(tmp_path / "b", number=2) as b, keeping(b, a):
        await both_know(a, b)
        async with keeping(a, b):
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(a.node.connections) == 1
        assert a.node.counts == a.node.lost == {}


async def answer_pings(peer: RawPeer) -> None:
    """Packets stay in its inbox."""
    while True:
        await peer.answer()


async def test_a_second_connection_of_a_peer_replaces_the_first_only_where_that_is_silent(tmp_path: Path) -> None:
    async with inside(tmp_path, peer_limits=PeerLimits(max_peers=2, max_peers_per_address=50)) as here:
        first = await here.greet(key=KEY)
        [its_connection] = here.node.connections
        async with meanwhile(answer_pings(first)):
            assert await (await here.enter(KEY)).ended() is Reason.ALREADY_CONNECTED
        await first.post(letter(1))
        here.later(PING)
        await here.until("a Ping that is not answered", lambda: its_connection.ping_pending)
        second = await here.greet(key=KEY)
        assert await first.ended() is Reason.ALREADY_CONNECTED
        [its_connection] = here.node.connections
        its_connection.reading.pause(PAUSED_BY_ARCHIVE)  # whether it is still there, nobody could tell
        third = await here.greet(key=KEY)
        assert await second.ended() is Reason.ALREADY_CONNECTED
        await third.post(letter(2))
        its_connection = here.node.peers[node_id(KEY.public)]
        coming = asyncio.create_task(here.greet(key=KEY))
        await here.until("a Ping", lambda: its_connection.ping_pending)
        here.later(admission.ANSWER_SECONDS)
        fourth = await coming
        assert await third.ended() is Reason.ALREADY_CONNECTED, "it did not answer"
        await fourth.post(letter(3))


async def test_a_full_node_keeps_its_best_and_static_peers(tmp_path: Path) -> None:
    two = PeerLimits(max_peers=2, max_peers_per_address=50, max_handshakes=2)
    async with inside(tmp_path / "a", peer_limits=two) as here, inside(tmp_path / "b", number=2) as other:
        first, second = await here.greet(), await here.greet()
        assert await (await here.enter()).ended() is Reason.TOO_MANY_PEERS
        first.cut()
        await here.until("the loss", lambda: len(here.node.peers) == 1)
        third = await here.greet()
        await third.post(letter(1))
        assert await second.relayed(1) == [letter(1)]
        future = [letter(number, age=-60) for number in range(2 * admission.MAX_ERRORS)]
        assert len((await third.post(*future)).refusals) == len(future)  # a relay did not make them
        third.say_all([(waku_packets.MESSAGES, b"\x80")] * (admission.MAX_ERRORS - 1))
        await third.fence()
        assert await (await here.enter()).ended() is Reason.TOO_MANY_PEERS
        third.say_all([(waku_packets.MESSAGES, b"\x80")] * 2)
        await third.fence()
        [its_connection] = [peer for name, peer in here.node.peers.items() if name == node_id(third.key.public)]
        its_connection.errors._at -= 180  # the clock of the loop would also end peers that do not answer
        assert await (await here.enter()).ended() is Reason.TOO_MANY_PEERS, "some are forgotten"
        third.say_all([(waku_packets.MESSAGES, b"\x80")] * 5)
        await third.fence()
        await here.greet()
        assert await third.ended() is Reason.TOO_MANY_PEERS
        await second.fence()
        assert len(here.node.peers) == 2
        async with keeping(here, other):  # static peers come in any case
            await both_know(here, other)
            knocking = [await RawPeer.knock(here.enode.port, here.enode.public) for _ in range(2)]
            await here.until("all connections that there may be", lambda: len(here.node.connections) == 5)
            assert await (await here.enter()).ended() is Reason.TOO_MANY_PEERS
            assert await knocking[0].ended() is Reason.TOO_MANY_PEERS
            await knocking[1].shake_hands()
            assert await knocking[1].ended() is Reason.TOO_MANY_PEERS
            assert here.node.counts[ConnectionCount.HALF_OPEN] == 1


async def test_incomplete_packets_of_all_peers_have_a_common_limit(tmp_path: Path) -> None:
    async with inside(tmp_path, limits=Limits(unfinished_bytes=100_000)) as here:
        good, small, large = [await here.greet() for _ in range(3)]
        packet = Seeded(5).draw(90_000)
        small.writer.write(small.rlpx.seal(packet)[:40_000])
        await here.until("the first part", lambda: here.node.incomplete_bytes > 39_000)
        large.writer.write(large.rlpx.seal(packet)[:70_000])
        assert await large.ended() is Reason.TOO_MANY_PEERS
        await here.until("the loss", lambda: len(here.node.connections) == 2)
        assert 39_000 < here.node.incomplete_bytes <= 40_000
        small.cut()
        await here.until("the loss", lambda: here.node.incomplete_bytes == 0)
        await good.fence()


async def test_a_peer_without_a_status_is_disconnected(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        peer, without = await here.greet(), await here.enter()
        await here.until("its Hello", lambda: len(here.node.peers) == 2)
        here.later(STATUS_TIMEOUT)
        assert await without.ended() is Reason.PING_TIMEOUT
        await peer.fence()


async def test_a_backlog_is_sent_in_packets_that_every_node_accepts(tmp_path: Path) -> None:
    letters = [letter(number, topic=number.to_bytes(4, "big"), size=3000) for number in range(1200)]
    async with inside(tmp_path, policy=FREE) as here:
        await (await here.greet(NOTHING)).post(*letters)
        reader = await here.greet()
        hashes: list[bytes] = []
        while len(hashes) < len(letters):
            code, body = await reader.hear()
            assert code == waku_packets.MESSAGES
            assert len(body) <= waku_packets.MAX_PACKET_BYTES
            hashes += [envelope.hash for envelope in waku_packets.read_envelopes(body)]
        assert sorted(hashes) == sorted(envelope.hash for envelope in letters)


async def test_a_changed_interest_loses_nothing_of_a_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "TOPICS_PER_TURN", 1)
    monkeypatch.setattr(relay, "CHECKS_PER_TURN", 1)
    letters = [letter(number, topic=number.to_bytes(4, "big")) for number in range(250)]
    async with inside(tmp_path, policy=FREE) as here:
        await (await here.greet(NOTHING)).post(*letters)
        reader = await here.greet(NOTHING)
        for wanted in (200, 250):
            topics = frozenset(envelope.topic for envelope in letters[:wanted])
            reader.say(waku_packets.STATUS_UPDATE, waku_packets.write_options(Options(topics=topics)))
            await here.until("a backlog", lambda: bool(here.node.relay.backlogs))
        await here.until("its end", lambda: not here.node.relay.backlogs)
        await here.settled(reader)
        hashes = {envelope.hash for _, body in reader.inbox for envelope in waku_packets.read_envelopes(body)}
        assert hashes == {envelope.hash for envelope in letters}


async def test_a_peer_that_reads_nothing_for_20_seconds_is_disconnected(tmp_path: Path) -> None:
    limits = Limits(owed_bytes=2_000_000, address_bytes=0, address_envelopes=0)
    async with inside(tmp_path, policy=FREE, limits=limits) as here:
        slow_clock(here.node.loop)
        poster, reader, its_connection = await deaf_reader(here, lambda peer: peer.reading.paused_by_unread)
        owed = its_connection.unsent_bytes()
        await poster.post(letter(1000, size=500_000))
        while its_connection.unsent_bytes() == owed:
            await reader.read()
        here.later(WRITE_STALL_TIMEOUT)
        await poster.fence()
        assert its_connection in here.node.connections
        here.later(WRITE_STALL_TIMEOUT)
        await here.until("the end of its time", lambda: its_connection not in here.node.connections)
        assert here.node.lost == {Reason.PING_TIMEOUT: 1}
        assert owed < 2_000_000 + 2 * 510_000
        assert here.node.relay.counts[relay.RelayCount.DELAYED] >= 1
        assert await reader.ended() is None


async def test_reading_a_little_of_the_last_bytes_does_not_extend_their_deadline(tmp_path: Path) -> None:
    async with inside(tmp_path, policy=FREE, limits=FEW_OWED) as here:
        _, _, its_connection = await deaf_reader(here, lambda connection: connection.reading.paused_by_unread)
        its_connection.disconnect(Reason.CLIENT_QUITTING)
        its_connection.flush()
        here.later(CLOSE_TIMEOUT / 2)
        its_connection.resume_writing()
        its_connection.pause_writing()
        its_connection.flush()
        assert its_connection in here.node.connections
        here.later(CLOSE_TIMEOUT / 2)
        await here.until("the loss", lambda: its_connection not in here.node.connections)


async def test_a_peer_over_its_rate_is_not_read_until_all_is_paid_for_and_its_end_is_noticed(tmp_path: Path) -> None:
    limits = Limits(address_envelopes=0.001, address_envelopes_at_once=14)
    async with inside(tmp_path, limits=limits) as here:
        peer = await here.greet()
        await peer.post(*(letter(number) for number in range(5)))
        assert unread(here) == []
        await peer.post(*(letter(number) for number in range(5, 5_000)))
        [its_connection] = unread(here)
        assert its_connection.quota.wait(here.node.loop.time(), limits) > 4_000_000, "its envelopes count, too"
        peer.cut()  # for hours nobody would look
        for _ in range(4):
            here.later(PING)
            await asyncio.sleep(0)
        await here.until("the loss", lambda: not here.node.connections)
        its_connection.large_packet_handled()


def spent(connection: PeerConnection) -> float:
    """Return the envelopes that a peer was charged for, where the node has no rate."""
    return connection.quota.wait(0.0, Limits(address_bytes=0, address_envelopes=1, address_envelopes_at_once=0))


async def test_each_packet_counts_against_the_rate_of_its_peer(tmp_path: Path) -> None:
    packets = (
        (waku_packets.MESSAGES, waku_packets.write_envelopes([letter(1).raw]), 2),
        (waku_packets.MESSAGES, b"\xc0", 1),
        (waku_packets.MESSAGES, waku_packets.write_envelopes([letter(1, age=1000).raw]), 12),
        (waku_packets.MESSAGES, b"\x80", 11),
        (99, b"", 1),
        (99, bytes(4000), 101),  # its length after decompression
        (waku_packets.STATUS_UPDATE, waku_packets.write_options(Options(topics=frozenset())), 101),
        (waku_packets.STATUS_UPDATE, waku_packets.write_options(Options(light=True)), 1),
        (waku_packets.REQUEST, b"\x80", 11),
    )
    async with inside(tmp_path, limits=Limits(address_envelopes=0)) as here:
        peer = await here.greet()
        [its_connection] = here.node.connections
        for code, body, count in packets:
            before = spent(its_connection)
            peer.say(code, body)
            await peer.fence()
            assert spent(its_connection) - before == count + 1, (code, body)  # and the Ping of the fence


async def test_what_is_not_archived_costs_its_peer_no_more_than_what_is(tmp_path: Path) -> None:
    archived, others = letter(1), [letter(1, topic=b"else"), letter(2, age=51), letter(3, ttl=100, age=70)]
    terms = ArchiveTerms(topics=frozenset([TOPIC]), retention=60)
    async with inside(tmp_path, terms=terms, limits=Limits(address_envelopes=0)) as here:
        peer = await here.greet(NOTHING)
        [its_connection] = here.node.connections
        before = spent(its_connection)
        assert not (await peer.post(archived, letter(2), letter(3))).refusals
        cost = spent(its_connection) - before
        response = await peer.post(*others)
        assert [refusal.hash for refusal in response.refusals] == [envelope.hash for envelope in others]
        assert [(refusal.code, refusal.text) for refusal in response.refusals] == [
            (waku_packets.OTHER_ERROR, TOPIC_TEXT),
            (waku_packets.TIME_ERROR, EXPIRED.words),
            (waku_packets.OTHER_ERROR, AGE_TEXT),
        ]
        assert spent(its_connection) - before - cost == cost


async def test_a_copy_of_what_was_pruned_is_in_the_archive_again_or_an_error(tmp_path: Path) -> None:
    size = len(letter(1).raw)
    async with inside(tmp_path, policy=FREE, terms=ArchiveTerms(retention_bytes=2 * size)) as here:
        peer = await here.greet(NOTHING)
        letters = [letter(number, ttl=100, age=10 - number) for number in range(4)]
        assert not (await peer.post(*letters)).refusals
        assert await here.node.archiving.prune() == 2
        assert [refusal.text for refusal in (await peer.post(letters[0])).refusals] == [AGE_TEXT]
        assert not (await peer.post(letters[3])).refusals
        await has(here, *letters[2:])
        assert await here.node.archiving.prune() == 0
        assert not (await peer.post(letters[0])).refusals
        await has(here, letters[0], *letters[2:])


async def test_the_node_archives_all_again_after_its_clock_was_ahead_at_a_prune(tmp_path: Path) -> None:
    size = len(letter(1).raw)
    terms = ArchiveTerms(retention=100, retention_bytes=2 * size)
    async with inside(tmp_path, policy=FREE, terms=terms) as here:
        peer = await here.greet(NOTHING)
        await peer.post(letter(1, ttl=100, age=9))
        here.clock.now += 1000
        assert await here.node.archiving.prune() == 1
        here.clock.now -= 1000
        await peer.post(*(letter(number, ttl=100, age=8) for number in range(2, 5)))
        assert await here.node.archiving.prune() == 1
        assert not (await peer.post(letter(5))).refusals


async def test_a_packet_that_no_response_can_answer_is_relayed_and_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("restante.waku.node.mailserver.MAX_REFUSALS", 2)
    async with inside(tmp_path, terms=ArchiveTerms(topics=frozenset([b"else"]))) as here:
        poster, reader = await here.greet(NOTHING), await here.greet()
        poster.offer([letter(number) for number in range(3)])
        assert len(await reader.relayed(3)) == 3
        assert len((await poster.post(letter(3), letter(4))).refusals) == 2, "nothing came before it"


@pytest.mark.parametrize(
    "limits",
    [
        Limits(address_envelopes=0.001, address_envelopes_at_once=60),
        Limits(address_bytes=0.001, address_bytes_at_once=50_000),
    ],
    ids=["envelopes", "bytes"],
)
async def test_peers_of_one_address_share_its_rate_even_after_they_reconnect(tmp_path: Path, limits: Limits) -> None:
    async with inside(tmp_path, limits=limits) as here:
        for number in range(3):
            peer = await here.greet()
            await peer.post(*(letter(number * 100 + more, size=1000) for more in range(15)))
            assert unread(here) == []
            peer.cut()
            await here.until("the loss", lambda: not here.node.connections)
        late = await here.enter()
        late.say(waku_packets.STATUS, waku_packets.write_options(FULL_NODE))
        late.offer([letter(1000 + more, size=1000) for more in range(15)])
        await here.until("one that is left unread", lambda: len(unread(here)) == 1)
        [its_connection] = unread(here)
        here.later(its_connection.quota.wait(here.node.loop.time(), limits))
        await here.until("its turn", lambda: not unread(here))


async def test_envelopes_missed_by_a_peer_that_did_not_read_are_sent_when_it_reads(tmp_path: Path) -> None:
    letters = [make(EPOCH + 50, 50, TOPIC, Seeded(number).draw(30_000)) for number in range(40)]
    async with inside(tmp_path, policy=FREE, limits=FEW_OWED) as here:
        poster, reader = await here.greet(NOTHING), await here.greet()
        [its_connection] = [peer for peer in here.node.connections if peer.peer.interest.wants(TOPIC)]
        here.narrow(reader)
        for envelope in letters:
            await poster.post(envelope)
        assert here.node.relay.counts[relay.RelayCount.DELAYED] >= 1
        assert its_connection.unsent_bytes() < 3 * 64 * 1024
        relayed: set[bytes] = set()
        while len(relayed) < len(letters):  # one may come twice
            relayed |= {envelope.hash for envelope in await reader.relayed(1)}
        assert relayed == {envelope.hash for envelope in letters}
        here.later(WRITE_STALL_TIMEOUT)
        await reader.fence()


async def test_a_peer_that_closes_its_half_and_does_not_read_is_disconnected(tmp_path: Path) -> None:
    limits = Limits(owed_bytes=1 << 30, address_bytes=0, address_envelopes=0)
    async with inside(tmp_path, policy=FREE, limits=limits) as here:
        poster, reader, its_connection = await deaf_reader(here, lambda connection: bool(connection.unsent_bytes()))
        reader.writer.write_eof()
        for seconds in (PING, PING, CLOSE_TIMEOUT):
            await poster.fence()
            assert its_connection in here.node.connections
            here.later(seconds)
        await here.until("the loss", lambda: its_connection not in here.node.connections)


async def test_a_peer_that_gave_way_and_does_not_read_is_closed_when_a_newcomer_needs_the_room(
    tmp_path: Path,
) -> None:
    two = PeerLimits(max_peers=2, max_peers_per_address=50, max_handshakes=1)
    async with inside(tmp_path, policy=FREE, limits=FEW_OWED, peer_limits=two) as here:
        _, _, its_connection = await deaf_reader(here, lambda connection: bool(connection.unsent_bytes()))
        for _ in range(admission.MAX_ERRORS):
            here.node.admission.count_error(its_connection)
        await here.greet()
        assert its_connection.ending
        assert its_connection in here.node.connections
        newcomer = await here.enter()
        await here.until("the loss", lambda: its_connection not in here.node.connections)
        assert await newcomer.ended() is Reason.TOO_MANY_PEERS


async def test_a_large_packet_is_handled_while_others_are_served(tmp_path: Path) -> None:
    limits = Limits(address_bytes=0, address_envelopes=0)
    async with inside(tmp_path, policy=FREE, limits=limits) as here:
        large, small = await here.greet(NOTHING), await here.greet(NOTHING)
        packet = large.offer([letter(number) for number in range(20_000)])
        await large.writer.drain()
        await here.until("the large packet", lambda: here.node.mailserver.counts[EnvelopeCount.NEW])
        await small.fence()
        assert here.node.mailserver.counts[EnvelopeCount.NEW] < 20_000
        assert (await large.confirmed(packet)).refusals == ()
        assert (await here.archive.counts()).envelopes == 20_000


async def test_the_envelopes_of_a_large_packet_are_not_all_in_memory(tmp_path: Path) -> None:
    """Each connection may send one at the same time, and 250 KB on the wire hold 50,000 envelopes."""
    limits = Limits(address_bytes=0, address_envelopes=0)
    async with inside(tmp_path, limits=limits) as here:
        peer = await here.greet(NOTHING)
        packet = [letter(number, age=60, size=0) for number in range(waku_packets.MAX_PACKET_ENVELOPES)]
        body = waku_packets.write_envelopes(each.raw for each in packet)
        tracemalloc.start()
        try:
            peer.say(waku_packets.MESSAGES, body)
            await here.until("its end", lambda: here.node.mailserver.refusals[EXPIRED] == len(packet))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 10 * len(body)


@pytest.mark.parametrize("draining", [False, True])
async def test_a_peer_that_outruns_the_disk_is_not_read_meanwhile(tmp_path: Path, draining: bool) -> None:
    """In a drain it is not read again, although its envelopes are saved: who goes on would have it go on, too."""
    async with inside(tmp_path, policy=FREE, limits=Limits(unsaved_bytes=MIB)) as here:
        poster, other = await here.greet(NOTHING), await here.greet(NOTHING)
        with beside(tmp_path / ARCHIVE_FILE, LOCK):
            first = other.offer([letter(1)])
            await other.fence()
            await here.until("a batch that waits", lambda: not here.node.mailserver.gathered)
            packets = [poster.offer([letter(number, size=600_000)]) for number in (2, 3)]
            await here.until("it is left unread", lambda: len(unread(here)) == 1)
            last = poster.offer([letter(4)])
            if draining:
                drain = asyncio.create_task(here.node.drain(here.running))
                await here.until("the drain", lambda: len(unread(here)) == 2)
        await other.confirmed(first)
        for packet in packets:
            await poster.confirmed(packet)
        if draining:
            async with bounded("the end"):
                await drain
            await has(here, letter(1), *(letter(number, size=600_000) for number in (2, 3)))
        else:
            await poster.confirmed(last)
            assert unread(here) == []


async def test_a_peer_that_repeats_an_envelope_while_the_disk_hangs_is_not_read_meanwhile(tmp_path: Path) -> None:
    async with inside(tmp_path, limits=Limits(unsaved_bytes=MIB, address_envelopes=0)) as here:
        poster = await here.greet(NOTHING)
        here.archive.idle.clear()
        packet = poster.offer([letter(1)])
        await here.until("a batch that waits", lambda: here.archive.batches == [1])
        poster.say_all([(waku_packets.MESSAGES, waku_packets.write_envelopes([letter(1).raw]))] * 6000)
        await here.until("it is left unread", lambda: len(unread(here)) == 1)
        assert here.node.mailserver.waiting_size < 3 * MIB
        here.archive.idle.set()
        for _ in range(6001):
            await poster.confirmed(packet)
        assert (unread(here), here.node.mailserver.waiting_size) == ([], 0)


async def test_a_locked_archive_is_not_called_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restante.waku.archive.sqlite.BUSY_TIMEOUT_SECONDS", 0.01)
    async with inside(tmp_path) as here:
        poster = await here.greet(NOTHING)
        with structlog.testing.capture_logs() as logs:
            with beside(tmp_path / ARCHIVE_FILE, LOCK):
                for envelope in (letter(1), letter(2)):
                    [refusal] = (await poster.post(envelope)).refusals
                    assert (refusal.code, refusal.text) == (waku_packets.OTHER_ERROR, LOCKED_TEXT)
                assert here.node.ready() == "the archive cannot be written"
                assert not here.node.archiving.short_of_room.is_set()
            here.clock.now += ARCHIVE_RETRY_DELAY
            assert not (await poster.post(letter(1))).refusals
            assert here.node.ready() == ""
            here.archive.full = True
            [refusal] = (await poster.post(letter(3))).refusals
            assert (refusal.text, here.node.ready()) == (FULL_TEXT, "the disk is full")
        assert [line["event"] for line in logs if line["log_level"] != "warning"] == [
            "envelopes are not archived until the archive can be written",
            "envelopes are archived again",
            "envelopes are not archived until there is room",
        ]


async def test_a_drain_waits_a_while_for_who_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "DRAIN_SECONDS", 0.05)
    async with inside(tmp_path, policy=FREE) as here:
        await deaf_reader(here, lambda connection: bool(connection.unsent_bytes()))
        async with bounded("the end"):
            await here.node.drain(here.running)
        await here.until("the end of all connections", lambda: not here.node.connections)


async def test_an_envelope_waits_a_while_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_schedule, "MIN_BATCH_ENVELOPES", 3)
    async with inside(tmp_path, save_interval=1e6) as here:
        peer = await here.greet(NOTHING)
        for number in range(5):
            await peer.post(letter(number))
        assert here.archive.batches == [1] * 5
        here.clock.passed += 1
        first = peer.offer([letter(5)])
        for _ in range(TURNS):
            await peer.fence()
        assert here.archive.batches == [1] * 5
        last = peer.offer([letter(6), letter(7)])
        await peer.confirmed(first)
        await peer.confirmed(last)
        assert here.archive.batches == [*[1] * 5, 3]
        here.clock.passed += 1e6 - 0.01
        await peer.post(letter(8))
        await has(here, *map(letter, range(9)))


def test_in_a_flood_a_save_begins_after_40_ms_or_500_envelopes() -> None:
    schedule = save_schedule.SaveSchedule(save_schedule.SAVE_INTERVAL)
    schedule.begin(0.0)
    assert schedule.may_read_more(499, 0.039)
    assert not schedule.may_read_more(500, 0.0)
    assert not schedule.may_read_more(1, 0.04)
    assert [schedule.wait(count, 0.0) for count in (15, 16)] == [0.04, 0.0]
    schedule.await_save()
    assert schedule.wait(1, 0.0) == 0.0


def arrive(sender: SenderPace, time: float, confirmed: float) -> bool:
    sender.confirmed = confirmed
    return sender.arrive(time)


@pytest.mark.parametrize("packets", [1, 4])
def test_a_peer_that_waits_for_confirmations_is_recognised_although_it_takes_a_while_to_go_on(packets: int) -> None:
    sender, now, delays = SenderPace(), 0.0, []
    for _ in range(2000):
        awaited = [sender.arrive(now + 0.0001 * number) for number in range(packets)]
        delays.append(0.001 if any(awaited) else 0.037)
        sender.confirmed = now + delays[-1]
        now = sender.confirmed + 0.003
    assert delays[:5] == [0.037] * 3 + [0.001] * 2
    assert delays.count(0.037) < 2000 * 0.02 * packets, "it is seldom tried whether it still waits"
    sent = [now + 0.01 * number for number in range(1, 100)]
    assert sum(arrive(sender, time, time // 0.04 * 0.04 - 0.04) for time in sent) < 5, "now it does not wait"


def test_a_peer_that_does_not_wait_is_not_taken_for_one_that_does() -> None:
    for gap in (0.005, 0.01, 0.019):
        sender = SenderPace()
        sent = [gap * number + 0.003 for number in range(500)]
        assert sum(arrive(sender, time, time // 0.04 * 0.04) for time in sent) < 500 * 0.15, gap
    sender = SenderPace()
    assert not any(arrive(sender, second, second - 0.963) for second in range(100)), "it sends a packet a second"
    assert [arrive(sender, late, late - after) for late, after in ((100.0, 0.0021), (101.0, 0.002))] == [False, True]


async def test_envelopes_that_arrive_during_a_save_or_while_more_can_be_read_are_one_batch(tmp_path: Path) -> None:
    async with inside(tmp_path, save_interval=1e6) as here:
        peer = await here.greet(NOTHING)
        here.archive.idle.clear()
        packets = [peer.offer([letter(0)])]
        await here.until("a save", lambda: here.archive.batches == [1])
        for number in range(1, 5):
            packets.append(peer.offer([letter(10 * number + more) for more in range(5)]))
            await peer.fence()
        assert here.archive.batches == [1]
        here.archive.idle.set()
        for packet in packets:
            await peer.confirmed(packet)
        assert here.archive.batches == [1, 20]
        [its_connection] = here.node.connections
        for turn in range(1, 6):
            offered = Offered([letter(100 * turn + more) for more in range(16)])
            here.node.handle_event(its_connection, offered, bytes([turn]))
            await asyncio.sleep(0)
        await here.archived()
        assert here.archive.batches == [1, 20, 5 * MIN_BATCH_ENVELOPES]


async def test_the_log_has_all_counts_of_each_minute(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        peer = await here.greet()
        await peer.post(letter(1), letter(2, age=1000))
        await peer.post(letter(1))
        peer.say(waku_packets.REQUEST, b"history")
        async with meanwhile(answer_pings(await here.greet(key=KEY))):
            await (await here.enter(KEY)).ended()
        await here.until("the loss", lambda: len(here.node.connections) == 2)
        with structlog.testing.capture_logs() as logs:
            main.log_minute(here.node, main.log_counts(here.node))
    counts = {"new": 1, "known": 1, "archived": 1, "old": 1, "requests": 1, "requests refused": 1}
    counts |= {"peers": 2, "hashes": 1, "lost: already_connected": 1}
    assert logs == [{"event": "the last minute", "log_level": "info", **counts}]


async def test_a_clock_that_is_probably_wrong_is_logged(tmp_path: Path) -> None:
    for late, levels in ((24, ["info"]), (26, ["info", "warning"])):
        async with inside(tmp_path / str(late)) as here:
            good = [letter(number) for number in range(100)]
            bad = [letter(number, age=-60 if number % 2 else 1000) for number in range(late)]
            await (await here.greet()).post(*good, *bad)
            with structlog.testing.capture_logs() as logs:
                main.log_minute(here.node, main.log_counts(here.node))
            assert [line["log_level"] for line in logs] == levels


def test_the_quota_that_is_longest_unused_is_forgotten_first_but_none_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_REMEMBERED_ADDRESSES", 3)
    those = AddressQuotas()
    first, second = those.obtain("a"), those.obtain("b")
    for address in ("a", "c", "d"):
        those.obtain(address)
    assert those.obtain("a") is first
    assert those.obtain("b") is not second
    first.connections = 1
    passing = those.obtain("passing")
    for number in range(100):
        those.obtain(f"passing {number}")
    assert those.obtain("a") is first
    assert those.obtain("passing") is not passing
    first.connections = 0
    for number in range(3):
        those.obtain(f"late {number}")
    assert those.obtain("a") is not first


async def test_a_timer_goes_off_at_the_first_deadline_and_can_be_set_again_for_the_same_time() -> None:
    loop, deadlines = asyncio.get_running_loop(), Deadlines()
    deadlines.status = loop.time() + 1e6
    deadlines.arm(loop, lambda: None)
    for _ in range(2):
        went_off = asyncio.Event()
        deadlines.close = loop.time()
        deadlines.arm(loop, went_off.set)
        await went_off.wait()
        assert deadlines.fired(1.0) == 1.0 + EARLY


@on_uvloop
async def test_connections_of_one_address_are_limited_also_of_that_which_a_proxy_names(tmp_path: Path) -> None:
    async with inside(tmp_path, peer_limits=PeerLimits(max_peers=1000, max_peers_per_address=1)) as here:
        where, ports, writers = parse_listen_address("proxy:127.0.0.1:0", "--listen"), [], []
        for trusted in ("127.0.0.0/8", "10.0.0.0/8"):
            [at] = await here.node.listen(where, parse_networks([trusted], "--trust-proxy"))
            ports.append(int(at.rpartition(":")[2]))
        ours, strangers = ports
        for port, data, address in (
            (ours, header("203.0.113.7"), "203.0.113.7"),
            (ours, line("203.0.113.7"), None),
            (ours, header("::ffff:203.0.113.7"), None),
            (ours, line("::ffff:203.0.113.7"), None),
            (ours, line("203.0.113.8"), "203.0.113.8"),
            (ours, header("2001:db8::1"), "2001:db8::/64"),
            (ours, line("2001:db8::2"), None),
            (ours, header("2001:db8:0:1::1"), "2001:db8:0:1::/64"),
            (ours, bytes(16), None),
            (ours, line("203.0.113.9").replace(b"TCP4", b"TCP6"), None),
            (strangers, header(), None),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            writer.write(data)
            if address is None:
                async with bounded("the end"):
                    with suppress(ConnectionResetError):
                        assert await reader.read() == b""
            else:
                await here.until(address, lambda: address in {peer.address for peer in here.node.connections})  # noqa: B023
        assert here.node.counts == {ConnectionCount.TOO_MANY_FROM_ADDRESS: 4, ConnectionCount.NO_PROXY_HEADER: 3}
        for writer in writers:
            writer.close()
        await here.until("the loss", lambda: not here.node.connections)
        direct = await here.greet()
        with pytest.raises(GoneError) as gone:
            await here.enter()
        assert gone.value.reason is None
        direct.cut()
        await here.until("the loss", lambda: not here.node.connections)
        await here.greet()
