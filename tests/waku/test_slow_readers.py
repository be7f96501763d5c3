"""Who is slow to read a page holds nothing in the archive: its log is moved into it, and begins anew."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from restante.waku.archive.history.query import Bounds
from restante.waku.archive.schema import FILE
from restante.waku.envelope.envelope import make
from restante.waku.node.history_requests import HistoryTerms
from restante.waku.protocol import packets as waku_packets
from support.dice import Seeded
from support.effort import rounds
from support.waku.asking import flat, page, plain
from support.waku.inside import Inside, inside
from support.waku.letters import EPOCH, TOPIC, letter
from support.waku.raw_peer import RawPeer

CHECKPOINT: Final = rounds(1 << 18, 1 << 20)
"""Bytes of the log, after which it is moved into the database."""


def log_of(data: Path) -> int:
    return (data / f"{FILE}-wal").stat().st_size


async def ingest(here: Inside, poster: RawPeer) -> int:
    """Post some 16 times as much, and wait until the archive has nothing left to do; gives the bytes."""
    size, count = 0, CHECKPOINT // 10_000
    for number in range(40):
        some = [letter(count * number + each, size=4000, ttl=100) for each in range(count)]
        assert not (await poster.post(*some)).refusals
        size += sum(len(each.raw) for each in some)
    await here.archive._writing.do(lambda: None)
    return size


@pytest.fixture
def frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the log into the database more often."""
    monkeypatch.setattr("restante.waku.archive.sqlite.CHECKPOINT_BYTES", CHECKPOINT)


@pytest.mark.usefixtures("frequent")
async def test_a_page_that_is_not_read_does_not_make_the_log_grow(tmp_path: Path) -> None:
    dice = Seeded(3)
    large = [make(EPOCH - 50 + number, 1, TOPIC, dice.draw(rounds(300_000, 900_000))) for number in range(25)]
    async with inside(tmp_path, history=HistoryTerms(bounds=Bounds(bytes=32 << 20))) as here:
        await here.archive.save(large, EPOCH)
        slow, poster = await here.greet(waku_packets.Options(pow=0.0, topics=frozenset())), await here.greet()
        here.narrow(slow)
        slow.say(waku_packets.REQUEST, plain(upper=EPOCH - 1))
        await here.until("a page that waits", lambda: bool(here.node.history_requests._unread))
        before = log_of(tmp_path)
        assert await ingest(here, poster) > 15 * CHECKPOINT
        assert here.node.history_requests._unread
        assert log_of(tmp_path) - before < 4 * CHECKPOINT
        packets, _ = await page(slow)
        assert flat(packets) == large


@pytest.mark.usefixtures("frequent")
async def test_the_test_notices_a_reader_that_makes_the_log_grow(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        await here.archive.save([letter()], EPOCH)
        with closing(sqlite3.connect(tmp_path / FILE)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM envelopes").fetchone()
            assert await ingest(here, await here.greet()) < log_of(tmp_path)
