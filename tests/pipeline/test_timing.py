"""Timing logs and traces, line by line: what of them passes into the lake, and what never does."""

from __future__ import annotations

import json
import math
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import wormhole
from hypothesis import given
from hypothesis import strategies as st

from restante.mailbox.protocol import messages
from restante.mailbox.server import trace
from restante.pipeline.clean import timing
from restante.pipeline.clean.rules import Fault, limits
from restante.pipeline.schemas import CLIENT_EVENTS, SERVER_COMMANDS
from restante.timing.logs import records
from restante.timing.logs.events import items
from support.effort import examples

T = 1_700_000_000.0
WITHIN = limits(date(2016, 1, 1), T + 100)
DAY_NUMBER = 19_675

EVENT = [column.name for column in CLIENT_EVENTS.columns[3:-1]]
COMMAND = [column.name for column in SERVER_COMMANDS.columns[2:-1]]


def event(**fields: Any) -> dict[str, Any] | str:
    """Clean an event: the columns that have something, but for the start and the day; or the fault."""
    return cleaned(json.dumps({"name": "exit", "start": T, "stop": None, "details": {}, **fields}).encode())


def cleaned(item: bytes) -> dict[str, Any] | str:
    return filled(EVENT, timing.event(item, WITHIN), start=T)


def filled(columns: list[str], values: Any, **expected: Any) -> dict[str, Any] | str:
    if isinstance(values, Fault):
        return str(values)
    found = dict(zip(columns, values, strict=True))
    assert {name: found.pop(name) for name in (*expected, "day")} == {**expected, "day": DAY_NUMBER}
    return {name: value for name, value in found.items() if value is not None}


def frame(name: str, **details: Any) -> dict[str, Any] | str:
    values = event(name=name, details={"_side": "b1de", **details})
    if isinstance(values, dict):
        assert values.pop("name") == name
    return values


def sent(**details: Any) -> dict[str, Any] | str:
    return frame("ws_send", **details)


def received(**message: Any) -> dict[str, Any] | str:
    return frame("ws_receive", message=message)


def command(**fields: Any) -> dict[str, Any] | str:
    line = {"connection": 1, "command": "add", "id": "a3f1", "server_rx": T, "commit": None, "server_tx": None}
    return traced(json.dumps({**line, **fields}).encode())


def traced(line: bytes) -> dict[str, Any] | str:
    return filled(COMMAND, timing.command(line, WITHIN), server_rx=T, connection=1)


# ── what passes ──────────────────────────────────────────────────────────────────────────────────

PEERS = {"type": "message", "side": "0ther", "phase": "dilate-12", "body": "00", "id": "9", "server_rx": T}
TIMES = {"commit_began": T + 0.5, "commit": T + 1, "server_tx": T + 2}
ID = {"command_id": "7686"}
ADD = {"command": "add", "command_id": "a3f1"}

EVENTS: dict[str, tuple[Any, Any]] = {
    "a moment": (event(), {"name": "exit"}),
    "a span": (event(name="tx file", stop=T + 1.5), {"name": "tx file", "stop": T + 1.5}),
    "a whole second": (event(start=1_700_000_000), {"name": "exit"}),
    "for the user": (event(details={"waiting": "user", "answer": "yes"}), {"name": "exit", "waiting": "user"}),
    "for somebody": (event(details={"waiting": "4-purple-sausages"}), {"name": "exit", "waiting": "other"}),
    "a name of nobody's": (event(name="4-purple-sausages"), {"name": "other"}),
    "details of all kinds": (event(details={"message": 5, "id": [], "type": {}}), {"name": "exit"}),
    "a command": (sent(id="7686", type="open", mailbox="jz6"), {"command": "open", **ID}),
    "a message": (sent(id="7686", type="add", phase="pake", body="7"), {"command": "add", "phase": "pake", **ID}),
    "a command of nobody's": (sent(id=7, type="4-purple"), {"command": "", "command_id": "7"}),
    "a reply as a command": (sent(type="welcome"), {"command": ""}),
    "no command": (sent(), {}),
    "what a client says of the server": (sent(server_rx=T, server_tx=T), {}),
    "an id of more than is kept": (sent(id="x" * 101), {}),
    "the longest id": (sent(id="x" * 100), {"command_id": "x" * 100}),
    "an id that is none": (sent(id={"a": 1}), {}),
    "a welcome": (received(type="welcome", welcome={"motd": "hello"}), {"command": "welcome"}),
    "an ack": (received(type="ack", id="7686", server_tx=T), {"command": "ack", "server_tx": T, **ID}),
    "the peer's message": (
        received(**PEERS),
        {"command": "message", "command_id": "9", "phase": "dilate-12", "own": False, "server_rx": T},
    ),
    "one's own message": (
        received(type="message", side="b1de", phase="0"),
        {"command": "message", "phase": "0", "own": True},
    ),
    "a phase of an application's": (received(phase="to my love"), {"phase": "other"}),
    "a phase that is a number": (received(phase=5), {"phase": "5"}),
    "a phase that is none": (received(phase=[1]), {"phase": "other"}),
    "a server whose clock is wrong": (received(server_rx=-5.0), {"server_rx": -5.0}),
    "a line": (command(), ADD),
    "a line with its end": (command(**TIMES), {**ADD, **TIMES}),
    "a line of an unknown command": (command(command=""), {**ADD, "command": ""}),
    "a line of no command": (command(command=None, id="7"), {"command_id": "7"}),
    "a word of a stranger's": (command(command="<b>"), {**ADD, "command": ""}),
    "an id that is a number": (command(id=7.5), {**ADD, "command_id": "7.5"}),
    "a line without an id": (command(id=None), {"command": "add"}),
    "a column that came later": (command(node="b"), ADD),
}


