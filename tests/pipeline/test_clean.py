"""What becomes of rows of usage records, of envelopes' bytes and of lines of logs before they are in the lake."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import wormhole
from hypothesis import given
from hypothesis import strategies as st

from restante.common import transfer_records, usage_records
from restante.mailbox.protocol import messages
from restante.mailbox.server import trace
from restante.pipeline.clean import rules, timing
from restante.pipeline.clean.envelopes import Fields
from restante.pipeline.clean.rules import ORIGIN_RULE, OWN_RULES, USAGE_FAULTS, Faulty, TimeLimits, time_limits
from restante.pipeline.schemas import CLEAN_TABLES, CLIENT_EVENTS, MAX_TEXT_CHARACTERS, SERVER_COMMANDS
from restante.pipeline.sources import extracts, rows
from restante.pipeline.sources.usage import FirstBinds, UsageScan, clean_rows
from restante.timing import logs
from restante.timing.logs import log_items
from restante.waku.envelope import rlp
from restante.waku.envelope.envelope import Envelope, make, parse
from restante.waku.envelope.rlp import RlpError
from support.effort import examples
from support.mutation import mutated
from support.pipeline.servers import CONTEXT, NOW, T0
from support.waku.strategies import ITEMS, envelopes

CASES = json.loads((Path(__file__).parent / "clean_rules.json").read_text())["cases"]

WITHIN = rules.time_limits(NOW)

RULES = {table: (*of_all, *OWN_RULES[table]) for table, of_all in rules.RULES.items()}

GOOD: dict[str, Any] = {
    "app_id": "x",
    "for_nameplate": 1,
    "started": T0,
    "connect_time": T0,
    "waiting_us": 1.5,
    "total_us": 4,
    "total_bytes": 5,
    "result": "happy",
    "implementation": "python",
    "version": "0.24.0",
    "visitors": 0,
    "blur_us": 0,
}


def value_of(written: Any) -> Any:
    """What a case cannot say in JSON."""
    match written:
        case {"blob": digits}:
            return bytes.fromhex(digits)
        case {"float": name}:
            return float(name)
        case {"int": digits}:
            return int(digits)
    return written


def row(table: str, **values: Any) -> list[Any]:
    return [(GOOD | values)[rule.column] for rule in RULES[table]]


def clean(read: Callable[..., list[Any]], *arguments: Any) -> list[Any] | str:
    """Return the clean values, or the fault."""
    try:
        return read(*arguments)
    except Faulty as fault:
        return str(fault)


@pytest.mark.parametrize(("table", "column", "value", "expected"), CASES, ids=lambda value: ascii(value)[:40])
def test_a_value_is_cleaned_or_makes_its_row_faulty(table: str, column: str, value: Any, expected: Any) -> None:
    cleaned = clean(rules.clean_values, RULES[table], row(table, **{column: value_of(value)}), WITHIN)
    if isinstance(expected, dict):
        assert cleaned == expected["fault"]
    else:
        actual = cleaned[[rule.column for rule in RULES[table]].index(column)]
        assert (actual, type(actual)) == (expected, type(expected))


def test_a_row_has_the_first_of_its_faults_and_long_text_is_cut() -> None:
    assert clean(rules.clean_values, RULES["nameplates"], [None, "x", "x", "x", "x", 0], WITHIN) == "missing value"
    assert clean(rules.clean_values, RULES["nameplates"], ["x", 1e300, None, "x", "x", 0], WITHIN) == "out of range"
    assert rules.clean_text("é" * 1000) == "é" * MAX_TEXT_CHARACTERS
    assert rules.clean_text("\0" * 1000) == "\ufffd" * MAX_TEXT_CHARACTERS


values = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(),
    st.binary().map(lambda raw: raw.decode(errors="surrogateescape")),
    st.binary(),
    st.sampled_from(["happy", "lonely", T0, T0 + 1, 0, 1]),
)


@given(st.data(), st.sampled_from(sorted(RULES)))
def test_any_row_is_clean_or_has_a_known_fault(data: st.DataObject, table: str) -> None:
    drawn = data.draw(st.tuples(*(values for _ in RULES[table])))
    cleaned = clean(rules.clean_values, RULES[table], drawn, WITHIN)
    if isinstance(cleaned, str):
        assert cleaned in USAGE_FAULTS
        return
    for rule, value in zip(RULES[table], cleaned, strict=True):
        if value is None:
            assert rule.null
        elif isinstance(value, str):
            assert len(value.encode()) <= 4 * MAX_TEXT_CHARACTERS
            assert "\0" not in value
        elif rule.column.endswith("_us") or rule.column in {"total_bytes", "visitors"}:
            assert 0 <= value < 2**63
        elif not isinstance(value, bool):
            assert WITHIN.earliest <= value <= WITHIN.latest


FIRST, LAST = WITHIN
DAYS = rules.MICROSECONDS_PER_DAY
LAKE_ROW: dict[str, Any] = GOOD | {
    "for_nameplate": True,
    "origin": "",
    "started": FIRST,
    "connect_time": LAST,
    "waiting_us": 0,
    "total_us": 1,
}

LIMITS_OF: dict[str, tuple[list[Any], st.SearchStrategy[Any]]] = {
    "text": (["", "x" * MAX_TEXT_CHARACTERS, "é" * (MAX_TEXT_CHARACTERS + 1), "\0"], st.text(max_size=9)),
    "time": ([FIRST - 1, FIRST, LAST, LAST + 2 * DAYS], st.integers(FIRST - DAYS, LAST)),
    "duration": ([-1, 0, LAST - FIRST, LAST - FIRST + 1], st.integers(-(2**63), 2**63 - 1)),
    "flag": ([False, True], st.booleans()),
    "number": ([-1, 0, 2**63 - 1], st.integers(-(2**63), 2**63 - 1)),
    "bytes": ([-1, 0, 10**15, 10**15 + 1], st.integers(-(2**63), 2**63 - 1)),
    "result": (["", *usage_records.RESULTS, *transfer_records.RESULTS], st.text(max_size=9)),
}
"""What a function clean_… reads → values of the lake about where it begins to reject them, and others."""


@given(st.data(), st.sampled_from(sorted(RULES)))
@examples(20)
def test_a_row_of_an_extract_is_accepted_if_it_is_one_that_cleaning_returns(data: st.DataObject, table: str) -> None:
    """One value differs from a good one. Times may be two days later than cleaning allows, for clocks differ."""
    ruled, lake_rows, expected = (ORIGIN_RULE, *RULES[table]), [], []
    for column, read, _ in ruled:
        limits, others = LIMITS_OF[getattr(read, "func", read).__name__.removeprefix("clean_")]
        for value in (None, *limits, data.draw(others, column)):
            row = LAKE_ROW | {column: value}
            at_source = [
                row[name] / 1e6
                if row[name] is not None and reads in {rules.clean_time, rules.clean_duration}
                else row[name]
                for name, reads, _ in ruled
            ]
            cleaned = clean(rules.clean_values, ruled, at_source, WITHIN)
            expected.append(cleaned == [row[rule.column] for rule in ruled])
            when = row["connect_time" if table == "client_versions" else "started"]
            lake_rows.append(row | {"id": 5, "source": "north", "day": when and when // DAYS})
    schema = rows.arrow_schema(CLEAN_TABLES[table])
    lake_table = pa.Table.from_pylist(lake_rows, schema)
    name = f"north/{table}/20231115T000000Z/2023-11-15/{1:019}-{9:019}.parquet"
    lake_table = lake_table.append_column("extract", pa.array([name] * len(lake_rows)))
    with duckdb.connect() as spark:
        spark.execute("SET TimeZone = 'UTC'")
        spark.execute("CREATE MACRO substring_index(t, s, n) AS split_part(t, s, CAST(n AS BIGINT))")
        spark.execute("CREATE MACRO is_valid_utf8(t) AS true")
        conditions = " AND ".join(f"({rule})" for rule in extracts.row_rules(CLEAN_TABLES[table], CONTEXT).values())
        accepted = spark.execute(f"SELECT coalesce({conditions}, false) FROM lake_table".replace("`", '"')).fetchall()
    assert [row for (row,) in accepted] == expected


def scan(table: str, within: TimeLimits = WITHIN, blur_us: int | None = None, *duplicate: str) -> UsageScan:
    return UsageScan("north", table, "", within, blur_us, frozenset(duplicate))


def test_only_the_id_and_the_digest_of_a_faulty_row_are_kept() -> None:
    bad = (7, "", *row("nameplates", result="canary"))
    double = (8, "theirs.sqlite", *row("nameplates", app_id="canary"))
    assert list(clean_rows(scan("nameplates", WITHIN, 1, "theirs.sqlite"), [bad, double], FirstBinds())) == [
        (7, *[None] * 8, "north", "unknown result", "7", rules.row_digest(bad[1:])),
        (8, *[None] * 8, "north", "duplicate", "8", rules.row_digest(double[1:])),
    ]


def test_a_day_is_that_of_the_first_time_in_utc() -> None:
    for started, day in ((86_399.999999, 0), (86_400, 1), (-0.5, -1)):
        rows = [(1, "", *row("mailboxes", started=started))]
        [cleaned_row] = clean_rows(scan("mailboxes", TimeLimits(-(2**60), 2**60)), rows, FirstBinds())
        assert cleaned_row[10] == day


@pytest.mark.parametrize(
    ("recorded", "setting", "time", "blur"),
    [
        (0, 60_000_000, 1_700_000_040_000_000, None),  # not floored, whatever the setting was later
        (60_000_000, None, 1_700_000_040_000_000, 60_000_000),
        (60_000_000, 3_600_000_000, 1_699_999_200_000_000, 60_000_000),
        (None, 60_000_000, 1_700_000_040_000_000, 60_000_000),
        (None, 500_000, 1_700_000_040_500_000, 500_000),
        (None, 60_000_000, 1_700_000_040_250_000, None),  # written before the setting
        (None, 3_600_000_000, 1_700_000_040_000_000, 60_000_000),  # written with another one
        (None, None, 1_700_000_040_250_000, None),
        (None, None, 1_700_000_041_000_000, 1_000_000),  # written with one, which is none now
        (None, None, 1_699_999_200_000_000, 3_600_000_000),
        (None, None, 1_699_920_000_000_000, 86_400_000_000),
        (None, None, 1_700_000_041_000_001, None),  # the next microsecond: of a clock that runs, all but one in 10^6
    ],
)
def test_blur_is_recorded_or_inferred(recorded: int | None, setting: int | None, time: int, blur: int | None) -> None:
    assert rules.blur_us(recorded, setting, time) == blur


def test_the_setting_of_our_server_does_not_apply_to_imported_rows() -> None:
    rows = [(1, origin, *row("nameplates", started=T0, blur_us=None)) for origin in ("", "theirs.sqlite")]
    assert [
        cleaned_row[7] for cleaned_row in clean_rows(scan("nameplates", WITHIN, 40_000_000), rows, FirstBinds())
    ] == [
        40_000_000,
        1_000_000,
    ]


PARTS = (b"\x84\x5f\x5e\x10\x32", b"\x32", b"\x84abcd", b"\x83abc", b"\x07")

LENGTHS = (0, 1, 2, 48, 49, 50, 54, 55, 56, 57, 240, 250, 255, 256, 257, 65_500, 65_535, 65_536, 65_537)
"""Bytes of data about where a length takes a byte more: its own, the list's, or that of the list without nonce."""


