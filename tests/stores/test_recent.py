"""What usage records say about the last hour, day and week, compared with a count in Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from restante.common.usage_records import RESULTS, MailboxUsage, Result
from restante.mailbox.core.model import Now
from restante.mailbox.store import recent
from restante.mailbox.store.sqlite import Store

NOW = 1_000_000_000.0
SPANS = {"hour": 3600, "day": 86400, "week": 7 * 86400}


async def filled(folder: Path, records: Sequence[tuple[float, Result, float | None]]) -> None:
    """Make a database with the usage records of mailboxes: when each began, its result, and its waiting time."""
    store = Store.open(folder)
    changes = [MailboxUsage("app", True, started, waiting, 99.0, result) for started, result, waiting in records]
    await store.apply(changes, Now(NOW, 0.0))
    await store.close()


async def test_results_are_counted_by_span_and_waits_are_of_the_last_day(tmp_path: Path) -> None:
    dice = random.Random(7)
    records = [
        (NOW - dice.uniform(-100, 8 * 86400), dice.choice(RESULTS), dice.choice([None, dice.uniform(0, 90)]))
        for _ in range(2000)
    ]
    await filled(tmp_path, records)
    found = recent.read(tmp_path, NOW)
    for span, seconds in SPANS.items():
        within = [result for started, result, _ in records if NOW - seconds <= started <= NOW]
        assert found["results"][span] == {result: within.count(result) for result in RESULTS}
    waits = sorted(wait for started, _, wait in records if NOW - 86400 <= started <= NOW and wait is not None)
    shown = found["waiting_seconds"]
    assert (shown["mailboxes"], shown["latest"]) == (len(waits), len(waits))
    for share in (50, 90, 99):
        assert sum(wait <= shown[f"p{share}"] for wait in waits) >= len(waits) * share / 100
        assert sum(wait < shown[f"p{share}"] for wait in waits) < len(waits) * share / 100


async def test_of_many_mailboxes_all_are_counted_and_the_waits_are_of_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "MAX_WAITS", 10)
    await filled(tmp_path, [(NOW - age, "happy", float(age)) for age in range(1, 101)])
    found = recent.read(tmp_path, NOW)["waiting_seconds"]
    assert found == {"mailboxes": 100, "latest": 10, "p50": 5.0, "p90": 9.0, "p99": 10.0}


async def test_without_records_there_are_no_percentiles(tmp_path: Path) -> None:
    await filled(tmp_path, [])
    found = recent.read(tmp_path, NOW)["waiting_seconds"]
    assert found == {"mailboxes": 0, "latest": 0, "p50": None, "p90": None, "p99": None}
