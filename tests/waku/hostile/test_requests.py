"""Requesters who mean harm: whoever means well is answered beside them, and nothing is kept of them."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final

import pytest
import pytest_asyncio

from restante.waku.archive.history.plans import MAX_PAIRED_PLACES, MAX_SINGLE_PLACES
from restante.waku.archive.sqlite import open_archive
from restante.waku.envelope import bloom, rlp
from restante.waku.envelope.bloom import ALL_BITS
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keys import new_key
from restante.waku.envelope.payload import SymmetricKey, seal
from restante.waku.limits import Limits
from restante.waku.node.history_requests import MAX_PAGES, MAX_QUEUED_REQUESTS
from restante.waku.node.requester_quotas import MAX_PAGES_PER_ADDRESS
from restante.waku.passwords import OFFLINE_INBOX
from restante.waku.protocol import completion, packets
from restante.waku.protocol.completion import Completed, Failed
from restante.waku.protocol.request import MAX_PAGE_ENVELOPES, MAX_REQUEST_TOPICS, NO_TOPIC
from support.bounds import bounded
from support.dice import Seeded
from support.effort import rounds
from support.waku.asking import ID, page, plain
from support.waku.processes import altered
from support.waku.raw_peer import RawPeer
from support.waku.requester import Requester, beside_both, requester
from support.waku.siege import NOTHING, Siege, besieged

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOW: Final = int(time.time()) - 100

DICE: Final = Seeded(2000)
_random: Final = random.Random(2001)

WANTED: Final = b"want"
HEAVY: Final = b"load"
"""Of 30 MiB that do not become smaller when they are compressed."""

PAGE: Final = [make(NOW - 50 + number, 50, WANTED, DICE.draw(300)) for number in range(20)]

HALF: Final = sum(1 << bit for bit in _random.sample(range(512), 256))

PASSWORD: Final = SymmetricKey.from_password(OFFLINE_INBOX)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Siege]:
    """A node that has something to give, and that cuts off no peer which reads nothing or says nothing.

    So an answer that has to wait for such an end does not come. A peer of the requester that waits for its turn to
    ask answers no Ping.
    """
    data = tmp_path_factory.mktemp("siege") / "data"
    archive = open_archive(data)
    crowd = [make(NOW - number, 50, DICE.draw(4), DICE.draw(20)) for number in range(rounds(8_000, 20_000))]
    heavy = [make(NOW - 100 - number, 50, HEAVY, DICE.draw(500_000)) for number in range(60)]
    for batch in (PAGE, crowd, heavy):
        await archive.save(batch, NOW)
    await archive.close()
    async with besieged(data, program=altered("no-timeouts")) as siege:
        siege.secrets |= {each.hex() for each in (WANTED, HEAVY, ID)} | {each.hash.hex() for each in PAGE}
        yield siege


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asking(siege: Siege) -> Requester:
    """Whoever means well. What the archive's cache has room for has been read before anything is measured."""
    warm = await siege.greet(NOTHING)
    for given in ({"bloom": HALF}, {"bloom": ALL_BITS}, {"bloom": HALF}):
        await answered(warm, [plain(topics=frozenset(), upper=NOW, **given)])
    await answered(warm, [plain(topics=frozenset([HEAVY]), upper=NOW)])
    siege.everybody_goes()
    await siege.until("an empty house", siege.empty)
    return await requester(siege, WANTED, PAGE)


Greet = Callable[[], Awaitable[RawPeer]]

_addresses: Final = itertools.count(1)


@pytest.fixture
def greet(siege: Siege) -> Greet:
    """Let attackers connect from a new address, because requests of one address are limited, too."""
    return partial(siege.greet, NOTHING, f"127.0.2.{next(_addresses)}")


async def answered(peer: RawPeer, requests: Iterable[bytes]) -> Counter[str]:
    """Ask all this at once, and read each answer; gives how often each was refused in which words."""
    bodies = list(requests)

    async def say() -> None:
        for body in bodies:
            peer.say(packets.REQUEST, body)
            await peer.drain()

    saying = asyncio.create_task(say())
    words: Counter[str] = Counter()
    for _ in bodies:
        _, end = await page(peer)
        words[end.words if isinstance(end, Failed) else ""] += 1
    await saying
    return words