def read(raw: bytes) -> Envelope | None:
    try:
        return parse(raw)
    except RlpError:
        return None


def check(raws: list[bytes], every: int = 0) -> None:
    """What is good is an envelope, with these fields; every one of the first ones is good, if it is an envelope."""
    fields = Fields(raws)
    columns = (fields.expiry, fields.ttl, fields.topic, fields.nonce, fields.compute_pow(), fields.good)
    rows = zip(raws, *(column.tolist() for column in columns), strict=True)
    for number, (raw, *values, good) in enumerate(rows):
        envelope = read(raw)
        if good:
            assert envelope is not None
            topic = int.from_bytes(envelope.topic)
            assert values == [envelope.expiry, envelope.ttl, topic, envelope.nonce, envelope.pow()]
        elif number < every:
            assert envelope is None


def test_every_length_is_read_and_the_work_is_done_on_the_right_bytes() -> None:
    raws = [
        make(1_700_000_050, ttl, b"abcd", bytes([0xFF]) * length, nonce).raw
        for length in LENGTHS
        for ttl in (0, 1, 0x7F, 0x80, 0xFFFFFFFF)
        for nonce in (0, 1, 0x7F, 0x80, 0xFFFF, 2**64 - 1)
    ]
    check(raws, every=len(raws))


