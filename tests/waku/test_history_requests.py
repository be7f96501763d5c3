"""Requests over real RLPx: every shape is answered, strictly in form and order, and nobody holds up another."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
import structlog

from restante.common.errors import StoreDamaged, StoreError
from restante.waku.archive.history.query import Bounds, Page, PageQuery
from restante.waku.envelope import bloom, rlp
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keys import new_key, node_id
from restante.waku.envelope.payload import SymmetricKey, seal
from restante.waku.limits import Limits
from restante.waku.node import requester_quotas
from restante.waku.node.history_requests import MAX_QUEUED_REQUESTS, HistoryTerms
from restante.waku.node.requester_quotas import MAX_PAGES_PER_ADDRESS
from restante.waku.protocol import completion
from restante.waku.protocol import packets as waku_packets
from restante.waku.protocol.completion import Completed, Failed
from restante.waku.protocol.request import Demands
from support.dice import Seeded
from support.effort import rounds
from support.waku.asking import ID, flat, page, plain, walk
from support.waku.inside import TURNS, Inside, inside
from support.waku.letters import EPOCH, TOPIC, letter
from support.waku.raw_peer import RawPeer

PASSWORD = SymmetricKey(b"\7" * 32)
DICE = Seeded(7)
OTHER = b"\xff\xff\xff\xff"

DEMANDS = HistoryTerms(demands=Demands(keys=(PASSWORD,)))


def sealed(body: bytes, *, to: SymmetricKey | bytes = PASSWORD, sign: bool = True) -> Envelope:
    data = seal(body, to=to, dice=DICE, sign=new_key(DICE) if sign else None)
    return make(EPOCH + 50, 50, bytes(4), data)


async def archive(here: Inside, *envelopes: Envelope) -> None:
    await here.archive.save(envelopes, EPOCH)


LETTERS = [letter(number, age=100 - number) for number in range(5)]
FILTER = bloom.write(bloom.of([TOPIC]))

SHAPES: dict[str, Any] = {
    "with topics and batch": [0, EPOCH, b"", [TOPIC], 0, b"", True],
    "with a filter too": [0, EPOCH, FILTER, [TOPIC], 10, b"", True],
    "by filter and batch": [0, EPOCH, FILTER, 10, b"", True],
    "as RFC 8 has it": [0, EPOCH, b"", 10, b"", [TOPIC]],
    "as the text has it": [0, EPOCH, FILTER, 10, b""],
    "as the text has it, no cursor": [0, EPOCH, FILTER, 10],
}
LISTS = {"as RFC 8 has it", "as the text has it", "as the text has it, no cursor"}


async def test_every_form_of_request_is_answered_in_the_form_that_its_sender_reads(tmp_path: Path) -> None:
    async with inside(tmp_path, history=DEMANDS) as here:
        await archive(here, *LETTERS, letter(99, topic=OTHER))
        peer = await here.greet()
        for shape, body in SHAPES.items():
            asked = sealed(rlp.encode(body))
            peer.say(waku_packets.REQUEST, asked.raw)
            packets: list[list[Envelope]] = []
            while (heard := await peer.hear())[0] == waku_packets.P2P_MESSAGE:
                packets.append(waku_packets.read_envelopes(heard[1]))
            assert flat(packets) == LETTERS, shape
            assert rlp.span(heard[1]).is_list == (shape in LISTS), shape
            assert completion.read(heard[1]) == Completed(asked.hash, LETTERS[-1].hash), shape


async def test_the_old_fixed_form_and_one_for_our_own_key_are_answered(tmp_path: Path) -> None:
    async with inside(tmp_path) as before:
        key = before.node.key
    async with inside(tmp_path, history=HistoryTerms(demands=Demands(keys=(PASSWORD, key)))) as here:
        await archive(here, *LETTERS)
        peer = await here.greet()
        old = EPOCH.to_bytes(4, "big")
        for asked in (
            sealed(bytes([0x50, 0, 0, 0]) + old + FILTER),
            sealed(rlp.encode(SHAPES["by filter and batch"]), to=key.public),
        ):
            peer.say(waku_packets.REQUEST, asked.raw)
            packets, end = await page(peer)
            assert flat(packets) == LETTERS
            assert end == Completed(asked.hash, LETTERS[-1].hash)


async def test_the_cursor_loop_returns_each_envelope_once_in_both_orders(tmp_path: Path) -> None:
    for descending in (False, True):
        async with inside(tmp_path / str(descending), history=HistoryTerms(descending=descending)) as here:
            await archive(here, *LETTERS)
            peer = await here.greet()
            found: list[Envelope] = []
            cursor, pages = b"", 0
            while True:
                peer.say(waku_packets.REQUEST, plain(limit=2, cursor=cursor))
                packets, end = await page(peer)
                assert isinstance(end, Completed)
                found += flat(packets)
                pages += 1
                if not end.cursor:
                    break
                assert len(end.cursor) == 36
                cursor = end.cursor
            assert found == (LETTERS[::-1] if descending else LETTERS)
            assert pages == 3


async def test_without_batch_each_envelope_has_a_packet(tmp_path: Path) -> None:
    async with inside(tmp_path, history=DEMANDS) as here:
        await archive(here, *LETTERS)
        peer = await here.greet()
        peer.say(waku_packets.REQUEST, sealed(rlp.encode([0, EPOCH, b"", [TOPIC], 0, b"", False])).raw)
        packets, _ = await page(peer)
        assert [len(packet) for packet in packets] == [1] * len(LETTERS)


async def test_packets_stay_under_a_mebibyte(tmp_path: Path) -> None:
    large = [letter(number, size=300_000, age=9 - number) for number in range(4)]
    async with inside(tmp_path) as here:
        await archive(here, *large)
        peer = await here.greet()
        peer.say(waku_packets.REQUEST, plain())
        packets, _ = await page(peer)
        assert [len(packet) for packet in packets] == [3, 1]


async def test_a_packet_of_several_has_room_to_spare_below_a_mebibyte(tmp_path: Path) -> None:
    """Two would fit with their head exactly; there may be receivers that count otherwise."""
    first = letter(1, size=500_000, age=9)
    base = len(letter(2, size=500_000).raw) - 500_000
    second = letter(2, size=waku_packets.MAX_ENVELOPE_BYTES - len(first.raw) - base, age=8)
    assert len(waku_packets.write_envelopes([first.raw, second.raw])) == waku_packets.MAX_PACKET_BYTES
    async with inside(tmp_path) as here:
        await archive(here, first, second)
        peer = await here.greet()
        peer.say(waku_packets.REQUEST, plain())
        packets, _ = await page(peer)
        assert packets == [[first], [second]]


@pytest.mark.parametrize("batch", [True, False])
async def test_an_envelope_that_fits_no_packet_is_left_out_and_never_named_as_the_last(
    batch: bool, tmp_path: Path
) -> None:
    """A requester waits for the envelope that a page says is its last."""
    largest = [letter(number, size=(1 << 20) - 20, age=20 - number) for number in range(3)]
    first, last = letter(50, age=19), letter(51, age=10)
    assert all(len(each.raw) > (1 << 20) - 16 for each in largest)
    async with inside(tmp_path, history=DEMANDS) as here:
        await archive(here, *largest, first)
        peer = await here.greet()
        for limit, expected in ((0, [first]), (1, []), (3, [first])):
            peer.say(waku_packets.REQUEST, sealed(rlp.encode([0, EPOCH, b"", [TOPIC], limit, b"", batch])).raw)
            packets, end = await page(peer)
            assert flat(packets) == expected
            assert isinstance(end, Completed)
            assert end.last == (expected[-1].hash if expected else completion.NO_HASH)
        assert await walk(peer, limit=1) == [first]
        await archive(here, last)
        assert await walk(peer, limit=1) == [first, last]


async def test_an_empty_result_has_a_hash_of_zeros(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        peer = await here.greet()
        peer.say(waku_packets.REQUEST, plain())
        assert await page(peer) == ([], Completed(ID))


REFUSED: dict[str, tuple[bytes, str]] = {
    "lower above upper": (plain(lower=EPOCH + 1), "query range is invalid: lower > upper"),
    "nothing asked for": (plain(topics=frozenset()), "bloom filter and topics is empty"),
    "another password": (
        sealed(rlp.encode(SHAPES["as the text has it"]), to=SymmetricKey(b"\1" * 32)).raw,
        "failed to decrypt p2p request",
    ),
    "a limit beyond a thousand": (
        rlp.encode([ID, 0, EPOCH, 1001, b"", b"", [TOPIC]]),
        "limit exceeds the maximum allowed value",
    ),
    "a filter of 63 bytes": (rlp.encode([ID, 0, EPOCH, 0, b"", bytes(63), []]), "bloom"),
    "a cursor of 35 bytes": (rlp.encode([ID, 0, EPOCH, 0, bytes(35), b"", [TOPIC]]), "cursor"),
}


async def test_a_request_that_cannot_be_served_is_answered_with_an_error(tmp_path: Path) -> None:
    async with inside(tmp_path, history=DEMANDS) as here:
        peer = await here.greet()
        for case, (asked, words) in REFUSED.items():
            peer.say(waku_packets.REQUEST, asked)
            _, end = await page(peer)
            assert isinstance(end, Failed), case
            assert words in end.words, case
            peer.say(waku_packets.REQUEST, plain())
            assert await page(peer) == ([], Completed(ID)), case


async def test_a_packet_that_is_no_request_is_only_counted(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        peer = await here.greet()
        for junk in (b"", b"\x80", b"\xc0", rlp.encode([1] * 6), b"\xff" * 20):
            peer.say(waku_packets.REQUEST, junk)
        await peer.fence()
        assert peer.inbox == []
        assert here.node.history_requests.counts["requests refused"] == 5


async def test_signatures_forms_and_nodes_can_be_demanded(tmp_path: Path) -> None:
    friend = new_key(Seeded(99))
    body = rlp.encode(SHAPES["as the text has it"])
    terms = HistoryTerms(
        demands=Demands(keys=(PASSWORD,), require_signature=True, forms=frozenset(("envelope",))),
        allow=frozenset((node_id(friend.public),)),
    )
    async with inside(tmp_path, history=terms) as here:
        known, stranger = await here.greet(key=friend), await here.greet()
        told = []
        for peer, asked in (
            (known, plain()),
            (known, sealed(body, sign=False).raw),
            (stranger, sealed(body).raw),
            (known, sealed(body).raw),
        ):
            peer.say(waku_packets.REQUEST, asked)
            _, end = await page(peer)
            told.append(end.words if isinstance(end, Failed) else "served")
        assert told == [
            "this server takes no plain requests",
            "check message signature failed: wrong signature of p2p request",
            "this server serves those that it was told to",
            "served",
        ]


async def test_a_requester_that_asks_too_often_is_refused_even_after_it_reconnects(tmp_path: Path) -> None:
    async with inside(tmp_path, limits=Limits(pages=0.001, pages_at_once=2)) as here:
        peer = await here.greet()
        ends = []
        for _ in range(4):
            peer.say(waku_packets.REQUEST, plain())
            ends.append((await page(peer))[1])
        assert ends[:2] == [Completed(ID)] * 2
        assert ends[3] == Failed(ID, "rate limit exceeded")
        peer.cut()
        await here.until("the end of its connection", lambda: not here.node.connections)
        again = await here.greet(key=peer.key)
        again.say(waku_packets.REQUEST, plain())
        assert (await page(again))[1] == Failed(ID, "rate limit exceeded")


async def test_a_requester_that_makes_the_node_examine_too_much_is_refused_even_with_a_new_key(
    tmp_path: Path,
) -> None:
    async with inside(tmp_path, limits=Limits(rows=0.001, rows_at_once=len(LETTERS))) as here:
        await archive(here, *LETTERS)
        peer = await here.greet()
        ends = []
        for _ in range(3):
            peer.say(waku_packets.REQUEST, plain())
            ends.append((await page(peer))[1])
        assert ends == [Completed(ID, LETTERS[-1].hash)] * 1 + [Failed(ID, "rate limit exceeded")] * 2
        another = await here.greet()
        another.say(waku_packets.REQUEST, plain())
        assert (await page(another))[1] == Failed(ID, "rate limit exceeded")
        elsewhere = await RawPeer.greet(here.port, here.node.key.public, source="127.0.0.9")
        elsewhere.say(waku_packets.REQUEST, plain())
        assert (await page(elsewhere))[1] == Completed(ID, LETTERS[-1].hash)
        elsewhere.cut()
        await here.until("its end", lambda: len(here.node.connections) == 2)
        moved = await here.greet(key=elsewhere.key)
        moved.say(waku_packets.REQUEST, plain())
        assert (await page(moved))[1] == Failed(ID, "rate limit exceeded")


async def test_three_loops_at_once_of_status_go_are_served(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        await archive(here, *LETTERS)
        peer = await here.greet()
        peer.say_all([(waku_packets.REQUEST, plain(id=bytes([number]) * 32)) for number in range(3)])
        ends = [(await page(peer))[1] for _ in range(3)]
        assert ends == [Completed(bytes([number]) * 32, LETTERS[-1].hash) for number in range(3)]


async def test_waiting_requests_of_a_peer_are_limited(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        peer = await here.greet()
        count = MAX_QUEUED_REQUESTS + 10
        peer.say_all([(waku_packets.REQUEST, plain(id=bytes([number]) * 32)) for number in range(count)])
        ends = [(await page(peer))[1] for _ in range(count)]
        refused = [end for end in ends if isinstance(end, Failed)]
        assert {end.words for end in refused} == {"too many requests at once"}
        assert {end.id for end in ends} == {bytes([number]) * 32 for number in range(count)}


async def test_a_requester_that_does_not_read_delays_nobody_and_costs_nothing_once_gone(tmp_path: Path) -> None:
    large = [make(EPOCH - 9 + number, 1, TOPIC, DICE.draw(900_000)) for number in range(9)]
    async with inside(tmp_path) as here:
        await archive(here, *large, *LETTERS)
        slow, quick = await here.greet(), await here.greet()
        for number in range(5):
            slow.say(waku_packets.REQUEST, plain(id=bytes([number]) * 32))
        await here.until(
            "a page that waits", lambda: any(connection.reading.stuck for connection in here.node.connections)
        )
        quick.say(waku_packets.REQUEST, plain(lower=EPOCH - 100, upper=EPOCH - 96))
        packets, _ = await page(quick)
        assert flat(packets) == LETTERS
        slow.cut()
        await here.until("nothing in the making", lambda: not here.node.history_requests._making)
        assert not here.node.history_requests._lines


@pytest.mark.parametrize("places", ["history_requests.MAX_PAGES", "requester_quotas.MAX_PAGES_PER_ADDRESS"])
async def test_requesters_that_do_not_read_give_up_their_places_to_waiting_ones(
    places: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their page ends where it is, with a cursor: with it they get the rest. Here all are of one address."""
    monkeypatch.setattr(f"restante.waku.node.{places}", 2)
    count, size = rounds(16, 25), rounds(300_000, 900_000)
    large = sorted((make(EPOCH - 29, 1, TOPIC, DICE.draw(size)) for _ in range(count)), key=lambda each: each.hash)
    async with inside(tmp_path, history=HistoryTerms(bounds=Bounds(bytes=32 << 20))) as here:
        await archive(here, *large, *LETTERS)
        slow = [await here.greet() for _ in range(2)]
        here.narrow(*slow)
        for peer in slow:
            peer.say_all([(waku_packets.REQUEST, plain(lower=EPOCH - 40))] * 2)
        await here.until("pages that wait", lambda: len(here.node.history_requests._unread) == 2)
        quick = await here.greet()
        for _ in range(3):
            assert await walk(quick, upper=EPOCH - 96) == LETTERS
        ends = []
        for peer in slow:
            for _ in range(2):
                packets, end = await page(peer)
                assert isinstance(end, Completed)
                found = flat(packets)
                assert end.last == found[-1].hash
                ends.append((found, end.cursor))
        assert any(cursor for _, cursor in ends)
        for found, cursor in ends:
            assert found + (await walk(quick, cursor, lower=EPOCH - 40) if cursor else []) == large


