"""Deadlines of a connection: one timer, for the first of them, set anew only where that is another."""

from __future__ import annotations

import asyncio

from restante.waku.connection.deadlines import EARLY, NEVER, TIMER_STEP, Deadlines


def timer(deadlines: Deadlines) -> asyncio.TimerHandle | None:
    return deadlines._timer


async def test_an_expired_timer_can_be_set_again_for_the_same_time() -> None:
    loop, deadlines = asyncio.get_running_loop(), Deadlines()
    for _ in range(2):
        went_off = asyncio.Event()
        deadlines.status = loop.time()
        deadlines.arm(loop, went_off.set)
        await went_off.wait()
        assert deadlines.fired(1.0) == 1.0 + EARLY
        assert timer(deadlines) is None


def test_the_deadlines_of_all_connections_are_checked_together() -> None:
    deadlines = Deadlines()
    for due in (15.01, 15.05, 15.09):
        deadlines.set_session(due)
        assert abs(deadlines.session - 15.1) < TIMER_STEP / 1000
    deadlines.set_session(None)
    assert deadlines.session == NEVER