raw_envelopes = envelopes.map(lambda envelope: envelope.raw)
packed_items = st.lists(st.sampled_from(ITEMS), min_size=3, max_size=7).map(rlp.pack)


@given(
    st.lists(raw_envelopes, max_size=10),
    st.lists(mutated(raw_envelopes) | st.binary(max_size=40) | packed_items, max_size=20),
)
@examples(250)
def test_any_bytes_are_read_as_the_reader_of_one_reads_them(good: list[bytes], others: list[bytes]) -> None:
    check([*good, *others], every=len(good))


@pytest.mark.parametrize("at", range(len(PARTS)))
def test_every_item_in_every_place_is_read_as_the_reader_of_one_reads_it(at: int) -> None:
    raws = [rlp.pack([*PARTS[:at], item, *PARTS[at + 1 :]]) for item in ITEMS]
    check(raws, every=len(raws))


HEADS = (
    *(b"\xc0", b"\xf7", b"\xf8", b"\xf8\x37", b"\xf8\x38", b"\xf9\x00\x38", b"\xf9\xff\xff", b"\xfa\x00\x01\x00"),
    *(b"\xfb\x00\x00\x00\x38", b"\xff" * 9, b"\xf8\x00", b"\x80", b"\x84", b"\xb8\x38", b"\x00", b"\x7f"),
)


