"""What a transfer's timeline has: who waited for what, and each message on its way."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from restante.timing.logs.records import Event, TraceLine, read_event, read_line
from restante.timing.model import elapsed
from restante.timing.model.exchanges import exchanges
from restante.timing.model.offsets import offsets
from restante.timing.model.timeline import ClientLog, Role, Timeline, timeline
from support.timing.drawn import BEGAN, SIDES, Drawn, Path, draw

SKEWS = {"sender": 100.0, "receiver": -3.0}


def logged(events: Sequence[dict[str, Any]]) -> list[Event]:
    return [read_event(msgspec.json.encode(event)) for event in events]


def of(drawn: Drawn, *roles: Role, trace: bool = True) -> Timeline:
    lines: dict[str, list[TraceLine]] = {}
    for line in drawn.trace:
        read = read_line(msgspec.json.encode(line))
        lines.setdefault(read.id or "", []).append(read)
    return timeline([ClientLog(role, logged(drawn.logs[role])) for role in roles], lines if trace else None)


@pytest.fixture
def drawn() -> Drawn:
    return draw(random.Random(7), SKEWS, dict.fromkeys(SIDES, Path(0.010, 0.010, 0.0)))


def test_each_time_is_by_the_server_s_clock(drawn: Drawn) -> None:
    found = of(drawn, "sender", "receiver")
    began = BEGAN - found.began
    by_client = {role: [way for way in drawn.ways if way.role == role] for role in SIDES}
    ways = [way for role in ("sender", "receiver") for way in by_client[role]]
    assert len(found.commands) == len(ways)
    for command, way in zip(found.commands, ways, strict=True):
        assert (command.role, command.type, command.phase) == (way.role, way.kind, way.phase)
        for shown, true in (
            (command.received_us, way.rx),
            (command.commit_began_us, way.began),
            (command.commit_us, way.commit),
            (command.answered_us, way.tx),
        ):
            assert (shown is None) == (true is None)
            assert shown is None or true is None or shown == pytest.approx((began + true) * 1e6, abs=3)
        error = max(client.error_us or 0 for client in found.clients)
        assert command.sent_us == pytest.approx((began + way.sent) * 1e6, abs=error + 3)
        assert command.answer_received_us == pytest.approx((began + way.heard[way.role]) * 1e6, abs=error + 3)


def test_each_message_is_traced_from_its_author_to_the_other_client(drawn: Drawn) -> None:
    found = of(drawn, "sender", "receiver")
    messages = [frame for frame in found.frames if frame.type == "message"]
    assert len(messages) == 2 * sum(way.kind == "add" for way in drawn.ways)
    for frame in messages:
        assert frame.command is not None
        command = found.commands[frame.command]
        assert (frame.author, frame.phase) == (command.role, command.phase)
        assert frame.sent_us == command.answered_us
        assert frame.received_us > (frame.sent_us or 0)


def test_without_the_author_s_log_its_messages_come_from_the_peer(drawn: Drawn) -> None:
    found = of(drawn, "receiver")
    theirs = [frame for frame in found.frames if frame.author == "peer"]
    assert len(theirs) == sum(way.kind == "add" and way.role == "sender" for way in drawn.ways)
    assert {frame.command for frame in theirs} == {None}


def test_without_a_trace_the_server_s_time_is_known_as_a_whole(drawn: Drawn) -> None:
    found = of(drawn, "sender", trace=False)
    assert not found.traced
    assert {command.commit_us for command in found.commands} == {None}
    phases = {delay.phase: delay for delay in found.delays}
    assert phases["server"].count == sum(way.kind == "add" and way.role == "sender" for way in drawn.ways)
    assert "commit" not in phases


@pytest.mark.parametrize("trace", [True, False])
def test_the_causes_of_a_client_add_up_to_its_time(drawn: Drawn, trace: bool) -> None:
    found = of(drawn, "sender", "receiver", trace=trace)
    for client in found.clients:
        assert sum(spent.us for spent in client.spent) == client.stop_us - client.start_us
        for spent in client.spent:
            assert spent.peer is None or sum(spent.peer.values()) == spent.us
        own = [each for each in found.elapsed if each.role == client.role]
        assert (own[0].start_us, own[-1].stop_us) == (client.start_us, client.stop_us)
        assert all(before.stop_us == after.start_us for before, after in pairwise(own))


def test_what_the_peer_did_is_not_known_if_a_clock_is_not(drawn: Drawn) -> None:
    drawn.logs["receiver"] = [event for event in drawn.logs["receiver"] if event["name"] == "ws_send"]
    found = of(drawn, "sender", "receiver")
    assert {spent.peer for client in found.clients for spent in client.spent if spent.cause == "peer"} == {None}


# ── elapsed time ─────────────────────────────────────────────────────────────────────────────────


def event(name: str, start: float, stop: float | None = None, **details: Any) -> dict[str, Any]:
    return {"name": name, "start": BEGAN + start, "stop": None if stop is None else BEGAN + stop, "details": details}


def sent(at: float, command_id: str, kind: str = "add") -> dict[str, Any]:
    return event("ws_send", at, _side="me", type=kind, id=command_id, phase="0")


def received(at: float, tx: float, **message: Any) -> dict[str, Any]:
    return event("ws_receive", at, _side="me", message={"server_tx": BEGAN + tx, **message})


def causes(*log: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the causes of a log's time, in order, and the seconds of each."""
    events = logged(log)
    pairs = exchanges(events, {})
    found = elapsed.stretches(events, pairs, offsets(pairs, events))
    return [(each.cause, round((each.stop - each.start) / 1e6, 3)) for each in found]


