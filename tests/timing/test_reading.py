"""Files that are no logs, damaged ones, and logs that do not belong together: a sentence for each, with the place."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from restante.common.errors import Misuse
from restante.timing.model.timeline import Timeline
from restante.timing.transfers import reading
from restante.timing.transfers.reading import read_log
from restante.timing.transfers.transfer import read_transfer
from support.timing import drawn
from support.timing.drawn import Drawn, draw

T = 1_795_000_000.0


@pytest.fixture
def one() -> Drawn:
    paths = {role: drawn.Path(0.01, 0.01, 0.001) for role in drawn.SIDES}
    return draw(random.Random(1), {"sender": 0.5, "receiver": -0.5}, paths)


class Files:
    """Files in a folder, and what is said about them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    def write(self, name: str, content: bytes | str | list[Any]) -> Path:
        path = self.folder / name
        if isinstance(content, list):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def read(self, *paths: Path, trace: Path | None = None) -> Timeline:
        return read_transfer(paths, trace, {}, self.hear)

    def hear(self, words: str) -> None:
        self.said.append(words.replace(f"{self.folder}/", ""))

    def refused(self, *paths: Path, trace: Path | None = None) -> str:
        with pytest.raises(Misuse) as refusal:
            self.read(*paths, trace=trace)
        return str(refusal.value).replace(f"{self.folder}/", "")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


EVENT = {"name": "exit", "start": T, "stop": None, "details": {}}

NO_LOGS: dict[str, tuple[bytes | str | list[Any], str]] = {
    "empty": ("", "log is empty: the client writes its log when it ends"),
    "only spaces": (" \n\n", "log is empty: the client writes its log when it ends"),
    "no events": ([], "log has no events: the client wrote an empty log"),
    "a picture": (
        b"\x89PNG\r\n\x1a\n",
        "log is not a timing log, which is a JSON list of events (see --dump-timing)",
    ),
    "a trace": (
        '{"connection": 1}\n',
        "log is not a timing log, which is a JSON list; a server's trace is given with --server",
    ),
    "another list": (
        [1, 2, 3],
        "log is not a timing log: none of its items is an event; byte 1: a value has the wrong type",
    ),
    "objects of others": (
        [{"a": 1}],
        "log is not a timing log: none of its items is an event; byte 1: a value is missing",
    ),
    "deep": ("[" * 100_000, "log is not a timing log, which is a JSON list of events (see --dump-timing)"),
}


@pytest.mark.parametrize("kind", NO_LOGS)
def test_a_file_that_is_no_log_is_refused_in_one_sentence(files: Files, kind: str) -> None:
    content, words = NO_LOGS[kind]
    assert files.refused(files.write("log", content)) == words


def test_a_file_that_cannot_be_read_is_named(files: Files) -> None:
    assert files.refused(files.folder / "missing") == "cannot read missing: No such file or directory"
    assert files.refused(files.folder) == f"cannot read {files.folder}: Is a directory"


def received(message: dict[str, Any]) -> dict[str, Any]:
    return {**EVENT, "name": "ws_receive", "details": {"_side": "a", "message": message}}


BAD_EVENTS: dict[str, tuple[dict[str, Any] | str, str]] = {
    "no start": ({"name": "exit"}, "a value is missing"),
    "a start that is a text": ({**EVENT, "start": "now"}, "a value has the wrong type"),
    "NaN": ('{"name": "exit", "start": NaN}', "it is not JSON"),
    "infinity": ('{"name": "exit", "start": 1e400}', "a value has the wrong type"),
    "a negative start": ({**EVENT, "start": -1.0}, "its time is not a time since 1970"),
    "the year 5138": ({**EVENT, "start": 1e11}, "its time is not a time since 1970"),
    "a server's time before 1970": (
        received({"type": "welcome", "server_tx": -9e10}),
        "its time is not a time since 1970",
    ),
    "a server's time in 5138": (
        received({"type": "welcome", "server_tx": 1e11}),
        "its time is not a time since 1970",
    ),
    "an end before the beginning": ({**EVENT, "stop": T - 1}, "it ends before it begins"),
}


@pytest.mark.parametrize("kind", BAD_EVENTS)
def test_a_bad_event_is_left_out_and_said_with_its_place(files: Files, kind: str) -> None:
    event, words = BAD_EVENTS[kind]
    bad = event if isinstance(event, str) else json.dumps(event)
    good = json.dumps(EVENT)
    log = read_log(files.write("log", f"[{good},\n{bad},\n{bad}]"), files.hear)
    assert len(log.events) == 1
    assert files.said == [f"log: 2 events are left out; the first is at byte {len(good) + 3}: {words}"]


