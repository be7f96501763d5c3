"""Requests over real RLPx: every form is answered, nobody holds up another, and who asks too fast waits."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import structlog

from restante.common.errors import StoreDamaged, StoreError
from restante.waku.archive.query import Bounds, PageQuery
from restante.waku.archive.schema import ARCHIVE_FILE
from restante.waku.archive.sqlite import Readers
from restante.waku.envelope import bloom, rlp
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keys import Key, new_key, node_id
from restante.waku.envelope.payload import SymmetricKey, seal
from restante.waku.limits import Limits
from restante.waku.node import history_requests
from restante.waku.node.history_requests import MAX_PAGES, MAX_PAGES_PER_ADDRESS, MAX_QUEUE_SECONDS, HistoryTerms
from restante.waku.protocol import completion
from restante.waku.protocol import packets as waku_packets
from restante.waku.protocol.completion import Completed, RequestRefused
from restante.waku.protocol.request import Demands
from support.dice import Seeded
from support.waku.inside import Inside, inside
from support.waku.letters import EPOCH, TOPIC, letter
from support.waku.raw_peer import ID, NOTHING, RawPeer, ask, fetch_page, flat, page, plain, walk

PASSWORD = SymmetricKey(b"\7" * 32)
DICE = Seeded(7)

LATE = RequestRefused(ID, "rate limit exceeded")
TOO_MANY = RequestRefused(ID, "too many requests at once")
SMALL, LARGE = 1024 + 128, 1024 + 128 * 1000
"""Bytes that a request of one topic counts for, and one of a thousand."""


def sealed(body: bytes, *, to: SymmetricKey | bytes = PASSWORD, sign: bool = True) -> Envelope:
    data = seal(body, to=to, dice=DICE, sign=new_key(DICE) if sign else None)
    return make(EPOCH + 50, 50, bytes(4), data)


async def elsewhere(here: Inside, number: int = 9) -> RawPeer:
    return await here.greet(NOTHING, source=f"127.0.0.{number}")


LETTERS = [letter(number, age=100 - number) for number in range(5)]
FILTER = bloom.encode(bloom.filter_of([TOPIC]))

SHAPES: dict[str, Any] = {
    "string": [0, EPOCH, b"", [TOPIC], 0, b"", True],
    "list": [0, EPOCH, FILTER, 10],
    "without batch": [0, EPOCH, b"", [TOPIC], 0, b"", False],
}
"""Of all forms (test_request.py), one of each kind of answer."""


async def test_a_request_is_answered_in_the_form_that_its_sender_reads(tmp_path: Path) -> None:
    own = Key(b"\1" * 32)
    bodies = {name: sealed(rlp.encode(shape)) for name, shape in SHAPES.items()}
    bodies["fixed"] = sealed(bytes([0x50, 0, 0, 0]) + EPOCH.to_bytes(4, "big") + FILTER)
    bodies["to its key"] = sealed(rlp.encode(SHAPES["string"]), to=own.public)
    async with inside(tmp_path, history=HistoryTerms(demands=Demands(keys=(PASSWORD, own)))) as here:
        await here.archive.save([*LETTERS, letter(99, topic=b"else")], EPOCH)
        peer = await here.greet()
        for name, asked in bodies.items():
            peer.say(waku_packets.REQUEST, asked.raw)
            packets: list[list[Envelope]] = []
            while (heard := await peer.hear())[0] == waku_packets.P2P_MESSAGE:
                packets.append(waku_packets.read_envelopes(heard[1]))
            assert flat(packets) == LETTERS, name
            assert len(packets) == (len(LETTERS) if name in {"without batch", "fixed"} else 1), name
            assert rlp.item_span(heard[1]).is_list == (name == "list"), name
            assert completion.parse(heard[1]) == Completed(asked.hash, LETTERS[-1].hash), name


SOME = [letter(number, topic=bytes([number % 8] * 4), age=number % 40, size=number * 8) for number in range(250)]


@pytest.mark.parametrize("descending", [False, True])
async def test_pages_give_each_envelope_once_in_order_also_after_a_restart(tmp_path: Path, descending: bool) -> None:
    terms = HistoryTerms(descending=descending, bounds=Bounds(bytes=5000))
    in_order = sorted(SOME, key=lambda envelope: (envelope.sent, envelope.hash), reverse=descending)
    everything: dict[str, Any] = {"bloom": bloom.ALL_BITS, "topics": frozenset()}
    async with inside(tmp_path, history=terms) as here:
        await here.archive.save(SOME, EPOCH)
        first, cursor = await fetch_page(await here.greet(), limit=60, **everything)
        assert 0 < len(first) < 60
        assert sum(len(envelope.raw) for envelope in first) <= 5000
    async with inside(tmp_path, history=terms, limits=Limits(pages=0)) as here:
        peer = await here.greet()
        assert first + await walk(peer, cursor, limit=60, **everything) == in_order
        middle = await walk(peer, limit=7, lower=EPOCH - 25, upper=EPOCH - 15, **everything)
        assert middle == [envelope for envelope in in_order if EPOCH - 25 <= envelope.sent <= EPOCH - 15]


@pytest.mark.parametrize("batch", [True, False])
async def test_an_envelope_that_fits_no_packet_is_left_out_and_not_named_last(batch: bool, tmp_path: Path) -> None:
    """A requester waits for the envelope that a page says is its last."""
    largest = [letter(number, size=(1 << 20) - 20, age=20 - number) for number in range(3)]
    first, last = letter(50, age=19), letter(51, age=10)
    assert all(len(envelope.raw) > (1 << 20) - 16 for envelope in largest)
    async with inside(tmp_path, history=HistoryTerms(demands=Demands(keys=(PASSWORD,)))) as here:
        await here.archive.save([*largest, first], EPOCH)
        peer = await here.greet()
        for limit, expected in ((0, [first]), (1, []), (3, [first])):
            packets, end = await ask(peer, sealed(rlp.encode([0, EPOCH, b"", [TOPIC], limit, b"", batch])).raw)
            assert flat(packets) == expected
            assert isinstance(end, Completed)
            assert end.last_hash == (expected[-1].hash if expected else completion.NO_HASH)
        assert await walk(peer, limit=1) == [first]
        await here.archive.save([last], EPOCH)
        assert await walk(peer, limit=1) == [first, last]


async def test_a_request_that_is_not_served_is_answered_with_the_reason(tmp_path: Path) -> None:
    friend, body = new_key(Seeded(99)), rlp.encode(SHAPES["list"])
    terms = HistoryTerms(
        demands=Demands(keys=(PASSWORD,), require_signature=True, forms=frozenset(("envelope",))),
        allow=frozenset((node_id(friend.public),)),
    )
    async with inside(tmp_path, history=terms) as here:
        known, stranger = await here.greet(key=friend), await here.greet()
        for peer, asked, text in (
            (known, plain(), "this server takes no plain requests"),
            (known, sealed(body, sign=False).raw, "check message signature failed: wrong signature of p2p request"),
            (stranger, sealed(body).raw, "this server serves those that it was told to"),
        ):
            _, end = await ask(peer, asked)
            assert isinstance(end, RequestRefused)
            assert end.reason == text
            assert isinstance((await ask(known, sealed(body).raw))[1], Completed)
        for junk in (b"", b"\x80", b"\xc0", rlp.encode([1] * 6), b"\xff" * 20):
            known.say(waku_packets.REQUEST, junk)
        await known.fence()
        assert known.inbox == []
        assert here.node.history_requests.counts[history_requests.RequestCount.REFUSED] == 3 + 5


@pytest.mark.parametrize(
    "limits", [{"pages": 0.001, "pages_at_once": 2}, {"rows": 0.001, "rows_at_once": 5}], ids=["often", "much"]
)
async def test_who_asks_too_often_or_for_too_much_is_refused_also_after_it_reconnects(
    limits: dict[str, Any], tmp_path: Path
) -> None:
    async with inside(tmp_path, limits=Limits(**limits)) as here:
        await here.archive.save(LETTERS, EPOCH)
        peer = await here.greet()
        ends = [(await ask(peer))[1] for _ in range(4)]
        assert (ends[0], ends[-1]) == (Completed(ID, LETTERS[-1].hash), LATE)
        assert here.node.history_requests.refusals == {"peer_req_limit": ends.count(LATE)}
        assert (await ask(await here.greet()))[1] == LATE
        other = await elsewhere(here)
        while (await ask(other))[1] != LATE:
            pass
        other.cut()
        await here.until("its end", lambda: len(here.node.connections) == 2)
        assert (await ask(await here.greet(key=other.key)))[1] == LATE


@pytest.mark.parametrize("limit", ["history_requests.MAX_PAGES", "history_requests.MAX_PAGES_PER_ADDRESS"])
async def test_who_does_not_read_gives_up_its_slot_and_costs_nothing_once_gone(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their page ends where it is, with a cursor: with it they get the rest. Here all are of one address."""
    monkeypatch.setattr(f"restante.waku.node.{limit}", 2)
    large = [make(EPOCH - 29, 1, TOPIC, DICE.draw(300_000)) for _ in range(16)]
    large.sort(key=lambda envelope: envelope.hash)
    async with inside(tmp_path, history=HistoryTerms(bounds=Bounds(bytes=32 << 20))) as here:
        await here.archive.save([*large, *LETTERS], EPOCH)
        slow = [await here.greet() for _ in range(2)]
        here.narrow(*slow)
        for peer in slow:
            peer.say_all([(waku_packets.REQUEST, plain(lower=EPOCH - 40))] * 2)
        await here.until("pages that wait", lambda: sum(one.writing_paused for one in here.node.connections) == 2)
        quick = await here.greet()
        for _ in range(3):
            assert await walk(quick, upper=EPOCH - 96) == LETTERS
        ends = []
        for peer in slow:
            for _ in range(2):
                packets, end = await page(peer)
                assert isinstance(end, Completed)
                envelopes = flat(packets)
                assert end.last_hash == envelopes[-1].hash
                ends.append((envelopes, end.cursor))
        assert any(cursor for _, cursor in ends)
        for envelopes, cursor in ends:
            assert envelopes + (await walk(quick, cursor, lower=EPOCH - 40) if cursor else []) == large
        requests = here.node.history_requests
        slow[0].say_all([(waku_packets.REQUEST, plain(lower=EPOCH - 40))] * 5)
        await here.until("a page that waits", lambda: any(one.writing_paused for one in here.node.connections))
        slow[0].cut()
        await here.until("nothing that waits", lambda: not requests.queued_bytes)
        assert await walk(quick, upper=EPOCH - 96) == LETTERS


