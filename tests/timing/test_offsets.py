"""The offset of a client's clock: it is within its stated error, whatever the delays are."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from restante.timing.logs.records import Event, TraceLine, read_event, read_line
from restante.timing.model.exchanges import exchanges
from restante.timing.model.offsets import Offset, best, offsets
from support.timing.drawn import Drawn, Path, draw


def logged(drawn: Drawn, role: str) -> list[Event]:
    return [read_event(msgspec.json.encode(event)) for event in drawn.logs[role]]


def traced(drawn: Drawn) -> dict[str, list[TraceLine]]:
    lines = [read_line(msgspec.json.encode(line)) for line in drawn.trace]
    return {line.id: [line] for line in lines if line.id is not None}


def estimate(drawn: Drawn, role: str, *, trace: bool) -> Offset:
    """Return the only estimate of a log."""
    events = logged(drawn, role)
    found = offsets(exchanges(events, traced(drawn) if trace else {}), events)
    (offset,) = found.values()
    return offset


def paths(dice: random.Random) -> dict[str, Path]:
    """Draw delays of any kind: asymmetric ones, long ones, none."""
    return {
        role: Path(
            out=dice.choice((0.0, 0.0001, dice.expovariate(20), dice.expovariate(1))),
            back=dice.choice((0.0, 0.0001, dice.expovariate(20), dice.expovariate(1))),
            jitter=dice.choice((0.0, 0.001, dice.expovariate(10))),
        )
        for role in ("sender", "receiver")
    }


def drift(log: list[dict[str, Any]], ppm: float) -> None:
    """Let the clock of a log go faster from its first event on."""
    first = log[0]["start"]
    for event in log:
        event["start"] += (event["start"] - first) * ppm * 1e-6


@pytest.mark.parametrize("logs", [200, pytest.param(5_000, marks=pytest.mark.thorough)])
def test_the_offset_is_within_its_error_in_each_drawn_log(logs: int) -> None:
    """Half of the clocks drift, by 30 ppm at most."""
    dice = random.Random(17)
    wrong = []
    for number in range(logs):
        skews = {
            "sender": dice.choice((0.0, dice.gauss(0, 0.01), dice.gauss(0, 1000))),
            "receiver": dice.gauss(0, 1),
        }
        drawn = draw(dice, skews, paths(dice), pauses=dice.choice((0.05, 5.0)))
        for role, skew in skews.items():
            log = drawn.logs[role]
            lasted, ppm = log[-1]["start"] - log[0]["start"], dice.choice((0.0, dice.uniform(-30, 30)))
            drift(log, ppm)
            found = estimate(drawn, role, trace=bool(number % 2))
            ends = (skew * 1e6, skew * 1e6 + lasted * ppm)
            outside = any(abs(found.us - us) > found.error_us for us in ends)
            if outside or (found.moved_us and not ppm):
                wrong.append((number, role, skew, ppm, found))
    assert wrong == []


def test_the_error_is_half_of_what_the_fastest_messages_took() -> None:
    dice = random.Random(1)
    skews = {"sender": 5.0, "receiver": -5.0}
    drawn = draw(dice, skews, {role: Path(out=0.030, back=0.010, jitter=0.0) for role in skews})
    found = estimate(drawn, "sender", trace=True)
    log = drawn.logs["sender"]
    drifted = 30 * (log[-1]["start"] - log[0]["start"])
    assert 0 < drifted < 100
    assert found.error_us == pytest.approx(20_000 + drifted, abs=4)
    assert found.us == pytest.approx(5_000_000 - 10_000, abs=3)  # it cannot know that out takes longer than back


@pytest.mark.parametrize("step", [0.5, -0.5, 3600.0, -3600.0])
def test_a_clock_that_is_set_is_found_and_widens_the_error(step: float) -> None:
    dice = random.Random(2)
    skews = {"sender": 1.0, "receiver": 0.0}
    drawn = draw(dice, skews, {role: Path(0.02, 0.02, 0.001) for role in skews})
    log = drawn.logs["sender"]
    for event in log[len(log) // 2 :]:
        event["start"] += step
    found = estimate(drawn, "sender", trace=True)
    assert 0 < found.moved_us <= abs(step) * 1e6
    assert found.moved_us > abs(step) * 1e6 - 60_000  # the delays hide no more of it
    for skew in (1.0, 1.0 + step):
        assert abs(found.us - skew * 1e6) <= found.error_us


def test_a_clock_that_drifts_is_found() -> None:
    dice = random.Random(3)
    skews = {"sender": 0.0, "receiver": 0.0}
    drawn = draw(dice, skews, {role: Path(0.001, 0.001, 0.0) for role in skews}, pauses=60.0)
    log = drawn.logs["sender"]
    first = log[0]["start"]
    drift(log, 200.0)
    found = estimate(drawn, "sender", trace=True)
    assert found.moved_us > 0
    for event in log:
        assert abs(found.us - (event["start"] - first) * 200) <= found.error_us + 1


def test_a_log_without_an_answer_or_with_one_id_for_all_commands_has_no_offset() -> None:
    skews = {"sender": 0.0, "receiver": 0.0}
    drawn = draw(random.Random(4), skews, {role: Path(0.001, 0.001, 0.0) for role in skews})
    events = [event for event in logged(drawn, "sender") if event.name == "ws_send"]
    assert offsets(exchanges(events, traced(drawn)), events) == {}
    events = logged(drawn, "sender")
    for event in events:
        if event.id is not None:
            event.id = "one"
    assert offsets(exchanges(events, {}), events) == {}


def test_of_several_days_the_best_offset_counts_and_contradictions_show_that_the_clock_moved() -> None:
    assert best([]) is None
    assert best([Offset(100, 50), Offset(120, 10)]) == Offset(120, 10)
    assert best([Offset(0, 10), Offset(1000, 20)]) == Offset(0, 1020, moved_us=970)
    assert best([Offset(0, 10, moved_us=5), Offset(1, 20)]) == Offset(0, 21, moved_us=5)
