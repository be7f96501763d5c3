"""When a batch is saved, by a clock that the test moves."""

from __future__ import annotations

import pytest

from restante.waku.node.save_schedule import (
    MAX_BATCH_ENVELOPES,
    MIN_BATCH_ENVELOPES,
    PROMPT_SECONDS,
    SAVE_INTERVAL,
    SaveSchedule,
)

LATE = PROMPT_SECONDS * 1.5
"""Seconds since a confirmation, of a peer that did not wait for it."""


def after_a_save() -> SaveSchedule:
    saves = SaveSchedule(SAVE_INTERVAL)
    saves.begin(100.0)
    return saves


def test_a_few_envelopes_wait_until_the_last_save_is_a_while_ago() -> None:
    saves = after_a_save()
    saves.gathered(LATE)
    assert saves.waits(MIN_BATCH_ENVELOPES - 1, 100.0) == pytest.approx(SAVE_INTERVAL)
    assert saves.waits(MIN_BATCH_ENVELOPES - 1, 100.0 + SAVE_INTERVAL / 4) == pytest.approx(SAVE_INTERVAL * 3 / 4)
    assert saves.waits(1, 100.0 + SAVE_INTERVAL * 1.01) == 0.0


def test_many_envelopes_are_saved_as_soon_as_no_data_waits_to_be_read() -> None:
    saves = after_a_save()
    saves.gathered(LATE)
    assert saves.waits(MIN_BATCH_ENVELOPES, 100.0) == 0.0
    assert saves.reads_on(MIN_BATCH_ENVELOPES, 100.0)


def test_waiting_data_is_read_until_the_batch_is_full_or_the_last_save_is_a_while_ago() -> None:
    saves = after_a_save()
    assert saves.reads_on(MAX_BATCH_ENVELOPES - 1, 100.0)
    assert not saves.reads_on(MAX_BATCH_ENVELOPES, 100.0)
    assert not saves.reads_on(MIN_BATCH_ENVELOPES, 100.0 + SAVE_INTERVAL * 1.01)


def test_an_envelope_of_a_peer_that_waited_for_its_confirmation_does_not_wait() -> None:
    saves = after_a_save()
    saves.gathered(PROMPT_SECONDS / 2)
    saves.gathered(LATE)
    assert saves.waits(2, 100.0) == 0.0


def test_whether_a_peer_waited_counts_for_one_batch() -> None:
    saves = after_a_save()
    saves.gathered(PROMPT_SECONDS / 2)
    saves.begin(100.0)
    saves.gathered(LATE)
    assert saves.waits(1, 100.0) > 0