@pytest.mark.parametrize("name", EVENTS)
def test_only_times_and_known_words_of_an_event_or_a_trace_s_line_are_kept(name: str) -> None:
    cleaned_values, expected = EVENTS[name]
    assert cleaned_values == expected


# ── what does not ────────────────────────────────────────────────────────────────────────────────

BAD: dict[str, tuple[Any, str]] = {
    "nothing": (cleaned(b""), "not JSON"),
    "half an event": (cleaned(b'{"name": "exit", "sta'), "not JSON"),
    "NaN": (event(start=math.nan), "not JSON"),
    "infinity": (event(stop=math.inf), "not JSON"),
    "NaN in what it holds": (event(details={"x": math.nan}), "not JSON"),
    "a number beyond any": (cleaned(b'{"name": "exit", "start": 1e999}'), "wrong type"),
    "digits without end": (cleaned(b'{"name": "exit", "start": ' + b"1" * 9999 + b"}"), "wrong type"),
    "deep": (cleaned(b'{"name": "exit", "start": 1, "details": ' + b"[" * 10**5 + b"]" * 10**5 + b"}"), "not JSON"),
    "no UTF-8": (cleaned(b'{"name": "\xff", "start": 1}'), "not JSON"),
    "half a character": (cleaned(b'{"name": "\\ud800", "start": 1}'), "not JSON"),
    "no object": (cleaned(b"5"), "wrong type"),
    "no name": (cleaned(b'{"start": 1}'), "missing value"),
    "no start": (cleaned(b'{"name": "exit"}'), "missing value"),
    "a name of another type": (event(name=5), "wrong type"),
    "a number as a text": (event(start="1700000000"), "wrong type"),
    "a start that is null": (event(start=None), "wrong type"),
    "a start that is true": (event(start=True), "wrong type"),
    "a stop that is a text": (event(stop="later"), "wrong type"),
    "details that are a list": (event(details=[]), "wrong type"),
    "a message that is a text": (event(name="ws_receive", details={"message": "x"}), "wrong type"),
    "no message": (event(name="ws_receive"), "missing value"),
    "a server's time as a text": (received(server_rx="1"), "wrong type"),
    "before the lake's first day": (event(start=0), "out of range"),
    "a day after the run, and more": (event(start=T + 100 + 86_401), "out of range"),
    "beyond any date": (event(start=1e300), "out of range"),
    "a line that is none": (traced(b"\n"), "not JSON"),
    "a line that was torn": (traced(b'{"connection":1,"comm{"connection":1}\n'), "not JSON"),
    "a line of zeros": (traced(bytes(50)), "not JSON"),
    "a line without a time": (traced(b'{"connection":1,"command":"add","id":"a"}'), "missing value"),
    "a connection that is a text": (command(connection="1"), "wrong type"),
    "a connection below 0": (command(connection=-1), "out of range"),
    "a connection beyond counting": (command(connection=1 << 63), "out of range"),
    "a command that came in 1970": (command(server_rx=5.0), "out of range"),
    "a commit that is a text": (command(commit="x"), "wrong type"),
    "a begin that is a text": (command(commit_began="x"), "wrong type"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_event_that_cannot_be_read_has_a_known_fault(name: str) -> None:
    found, fault = BAD[name]
    assert found == fault
    assert fault in timing.TIMING_FAULTS


keys = st.sampled_from(
    ("name", "start", "stop", "details", "message", "type", "id", "phase", "side", "_side", "waiting", "server_rx")
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9) | keys, inner, max_size=4),
    max_leaves=12,
)
KNOWN = records.EVENT_NAMES | records.COMMAND_TYPES | records.REPLY_TYPES | records.WAITS_FOR | {records.UNLISTED, ""}


