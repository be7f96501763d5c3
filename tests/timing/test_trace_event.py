"""A timeline as trace events: the rules of the format, and those by which Perfetto reads it."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from restante.timing.model.timeline import Timeline
from restante.timing.outputs.trace_event import trace_event
from support.timing.timelines import drawn_timeline, waiting_human

Event = dict[str, Any]


def backwards() -> Timeline:
    """Return a timeline whose receiver has a clock that is wrong by a minute."""
    whole = drawn_timeline()
    frames = [
        msgspec.structs.replace(each, received_us=each.received_us - 60_000_000) if each.role == "receiver" else each
        for each in whole.frames
    ]
    return msgspec.structs.replace(whole, frames=frames)


TIMELINES = {
    "both": drawn_timeline(),
    "human": waiting_human(),
    "untraced": drawn_timeline(traced=False),
    "sender": drawn_timeline(roles=["sender"]),
    "receiver": drawn_timeline(roles=["receiver"], traced=False),
    "backwards": backwards(),
}


def events(name: str) -> list[Event]:
    found: list[Event] = json.loads(trace_event(TIMELINES[name]))["traceEvents"]
    return found


def slices_of(found: list[Event]) -> dict[tuple[int, int], list[Event]]:
    threads = defaultdict(list)
    for event in found:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    return threads


@pytest.mark.parametrize("name", TIMELINES)
def test_each_event_has_the_keys_of_its_kind_and_times_that_are_not_negative(name: str) -> None:
    keys = {
        "X": {"dur", "args"},
        "i": {"s", "args"},
        "s": {"id"},
        "t": {"id"},
        "f": {"id", "bp"},
    }
    for event in events(name):
        assert isinstance(event["pid"], int)
        if event["ph"] == "M":
            assert event["args"]
            continue
        assert keys[event["ph"]] - {"args"} <= set(event)
        assert set(event) <= {"ph", "name", "cat", "ts", "pid", "tid", *keys[event["ph"]]}
        assert isinstance(event["ts"], int)
        assert event["ts"] >= 0
        assert event.get("dur", 1) > 0


@pytest.mark.parametrize("name", TIMELINES)
def test_each_process_and_thread_has_a_name_and_a_place(name: str) -> None:
    found = events(name)
    processes = {event["args"]["name"]: event["pid"] for event in found if event["name"] == "process_name"}
    order = {event["pid"]: event["args"]["sort_index"] for event in found if event["name"] == "process_sort_index"}
    assert sorted(processes, key=lambda each: order[processes[each]]) == [
        each for each in ("sender", "server", "receiver") if each in processes
    ]
    threads = [(event["pid"], event["tid"]) for event in found if event["name"] == "thread_name"]
    assert {(event["pid"], event["tid"]) for event in found if event["ph"] != "M"} == set(threads)
    assert len({tid for _, tid in threads}) == len(threads)  # some versions name threads by their tid alone
    assert not {tid for _, tid in threads} & set(processes.values())
    assert {event["tid"] for event in found if event["name"] == "thread_sort_index"} == {tid for _, tid in threads}


@pytest.mark.parametrize("name", TIMELINES)
def test_slices_of_a_thread_are_apart_or_one_is_inside_the_other(name: str) -> None:
    for slices in slices_of(events(name)).values():
        open_until: list[int] = []
        for event in slices:
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            stop = event["ts"] + event["dur"]
            assert not open_until or stop <= open_until[-1], event
            open_until.append(stop)


@pytest.mark.parametrize("name", TIMELINES)
def test_each_flow_has_one_beginning_and_one_end_and_leads_from_slice_to_slice(name: str) -> None:
    flows = defaultdict(list)
    current: dict[tuple[int, int], Event] = {}
    bound = defaultdict(list)
    for event in events(name):
        place = (event["pid"], event.get("tid", 0))
        if event["ph"] == "X":
            current[place] = event
        elif event["ph"] in "stf":
            enclosing = current[place]  # the slice that began last, which Perfetto binds the flow to
            assert enclosing["cat"] != "server"  # the command, and not its queue
            assert enclosing["ts"] <= event["ts"] < enclosing["ts"] + enclosing["dur"]
            bound[event["id"]].append(id(enclosing))
            flows[event["id"]].append(event)
    assert flows
    for each in flows.values():
        assert [event["ph"] for event in each] == ["s", *"t" * (len(each) - 2), "f"]
        assert len({(event["name"], event["cat"]) for event in each}) == 1  # Perfetto tells flows apart by these, too
        assert all(one["ts"] <= other["ts"] for one, other in pairwise(each))
        assert each[-1]["bp"] == "e"
    assert all(len(set(each)) == len(each) for each in bound.values())


def test_a_message_flows_from_one_client_through_the_server_to_the_other() -> None:
    found = events("both")
    flows = defaultdict(list)
    for event in found:
        if event["ph"] in "stf":
            flows[event["id"], event["name"]].append(event["pid"])
    assert [1, 2, 2, 3] in [way for (_, name), way in flows.items() if name == "message"]
    assert [3, 2, 2, 1] in [way for (_, name), way in flows.items() if name == "message"]
    assert [1, 2, 1] in [way for (_, name), way in flows.items() if name == "answer"]


def test_the_server_s_slices_have_the_queue_the_commit_and_the_answer_inside() -> None:
    names = {event["name"] for event in events("both") if event["pid"] == 2}
    assert names >= {"add pake", "queue", "commit", "answer"}
    untraced = {event["name"] for event in events("untraced") if event["pid"] == 2 and event["ph"] == "X"}
    assert "add pake" in untraced
    assert not untraced & {"queue", "commit", "answer"}


def test_the_error_of_a_clock_is_said() -> None:
    found = events("both")
    labels = [event["args"]["labels"] for event in found if event["name"] == "process_labels"]
    assert len(labels) == 2
    assert all(each.startswith("error of the clock: at most ") for each in labels)
    errors = {client.error_us for client in TIMELINES["both"].clients}
    assert {
        event["args"]["error_us"] for event in found if event.get("cat") == "commands" and event["pid"] != 2
    } == errors


def test_a_span_between_two_others_needs_a_second_thread_only_while_they_overlap() -> None:
    whole = TIMELINES["human"]
    span = next(each for each in whole.spans if each.name == "tx file")
    stop = span.stop_us or 0
    crossing = msgspec.structs.replace(span, start_us=span.start_us + 1_000, stop_us=stop + 1_000)
    after = msgspec.structs.replace(span, start_us=stop, stop_us=stop + 3_000)
    just_before = msgspec.structs.replace(span, start_us=stop - 3, stop_us=stop + 3_000)
    written = json.loads(
        trace_event(msgspec.structs.replace(whole, spans=[*whole.spans, crossing, after, just_before]))
    )
    threads = {
        event["tid"]: event["args"]["name"] for event in written["traceEvents"] if event["name"] == "thread_name"
    }
    used = [
        threads[event["tid"]]
        for event in written["traceEvents"]
        if event["ph"] == "X" and event["name"] == "tx file" and event["pid"] == 1
    ]
    assert used == ["spans", "spans 2", "spans 3", "spans"]


def test_what_the_logs_do_not_have_has_no_flow() -> None:
    whole = TIMELINES["untraced"]
    unanswered = [
        msgspec.structs.replace(each, received_us=None, answered_us=None, answer_received_us=None)
        for each in whole.commands
    ]
    alone = [msgspec.structs.replace(each, command=None, sent_us=None) for each in whole.frames]
    written = json.loads(trace_event(msgspec.structs.replace(whole, commands=unanswered, frames=alone)))
    assert {event["ph"] for event in written["traceEvents"]} == {"M", "X"}
    assert not [event for event in written["traceEvents"] if event["pid"] == 2]


def test_a_command_without_an_answer_flows_to_the_server() -> None:
    whole = TIMELINES["both"]
    unanswered = [msgspec.structs.replace(each, answer_received_us=None) for each in whole.commands]
    written = json.loads(trace_event(msgspec.structs.replace(whole, commands=unanswered, frames=[])))
    flows = [(event["ph"], event["name"]) for event in written["traceEvents"] if event["ph"] in "stf"]
    assert set(flows) == {("s", "command"), ("f", "command")}
    assert len(flows) == 2 * len(whole.commands)


def test_a_client_s_own_message_that_comes_back_is_no_flow_of_its_own() -> None:
    flows = [event for event in events("sender") if event["ph"] == "f" and event["name"] == "message"]
    others = [each for each in TIMELINES["sender"].frames if each.type == "message" and each.author != each.role]
    assert len(flows) == len(others) < len([each for each in TIMELINES["sender"].frames if each.type == "message"])
