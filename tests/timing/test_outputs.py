"""What a timeline is written as: text for terminals, trace events for Perfetto, and the page, as text."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from msgspec.json import decode
from msgspec.structs import replace

from restante.common.units import duration, moment, percent
from restante.timing.model.elapsed import CAUSES, NOT_RUNNING
from restante.timing.model.timeline import CauseTime, Timeline
from restante.timing.outputs.page import APPEARANCES, timeline_page
from restante.timing.outputs.text import MAX_ROWS, timeline_diagram, timeline_text
from restante.timing.outputs.trace_event import timeline_trace_events
from restante.timing.outputs.wording import CLAUSES, GROUPS
from support.markup import Tags, plain
from support.timing import pages
from support.timing.drawn import drawn_timeline, timeline_of, waiting

BOTH, HUMAN, UNTRACED = drawn_timeline(), timeline_of(waiting()), drawn_timeline(traced=False)
SENDER, RECEIVER = drawn_timeline(roles=["sender"]), drawn_timeline(roles=["receiver"], traced=False)
WAITED, NOT_COMPARED = pages.waited(), pages.of_events("ws_send", "command dispatch")
NO_COMMANDS, MOMENT = pages.of_events("command dispatch", "tx file"), pages.of_events("command dispatch")


def repeated(times: int, apart_us: int) -> Timeline:
    commands = [
        replace(command, sent_us=command.sent_us + turn * apart_us, answer_received_us=None, phase=str(turn))
        for turn in range(times)
        for command in BOTH.commands
    ]
    return replace(BOTH, commands=commands)


MANY, AT_ONCE = repeated(100, 2_000_000), repeated(100, 0)
TIMELINES = {
    "both": BOTH,
    "human": HUMAN,
    "days": timeline_of(waiting(2 * 86_400.0)),
    "untraced": UNTRACED,
    "sender": SENDER,
    "receiver": RECEIVER,
    "not compared": NOT_COMPARED,
    "no commands": NO_COMMANDS,
    "a moment": MOMENT,
    "many": MANY,
    "at once": AT_ONCE,
}


@pytest.mark.parametrize("timeline", TIMELINES.values(), ids=TIMELINES)
def test_lines_fit_the_terminal_and_colours_and_unicode_change_nothing_else(timeline: Timeline) -> None:
    for width in range(40, 201, 40 if len(timeline.commands) > 100 else 3):
        for line in timeline_text(timeline, width).splitlines():
            assert len(line) <= width, (width, line)
            assert line == line.rstrip(), (width, line)
    assert timeline_text(timeline, 1) == timeline_text(timeline, 40)
    written, coloured = (timeline_text(timeline, 80, colour=colour) for colour in (False, True))
    ascii_only = timeline_text(timeline, 80, unicode=False)
    assert ascii_only.isascii()
    assert [len(line) for line in ascii_only.splitlines()] == [len(line) for line in written.splitlines()]
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == written
    assert "\x1b" not in written


def test_the_first_sentences_say_where_the_time_went_and_what_the_other_client_did() -> None:
    sender, _, receiver = timeline_text(HUMAN, 200).splitlines()[:3]
    waited = r"it waited for the receiver, which waited for its user for 8\.\d+ s\."
    assert re.match(rf"The sender ran for \S+ s\. For 9\.\d+ s \(\d+%\) {waited}", sender), sender
    assert re.match(r"The receiver ran for \S+ s\. For 9 s \(\d+%\) it waited for its user\.", receiver), receiver
    assert "receiver" not in timeline_text(SENDER, 200)
    assert "it waited for the other client." in timeline_text(SENDER, 200)
    assert set(CLAUSES) == {GROUPS.get(cause, cause) for cause in (*CAUSES, NOT_RUNNING)}


def test_the_time_in_the_network_counts_together_and_the_page_says_the_same_as_the_text() -> None:
    spent = [CauseTime(*time) for time in {"commit": 1, "network in": 29, "human": 40, "network out": 30}.items()]
    timeline = replace(SENDER, clients=[replace(SENDER.clients[0], start_us=0, stop_us=100, spent=spent)])
    sentence = "The sender ran for 100 µs. For 59 µs (59%) it waited for the network to and from the server."
    first, _, _, *table = timeline_text(timeline, 200).splitlines()[:7]
    assert first == sentence
    assert [line[2:].split("  ")[0] for line in table] == ["human", "network out", "network in", "commit"]
    assert sentence in plain(timeline_page(timeline))


def test_what_is_known_of_a_clock_is_written() -> None:
    assert "The sender's clock could not be compared with the server's" in timeline_text(NOT_COMPARED, 200)
    moved, by_skew = (
        timeline_text(replace(BOTH, clients=[replace(client, **changes) for client in BOTH.clients]), 200)
        for changes in ({"moved_us": 500_000}, {"given": True})
    )
    assert moved.count("; it moved by 500 ms or more.") == 2
    assert "as --skew says." in by_skew
    assert "error is at most" not in by_skew


def test_the_diagram_leaves_out_what_took_least_and_joins_messages_of_one_type() -> None:
    lines = timeline_diagram(MANY, 80)
    assert len(lines) <= 2 * MAX_ROWS + 2
    assert re.fullmatch(r"1,[\d,]+ of 1,[\d,]+ are left out: those that took least\.", lines[-1])
    lines = timeline_diagram(AT_ONCE, 80)
    assert any("bind x100─" in line for line in lines)
    assert "left out" not in lines[-1]
    assert timeline_diagram(MOMENT, 80) == ["No messages."]


def test_a_message_goes_through_the_server_to_the_other_client_or_is_stored_and_an_own_one_goes_to_nobody() -> None:
    def through(timeline: Timeline) -> list[str]:
        return [line for line in timeline_diagram(timeline, 80) if line.count(">") == 2 or line.count("<") == 2]

    names = {name for line in through(BOTH) for name in re.findall("add [a-z]+|add [0-9]", line)}
    assert names >= {"add pake", "add version"}
    stored = [line.count(">") for line in timeline_diagram(WAITED, 80) if "add pake" in line and ">" in line]
    assert stored == [1, 1], "a row to the server, and one from there"
    own = [frame for frame in BOTH.frames if frame.author == frame.role]
    assert own
    assert through(replace(BOTH, frames=own)) == []


HOUR = 3_600_000_000


@pytest.mark.parametrize(
    ("written", "times", "texts"),
    [
        (duration, [0, 0.4, 1, 999, 999.6, 1_234, 12_000], "0 s, 0 s, 1 µs, 999 µs, 1 ms, 1.23 ms, 12 ms"),
        (duration, [12_340, 99_960, 999_499, 999_500, 2_980_000], "12.3 ms, 100 ms, 999 ms, 1 s, 2.98 s"),
        (duration, [-2_980_000, 59_940_000, 59_960_000, 63_000_000], "-2.98 s, 59.9 s, 1 min, 1 min 3 s"),
        (duration, [3_599_700_000, 3_720_000_000, 24 * HOUR, -27 * HOUR], "1 h, 1 h 2 min, 1 d, -1 d 3 h"),
        (duration, [24_000 * HOUR], "1,000 d"),
        (moment, [0, 3_112_499, -400, -1_500, 999_999_499], "0.000 s, 3.112 s, 0.000 s, -0.002 s, 999.999 s"),
        (moment, [999_999_500, 3_723_000_000, -100 * HOUR], "0:16:40, 1:02:03, -100:00:00"),
        (lambda of: percent(int(of), 1000), [0, 1, 333, 1000], "0%, <1%, 33%, 100%"),
    ],
)
def test_times_are_written_for_people(written: Callable[[float], str], times: list[float], texts: str) -> None:
    assert ", ".join(map(written, times)) == texts


KEYS = {"X": {"dur"}, "i": {"s"}, "s": {"id"}, "t": {"id"}, "f": {"id", "bp"}}

BACKWARDS = [
    replace(frame, received_us=frame.received_us - 60_000_000 * (frame.role == "receiver")) for frame in BOTH.frames
]
TRACES = {name: TIMELINES[name] for name in ("both", "human", "untraced", "sender", "receiver")}
TRACES["a clock that is wrong by a minute"] = replace(BOTH, frames=BACKWARDS)
for_each_trace = pytest.mark.parametrize("timeline", TRACES.values(), ids=TRACES)


def events(timeline: Timeline) -> list[dict[str, Any]]:
    return list(json.loads(timeline_trace_events(timeline))["traceEvents"])


@for_each_trace
def test_each_event_has_the_keys_of_its_kind_and_its_thread_a_name(timeline: Timeline) -> None:
    names: dict[str, dict[Any, Any]] = defaultdict(dict)
    used, times = set(), []
    for event in events(timeline):
        if event["ph"] == "M":
            [names[event["name"]][event["pid"], event.get("tid")]] = event["args"].values()
            continue
        assert KEYS[event["ph"]] <= set(event)
        assert set(event) <= {"ph", "name", "cat", "ts", "pid", "tid", "args", *KEYS[event["ph"]]}
        assert event["ts"] >= 0
        assert event.get("dur", 1) > 0
        times.append(event["ts"])
        used.add((event["pid"], event["tid"]))
    assert times == sorted(times)
    assert used == names["thread_name"].keys() == names["thread_sort_index"].keys()
    threads, processes = {tid for _, tid in used}, {pid for pid, _ in names["process_name"]}
    assert len(threads) == len(used)  # some versions name threads by their tid alone
    assert not threads & processes
    order = {pid: index for (pid, _), index in names["process_sort_index"].items()}
    ordered = [name for _, name in sorted(names["process_name"].items(), key=lambda item: order[item[0][0]])]
    roles = {client.role for client in timeline.clients}
    assert ordered == [name for name in ("sender", "server", "receiver") if name == "server" or name in roles]


@for_each_trace
def test_slices_are_apart_or_one_is_inside_the_other_and_flows_lead_from_slice_to_slice(timeline: Timeline) -> None:
    open_until: dict[tuple[int, int], list[int]] = defaultdict(list)
    flows = defaultdict(list)
    current: dict[tuple[int, int], dict[str, Any]] = {}
    bound = defaultdict(list)
    for event in events(timeline):
        thread = (event["pid"], event.get("tid", 0))
        if event["ph"] == "X":
            stops, stop = open_until[thread], event["ts"] + event["dur"]
            while stops and stops[-1] <= event["ts"]:
                stops.pop()
            assert not stops or stop <= stops[-1], event
            stops.append(stop)
            current[thread] = event
        elif event["ph"] in "stf":
            enclosing = current[thread]  # the slice that began last, which Perfetto binds the flow to
            assert enclosing["cat"] != "server"  # the command, and not its queue
            assert enclosing["ts"] <= event["ts"] < enclosing["ts"] + enclosing["dur"]
            bound[event["id"]].append(id(enclosing))
            flows[event["id"]].append(event)
    assert flows
    for flow in flows.values():
        assert [event["ph"] for event in flow] == ["s", *"t" * (len(flow) - 2), "f"]
        assert len({(event["name"], event["cat"]) for event in flow}) == 1  # Perfetto tells flows apart by these, too
        assert all(event["ts"] <= next_event["ts"] for event, next_event in pairwise(flow))
        assert flow[-1]["bp"] == "e"
    assert all(len(set(slices)) == len(slices) for slices in bound.values())


def ways(timeline: Timeline) -> list[tuple[str, list[int]]]:
    flows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in events(timeline):
        if event["ph"] in "stf":
            flows[event["name"], event["id"]].append(event["pid"])
    return [(name, way) for (name, _), way in flows.items()]


def test_what_flows_from_client_to_client() -> None:
    both = ways(BOTH)
    assert ("message", [1, 2, 2, 3]) in both
    assert ("message", [3, 2, 2, 1]) in both
    assert ("answer", [1, 2, 1]) in both
    others = [frame for frame in SENDER.frames if frame.type == "message" and frame.author != frame.role]
    assert len([way for way in ways(SENDER) if way[0] == "message"]) == len(others), "no own message that comes back"
    commands = [replace(command, answer_received_us=None) for command in BOTH.commands]
    unanswered = replace(BOTH, commands=commands, frames=[])
    assert [name for name, _ in ways(unanswered)] == ["command"] * len(BOTH.commands)
    times = dict.fromkeys(("received_us", "answered_us", "answer_received_us"))
    commands = [replace(command, **times) for command in UNTRACED.commands]
    frames = [replace(frame, command=None, sent_us=None) for frame in UNTRACED.frames]
    written = events(replace(UNTRACED, commands=commands, frames=frames))
    assert {(event["ph"], event["pid"] == 2) for event in written} == {("M", False), ("X", False)}


def test_what_the_slices_and_instants_are_and_the_error_of_a_clock() -> None:
    at_server = {event["name"] for event in events(BOTH) if event["pid"] == 2}
    assert at_server >= {"add pake", "queue", "commit", "answer"}
    untraced = {event["name"] for event in events(UNTRACED) if event["pid"] == 2 and event["ph"] == "X"}
    assert "add pake" in untraced
    assert not untraced & {"queue", "commit", "answer"}
    slices = {(event["cat"], event["name"]) for event in events(HUMAN) if event["ph"] == "X"}
    assert slices >= {("spans", "input code"), ("spans", "tx file"), ("where the time went", "human")}
    assert {event["name"] for event in events(HUMAN) if event["ph"] == "i"} == {"command dispatch"}
    labels = [event["args"]["labels"] for event in events(BOTH) if event["name"] == "process_labels"]
    assert [label.startswith("error of the clock: at most ") for label in labels] == [True, True]
    commands = [event for event in events(BOTH) if event.get("cat") == "commands" and event["pid"] != 2]
    assert {event["args"]["error_us"] for event in commands} == {client.error_us for client in BOTH.clients}


def embedded(content: str) -> str:
    [data] = re.findall(r'<script type="application/json" id="timeline">(.*?)</script>', content, re.DOTALL)
    return str(data)


@pytest.mark.parametrize("timeline", TIMELINES.values(), ids=TIMELINES)
def test_a_page_is_well_formed_has_the_timeline_and_names_nothing_outside_of_it(timeline: Timeline) -> None:
    content = timeline_page(timeline).decode()
    tags = pages.closed(content, "style", "script")
    assert decode(embedded(content), type=Timeline) == timeline
    assert "$" not in re.sub(r"(?s)<script.*?</script>", "", content)
    assert not re.search(r"[a-z]+://|\bfetch\(|XMLHttp|WebSocket|sendBeacon|\bimport\(", content)
    assert set(tags.values("href")) == {"data:,"}


def test_no_word_breaks_out_of_the_script_or_of_a_table() -> None:
    timeline = pages.hostile("</script><script>alert(1)</script><!--<script>&lt;\u2028\u2029'\"\x1b[31m")
    content = timeline_page(timeline).decode()
    data = embedded(content)
    assert not set(data) & set("<>&\u2028\u2029")
    assert decode(data, type=Timeline) == timeline
    assert content.count("<script") == 2
    assert "alert" not in content.replace(data, "")
    delays = [replace(delay, phase="<b>&") for delay in WAITED.delays]
    assert "<b>&" in Tags(timeline_page(replace(WAITED, delays=delays)).decode()).texts["th"]


CLOCKS = [replace(WAITED.clients[0], moved_us=2_000_000), replace(WAITED.clients[1], given=True)]


@pytest.mark.parametrize(
    ("timeline", "sentences"),
    [
        (
            WAITED,
            [
                "Transfer of 6.54 s",
                "The sender ran for 6.54 s. For 3.12 s (48%) it waited for the receiver, which was not running for",
                "The receiver ran for 3.45 s. For 2 s (58%) it transferred data.",
                "The sender's clock was 5 s ahead of the server's ± 20.1 ms",
                "The receiver's clock was 5 s behind the server's ± 30 ms",
                "peer 3.12 s 48% receiver: not running 2.28 s 35%",
                "network out 9 20 ms 20 ms 180 ms ± 20.1 ms",
            ],
        ),
        (
            pages.waited("sender"),
            [
                "it waited for the other client.",
                "No log of the receiver",
                "Without a trace of the server",
                "network out 3 of 9 20 ms 20 ms 60 ms ± 20.1 ms",
            ],
        ),
        (NOT_COMPARED, ["The sender's clock could not be compared with the server's", "network out 0 of 9 ? ? ?"]),
        (MOMENT, ["There was no command and no message.", "The sender's log has no duration."]),
        (
            replace(WAITED, clients=CLOCKS),
            ["± 20.1 ms; it moved by 2 s or more", "5 s behind the server's, as --skew says"],
        ),
    ],
)
def test_the_tables_need_no_script_and_say_what_is_missing(timeline: Timeline, sentences: list[str]) -> None:
    assert set(APPEARANCES) == {*CAUSES, NOT_RUNNING}
    text = plain(timeline_page(timeline))
    assert [sentence for sentence in sentences if sentence not in text] == []