def test_envelopes_with_wrong_lengths_are_not_valid() -> None:
    body = b"".join(PARTS)
    raws = [head + rest for head in HEADS for rest in (b"", body, body[:-1], body + b"\0", bytes(64))]
    assert Fields([*raws, rlp.pack(PARTS)]).good.tolist() == [False] * len(raws) + [True]


T = 1_700_000_000.0
LIMITS = time_limits(T + 100)

EVENT = [column.name for column in CLIENT_EVENTS.columns[3:-1]]
COMMAND = [column.name for column in SERVER_COMMANDS.columns[2:-1]]


def event(**fields: Any) -> dict[str, Any] | str:
    return cleaned(json.dumps({"name": "exit", "start": T, "stop": None, "details": {}, **fields}).encode())


def cleaned(item: bytes) -> dict[str, Any] | str:
    return filled(EVENT, clean(timing.clean_event, item, LIMITS), start=T)


def filled(columns: list[str], values: Any, **expected: Any) -> dict[str, Any] | str:
    if isinstance(values, str):
        return values
    row = dict(zip(columns, values, strict=True))
    assert {name: row.pop(name) for name in (*expected, "day")} == {**expected, "day": 19_675}
    return {name: value for name, value in row.items() if value is not None}


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
    return filled(COMMAND, clean(timing.clean_command, line, LIMITS), server_rx=T, connection=1)


PEERS = {"type": "message", "side": "0ther", "phase": "dilate-12", "body": "00", "id": "9", "server_rx": T}
TIMES = {"commit_began": T + 0.5, "commit": T + 1, "server_tx": T + 2}
ID = {"command_id": "7686"}
ADD = {"command": "add", "command_id": "a3f1"}

EVENTS: dict[str, tuple[Any, Any]] = {
    "a span": (event(name="tx file", stop=T + 1.5), {"name": "tx file", "stop": T + 1.5}),
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
    "a line of no command": (command(command=None, id="7"), {"command_id": "7"}),
    "a word of a stranger's": (command(command="<b>"), {**ADD, "command": ""}),
    "an id that is a number": (command(id=7.5), {**ADD, "command_id": "7.5"}),
    "a line without an id": (command(id=None), {"command": "add"}),
    "a column that came later": (command(node="b"), ADD),
    "half an event": (cleaned(b'{"name": "exit", "sta'), "not JSON"),
    "NaN": (event(start=math.nan), "not JSON"),
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
    "details that are a list": (event(details=[]), "wrong type"),
    "a message that is a text": (event(name="ws_receive", details={"message": "x"}), "wrong type"),
    "no message": (event(name="ws_receive"), "missing value"),
    "a server's time as a text": (received(server_rx="1"), "wrong type"),
    "before the lake's first day": (event(start=0), "out of range"),
    "a line that was torn": (traced(b'{"connection":1,"comm{"connection":1}\n'), "not JSON"),
    "a line without a time": (traced(b'{"connection":1,"command":"add","id":"a"}'), "missing value"),
    "a connection that is a text": (command(connection="1"), "wrong type"),
    "a connection below 0": (command(connection=-1), "out of range"),
    "a connection beyond counting": (command(connection=1 << 63), "out of range"),
    "a command that came in 1970": (command(server_rx=5.0), "out of range"),
    "a commit that is a text": (command(commit="x"), "wrong type"),
}