def test_a_log_that_is_cut_off_is_shown_up_to_there(files: Files, one: Drawn) -> None:
    whole = one.log("sender")
    log = read_log(files.write("log", whole[: len(whole) // 2]), files.hear)
    assert 0 < len(log.events) < len(one.logs["sender"])
    (words,) = files.said
    assert words.startswith("log is damaged or cut off at byte ")
    assert words.endswith(f": the {len(log.events)} events before it are shown")


def test_a_log_cut_at_any_byte_is_read_or_refused(files: Files, one: Drawn) -> None:
    whole = one.log("receiver")[:2500]
    for end in range(len(whole)):
        with contextlib.suppress(Misuse):
            assert len(read_log(files.write("log", whole[:end]), files.hear).events) <= len(one.logs["receiver"])


def test_a_log_with_too_many_events_is_refused(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_EVENTS", 10)
    assert (
        files.refused(files.write("log", [EVENT] * 11)) == "log has more than 10 events, the most that can be shown"
    )
    assert len(read_log(files.write("log", [EVENT] * 10), files.hear).events) == 10


# ── two logs ─────────────────────────────────────────────────────────────────────────────────────


def test_both_logs_have_their_roles_in_either_order(files: Files, one: Drawn) -> None:
    sender, receiver = files.write("s", one.log("sender")), files.write("r", one.log("receiver"))
    right, swapped = files.read(sender, receiver), files.read(receiver, sender)
    assert [client.role for client in right.clients] == ["sender", "receiver"]
    assert [client.role for client in swapped.clients] == ["receiver", "sender"]
    assert files.said == ["r is the receiver's log, and s the sender's"]
    assert {(client.role, client.offset_us) for client in right.clients} == {
        (client.role, client.offset_us) for client in swapped.clients
    }


@pytest.mark.parametrize(("role", "shown"), [("sender", "sender"), ("receiver", "sender")])
def test_one_log_is_enough(files: Files, one: Drawn, role: str, shown: str) -> None:
    """The receiver's log has nothing here that tells its role: it did not ask its user for the code."""
    found = files.read(files.write("log", one.log(role)))
    assert [client.role for client in found.clients] == [shown]
    assert found.commands
    assert any(frame.author == "peer" for frame in found.frames)
    words = "log does not say whether it is the sender's or the receiver's: it is shown as the sender's"
    assert files.said == ([words] if role == "receiver" else [])


@pytest.mark.parametrize(("which", "role"), [("cmd_send", "sender"), ("cmd_receive", "receiver")])
@pytest.mark.parametrize("name", ["import", "command dispatch"])
def test_a_log_says_its_role_also_if_the_rest_looks_like_the_other_one(
    files: Files, one: Drawn, name: str, which: str, role: str
) -> None:
    """`import` is written by `wormhole`, `command dispatch` by ours. The sender asks, too, with --verify."""
    began = {"name": name, "start": T, "stop": None, "details": {"which": which}}
    asked = {"name": "permission", "start": T, "stop": T + 1, "details": {"waiting": "user"}}
    found = files.read(files.write("log", [began, asked, *one.logs["sender"]]))
    assert [client.role for client in found.clients] == [role]


def test_the_same_log_twice_is_refused(files: Files, one: Drawn) -> None:
    first, second = files.write("a", one.log("sender")), files.write("b", one.log("sender"))
    assert files.refused(first, second) == "a and b are both logs of one client: give the log of the other one"


def test_logs_of_two_transfers_are_refused(files: Files, one: Drawn) -> None:
    other = one.log("receiver").replace(b"5e4de6", b"077e35").replace(b"6ece17", b"077e36")
    said = files.refused(files.write("a", one.log("sender")), files.write("b", other))
    assert said == "a and b are not of one transfer: neither client received a message of the other"


def test_a_log_of_several_clients_is_refused(files: Files, one: Drawn) -> None:
    log = files.write("log", one.logs["sender"] + one.logs["receiver"])
    assert files.refused(log) == "log has 2 sides: give the log of one client"


def test_a_clock_that_was_set_is_said(files: Files, one: Drawn) -> None:
    for event in one.logs["sender"][12:]:
        event["start"] += 60.0
    files.read(files.write("log", one.logs["sender"]))
    (words,) = files.said
    assert words.startswith("the clock of log moved against the server's by 59.9")


def test_a_log_without_answers_is_shown_by_its_own_clock(files: Files, one: Drawn) -> None:
    found = files.read(files.write("log", [each for each in one.logs["sender"] if each["name"] == "ws_send"]))
    assert found.clients[0].offset_us is None
    assert files.said == [
        "log has no answer of the server, so its clock cannot be compared; its times are as written"
    ]


# ── traces ───────────────────────────────────────────────────────────────────────────────────────

NO_TRACES: dict[str, Callable[[Drawn], bytes]] = {
    "empty": lambda _: b"",
    "a log": lambda one: one.log("sender"),
    "a picture": lambda _: b"\x89PNG\r\n\x1a\n" * 100,
    "one long line": lambda _: b"{" * (1 << 20),
    "the server's log": lambda _: b'{"event": "listening", "level": "info"}\n',
}


@pytest.mark.parametrize("kind", NO_TRACES)
def test_a_file_that_is_no_trace_is_refused(files: Files, one: Drawn, kind: str) -> None:
    log, trace = files.write("log", one.log("sender")), files.write("trace", NO_TRACES[kind](one))
    words = "trace is not a trace: it does not begin with a command (see restante serve --trace)"
    assert files.refused(log, trace=trace) == words


def test_a_trace_of_another_server_is_said(files: Files, one: Drawn) -> None:
    line = {**one.trace[0], "id": "others"}
    files.read(files.write("log", one.log("sender")), trace=files.write("trace", json.dumps(line) + "\n"))
    assert files.said == ["trace has none of the transfer's commands: it is of another server, or of another time"]


def test_bad_lines_of_a_trace_are_left_out_and_said_with_their_place(files: Files, one: Drawn) -> None:
    log, lines = files.write("log", one.log("sender")), one.lines()
    first = len(lines.splitlines()[0]) + 1
    bad = lines[:first] + b"garbage\n" + b"x" * (1 << 17) + b"\n" + lines[first:] + b'{"connection": 1, "comm'
    found = files.read(log, trace=files.write("trace", bad))
    assert files.said == [f"trace: 2 lines are left out; the first is at byte {first}: it is not JSON"]
    assert found == files.read(log, trace=files.write("whole", lines))
    assert all(command.answered_us is not None for command in found.commands)
