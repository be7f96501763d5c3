"""Who is slow to read a page holds nothing in the archive: its log is moved into it, and begins anew."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from restante.waku import wire
from restante.waku.answers import Terms
from restante.waku.archive.query import Bounds
from restante.waku.archive.schema import FILE
from restante.waku.envelope import make
from waku.asking import flat, page, plain
from waku.inside import Inside, inside
from waku.letters import EPOCH, TOPIC, letter
from waku.raw_peer import Dice, RawPeer

MIB: Final = 1 << 20

ROUNDS: Final = 40


def log_of(data: Path) -> int:
    return (data / f"{FILE}-wal").stat().st_size


async def ingest(here: Inside, poster: RawPeer) -> int:
    """Post some 16 MiB, and wait until the archive has nothing left to do; gives the bytes."""
    size = 0
    for number in range(ROUNDS):
        some = [letter(100 * number + each, size=4000, ttl=100) for each in range(100)]
        assert not (await poster.post(*some)).refusals
        size += sum(len(each.raw) for each in some)
    await here.archive._writing.do(lambda: None)
    return size


@pytest.fixture
def frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the log into the database for each MiB of it."""
    monkeypatch.setattr("restante.waku.archive.sqlite.CHECKPOINT", MIB)


@pytest.mark.usefixtures("frequent")
async def test_a_page_that_is_not_read_does_not_make_the_log_grow(tmp_path: Path) -> None:
    dice = Dice(3)
    large = [make(EPOCH - 50 + number, 1, TOPIC, dice.draw(900_000)) for number in range(25)]
    terms = Terms(bounds=Bounds(bytes=32 * MIB))  # more than all buffers of the kernel
    async with inside(tmp_path, history=terms) as here:
        await here.archive.save(large, EPOCH)
        slow, poster = await here.greet(wire.Options(pow=0.0, topics=frozenset())), await here.greet()
        slow.say(wire.REQUEST, plain(upper=EPOCH - 1))
        await here.until("a page that waits", lambda: bool(here.node.answers._unread))
        before = log_of(tmp_path)
        assert await ingest(here, poster) > 15 * MIB
        assert here.node.answers._unread
        assert log_of(tmp_path) - before < 4 * MIB
        packets, _ = await page(slow)
        assert flat(packets) == large


@pytest.mark.usefixtures("frequent")
async def test_who_reads_in_a_transaction_would_make_it_grow(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        await here.archive.save([letter()], EPOCH)
        with closing(sqlite3.connect(tmp_path / FILE)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM envelopes").fetchone()
            assert await ingest(here, await here.greet()) < log_of(tmp_path)