def raw(**given: Any) -> bytes:
    """Write a plain request that nobody who means well would."""
    fields = {"id": ID, "lower": 0, "upper": NOW, "limit": 0, "cursor": b"", "bloom": b"", "topics": []}
    return rlp.encode(list((fields | given).values()))


def sealed(body: bytes) -> Envelope:
    data = seal(body, to=PASSWORD, dice=DICE, sign=new_key(DICE))
    return make(int(time.time()) + 50, 50, NO_TOPIC, data)


async def test_malformed_bloom_filters(siege: Siege, asking: Requester, greet: Greet) -> None:
    async with beside_both(siege, asking, "blooms of 0, 1, 63 and 65 bytes"):
        peer = await greet()
        words = await answered(peer, [raw(bloom=bytes(size)) for size in (0, 1, 63, 65)] * rounds(25, 100))
        assert {each: count for each, count in words.items() if "bloom" in each} == words


async def test_a_hundred_thousand_topics(siege: Siege, asking: Requester, greet: Greet) -> None:
    topics = [number.to_bytes(4, "big") for number in range(100_000)]
    async with beside_both(siege, asking, "100,000 topics"):
        for peer in [await greet() for _ in range(3)]:  # what an address may send at once, and a little more
            words = await answered(peer, [raw(topics=topics)])
            assert words == {f"request is invalid: more than {MAX_REQUEST_TOPICS} topics": 1}


async def test_the_maximum_number_of_topics(siege: Siege, asking: Requester, greet: Greet) -> None:
    topics = [DICE.draw(4) for _ in range(MAX_REQUEST_TOPICS)]
    async with beside_both(siege, asking, "1,000 topics that nobody has"):
        assert await answered(await greet(), [raw(topics=topics)] * 10) == {"": 10}


async def test_a_bloom_half_full_over_everything(siege: Siege, asking: Requester, greet: Greet) -> None:
    bodies = [raw(bloom=bloom.write(HALF)), raw(bloom=bloom.write(HALF), limit=MAX_PAGE_ENVELOPES)]
    async with beside_both(siege, asking, "a bloom half full, over everything"):
        attackers = [await greet() for _ in range(4)]

        async def attack(peer: RawPeer) -> None:
            for _ in range(rounds(2, 5)):
                assert set(await answered(peer, bodies * 4)) <= {"", "rate limit exceeded"}

        await asyncio.gather(*map(attack, attackers))


@pytest.mark.parametrize("places", [MAX_PAIRED_PLACES, MAX_SINGLE_PLACES])
async def test_filters_of_few_topics_each_of_which_is_looked_up(
    siege: Siege, asking: Requester, greet: Greet, places: int
) -> None:
    """Next to nothing is found by them: what they cost is to find the topics that they let through."""
    filters = [sum(1 << bit for bit in _random.sample(range(512), places)) for _ in range(8)]
    async with beside_both(siege, asking, f"filters of {places} places, which few topics pass"):
        attackers = [await greet() for _ in range(4)]

        async def attack(peer: RawPeer) -> None:
            for _ in range(rounds(3, 10)):
                bodies = [raw(bloom=bloom.write(each), limit=1) for each in filters]
                assert set(await answered(peer, bodies)) <= {"", "rate limit exceeded"}

        await asyncio.gather(*map(attack, attackers))


async def test_reversed_ranges_and_replayed_requests(siege: Siege, asking: Requester, greet: Greet) -> None:
    body = rlp.encode([0, NOW, b"", [WANTED], 0, b"", True])
    replayed = sealed(body).raw
    async with beside_both(siege, asking, "ranges upside down, and replays"):
        peer = await greet()
        count = rounds(60, 200)
        words = await answered(peer, [raw(lower=NOW + 1, topics=[WANTED])] * count)
        assert words == {"request is invalid: query range is invalid: lower > upper": count}
        for _ in range(rounds(6, 20)):
            assert set(await answered(peer, [replayed] * 10)) <= {"", "rate limit exceeded"}


