"""In a turn of the loop, a bounded number of frames is read from all sockets, and a bounded slice written to them."""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from restante.mailbox.core.dispatcher import Dispatcher
from restante.mailbox.core.limits import MIB
from restante.mailbox.protocol import parsing
from restante.mailbox.server.commit_loop import CommitLoop
from restante.mailbox.server.read_budget import (
    BYTES_PER_FRAME,
    MAX_FRAMES_PER_TURN,
    MIN_READ_BYTES,
    PART_BYTES_PER_FRAME,
    PAYLOAD_BYTES_PER_FRAME,
    READERS_PER_TURN,
    REQUEST_BYTES_PER_FRAME,
    REQUEST_FRAMES,
    ReadBudget,
)
from restante.mailbox.server.send_budget import BYTES_PER_WRITE, MAX_BYTES_PER_TURN, SendBudget
from support.bounds import bounded
from support.mailbox.live import open_live
from support.mailbox.raw_socket import CONTINUATION, PING, TEXT, frame, handshake

FLOODERS = 20

FLOOD = 16 * 1024
"""Bytes that each of them sends at once, in the smallest frames."""


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The frames that were read in each turn of the loop."""
    turns: list[int] = []
    renew = ReadBudget._renew

    def counted(budget: ReadBudget) -> None:
        turns.append(budget.frames)
        renew(budget)

    monkeypatch.setattr(ReadBudget, "_renew", counted)
    return turns


@pytest.mark.parametrize(
    ("begins", "tiny"),
    [(frame(TEXT, fin=False), frame(CONTINUATION, fin=False)), (b"", frame(PING))],
    ids=["empty fragments", "pings"],
)
async def test_a_flood_of_tiny_frames_does_not_block_the_event_loop(
    tmp_path: Path, turns: list[int], begins: bytes, tiny: bytes
) -> None:
    """Twenty connections that sent 16 KiB of them each held the loop for 85 ms: 2,700 frames each, in one turn."""
    async with open_live(tmp_path) as live:
        flooders = [await live.enter() for _ in range(FLOODERS)]
        honest = await live.enter()
        turns.clear()
        for each in flooders:
            each.write(begins + tiny * (FLOOD // len(tiny)))
        honest.say(type="ping", ping=1)
        assert (await honest.hear())["type"] == "ack"
        assert (await honest.hear())["pong"] == 1
        async with bounded("a second's frames of all flooders"):
            while sum(turns) < FLOODERS * 1000:  # noqa: ASYNC110 - beyond that, a connection is not read in a second
                await asyncio.sleep(0)
        smallest = len(frame(PING))
        first_read = MAX_FRAMES_PER_TURN * BYTES_PER_FRAME // smallest + 1
        assert max(turns) <= first_read + MIN_READ_BYTES // smallest + 1, "what others read at once is parsed later"


async def test_requests_that_come_at_once_are_answered_over_several_turns(tmp_path: Path, turns: list[int]) -> None:
    """To answer one takes 0.14 ms: hundreds in a turn held the loop for 100 ms."""
    async with open_live(tmp_path) as live:
        sockets = [await live.connect() for _ in range(100)]
        for each in sockets:
            each.write(handshake())
        for each in sockets:
            async with bounded("the answer to a request"):
                assert b" 101 " in await each.reader.readuntil(b"\r\n\r\n")
        request = REQUEST_FRAMES + len(handshake()) // REQUEST_BYTES_PER_FRAME
        assert sum(turns) >= 99 * request
        assert max(turns) <= MAX_FRAMES_PER_TURN + (READERS_PER_TURN + 1) * request


@pytest.mark.parametrize("in_fragments", [False, True], ids=["one frame", "fragments"])
async def test_large_messages_that_end_at_once_end_in_several_turns(
    tmp_path: Path, turns: list[int], in_fragments: bool
) -> None:
    """Twenty clients held back the last byte of 2 MiB each: to copy and check all of them took 110 ms in a turn."""
    text = b'{"type":"ping","ping":"' + b"x" * (MIB // 2) + b'"}'
    begun, end = frame(TEXT, text)[:-1], frame(TEXT, text)[-1:]
    if in_fragments:
        begun, end = frame(TEXT, text, fin=False), frame(CONTINUATION)
    async with open_live(tmp_path) as live:
        senders = [await live.enter() for _ in range(FLOODERS)]
        for each in senders:
            each.write(begun)
            await each.writer.drain()
        async with bounded("all but the ends to arrive"):
            while live.server.reading < FLOODERS * MIB:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        turns.clear()
        for each in senders:
            each.write(end)
        for each in senders:
            assert (await each.hear())["type"] == "ack"
        assert sum(turns) >= FLOODERS * len(text) // PAYLOAD_BYTES_PER_FRAME
        # A message may end with one frame of the budget left, and one that waited goes on (ReadBudget.wait).
        assert max(turns) <= MAX_FRAMES_PER_TURN + 2 * (len(text) // PAYLOAD_BYTES_PER_FRAME + 1)


async def test_parts_of_large_messages_are_parsed_in_several_turns(tmp_path: Path, turns: list[int]) -> None:
    """Twenty senders of 2 MiB had 200 reads parsed in a turn, 18 µs each: reads that ended no frame did not count."""
    part = frame(TEXT, bytes(MIB // 4))[:-1]
    async with open_live(tmp_path) as live:
        senders = [await live.enter() for _ in range(5 * FLOODERS)]
        turns.clear()
        for each in senders:
            each.write(part)
        async with bounded("all parts"):
            while sum(turns) < len(senders) * len(part) // PART_BYTES_PER_FRAME:  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert max(turns) <= MAX_FRAMES_PER_TURN + 2 * MAX_FRAMES_PER_TURN * BYTES_PER_FRAME // PART_BYTES_PER_FRAME


async def test_large_messages_end_and_are_parsed_and_handled_in_different_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To end, parse and handle one of 2 MiB takes 2, 3 and 4 ms. All in one turn held the loop for 14 ms."""
    turns: list[set[str]] = [set()]
    over = False

    def begin_turn() -> None:
        turns.append(set())
        if not over:
            asyncio.get_running_loop().call_soon(begin_turn)

    def noting(what: str, owner: object, name: str) -> None:
        function = getattr(owner, name)

        def noted(*arguments: Any) -> Any:
            if any(isinstance(each, (str, bytes)) and len(each) > MIB // 4 for each in arguments):
                turns[-1].add(what)
            return function(*arguments)

        monkeypatch.setattr(owner, name, noted)

    noting("ended", CommitLoop, "receive")
    noting("parsed", parsing, "_parse_long")
    noting("handled", Dispatcher, "handle")
    large = frame(TEXT, b'{"type":"ping","ping":"' + b"x" * (MIB // 2) + b'"}')
    async with open_live(tmp_path) as live:
        senders = [await live.enter() for _ in range(FLOODERS)]
        begin_turn()
        for each in senders:
            each.write(large * 3)
        for each in senders:
            for _ in range(3):
                assert [(await each.hear())["type"] for _ in range(2)] == ["ack", "pong"]
        over = True
    assert all(len(turn) <= 1 for turn in turns)
    for step in ("parsed", "handled"):
        assert sum(step in turn for turn in turns) == 3 * FLOODERS


async def test_a_large_message_that_is_not_ascii_is_held_delivered_and_stored_as_its_bytes(tmp_path: Path) -> None:
    body = "\\n" * 10_000 + "x" * (MIB // 2) + "😀"
    async with open_live(tmp_path) as live:
        sender, reader = [await live.enter() for _ in range(2)]
        for side, each in (("a", sender), ("b", reader)):
            each.say(type="bind", appid="x", side=side)
            each.say(type="open", mailbox="m")
        sender.write(frame(TEXT, f'{{"type":"add","phase":"1","body":"{body}"}}'.encode()))
        while (heard := await reader.hear())["type"] != "message":
            pass
        assert heard["body"] == json.loads(f'"{body}"')
        sender.write(frame(TEXT, b'{"type":"add","phase":"1","body":"' + b"\xff" * (MIB // 2) + b'"}'))
        async with bounded("the refusal of what is not UTF-8"):
            while (await sender.hear())["type"] != "error":
                pass
        [stored] = live.server.commit_loop._store.database.execute("SELECT typeof(body), body FROM messages")
        assert stored == ("text", f'"{body}"')


async def test_a_long_message_is_handled_in_a_turn_that_reads_and_writes_little(tmp_path: Path) -> None:
    async with open_live(tmp_path) as live:
        live.server.commit_loop.before_long()
        await asyncio.sleep(0)
        assert (live.server.read_budget.exhausted, live.server.send_budget.open) == (True, False)
        await asyncio.sleep(0)
        assert (live.server.read_budget.exhausted, live.server.send_budget.open) == (False, True)


# ── the budgets by themselves ────────────────────────────────────────────────────────────────────


async def test_in_a_reserved_turn_large_messages_wait_and_short_ones_do_not() -> None:
    budget, log = ReadBudget(), list[str]()
    budget.wait(functools.partial(log.append, "large"), large=True)
    budget.wait(functools.partial(log.append, "short"))
    budget.reserve()
    await asyncio.sleep(0)
    assert (log, budget.exhausted) == (["short"], True)
    await asyncio.sleep(0)
    assert (log, budget.exhausted) == (["short", "large"], False)


async def test_who_reads_a_short_message_does_not_wait_behind_large_ones() -> None:
    budget, log = ReadBudget(), list[str]()

    def end_large() -> None:
        log.append("large")
        budget.frames += MAX_FRAMES_PER_TURN

    for _ in range(3):
        budget.wait(end_large, large=True)
    budget.wait(functools.partial(log.append, "short"))
    for expected in (["short", "large"], ["short", "large", "large"]):
        await asyncio.sleep(0)
        assert log == expected


async def test_a_write_counts_whatever_its_size() -> None:
    """A batch of forty commands was sent to 1,280 subscribers in one turn of the loop: 24 ms."""
    send_budget = SendBudget()
    writes = 0
    while send_budget.open:
        send_budget.wrote(100)
        writes += 1
    assert 200 < writes <= MAX_BYTES_PER_TURN // BYTES_PER_WRITE
    await asyncio.sleep(0)
    assert send_budget.open
