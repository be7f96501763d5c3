"""Files that are no logs, damaged ones, and logs that do not belong together: a sentence for each, with the place."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from restante.common.errors import Misuse
from restante.timing import transfers
from restante.timing.model.timeline import Timeline
from restante.timing.transfers import read_log, read_transfer
from support.timing import drawn
from support.timing.drawn import Drawn, draw

T = 1_795_000_000.0
Content: TypeAlias = bytes | str | list[Any]


class Files:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.remarks: list[str] = []

    def write(self, name: str, content: Content) -> Path:
        path = self.folder / name
        if isinstance(content, list):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def read(self, *contents: Content, trace: Content | None = None) -> Timeline:
        self.remarks.clear()
        paths = [self.write(chr(ord("a") + number), content) for number, content in enumerate(contents)]
        return read_transfer(paths, None if trace is None else self.write("trace", trace), {}, self.hear)

    def hear(self, sentence: str) -> None:
        self.remarks.append(sentence.replace(f"{self.folder}/", ""))

    def refused(self, *contents: Content, trace: Content | None = None) -> str:
        with pytest.raises(Misuse) as refusal:
            self.read(*contents, trace=trace)
        return str(refusal.value).replace(f"{self.folder}/", "")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def transfer() -> Drawn:
    paths = {role: drawn.Path(0.01, 0.01, 0.001) for role in drawn.SIDES}
    return draw(random.Random(1), {"sender": 0.5, "receiver": -0.5}, paths)


EVENT = {"name": "exit", "start": T, "stop": None, "details": {}}

NO_LOG = "a is not a timing log"
NO_LIST = f"{NO_LOG}, which is a JSON list of events (see --dump-timing)"
NOT_AN_EVENT = f"{NO_LOG}: none of its items is an event; byte 1: a value"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (" \n\n", "a is empty: the client writes its log when it ends"),
        ([], "a has no events: the client wrote an empty log"),
        (b"\x89PNG\r\n\x1a\n", NO_LIST),
        ('{"connection": 1}\n', f"{NO_LOG}, which is a JSON list; a server's trace is given with --server"),
        ([1, 2, 3], f"{NOT_AN_EVENT} has the wrong type"),
        ([{"a": 1}], f"{NOT_AN_EVENT} is missing"),
        ("[" * 100_000, NO_LIST),
        ([EVENT] * 11, "a has more than 10 events, the most that can be shown"),
        (b"[" + b" " * (1 << 20), "a is larger than 1 MiB, so it is no timing log"),
    ],
)
def test_a_file_that_is_no_log_is_refused_in_one_sentence(
    files: Files, monkeypatch: pytest.MonkeyPatch, content: Content, sentence: str
) -> None:
    monkeypatch.setattr(transfers, "MAX_EVENTS", 10)
    monkeypatch.setattr(transfers, "MAX_LOG_BYTES", 1 << 20)
    assert files.refused(content) == sentence
    assert len(read_log(files.write("log", [EVENT] * 10), files.hear).events) == 10


def received(server_tx: float) -> dict[str, Any]:
    message = {"type": "welcome", "server_tx": server_tx}
    return {**EVENT, "name": "ws_receive", "details": {"_side": "a", "message": message}}


NO_TIME = "its time is not a time since 1970"


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        ({"name": "exit"}, "a value is missing"),
        ({**EVENT, "start": "now"}, "a value has the wrong type"),
        ('{"name": "exit", "start": NaN}', "it is not JSON"),
        ({**EVENT, "start": -1.0}, NO_TIME),
        ({**EVENT, "start": 1e11}, NO_TIME),
        (received(1e11), NO_TIME),
        ({**EVENT, "stop": T - 1}, "it ends before it begins"),
    ],
)
def test_a_bad_event_is_left_out_and_its_place_said(files: Files, event: dict[str, Any] | str, sentence: str) -> None:
    good, bad = json.dumps(EVENT), event if isinstance(event, str) else json.dumps(event)
    log = read_log(files.write("log", f"[{good},\n{bad},\n{bad}]"), files.hear)
    assert len(log.events) == 1
    assert files.remarks == [f"log: 2 events are left out; the first is at byte {len(good) + 3}: {sentence}"]


def test_a_log_that_is_cut_off_is_shown_up_to_there(files: Files, transfer: Drawn) -> None:
    content = transfer.log("sender")
    log = read_log(files.write("log", content[: len(content) // 2]), files.hear)
    assert 0 < len(log.events) < len(transfer.logs["sender"])
    [sentence] = files.remarks
    assert sentence.startswith("log is damaged or cut off at byte ")
    assert sentence.endswith(f": the {len(log.events)} events before it are shown")
    for end in range(0, 2_500, 3):
        with contextlib.suppress(Misuse):
            read_log(files.write("log", content[:end]), files.hear)


def test_logs_have_their_roles_in_either_order(files: Files, transfer: Drawn) -> None:
    right = files.read(transfer.log("sender"), transfer.log("receiver"))
    assert files.remarks == []
    swapped = files.read(transfer.log("receiver"), transfer.log("sender"))
    assert [client.role for client in right.clients] == ["sender", "receiver"]
    assert [client.role for client in swapped.clients] == ["receiver", "sender"]
    assert files.remarks == ["a is the receiver's log, and b the sender's"]
    offsets = [{(client.role, client.offset_us) for client in timeline.clients} for timeline in (right, swapped)]
    assert offsets[0] == offsets[1]
    for role, remarks in (
        ("sender", []),
        # It has nothing here that tells its role: the receiver did not ask its user for the code.
        ("receiver", ["a does not say whether it is the sender's or the receiver's: it is shown as the sender's"]),
    ):
        timeline = files.read(transfer.log(role))
        assert ([client.role for client in timeline.clients], files.remarks) == (["sender"], remarks)
        assert timeline.commands
        assert any(frame.author == "peer" for frame in timeline.frames)
    logs = [[event for event in transfer.logs[role] if event["name"] != "ws_send"] for role in ("receiver", "sender")]
    assert [client.role for client in files.read(*logs).clients] == ["sender", "receiver"]
    assert files.remarks[0] == "a and b do not say which one is the sender's: a is shown as the sender's"


@pytest.mark.parametrize(
    ("name", "details", "log", "role"),
    [
        ("import", {"which": "cmd_receive"}, "sender", "receiver"),
        ("command dispatch", {"which": "cmd_send"}, "sender", "sender"),
        ("command dispatch", {"which": "cmd_receive"}, "sender", "receiver"),
        ("input code", {"waiting": "user"}, "receiver", "receiver"),
    ],
)
def test_a_log_says_its_role_also_if_the_rest_looks_like_the_other_one(
    files: Files, transfer: Drawn, name: str, details: dict[str, str], log: str, role: str
) -> None:
    """`import` is written by `wormhole`, `command dispatch` by ours. The sender asks, too, with --verify."""
    role_event = {"name": name, "start": T, "stop": T + 1, "details": details}
    asked = {"name": "permission", "start": T, "stop": T + 1, "details": {"waiting": "user"}}
    assert [client.role for client in files.read([role_event, asked, *transfer.logs[log]]).clients] == [role]


def test_logs_that_do_not_belong_together_are_refused(files: Files, transfer: Drawn) -> None:
    log = transfer.log("sender")
    assert files.refused(log, log) == "a and b are both logs of one client: give the log of the other one"
    other = transfer.log("receiver").replace(b"5e4de6", b"077e35").replace(b"6ece17", b"077e36")
    sentence = "a and b are not of one transfer: neither client received a message of the other"
    assert files.refused(log, other) == sentence
    both = transfer.logs["sender"] + transfer.logs["receiver"]
    assert files.refused(both) == "a has 2 sides: give the log of one client"


def test_a_clock_that_was_set_or_is_not_known_is_named(files: Files, transfer: Drawn) -> None:
    timeline = files.read([sent for sent in transfer.logs["sender"] if sent["name"] == "ws_send"])
    assert timeline.clients[0].offset_us is None
    assert files.remarks == [
        "a has no answer of the server, so its clock cannot be compared; its times are as written"
    ]
    for later in transfer.logs["sender"][12:]:
        later["start"] += 60.0
    files.read(transfer.logs["sender"])
    assert files.remarks[0].startswith("the clock of a moved against the server's by 59.9")


@pytest.mark.parametrize(
    "trace", [b"", [EVENT], b"\x89PNG\r\n\x1a\n" * 100, b"{" * (1 << 20), '{"event": "listening", "level": "info"}\n']
)
def test_a_file_that_is_no_trace_is_refused(files: Files, transfer: Drawn, trace: Content) -> None:
    sentence = "trace is not a trace: it does not begin with a command (see restante serve --trace)"
    assert files.refused(transfer.log("sender"), trace=trace) == sentence


def test_bad_lines_of_a_trace_are_left_out_and_named_with_their_place(files: Files, transfer: Drawn) -> None:
    log, lines = transfer.log("sender"), transfer.lines()
    line_end = len(lines.splitlines()[0]) + 1
    bad = lines[:line_end] + b"garbage\n" + b"x" * (1 << 17) + b"\n" + lines[line_end:] + b'{"connection": 1, "comm'
    timeline = files.read(log, trace=bad)
    assert files.remarks == [f"trace: 2 lines are left out; the first is at byte {line_end}: it is not JSON"]
    assert timeline == files.read(log, trace=lines)
    assert all(command.answered_us is not None for command in timeline.commands)
    files.read(log, trace=json.dumps({**transfer.trace[0], "id": "others"}) + "\n")
    assert files.remarks == ["trace has none of the transfer's commands: it is of another server, or of another time"]
