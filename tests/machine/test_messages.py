"""What is read is what was sent, with Python's own JSON as the oracle: nothing else comes out of `parse`."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from restante.common.errors import PeerError
from restante.common.refusals import Refusal
from restante.mailbox.core import session
from restante.mailbox.core.model import size_of
from restante.mailbox.core.session import Session
from restante.mailbox.protocol import frame_text, hashcash, messages, parsing
from restante.mailbox.protocol.parsing import Malformed
from support.effort import examples

KEYS: dict[str, tuple[str, ...]] = {
    "bind": ("appid", "side"),
    "list": (),
    "allocate": (),
    "claim": ("nameplate",),
    "release": (),
    "open": ("mailbox",),
    "add": ("phase", "body"),
    "close": (),
    "ping": ("ping",),
}
"""The keys that each message must have (spec 000 "All Message Types")."""

MAY_HAVE = {"bind": ("client_version",), "release": ("nameplate",), "close": ("mailbox", "mood")}

RAW = ("id", "phase", "body", "ping", "client_version")
"""Values that are ours only to hand on."""

BOUND = Session(app_id="x", side="a")
BUSY = Session(app_id="x", side="a", allocated="4", claimed="4", mailbox_id="m", subscribed=1)
DONE = Session(app_id="x", side="a", allocated="4", claimed="4", released=True, mailbox_id="m", closed=True)

text_values = st.text(max_size=8)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
nameplates = st.from_regex(r"\A[0-9]{1,40}\Z", fullmatch=True).filter(str.isascii)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text_values, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def good_messages(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(sorted(KEYS)))
    message: dict[str, Any] = {"type": kind}
    for key in (*KEYS[kind], *(key for key in MAY_HAVE.get(kind, ()) if draw(st.booleans()))):
        if key in RAW:
            message[key] = draw(any_json)
        else:
            message[key] = draw(nameplates if (kind, key) == ("claim", "nameplate") else names)
    if draw(st.booleans()):
        message["id"] = draw(any_json)
    return message


def spelled(value: Any) -> st.SearchStrategy[str]:
    return st.builds(
        lambda indent, ascii_only, before, after: (
            before + json.dumps(value, indent=indent, ensure_ascii=ascii_only) + after
        ),
        indent=st.sampled_from((None, 0, 3, "\t")),
        ascii_only=st.booleans(),
        before=st.text(" \t\r\n", max_size=2),
        after=st.text(" \t\r\n", max_size=2),
    )


@st.composite
def damaged(draw: st.DrawFn) -> str:
    text = draw(spelled(draw(good_messages())))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 12)))
        others = ("", text[start:end] * 2, ",", '"', "{", "}", "[", ":", "1e999", "null", "\\u00")
        text = text[:start] + draw(st.sampled_from(others)) + text[end:]
    return text


@st.composite
def repeating(draw: st.DrawFn) -> str:
    message = draw(good_messages())
    odd = st.tuples(st.sampled_from(("type", "id", *message)), any_json | st.sampled_from(sorted(KEYS)))
    pairs = draw(st.permutations([*message.items(), *draw(st.lists(odd, min_size=1, max_size=3))]))
    return "{" + ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in pairs) + "}"


def not_json(constant: str) -> None:
    raise ValueError(constant)


@given(st.one_of(st.text(), damaged(), repeating(), any_json.flatmap(spelled), good_messages().flatmap(spelled)))
@example('{"type": 1e999}')
@example('{"type": "claim", "nameplate": 5, "nameplate": "4"}')
@example('{"type": "ping", "ping": 1, "type": "list"}')
@example('{"type": "bind", "appid": "x", "side": "a", "client_version": [1e999]}')
@example('{"type": "ping", "ping": 1e999, "id": -1e999}')
@example('{"type": "ping", "ping": "\ufeff\u2028\x7f"}')
@example('{"type": "ping", "ping": NaN}')
@example("\ufeff{}")
@example("")
@examples(160)
def test_any_text_is_a_message_or_a_peer_error(text: str) -> None:
    try:
        wanted = json.loads(text, parse_constant=not_json)
    except ValueError:
        with pytest.raises(PeerError, match=r"\Anot (JSON: |a JSON object\Z)") as refusal:
            parsing.parse(text)
        begins_as_an_object = text.lstrip(" \t\r\n").startswith("{")
        assert refusal.value.code == 1007 or (refusal.value.code == 1003 and not begins_as_an_object)
        return
    if not isinstance(wanted, dict):
        with pytest.raises(PeerError, match=r"\Anot a JSON object\Z") as refusal:
            parsing.parse(text)
        assert refusal.value.code == 1003
        return
    if re.search(r"\\u[dD][89a-fA-F]", text):  # half a surrogate pair is no text, and a whole one may be torn
        return
    message = parsing.parse(text)
    assert json.loads(bytes(message.id)) == wanted.get("id")
    for state in (session.NEW_SESSION, BOUND, BUSY, DONE):  # what may be said now is told in words, too
        assert isinstance(session.step(state, message), session.Command | Refusal)


def test_any_nested_json_is_a_message_or_a_peer_error() -> None:
    """At every depth around the one where Python's stack ends: it must not end between reading and understanding."""
    limit = sys.getrecursionlimit()
    outcomes: set[int | str] = set()
    for depth in (*range(1, limit, 100), *range(limit - 150, limit + 20), 100 * limit):
        value = "[" * depth + "]" * depth
        for form in ("%s", '{"type":%s}', '{"type":"claim","nameplate":%s}', '{"type":"add","phase":%s,"body":1}'):
            try:
                message = parsing.parse(form % value)
            except PeerError as error:
                outcomes.add(error.code)
            else:
                outcomes.add("message")
                for state in (session.NEW_SESSION, BOUND, BUSY):
                    session.step(state, message)
    assert outcomes == {1003, 1007, 1009, "message"}


