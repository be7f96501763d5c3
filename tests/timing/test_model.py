"""What is computed from logs and traces, by vectors (tests/pipeline/test_tables.py) and by drawn transfers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise, product
from random import Random
from typing import Any

import pytest

from restante.timing.logs import read_line
from restante.timing.model import elapsed
from restante.timing.model.exchanges import day_of, pair_exchanges
from restante.timing.model.offsets import Offset, best_offset, estimate_offsets
from restante.timing.model.phases import ALL_PHASES
from restante.timing.model.timeline import MeasuredLog, match_deliveries
from support.timing.drawn import BEGAN, SIDES, Drawn, Path, draw, timeline_of
from support.timing.vectors import DELIVERY_VECTORS, VECTORS, by_id, events_of, lines_of, timing_rows


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_a_log_gives_the_phases_that_its_vector_has_in_any_order(vector: Mapping[str, Any]) -> None:
    expected = sorted(map(tuple, vector["rows"]), key=repr)
    events, lines = events_of(vector["log"]), lines_of(vector)
    assert sorted(timing_rows(events, lines), key=repr) == expected
    rows = timing_rows(events[::-1], lines[::-1])
    assert sorted(((len(events) - 1 - at, *row) for at, *row in rows), key=repr) == expected


def test_every_phase_is_in_a_vector() -> None:
    assert {row[2] for vector in VECTORS for row in vector["rows"]} == set(ALL_PHASES)


COLUMNS = (
    *("file", "id", "peer_file", "peer_id", "phase"),
    *("network_out_us", "at_server_us", "network_in_us", "us", "error_us"),
)


def computed_deliveries(vector: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the deliveries of a vector: those between logs that have messages of one other log only on a day."""
    # Of copies of a log the last one of the mapping counts: one that names a server, then by source.
    measured: dict[str, MeasuredLog] = {}
    for log in sorted(vector["logs"], key=lambda log: (log["server"] is None, log["source"]), reverse=True):
        events = events_of(log["events"])
        paired = pair_exchanges(events, by_id(lines_of(vector)) if log["server"] == "main" else {})
        measured[log["file"]] = MeasuredLog(events, paired, estimate_offsets(paired, events))
    computed = []
    partners = defaultdict(set)
    for (file, author), (peer_file, peer) in product(measured.items(), repeat=2):
        for item in match_deliveries(author, peer):
            day = day_of(item.rx)
            partners[file, day].add(peer_file)
            partners[peer_file, day].add(file)
            durations = (item.network_out_us, item.at_server_us, item.network_in_us, item.us, item.error_us)
            computed.append((day, (file, item.index, peer_file, item.peer_index, item.phase, *durations)))
    return [
        row
        for day, row in computed
        if row[0] != row[2] and len(partners[row[0], day]) == len(partners[row[2], day]) == 1
    ]


@pytest.mark.parametrize("vector", DELIVERY_VECTORS, ids=lambda vector: str(vector["name"]))
def test_logs_give_the_deliveries_that_their_vector_has_in_any_order(vector: Mapping[str, Any]) -> None:
    expected = sorted((tuple(row[name] for name in COLUMNS) for row in vector["deliveries"]), key=repr)
    for variant in (vector, {**vector, "logs": vector["logs"][::-1]}):
        assert sorted(computed_deliveries(variant), key=repr) == expected


@pytest.mark.parametrize("logs", [200, pytest.param(5_000, marks=pytest.mark.thorough)])
def test_the_offset_is_within_its_error_in_each_drawn_log(logs: int) -> None:
    dice = Random(17)
    for number in range(logs):
        skews = {"sender": dice.choice((0.0, dice.gauss(0, 0.01), dice.gauss(0, 1000))), "receiver": dice.gauss(0, 1)}
        paths = {}
        for role in SIDES:
            out, back = (dice.choice((0.0, 0.0001, dice.expovariate(20), dice.expovariate(1))) for _ in range(2))
            paths[role] = Path(out, back, dice.choice((0.0, 0.001, dice.expovariate(10))))
        drawn = draw(dice, skews, paths, pauses=dice.choice((0.05, 5.0)))
        lines = [read_line(line) for line in drawn.lines().splitlines()] if number % 2 else []
        for role, skew in skews.items():
            log = drawn.logs[role]
            start, duration = log[0]["start"], log[-1]["start"] - log[0]["start"]
            ppm = dice.choice((0.0, dice.uniform(-30, 30)))
            for event in log:
                event["start"] += (event["start"] - start) * ppm * 1e-6
            events = events_of(log)
            [offset] = estimate_offsets(pair_exchanges(events, by_id(lines)), events).values()
            for truth in (skew * 1e6, skew * 1e6 + duration * ppm):
                assert abs(offset.us - truth) <= offset.error_us, (number, role)
            assert ppm or not offset.moved_us, (number, role)