@pytest.mark.parametrize("name", EVENTS)
def test_only_times_and_known_words_of_an_event_or_a_trace_s_line_are_kept_or_its_fault_is_known(name: str) -> None:
    values, expected = EVENTS[name]
    assert values == expected
    assert isinstance(expected, dict) or expected in timing.TIMING_FAULTS


keys = st.sampled_from(
    ("name", "start", "stop", "details", "message", "type", "id", "phase", "side", "_side", "waiting", "server_rx")
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9) | keys, inner, max_size=4),
    max_leaves=12,
)
KNOWN = logs.EVENT_NAMES | logs.COMMAND_TYPES | logs.REPLY_TYPES | logs.WAITS_FOR | {logs.UNLISTED, ""}


@given(
    st.sampled_from(("ws_send", "ws_receive", "exit")) | st.text(max_size=9),
    json_values,
    st.dictionaries(keys | st.text(max_size=9), json_values, max_size=6),
)
@examples(150)
def test_no_text_of_an_event_is_kept_but_ids_and_known_words(name: str, stop: Any, details: Any) -> None:
    values = event(name=name, stop=stop, details=details)
    if isinstance(values, str):
        assert values in timing.TIMING_FAULTS
        return
    for column, value in values.items():
        if isinstance(value, str) and column != "command_id":
            assert value in KNOWN or logs.MESSAGE_PHASE.fullmatch(value)


def test_the_real_client_s_events_are_known() -> None:
    source = [path.read_text() for path in Path(wormhole.__file__).parent.rglob("*.py") if "test" not in path.parts]
    called = {name for text in source for name in re.findall(r'timing\.add\(\s*"([^"]+)"', text)}
    waited = {name for text in source for name in re.findall(r'timing\.add\([^)]*waiting="([^"]+)"', text)}
    assert called == logs.EVENT_NAMES
    assert waited == logs.WAITS_FOR


def test_the_mailbox_server_s_words_are_known() -> None:
    replies = {str(kind.__struct_config__.tag) for kind in messages.Reply.__subclasses__()}
    direct = {str(kind.__struct_config__.tag) for kind in messages.Direct.__subclasses__()}
    assert set(messages.KINDS) == logs.COMMAND_TYPES
    assert (replies | direct) - {"direct"} == logs.REPLY_TYPES
    assert trace.MAX_ID_CHARACTERS == logs.MAX_ID_CHARACTERS


SHAPES: dict[bytes, list[tuple[int, bytes, bool]]] = {
    b"  ": [(2, b"", False)],
    b"{}": [(0, b"{}", False)],
    b" [ ] ": [],
    b"[1, [2, {}] ]\n": [(1, b"1", True), (4, b"[2, {}]", True)],
    b"[,]": [(1, b"", True), (2, b"", True)],
    b"[1, {": [(1, b"1", True), (4, b"{", False)],
    b'["]", "\\"]" ]': [(1, b'"]"', True), (6, b'"\\"]"', True)],
    b'["a': [(1, b'"a', False)],
    b"[1] x": [(1, b"1", True), (4, b"x", False)],
    b"[{]": [(1, b"{]", False)],
}


@pytest.mark.parametrize("log", SHAPES)
def test_a_log_is_split_at_its_commas_up_to_its_first_fault(log: bytes) -> None:
    assert [(item.offset, item.raw, item.fault is None) for item in log_items(log)] == SHAPES[log]


@given(st.lists(json_values, max_size=6), st.sampled_from((None, 1)), st.data())
@examples(150)
def test_a_log_cut_short_is_split_up_to_there(values: list[Any], indent: int | None, data: st.DataObject) -> None:
    log = json.dumps(values, indent=indent).encode()
    whole = list(log_items(log))
    assert [repr(json.loads(item.raw)) for item in whole] == [repr(value) for value in json.loads(log)]
    stop = data.draw(st.integers(0, len(log) - 1))
    *before, rest = log_items(log[:stop])
    assert before == whole[: len(before)]
    assert rest.fault == "not a timing log"


def test_a_log_with_a_million_open_lists_is_read_to_its_end() -> None:
    assert len(list(log_items(b"[" * 10**6))) == 1
    assert len(list(log_items(b'["' + b"\\" * 10**6))) == 1