async def test_a_post_is_confirmed_before_the_rest_of_its_senders_own_page(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        letters = [letter(number, age=30, size=30_000) for number in range(100)]
        await here.archive.save(letters, EPOCH)
        peer = await here.greet()
        here.narrow(peer)
        [connection] = here.node.connections
        peer.say(waku_packets.REQUEST, plain())
        await here.until("a page that waits", lambda: connection.writing_paused)
        peer.offer([letter(1000)])
        await here.until("the post", lambda: here.archive.batches[-1:] == [1])
        await here.archived()
        handed_over = here.node.history_requests.packets.count
        codes: list[int] = []
        while not codes or codes[-1] != waku_packets.REQUEST_COMPLETE:
            codes.append((await peer.hear())[0])
        before = codes.index(waku_packets.MESSAGE_RESPONSE)
        assert before <= handed_over < codes.count(waku_packets.P2P_MESSAGE)


@pytest.mark.parametrize(("descending", "sent"), [(False, EPOCH + 1), (True, EPOCH - 41)])
async def test_a_cursor_behind_all_of_the_requested_times_is_an_error(
    tmp_path: Path, descending: bool, sent: int
) -> None:
    async with inside(tmp_path, history=HistoryTerms(descending=descending)) as here:
        peer = await here.greet()
        _, end = await ask(peer, plain(lower=EPOCH - 40, cursor=sent.to_bytes(4) + bytes(32)))
        assert end == RequestRefused(ID, "request is invalid: the cursor is no position in the requested times")
        assert await fetch_page(peer, lower=EPOCH - 40, cursor=(EPOCH - 20).to_bytes(4) + bytes(32)) == ([], b"")


async def test_a_page_without_room_is_searched_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restante.waku.node.history_requests.MAX_PAGES", 1)
    async with inside(tmp_path) as here:
        await here.archive.save(LETTERS, EPOCH)
        requests = here.node.history_requests
        here.archive.search.clear()
        slow = await here.greet()
        [connection] = here.node.connections
        quick = await here.greet()
        slow.say(waku_packets.REQUEST, plain())
        await here.until("its search", lambda: bool(here.archive.asked))
        connection.pause_writing()
        quick.say(waku_packets.REQUEST, plain())
        await quick.fence()
        here.archive.search.set()
        assert flat((await page(quick))[0]) == LETTERS
        connection.resume_writing()
        packets, end = await page(slow)
        assert (flat(packets), end) == (LETTERS, Completed(ID, LETTERS[-1].hash))
        assert requests.counts[history_requests.RequestCount.BATCHED] == 2, "both were answered once"


@pytest.mark.parametrize(
    ("error", "text", "why", "ready"),
    [
        (StoreDamaged("a page"), "the archive cannot be read", "iterator", "the archive is damaged"),
        (StoreError("no"), "the archive cannot be read", "iterator", ""),
        (ValueError("ours"), "internal error", "process", ""),
    ],
)
async def test_a_failed_search_is_answered_with_an_error_and_logged_once(
    error: Exception, text: str, why: str, ready: str, tmp_path: Path
) -> None:
    async with inside(tmp_path) as here:
        peer = await here.greet()
        with patch.object(here.archive, "page", side_effect=error), structlog.testing.capture_logs() as logs:
            for _ in range(3):
                assert (await ask(peer))[1] == RequestRefused(ID, text)
        if isinstance(error, StoreError):
            assert logs == [{"event": text, "log_level": "error", "reason": str(error)}]
        assert here.node.history_requests.refusals == {why: 3}
        assert here.node.ready() == ready
        assert (await ask(peer))[1] == Completed(ID)


async def test_six_hundred_small_pages_one_after_the_other_are_all_sent(tmp_path: Path) -> None:
    """status-go gives a Mailserver up after two errors (protocol/messenger_mailserver_cycle.go)."""
    letters = [letter(number, age=700 - number) for number in range(600)]
    limits = Limits()
    async with inside(tmp_path) as here:
        clock = here.clock
        await here.archive.save(letters, EPOCH)
        peer = await here.greet()
        assert await walk(peer, limit=1) == letters
        over = len(letters) - limits.pages_at_once - 1
        assert over / limits.pages <= clock.passed < over / limits.pages + 1
        assert here.node.history_requests.counts[history_requests.RequestCount.REFUSED] == 0


async def test_a_requester_that_makes_the_node_examine_much_is_answered_later(tmp_path: Path) -> None:
    async with inside(tmp_path, limits=Limits(rows=1.0, rows_at_once=len(LETTERS))) as here:
        clock = here.clock
        await here.archive.save(LETTERS, EPOCH)
        peer = await here.greet()
        wanted = PageQuery(lower=0, upper=EPOCH, topics=frozenset((TOPIC,)), limit=1000)
        examined = (await here.archive.page(wanted)).examined
        for number in range(10):
            assert (await fetch_page(peer))[0] == LETTERS
            assert clock.passed == pytest.approx(max(0, number * examined - len(LETTERS)), abs=0.1)


async def test_a_waiting_requester_is_still_read_delays_only_its_own_address_and_may_leave(tmp_path: Path) -> None:
    async with inside(tmp_path, limits=Limits(pages=1.0, pages_at_once=1)) as here:
        requests = here.node.history_requests
        clock = here.clock
        await here.archive.save(LETTERS, EPOCH)
        hasty, neighbour, other = await here.greet(NOTHING), await here.greet(NOTHING), await elsewhere(here)
        for _ in range(2):
            assert (await fetch_page(hasty))[0] == LETTERS
        clock.on.clear()
        hasty.say_all([(waku_packets.REQUEST, plain())] * 10)
        neighbour.say(waku_packets.REQUEST, plain())
        await here.until("those who wait", lambda: clock.waiting == 2)
        assert not (await hasty.post(letter(99, topic=b"else"))).refusals
        assert (await fetch_page(other))[0] == LETTERS
        assert (hasty.inbox, requests.queued_bytes) == ([], 11 * SMALL)
        hasty.cut()
        await here.until("the loss", lambda: clock.waiting == 1)
        assert requests.queued_bytes == SMALL
        clock.on.set()
        assert flat((await page(neighbour))[0]) == LETTERS
        assert requests.queued_bytes == 0


async def test_a_request_that_would_wait_too_long_is_refused_and_not_charged(tmp_path: Path) -> None:
    async with inside(tmp_path, limits=Limits(pages=1 / MAX_QUEUE_SECONDS, pages_at_once=1)) as here:
        clock = here.clock
        peer = await here.greet()
        for _ in range(2):
            await fetch_page(peer)
        clock.on.clear()
        peer.say(waku_packets.REQUEST, plain())
        await here.until("one that waits", lambda: clock.waiting == 1)
        other = await here.greet()
        other.say(waku_packets.REQUEST, plain())
        await here.until("another", lambda: clock.waiting == 2)
        clock.on.set()
        ends = [(await page(requester))[1] for requester in (peer, other)]
        assert sorted(map(str, ends)) == sorted(map(str, [Completed(ID), LATE]))
        assert clock.passed == pytest.approx(MAX_QUEUE_SECONDS, abs=0.01)
        assert here.node.history_requests.counts[history_requests.RequestCount.REFUSED] == 1
        clock.passed += MAX_QUEUE_SECONDS
        await fetch_page(peer)


async def test_a_slow_reader_does_not_exceed_the_rate(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        clock = here.clock
        await here.archive.save(LETTERS, EPOCH)
        here.archive.search.clear()
        peer = await here.greet()
        [connection] = here.node.connections
        peer.say_all([(waku_packets.REQUEST, plain())] * 3)
        await peer.fence()
        connection.pause_writing()
        here.archive.search.set()
        await here.until("a page that waits", here.node.history_requests.queries.total)
        clock.passed += 2 * MAX_QUEUE_SECONDS
        connection.resume_writing()
        for _ in range(3):
            assert flat((await page(peer))[0]) == LETTERS


async def test_waiting_requests_have_a_limit_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = plain(topics=frozenset(number.to_bytes(4, "big") for number in range(1000)))
    monkeypatch.setattr("restante.waku.node.history_requests.MAX_QUEUED_BYTES", 3 * LARGE)
    async with inside(tmp_path) as here:
        await here.archive.save(LETTERS, EPOCH)
        here.archive.search.clear()
        requests = here.node.history_requests
        greedy = [await elsewhere(here, number) for number in (11, 12)]
        for peer in greedy:
            peer.say_all([(waku_packets.REQUEST, large)] * 3)
            await peer.fence()
        assert requests.counts[history_requests.RequestCount.REFUSED] == 3
        modest = await elsewhere(here, 13)
        modest.say_all([(waku_packets.REQUEST, plain())] * (history_requests.GUARANTEED_QUEUE_BYTES // SMALL + 1))
        await modest.fence()
        assert requests.counts[history_requests.RequestCount.REFUSED] == 4
        assert (await page(modest))[1] == TOO_MANY
        here.archive.search.set()
        for _ in range(history_requests.GUARANTEED_QUEUE_BYTES // SMALL):
            assert flat((await page(modest))[0]) == LETTERS
        ends = [(await page(peer))[1] for peer in greedy for _ in range(3)]
        assert ends == [Completed(ID)] * 3 + [TOO_MANY] * 3
        assert requests.queued_bytes == 0


RANDOM = random.Random(2026)
CROWD = [letter(100 + number, topic=RANDOM.randbytes(4), age=50) for number in range(3000)]

ATTACKS: list[dict[str, Any]] = [
    {"bloom": sum(1 << bit for bit in RANDOM.sample(range(512), 256))},
    {"topics": frozenset(envelope.topic for envelope in CROWD[:1000])},
]
"""What is asked for, again and again; each page looks at ten rows, and so only at a part of it."""


@pytest.mark.parametrize("fields", ATTACKS, ids=["a bloom half full", "a thousand topics"])
@pytest.mark.parametrize("alone", [True, False], ids=["of one address", "of many"])
async def test_a_request_waits_for_few_pages_of_others(
    fields: dict[str, Any], alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those in the making may be finished before ours is read, before it is in line, and before its page is heard."""
    monkeypatch.setattr(history_requests, "MAX_REMEMBERED_REQUESTERS", 2)
    many, body = MAX_PAGES + 4, plain(limit=1000, **{"topics": frozenset()} | fields)
    before, made = (MAX_PAGES_PER_ADDRESS, MAX_PAGES_PER_ADDRESS) if alone else (many, MAX_PAGES)

    async def ask_on(peer: RawPeer) -> None:
        peer.say_all([(waku_packets.REQUEST, body)] * 7)
        while True:
            await ask(peer, body)

    unlimited = Limits(pages=0, rows=0)  # what rates would stop is what is to be borne here
    async with inside(tmp_path, limits=unlimited, history=HistoryTerms(bounds=Bounds(rows=10))) as here:
        await here.archive.save([*LETTERS, *CROWD], EPOCH)
        here.archive.readers.close()
        # With more readers, how many pages other threads search meanwhile would be chance.
        here.archive.readers = Readers.open(tmp_path / ARCHIVE_FILE, 1)
        attackers = [await elsewhere(here, 100 if alone else 100 + number) for number in range(many)]
        attacks = [asyncio.create_task(ask_on(peer)) for peer in attackers]
        peer, counts, waited = await elsewhere(here), here.node.history_requests.counts, []
        for _ in range(8):
            answered = counts[history_requests.RequestCount.ANSWERED]
            packets, _ = await ask(peer)
            assert flat(packets) == LETTERS
            waited.append(counts[history_requests.RequestCount.ANSWERED] - answered - 1)
        for task in attacks:
            task.cancel()
        ended = await asyncio.gather(*attacks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended
    assert 0 < max(waited) <= before + 3 * made