WELCOME = received(1.2, 1.05, type="welcome")
ADDED = (
    sent(2.0, "a"),
    received(2.4, 2.25, type="ack", id="a"),
    received(2.4, 2.25, type="message", side="me", phase="0", id="a", server_rx=BEGAN + 2.15),
)
"""Each way takes as long as the way back, so the offset is exact."""


def test_a_message_on_its_way_is_in_the_network_or_in_the_server() -> None:
    assert causes(*ADDED) == [("network out", 0.15), ("server", 0.1), ("network in", 0.15)]


def test_a_human_comes_before_all_else() -> None:
    human = event("input code", 1.9, 2.3, waiting="user")
    assert causes(human, *ADDED) == [("human", 0.4), ("network in", 0.1)]


def test_before_the_welcome_a_client_connects() -> None:
    log = (event("import", 0.0, 0.3), event("command dispatch", 0.4), WELCOME, *ADDED)
    assert causes(*log)[:4] == [("program", 0.4), ("connect", 0.65), ("network in", 0.15), ("program", 0.8)]


def test_a_client_that_never_connects_tries_to_for_all_the_time() -> None:
    asked = event("input code", 1.0, 3.0, waiting="user")
    log = (event("command dispatch", 0.0), asked, event("exit", 30.0))
    assert causes(*log) == [("connect", 1.0), ("human", 2.0), ("connect", 27.0)]


def test_what_ends_with_a_message_of_the_peer_was_waiting_for_it() -> None:
    theirs = received(9.0, 8.85, type="message", side="you", phase="0", id="b")
    assert causes(*ADDED, theirs)[3:] == [("peer", 6.45), ("network in", 0.15)]


def test_a_peer_that_never_comes_is_waited_for() -> None:
    assert causes(*ADDED, event("exit", 60.0))[3:] == [("peer", 57.6)]


def test_after_the_peer_s_last_message_it_is_the_program() -> None:
    theirs = received(9.0, 8.85, type="message", side="you", phase="0", id="b")
    assert causes(*ADDED, theirs, event("exit", 10.0))[-1] == ("program", 1.0)


def test_a_round_trip_whose_parts_are_not_known_stays_whole() -> None:
    assert causes(sent(2.0, "a", "open"), received(2.4, 2.25, type="ack", id="a")) == [("round trip", 0.4)]


def test_of_two_commands_under_way_the_first_counts() -> None:
    log = (
        sent(2.0, "a"),
        sent(2.2, "b"),
        received(2.4, 2.25, type="message", side="me", phase="0", id="a", server_rx=BEGAN + 2.15),
        received(2.6, 2.45, type="message", side="me", phase="1", id="b", server_rx=BEGAN + 2.35),
    )
    of_a, of_b = (
        [("network out", 0.15), ("server", 0.1), ("network in", 0.15)],
        [("server", 0.05), ("network in", 0.15)],
    )
    assert causes(*log) == of_a + of_b


def test_while_one_client_waits_the_other_s_cause_is_known() -> None:
    found = [elapsed.Stretch(0, 10, "program"), elapsed.Stretch(10, 30, "human")]
    assert elapsed.during(found, 5, 20) == {"program": 5, "human": 10}
    assert elapsed.during(found, -5, 40) == {"program": 10, "human": 20, "not running": 15}
    assert elapsed.during(found, 50, 60) == {"not running": 10}
    assert elapsed.during([], 50, 60) == {"not running": 10}