async def test_a_page_that_had_no_room_to_start_is_searched_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("restante.waku.node.history_requests.MAX_PAGES", 1)
    async with inside(tmp_path) as here:
        await archive(here, *LETTERS)
        made, on, make_page = asyncio.Event(), asyncio.Event(), here.archive.page

        async def when_told(query: PageQuery, bounds: Bounds) -> Page:
            made.set()
            await on.wait()
            return await make_page(query, bounds)

        here.archive.page = when_told  # type: ignore[method-assign, assignment]
        slow, quick = await here.greet(), await here.greet()
        slow.say(waku_packets.REQUEST, plain())
        await made.wait()
        [connection] = here.node.history_requests._making
        connection.pause_writing()
        quick.say(waku_packets.REQUEST, plain())
        await here.until("who waits", lambda: here.node.history_requests._slots.waiting == 1)
        on.set()
        assert flat((await page(quick))[0]) == LETTERS
        await here.until("a place that nobody has", lambda: not here.node.history_requests._slots.locked())
        assert connection in here.node.history_requests._making
        connection.resume_writing()
        packets, end = await page(slow)
        assert flat(packets) == LETTERS
        assert end == Completed(ID, LETTERS[-1].hash)
        assert here.node.history_requests.counts["requests answered"] == 2
        assert here.node.history_requests.counts["batched"] == 2


