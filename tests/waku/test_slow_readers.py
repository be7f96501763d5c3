"""Who is slow to read a page holds nothing in the archive: its log is moved into it, and begins anew."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from restante.waku.archive.history.query import Bounds
from restante.waku.archive.schema import FILE
from restante.waku.envelope.envelope import make
from restante.waku.node.history_requests import HistoryTerms
from restante.waku.protocol import packets as waku_packets
from support.dice import Seeded
from support.waku.asking import flat, page, plain
from support.waku.inside import inside
from support.waku.letters import EPOCH, TOPIC, letter

CHECKPOINT: Final = 1 << 18
"""Bytes of the log, after which it is moved into the database."""


async def test_a_page_that_is_not_read_does_not_make_the_log_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("restante.waku.archive.sqlite.CHECKPOINT_BYTES", CHECKPOINT)
    dice, log, count = Seeded(3), tmp_path / f"{FILE}-wal", CHECKPOINT // 10_000
    large = [make(EPOCH - 50 + number, 1, TOPIC, dice.draw(300_000)) for number in range(25)]

    def size() -> int:
        return log.stat().st_size

    async with inside(tmp_path, history=HistoryTerms(bounds=Bounds(bytes=32 << 20))) as here:
        await here.archive.save(large, EPOCH)
        slow, poster = await here.greet(waku_packets.Options(pow=0.0, topics=frozenset())), await here.greet()
        here.narrow(slow)
        slow.say(waku_packets.REQUEST, plain(upper=EPOCH - 1))
        await here.until("a page that waits", lambda: bool(here.node.history_requests._unread))
        before = size()
        for batch in range(40):
            letters = [letter(count * batch + number, size=4000, ttl=100) for number in range(count)]
            assert not (await poster.post(*letters)).refusals
        await here.archive.prune(0, 1)  # waits for what the archive has left to do
        assert 40 * count * 4000 > 15 * CHECKPOINT
        assert here.node.history_requests._unread
        assert size() - before < 4 * CHECKPOINT
        packets, _ = await page(slow)
        assert flat(packets) == large