def test_of_several_days_the_best_offset_counts_and_contradictions_show_that_the_clock_moved() -> None:
    assert best_offset([]) is None
    assert best_offset([Offset(100, 50), Offset(120, 10)]) == Offset(120, 10)
    assert best_offset([Offset(0, 10), Offset(1000, 20)]) == Offset(0, 1020, moved_us=970)
    assert best_offset([Offset(0, 10, moved_us=5), Offset(1, 20)]) == Offset(0, 21, moved_us=5)


@pytest.fixture
def drawn() -> Drawn:
    return draw(Random(7), {"sender": 100.0, "receiver": -3.0}, dict.fromkeys(SIDES, Path(0.010, 0.010, 0.0)))


def test_each_message_is_traced_from_its_author_to_the_other_client(drawn: Drawn) -> None:
    timeline = timeline_of(drawn)
    added = Counter(way.role for way in drawn.ways if way.kind == "add")
    messages = [frame for frame in timeline.frames if frame.type == "message"]
    assert len(messages) == 2 * added.total()
    for frame in messages:
        assert frame.command is not None
        command = timeline.commands[frame.command]
        assert (frame.author, frame.phase, frame.sent_us) == (command.role, command.phase, command.answered_us)
        assert frame.received_us > (frame.sent_us or 0)
    alone = timeline_of(drawn, roles=("receiver",))
    assert [frame.command for frame in alone.frames if frame.author == "peer"] == [None] * added["sender"]
    untraced = timeline_of(drawn, roles=("sender",), traced=False)
    assert not untraced.traced
    assert {command.commit_us for command in untraced.commands} == {None}
    phases = {delay.phase: delay for delay in untraced.delays}
    assert phases["server"].count == added["sender"], "the server's time is known as a whole"
    assert "commit" not in phases


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 50), marks=pytest.mark.thorough)])
@pytest.mark.parametrize("traced", [True, False])
def test_each_message_s_way_is_within_its_error_whatever_the_clocks_show(traced: bool, seeds: range) -> None:
    for seed in seeds:
        dice = Random(seed)
        skews = {role: dice.uniform(-40_000, 40_000) for role in SIDES}
        paths = {role: Path(dice.expovariate(20), dice.expovariate(20), dice.expovariate(100)) for role in SIDES}
        drawn = draw(dice, skews, paths)
        timeline = timeline_of(drawn, traced=traced)
        began = BEGAN - timeline.began
        error = max(client.error_us or 0 for client in timeline.clients)
        deliveries = {(item.role, item.phase): item for item in timeline.deliveries}
        ways = [way for way in drawn.ways if way.kind == "add"]
        assert deliveries.keys() == {(way.role, way.phase) for way in ways}
        for way in ways:
            delivery = deliveries[way.role, way.phase]  # type: ignore[index]
            [peer] = SIDES.keys() - {way.role}
            assert delivery.end_to_end_us is not None
            assert delivery.error_us is not None
            assert abs(delivery.end_to_end_us - (way.heard[peer] - way.sent) * 1e6) <= delivery.error_us
            assert delivery.at_server_us == pytest.approx((way.tx - way.rx) * 1e6, abs=2)
            assert timeline.commands[delivery.command].phase == way.phase
        by_role = sorted(drawn.ways, key=lambda way: way.role != "sender")
        for command, way in zip(timeline.commands, by_role, strict=True):
            assert (command.role, command.type, command.phase) == (way.role, way.kind, way.phase)
            if traced:
                times = (command.received_us, command.commit_began_us, command.commit_us, command.answered_us)
                for us, seconds in zip(times, (way.rx, way.began, way.commit, way.tx), strict=True):
                    assert us == (None if seconds is None else pytest.approx((began + seconds) * 1e6, abs=3))
            assert command.sent_us == pytest.approx((began + way.sent) * 1e6, abs=error + 3)
            assert command.answer_received_us == pytest.approx((began + way.heard[way.role]) * 1e6, abs=error + 3)
        for role in SIDES:
            [delay] = [delay for delay in timeline.delays if (delay.role, delay.phase) == (role, "end to end")]
            own = [delivery.end_to_end_us or 0 for delivery in timeline.deliveries if delivery.role == role]
            assert (delay.count, delay.sum_us) == (len(own), sum(own))
            assert delay.error_us is not None
        alone = timeline_of(drawn, roles=("sender",))
        assert alone.deliveries == []
        assert "end to end" not in {delay.phase for delay in alone.delays}