async def test_durations_below_a_millisecond_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop's clock has whole milliseconds."""
    seconds = itertools.count(1)
    monkeypatch.setattr("restante.waku.node.history_requests.perf_counter", lambda: next(seconds) / 8192)
    async with inside(tmp_path) as here:
        peer = await here.greet()
        peer.say(waku_packets.REQUEST, plain())
        assert await page(peer) == ([], Completed(ID))
        requests = here.node.history_requests
        await here.until("the end of its line", lambda: not requests._making)
        assert requests.searches.total == 1 / 8192
        assert (
            requests.delays.total == 3 / 8192
        )  # when it was read, two looks at the search, and when it was answered


async def test_the_search_of_a_requester_that_leaves_is_ended(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def without_end(_query: PageQuery, _bounds: Bounds) -> Page:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError

        here.archive.page = without_end  # type: ignore[method-assign, assignment]
        peer = await here.greet()
        peer.say(waku_packets.REQUEST, plain())
        await begun.wait()
        assert not ended.is_set()
        peer.cut()
        await here.until("the end of its search", ended.is_set)
        await here.until("nothing in the making", lambda: not here.node.history_requests._making)


async def test_one_address_has_a_limited_number_of_places(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        await archive(here, *LETTERS)
        on, make_page, lines = asyncio.Event(), here.archive.page, here.node.history_requests._making

        async def when_told(query: PageQuery, bounds: Bounds) -> Page:
            asked.append(query.limit)
            await on.wait()
            return await make_page(query, bounds)

        asked: list[int] = []
        here.archive.page = when_told  # type: ignore[method-assign, assignment]
        many = [await here.greet() for _ in range(MAX_PAGES_PER_ADDRESS + 2)]
        for number, peer in enumerate(many):
            peer.say(waku_packets.REQUEST, plain(limit=10 + number))
        await here.until("their lines", lambda: len(lines) == len(many) and len(asked) >= MAX_PAGES_PER_ADDRESS)
        other = await RawPeer.greet(here.port, here.node.key.public, source="127.0.0.9")
        other.say(waku_packets.REQUEST, plain(limit=99))
        await here.until("the page of another", lambda: 99 in asked)
        assert len(asked) == MAX_PAGES_PER_ADDRESS + 1
        on.set()
        for peer in (*many, other):
            assert flat((await page(peer))[0]) == LETTERS


async def test_an_address_has_its_places_once_however_many_others_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requester_quotas, "REMEMBERED_REQUESTERS", 2)
    async with inside(tmp_path) as here:
        await archive(here, *LETTERS)
        on, make_page, lines = asyncio.Event(), here.archive.page, here.node.history_requests._making

        async def when_told(query: PageQuery, bounds: Bounds) -> Page:
            asked.append(query.limit)
            await on.wait()
            return await make_page(query, bounds)

        asked: list[int] = []
        here.archive.page = when_told  # type: ignore[method-assign, assignment]
        many = [await here.greet() for _ in range(MAX_PAGES_PER_ADDRESS)]
        others = [
            await RawPeer.greet(here.port, here.node.key.public, source=f"127.0.0.{number}") for number in (2, 3, 4)
        ]
        for peer in (*many, *others):
            peer.say(waku_packets.REQUEST, plain(limit=10))
        await here.until("their pages", lambda: len(asked) == MAX_PAGES_PER_ADDRESS + len(others))
        late = await here.greet()
        late.say(waku_packets.REQUEST, plain(limit=99))
        await late.fence()
        await here.until("its line", lambda: len(lines) == MAX_PAGES_PER_ADDRESS + len(others) + 1)
        for _ in range(TURNS):
            await late.fence()
        assert 99 not in asked, "its address has no place for it"
        on.set()
        for peer in (*many, *others, late):
            assert flat((await page(peer))[0]) == LETTERS
        await here.until("the end of all lines", lambda: not lines)
        await (await here.greet()).fence()
        assert {each.lines for each in here.node.history_requests._quotas._quotas.values()} == {0}


async def test_damage_is_logged_once_and_the_node_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_args: object) -> None:
        raise StoreDamaged("the archive is damaged (a page): restore a backup")

    async with inside(tmp_path) as here:
        peer = await here.greet()
        assert here.node.ready() == ""
        with monkeypatch.context() as broken, structlog.testing.capture_logs() as logs:
            broken.setattr(here.archive, "page", fails)
            for _ in range(3):
                peer.say(waku_packets.REQUEST, plain())
                assert (await page(peer))[1] == Failed(ID, "the archive cannot be read")
        reason = "the archive is damaged (a page): restore a backup"
        assert logs == [{"event": "the archive cannot be read", "log_level": "error", "reason": reason}]
        assert here.node.ready() == "the archive is damaged"


@pytest.mark.parametrize(
    ("error", "words"),
    [(StoreError("damaged"), "the archive cannot be read"), (ValueError("ours"), "internal error")],
)
async def test_a_failed_search_is_answered_with_an_error(
    error: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_args: object) -> None:
        raise error

    async with inside(tmp_path) as here:
        peer = await here.greet()
        with monkeypatch.context() as broken:
            broken.setattr(here.archive, "page", fails)
            peer.say(waku_packets.REQUEST, plain())
            assert (await page(peer))[1] == Failed(ID, words)
        peer.say(waku_packets.REQUEST, plain())
        assert (await page(peer))[1] == Completed(ID)