async def test_requests_sent_as_fast_as_possible(siege: Siege, asking: Requester, greet: Greet) -> None:
    count = rounds(500, 1500)
    async with beside_both(siege, asking, "requests as fast as they go"):
        peers = [await greet() for _ in range(4)]
        told = await asyncio.gather(*(answered(peer, [raw(topics=[WANTED])] * count) for peer in peers))
        for words in told:
            assert words.total() == count
            assert words[""] >= MAX_QUEUED_REQUESTS
            assert words["too many requests at once"]
            assert set(words) <= {"", "too many requests at once", "rate limit exceeded"}


async def test_requests_one_after_the_other_without_an_end(siege: Siege, asking: Requester, greet: Greet) -> None:
    """They are of one address, which gets what one may have, and the rest later."""
    limits = Limits()
    async with beside_both(siege, asking, "requests one after the other without an end"):
        peers = [await greet() for _ in range(4)]
        began = time.monotonic()
        served = 0

        async def attack(peer: RawPeer) -> None:
            nonlocal served
            while served < limits.pages_at_once + rounds(40, 200):
                assert await answered(peer, [raw(topics=[WANTED])] * 8) == {"": 8}
                served += 8

        async with bounded("more than an address may have at once"):
            await asyncio.gather(*map(attack, peers))
        assert served <= limits.pages_at_once + limits.pages * (time.monotonic() - began) + MAX_PAGES_PER_ADDRESS


async def test_a_requester_that_leaves_during_a_query(siege: Siege, asking: Requester, greet: Greet) -> None:
    async with beside_both(siege, asking, "who goes in mid-query"):
        for number in range(rounds(15, 60)):
            peer = await greet()
            bodies = (raw(bloom=bloom.write(HALF)), raw(topics=[HEAVY]), raw(topics=[WANTED]))
            peer.say_all([(packets.REQUEST, body) for body in bodies * 3])
            await peer.drain()
            if number % 3:
                await peer.hear()
            peer.cut()


@pytest.mark.parametrize("together", [MAX_PAGES + 4, 1], ids=["of_one_address", "of_many"])
async def test_a_requester_that_asks_for_much_and_reads_nothing(
    siege: Siege, asking: Requester, together: int
) -> None:
    """There are more of them than places, and they stay."""
    first = next(_addresses)
    async with beside_both(siege, asking, f"who asks for much and takes nothing, {together} of an address"):
        for number in range(MAX_PAGES + 4):
            peer = await siege.greet(NOTHING, f"127.0.3.{first + number // together}")
            buffer = peer.writer.get_extra_info("socket")
            buffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.say_all([(packets.REQUEST, raw(id=bytes([number]) * 32, topics=[HEAVY]))] * 5)
            await peer.drain()
        await siege.pair.plays(rounds(5, 20))
        await asking.asks(20)


async def test_garbage_sealed_with_the_password(siege: Siege, asking: Requester, greet: Greet) -> None:
    sizes = [0, 1, 7, 8, 9, 71, 72, 76, 111, 112, 116, 117, 300]
    bodies = [bytes([first]) + DICE.draw(size - 1) for size in sizes if size for first in (0, 0x50, 0x7F, 0xC0, 0xF8)]
    bodies += [
        b"",
        rlp.encode([]),
        rlp.encode([0] * 8),
        rlp.encode([[]] * 5),
        rlp.encode([b"", 1, [[[]]], [], 0, 0, 0]),
    ]
    async with beside_both(siege, asking, "garbage sealed with the password"):
        peer = await greet()
        for start in range(0, len(bodies), 8):
            asked = [sealed(body) for body in bodies[start : start + 8]]
            peer.say_all((packets.REQUEST, each.raw) for each in asked)
            left = {each.hash for each in asked}
            for _ in asked:
                _, end = await page(peer)
                assert isinstance(end, Completed | Failed)
                left.discard(end.id)
            assert not left
        await peer.fence()


async def test_packets_that_are_no_requests(siege: Siege, asking: Requester, greet: Greet) -> None:
    async with beside_both(siege, asking, "what is no request at all"):
        peer = await greet()
        for _ in range(rounds(100, 300)):
            peer.say(packets.REQUEST, DICE.draw(_random.randrange(200)))
            peer.say(packets.P2P_MESSAGE, packets.write_envelopes(each.raw for each in PAGE))
            peer.say(packets.REQUEST_COMPLETE, completion.complete(ID))
        await peer.fence()
        assert not peer.inbox