@pytest.mark.parametrize("day", [0, 86_400], ids=["one day", "two days, and the clock is set between them"])
@pytest.mark.parametrize("traced", [True, False])
def test_the_causes_of_a_client_add_up_to_its_time(drawn: Drawn, traced: bool, day: int) -> None:
    for role, events in drawn.logs.items():
        for event in events[len(events) // 2 :]:
            event["start"] += day and day + (7 if role == "sender" else 0)
    timeline = timeline_of(drawn, traced=traced)
    for client in timeline.clients:
        assert sum(spent.us for spent in client.spent) == client.stop_us - client.start_us
        assert all(spent.peer is None or sum(spent.peer.values()) == spent.us for spent in client.spent)
        own = [stretch for stretch in timeline.elapsed if stretch.role == client.role]
        assert (own[0].start_us, own[-1].stop_us) == (client.start_us, client.stop_us)
        assert all(before.stop_us == after.start_us for before, after in pairwise(own))


def test_what_the_peer_did_is_not_known_if_a_clock_is_not(drawn: Drawn) -> None:
    drawn.logs["receiver"] = [event for event in drawn.logs["receiver"] if event["name"] == "ws_send"]
    timeline = timeline_of(drawn)
    assert {spent.peer for client in timeline.clients for spent in client.spent if spent.cause == "peer"} == {None}


def event(name: str, start: float, stop: float | None = None, **details: Any) -> dict[str, Any]:
    return {"name": name, "start": BEGAN + start, "stop": None if stop is None else BEGAN + stop, "details": details}


def sent(at: float, command_id: str, kind: str = "add") -> dict[str, Any]:
    return event("ws_send", at, _side="me", type=kind, id=command_id, phase="0")


def received(at: float, tx: float, **message: Any) -> dict[str, Any]:
    return event("ws_receive", at, _side="me", message={"server_tx": BEGAN + tx, **message})


def answered(at: float, tx: float, rx: float, **message: str) -> dict[str, Any]:
    return received(at, tx, type="message", side="me", server_rx=BEGAN + rx, **message)


ADDED = (sent(2.0, "a"), received(2.4, 2.25, type="ack", id="a"), answered(2.4, 2.25, 2.15, phase="0", id="a"))
"""Each way takes as long as the way back, so the offset is exact."""

WAYS = [("network out", 0.15), ("server", 0.1), ("network in", 0.15)]
ASKED = event("input code", 1.0, 3.0, waiting="user")
THEIRS = received(9.0, 8.85, type="message", side="you", phase="0", id="b")
WELCOME = received(1.2, 1.05, type="welcome")


@pytest.mark.parametrize(
    ("log", "causes"),
    [
        ([event("exit", 1.0)], [("program", 0.0)]),
        ([*ADDED], WAYS),
        ([event("input code", 1.9, 2.3, waiting="user"), *ADDED], [("human", 0.4), ("network in", 0.1)]),
        (
            [event("import", 0.0, 0.3), event("command dispatch", 0.4), WELCOME, *ADDED],
            [("program", 0.4), ("connect", 0.65), ("network in", 0.15), ("program", 0.8), *WAYS],
        ),
        (
            [event("command dispatch", 0.0), ASKED, event("exit", 30.0)],  # it never connects
            [("connect", 1.0), ("human", 2.0), ("connect", 27.0)],
        ),
        ([*ADDED, THEIRS], [*WAYS, ("peer", 6.45), ("network in", 0.15)]),
        ([*ADDED, event("exit", 60.0)], [*WAYS, ("peer", 57.6)]),
        ([*ADDED, THEIRS, event("exit", 10.0)], [*WAYS, ("peer", 6.45), ("network in", 0.15), ("program", 1.0)]),
        ([sent(2.0, "a", "open"), received(2.4, 2.25, type="ack", id="a")], [("round trip", 0.4)]),
        (
            [  # of two commands under way, the first counts
                *(sent(2.0, "a"), sent(2.2, "b")),
                answered(2.4, 2.25, 2.15, phase="0", id="a"),
                answered(2.6, 2.45, 2.35, phase="1", id="b"),
            ],
            [*WAYS, ("server", 0.05), ("network in", 0.15)],
        ),
    ],
)
def test_each_moment_of_a_log_has_one_cause(log: list[dict[str, Any]], causes: list[tuple[str, float]]) -> None:
    events = events_of(log)
    pairs = pair_exchanges(events, {})
    stretches = elapsed.divide_elapsed(events, pairs, estimate_offsets(pairs, events))
    assert [(item.cause, round((item.stop - item.start) / 1e6, 3)) for item in stretches] == causes