@given(
    st.sampled_from(("ws_send", "ws_receive", "exit")) | st.text(max_size=9),
    json_values,
    st.dictionaries(keys | st.text(max_size=9), json_values, max_size=6),
)
@examples(150)
def test_no_text_of_an_event_is_kept_but_ids_and_known_words(name: str, stop: Any, details: Any) -> None:
    item = json.dumps({"name": name, "start": T, "stop": stop, "details": details}).encode()
    found = cleaned(item)
    if isinstance(found, str):
        assert found in timing.TIMING_FAULTS
        return
    for column, value in found.items():
        if isinstance(value, str) and column != "command_id":
            assert value in KNOWN or records.MESSAGE_PHASE.fullmatch(value)


# ── what is known ────────────────────────────────────────────────────────────────────────────────


def test_the_real_client_s_events_are_known() -> None:
    source = [path.read_text() for path in Path(wormhole.__file__).parent.rglob("*.py") if "test" not in path.parts]
    called = {name for text in source for name in re.findall(r'timing\.add\(\s*"([^"]+)"', text)}
    waited = {name for text in source for name in re.findall(r'timing\.add\([^)]*waiting="([^"]+)"', text)}
    assert called == records.EVENT_NAMES
    assert waited == records.WAITS_FOR


def test_the_mailbox_server_s_words_are_known() -> None:
    replies = {str(kind.__struct_config__.tag) for kind in messages.Reply.__subclasses__()}
    direct = {str(kind.__struct_config__.tag) for kind in messages.Direct.__subclasses__()}
    assert set(messages.KINDS) == records.COMMAND_TYPES
    assert (replies | direct) - {"direct"} == records.REPLY_TYPES
    assert trace.MAX_ID_CHARACTERS == records.MAX_ID_CHARACTERS


# ── a log, cut into events ───────────────────────────────────────────────────────────────────────

SHAPES: dict[bytes, list[tuple[int, bytes, bool]]] = {
    b"": [(0, b"", False)],
    b"  ": [(2, b"", False)],
    b"{}": [(0, b"{}", False)],
    b"[]": [],
    b" [ ] ": [],
    b"[1]": [(1, b"1", True)],
    b"[1, [2, {}] ]\n": [(1, b"1", True), (4, b"[2, {}]", True)],
    b"[,]": [(1, b"", True), (2, b"", True)],
    b"[1,]": [(1, b"1", True), (3, b"", True)],
    b"[1": [(1, b"1", False)],
    b"[1, {": [(1, b"1", True), (4, b"{", False)],
    b'["]", "\\"]" ]': [(1, b'"]"', True), (6, b'"\\"]"', True)],
    b'["a': [(1, b'"a', False)],
    b"[1] x": [(1, b"1", True), (4, b"x", False)],
    b"[1}": [(1, b"1}", False)],
    b"[{]": [(1, b"{]", False)],
}


@pytest.mark.parametrize("log", SHAPES)
def test_a_log_is_split_at_its_commas_up_to_its_first_fault(log: bytes) -> None:
    assert [(item.at, item.raw, item.fault is None) for item in items(log)] == SHAPES[log]


@given(st.lists(json_values, max_size=6), st.sampled_from((None, 1)))
@examples(100)
def test_a_list_is_split_into_its_items(values: list[Any], indent: int | None) -> None:
    log = json.dumps(values, indent=indent).encode()
    assert [repr(json.loads(item.raw)) for item in items(log)] == [repr(value) for value in json.loads(log)]


@given(st.lists(json_values, min_size=1, max_size=4), st.data())
@examples(100)
def test_a_truncated_log_has_its_complete_events(values: list[Any], data: st.DataObject) -> None:
    log = json.dumps(values).encode()
    whole = list(items(log))
    stop = data.draw(st.integers(0, len(log) - 1))
    *found, rest = items(log[:stop])
    assert found == whole[: len(found)]
    assert rest.fault == "not a timing log"


def test_a_log_with_a_million_open_lists_is_read_to_its_end() -> None:
    assert len(list(items(b"[" * 10**6))) == 1
    assert len(list(items(b'["' + b"\\" * 10**6))) == 1