# What each text is made of: a beginning, what is repeated until it is as long as wanted ({}: a number), an end.
PLAIN = ('{"type":"add","phase":"1","body":"', "a", '"}')
COSTLY = {
    "a body of lists": ('{"type":"add","phase":"1","body":[', "[],", "0]}"),
    "an unknown key, again and again": ('{"type":"add","phase":"1","body":0,', '"":0,', '"a":0}'),
    "a type of lists": ('{"type":[', "[],", "0]}"),
    "a client_version of lists": ('{"type":"bind","appid":"a","side":"b","client_version":[', "[],", "0]}"),
    "a client_version of keys": ('{"type":"bind","appid":"a","side":"b","client_version":{', '"%d":{},', '"a":0}}'),
    "a stamp of lists": ('{"type":"submit-permissions","method":"hashcash","stamp":[', "[],", "0]}"),
    "an appid of lists": ('{"type":"bind","side":"b","appid":[', "[],", "0]}"),
    "a nameplate of escapes": ('{"type":"release","nameplate":"', '\\"', '"}'),
    "a ping of lists": ('{"type":"ping","ping":[', "[],", "0]}"),
    "lists": ("[", "[],", "0]"),
}


def cost(begin: str, middle: str, end: str) -> float:
    text = begin + "".join(middle.replace("%d", str(n)) for n in range(60_000 // len(middle))) + end

    def once(state: Session) -> float:
        began = time.thread_time()
        with contextlib.suppress(PeerError):
            session.step(state, parsing.parse(text))
        return time.thread_time() - began

    asked = Session(hashcash.Demand(20, "resource"))
    return max(min(once(state) for _ in range(5)) for state in (session.NEW_SESSION, asked, BOUND, BUSY))


def test_no_text_costs_much_more_than_a_plain_message_of_its_size() -> None:
    """Decoded, nested lists cost 400 times as much and keys 200 times; the dearest that are left, 40 times."""
    plain = cost(*PLAIN)
    costs = {name: round(cost(*form) / plain) for name, form in COSTLY.items()}
    assert {name: times for name, times in costs.items() if times > 80} == {}


@pytest.mark.parametrize("kind", [*KEYS, "submit-permissions", "unknown"])
def test_only_add_and_ping_may_be_long(kind: str) -> None:
    most = parsing.MAX_SHORT_MESSAGE_CHARACTERS
    long = {"type": kind, "id": 5, "more": "x" * most, **dict.fromkeys(KEYS.get(kind, ()), "1")}
    message = parsing.parse(json.dumps(long))
    assert json.loads(bytes(message.id)) == 5
    if kind in {"add", "ping"}:
        assert understood(message) == {name: value for name, value in long.items() if name != "more"}
        return
    assert isinstance(message, Malformed)
    state = {"bind": session.NEW_SESSION, "release": BUSY, "close": BUSY}.get(kind, BOUND)
    too_long = f"{kind}: only 'add' and 'ping' may have more than {most} characters"
    assert session.step(state, message) == Refusal("unknown type" if kind == "unknown" else too_long)


@pytest.mark.parametrize("signs", [",", "[", "{", "\\\\", " ", "\n", "\r", "\t", "\n[{,\r\t\\\\ "])
def test_a_long_message_has_few_signs_that_are_expensive_to_decode(signs: str) -> None:
    """2 MiB of commas or brackets, backslashes in keys, or spaces between values held the loop for 8 to 200 ms."""
    body = "x" * parsing.MAX_SHORT_MESSAGE_CHARACTERS
    text = '{"type":"ping","ping":"' + body + '%s"%s}'
    allowed = parsing.MAX_LONG_MESSAGE_SIGNS - sum(map(text.count, ",[{"))
    within, between = ("".join(sign for sign in signs if sign.isspace() is space) for space in (False, True))
    count = allowed // len(signs)
    accepted = text % (within * count, between * count)
    assert isinstance(parsing.parse(accepted), messages.Ping)
    refused = text % (within * count + "," * (allowed % len(signs) + 1), between * count)
    with pytest.raises(PeerError, match="the message is too expensive to decode") as refusal:
        parsing.parse(refused)
    assert refusal.value.code == 1009
    assert str(parsing.MAX_LONG_MESSAGE_SIGNS) in refusal.value.hint


@pytest.mark.parametrize("end", ["", "é", "😀"], ids=["ASCII", "two bytes", "four bytes"])
def test_a_large_text_stays_utf_8_and_means_the_same(end: str) -> None:
    """As a str, 2 MiB of escapes with one emoji took 8 MiB, and 25 ms to parse and store."""
    assert frame_text.MAX_DECODED_TEXT_BYTES >= 4 * parsing.MAX_SHORT_MESSAGE_CHARACTERS
    for beyond in (0, 1):
        payload = f'{{"type":"add","phase":"1","id":"5","body":"{end}'.encode()
        payload += b"\\" * (parsing.MAX_LONG_MESSAGE_SIGNS - 10)
        payload = payload.ljust(frame_text.MAX_DECODED_TEXT_BYTES - 2 + beyond, b"x") + b'"}'
        text = frame_text.text_of(payload)
        assert text == (payload if beyond else payload.decode())
        assert size_of(text) == len(payload) if beyond or not end else size_of(text) > len(payload)
        read, expected = parsing.parse(text), parsing.parse(payload.decode())
        assert isinstance(read, messages.Add)
        assert isinstance(expected, messages.Add)
        assert (bytes(read.id), bytes(read.body)) == (b'"5"', bytes(expected.body))


@pytest.mark.parametrize("before", range(4))
def test_a_large_text_is_checked_wherever_its_slices_end(before: int) -> None:
    payload = b"x" * before + "😀".encode() * (frame_text.MAX_DECODED_TEXT_BYTES // 4)
    assert frame_text.text_of(payload + b"x") == payload + b"x"
    at = 2 * frame_text.CHECKED_BYTES
    for broken in (payload + b"x\xf0\x9f", payload[:-1] + b"x", payload[:at] + b"x" + payload[at + 1 :]):
        with pytest.raises(UnicodeDecodeError):
            frame_text.text_of(broken)


def test_half_a_surrogate_pair_is_refused_and_a_whole_one_is_not() -> None:
    with pytest.raises(PeerError, match="not JSON"):
        parsing.parse('{"type": "ping", "ping": "\\ud83d"}')
    message = parsing.parse('{"type": "open", "mailbox": "\\ud83d\\ude00"}')
    assert isinstance(message, messages.Open)
    assert message.mailbox == "😀"


def understood(message: Any) -> dict[str, Any]:
    assert not isinstance(message, Malformed), (message.kind, message.missing, message.mistyped)
    fields: dict[str, Any] = {"type": type(message).__name__.lower()}
    for name, value in msgspec.structs.asdict(message).items():
        if value is not msgspec.UNSET:
            fields[name] = json.loads(bytes(value)) if isinstance(value, Raw) else value
    return fields


@given(st.data(), good_messages(), st.dictionaries(text_values | st.sampled_from(("mood", "body", "ping")), any_json))
@examples(80)
def test_a_message_means_the_same_however_it_is_written(
    data: st.DataObject, message: dict[str, Any], extra: dict[str, Any]
) -> None:
    """Unknown keys are ignored, order and white space mean nothing (spec 000, and JSON)."""
    kind = message["type"]
    known = {"type", "id", *KEYS[kind], *MAY_HAVE.get(kind, ())}
    pairs = [*message.items(), *((key, value) for key, value in extra.items() if key not in known)]
    text = data.draw(spelled(dict(data.draw(st.permutations(pairs)))))
    wanted = {"id": None, **({"mood": None} if kind == "close" else {}), **message}
    assert understood(parsing.parse(text)) == wanted


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)
verbatim = NUMBERS | any_json.flatmap(spelled).map(lambda text: text.strip(" \t\r\n"))


@given(verbatim, verbatim, verbatim, st.floats(0, 1e10), st.floats(0, 1e10))
@example("123456789012345678901234567890", "12.50", '"\\u00e9\\ud83d\\ude00\\/"', 0.1, 1.0)
@example("-0", "1E+400", '{ "\\u0041" :\n[ ] }', 1.7e9, 1.7e9 + 1e-6)
@example("-1e999999999", "1" * 4000, "[" * 900 + "]" * 900, 1.0, 1.0)
@examples(80)
def test_values_are_returned_as_the_exact_json_that_was_sent(
    message_id: str, phase: str, body: str, server_rx: float, server_tx: float
) -> None:
    add = parsing.parse(f'{{"body": {body}, "type": "add", "id" : {message_id} , "phase":{phase}}}')
    assert isinstance(add, messages.Add)
    ping = parsing.parse(f'{{"type":"ping","ping":{body}}}')
    assert isinstance(ping, messages.Ping)
    end = messages.stamp(server_tx)
    delivery = messages.encode(messages.Delivery("side", add.phase, add.body, server_rx, add.id)) + end
    pong = messages.encode(messages.Pong(add.id, server_rx, ping.ping)) + end
    ack = messages.encode(messages.Ack(add.id)) + end
    for frame, parts in (
        (delivery, {"phase": phase, "body": body, "id": message_id}),
        (pong, {"pong": body, "id": message_id}),
        (ack, {"id": message_id}),
    ):
        fields = msgspec.json.decode(frame, type=dict[str, Raw])
        assert {name: bytes(fields[name]).decode() for name in parts} == parts
        assert abs(json.loads(bytes(fields["server_tx"])) - server_tx) <= 0.5e-6 + server_tx * 2e-16
    assert json.loads(delivery)["server_rx"] == json.loads(pong)["server_rx"] == server_rx
