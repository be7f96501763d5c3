"""Timing logs and traces as sources: files that grow, are moved away, or were never any good."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.sources import logs as log_source
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.sources.source import SourceError
from support.effort import examples
from support.pipeline.runs import LakeWorld, no_spark
from support.pipeline.servers import CONTEXT, T0
from support.pipeline.source_reads import SourceRead, read_source, rows_of


def line(number: int, **fields: Any) -> bytes:
    traced = {"connection": 1, "command": "add", "id": f"{number:04x}", "server_rx": T0 + number}
    return json.dumps({**traced, **fields}).encode() + b"\n"


def log(*events: Mapping[str, Any]) -> bytes:
    base = {"name": "exit", "start": T0, "stop": None, "details": {}}
    return json.dumps([{**base, **event} for event in events]).encode()


def commands(path: Path, before: SourceRead | None = None, table: str = "server_commands") -> SourceRead:
    return read_source(f"main={path}", table, path.parent / "scratch", before.marks if before else {})


events = partial(commands, table="client_events")


def ids(result: SourceRead) -> list[int]:
    return [int(row["command_id"], 16) for row in result.clean]


SECOND = len(log({})) + 1
"""Where the second event of a log begins, if the first says nothing of its own."""

LINES = [line(number) for number in range(10)]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


def test_a_line_is_identified_by_its_file_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(LINES[:3]))
    first = commands(path)
    assert commands(path, first).span is None
    with path.open("ab") as file:
        file.write(LINES[3] + b"nonsense\n" + LINES[4])
    second = commands(path, first)
    ends = [sum(map(len, LINES[:number])) for number in range(5)]
    assert [row["id"] for row in (*first.clean, *second.clean)] == [*ends[:4], ends[4] + 9]
    assert {row["file"] for row in (*first.clean, *second.clean)} == {hashlib.sha256(LINES[0]).hexdigest()}
    assert second.faults == [(f"trace.jsonl:{ends[4]}", "not JSON")]


def test_lines_go_to_the_lake_once_and_bad_ones_to_quarantine(world: LakeWorld, logs: Path, tmp_path: Path) -> None:
    trace, log_ = logs / "trace.jsonl", logs / "send.json"
    trace.write_bytes(b"".join(LINES[:3]) + b"nonsense\n" + LINES[4])
    log_.write_bytes(log({}, {"start": "1"}, {"name": "tx file", "stop": T0 + 2}))
    ledgers = {result.table: result.ledger for result in world.ingest(f"people@main={logs}")}
    for table, read in (("server_commands", 5), ("client_events", 3)):
        ledger = ledgers[table]
        assert ledger is not None
        assert (ledger.read, ledger.clean, ledger.quarantined) == (read, read - 1, 1)
    log_.rename(logs / "other.json")
    with trace.open("ab") as file:
        file.write(LINES[5][:20])
    world.spark = no_spark
    assert {result.span for result in world.ingest(f"people@main={logs}")} == {None}
    for table in ("server_commands", "client_events"):
        known = read_source(f"people@main={logs}", table, tmp_path / "scratch").clean
        columns = [column.name for column in CLEAN_TABLES[table].columns]
        assert world.rows(table) == sorted([{name: row[name] for name in columns} for row in known], key=repr)
    digest = hashlib.sha256((logs / "other.json").read_bytes()).hexdigest()
    names = ("id", "name", "server", "source", "file")
    assert sorted(tuple(row[name] for name in names) for row in world.rows("client_events")) == [
        (0, "exit", "main", "people", digest),
        (2, "tx file", "main", "people", digest),
    ]
    assert sorted((row["table"], row["reason"], row["identity"]) for row in world.rows("quarantine")) == [
        ("client_events", "wrong type", f"send.json:{SECOND}"),
        ("server_commands", "not JSON", f"trace.jsonl:{sum(map(len, LINES[:3]))}"),
    ]


STEPS = ("write", "write half", "read", "rotate", "copy", "delete", "restore")


@given(st.lists(st.sampled_from(STEPS), max_size=14), st.integers(1, 400))
@example(["write", "copy", "write", "read", "rotate", "write", "read", "delete", "read", "restore"], 100)
@examples(150)
def test_each_line_is_read_once_however_reading_is_split(steps: list[str], task_bytes: int) -> None:
    """Of copies the longest is read; files that were read may be deleted, and come back."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_source, "TASK_BYTES", task_bytes)
        patch.setattr(log_source, "CHUNK_BYTES", 64)
        logs = Path(folder) / "logs"
        logs.mkdir()
        path = logs / "trace"
        path.write_bytes(b"")
        last: SourceRead | None = None
        numbers: list[int] = []
        count, rest = 0, b""
        was_read: list[Path] = []
        deleted: list[bytes] = []
        for at, step in enumerate((*steps, "write", "read")):
            if step == "write":
                rest, more = b"", rest
                with path.open("ab") as file:
                    file.write(more or line(count))
                count += not more
            elif step == "write half" and not rest:
                with path.open("ab") as file:
                    file.write(line(count)[:40])
                rest, count = line(count)[40:], count + 1
            elif step == "rotate" and not rest:
                path.rename(logs / f"trace.{at}")
                path.write_bytes(b"")
            elif step == "copy":
                shutil.copy(path, logs / f"copy.{at}")
            elif step == "delete":
                deleted += [old.read_bytes() for old in was_read]
                for old in was_read:
                    old.unlink()
                was_read.clear()
            elif step == "restore" and deleted:
                (logs / f"restored.{at}").write_bytes(deleted.pop())
            elif step == "read":
                now = commands(logs, last)
                last = now if now.span else last
                numbers += ids(now)
                was_read = [old for old in logs.iterdir() if old != path]
        now = commands(logs, last)
        assert sorted([*numbers, *ids(now)]) == list(range(count - bool(rest)))


def test_a_trace_that_is_rewritten_is_read_again_and_a_shorter_or_empty_one_is_reported(logs: Path) -> None:
    path = logs / "t\x1b[31mrace\nfoo"
    name = f"{logs}/t\\x1b[31mrace\\nfoo"
    path.write_bytes(b"".join(LINES[:3]))
    first = commands(path)
    path.write_bytes(b"".join(LINES[:2]))
    shorter = commands(path, first)
    assert (shorter.span, shorter.messages) == (None, [f"source main: {name} is shorter than it was and is left out"])
    path.write_bytes(b"".join([LINES[0], LINES[1], line(7), LINES[3]]))
    second = commands(path, first)
    assert (second.span.replace, ids(second)) == (True, [0, 1, 7, 3])
    assert "foo was rewritten" in second.span.reason
    path.rename(logs / "trace.1")
    path.write_bytes(b"")
    empty = commands(path, second)
    assert (empty.span, empty.messages) == (None, [f"source main: {name} is empty: nothing was written to it yet"])
    path.write_bytes(LINES[7])
    assert (ids(commands(path, second)), commands(path, second).messages) == ([7], [])


def test_a_very_long_line_does_not_affect_the_others(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(LINES[0] + b"x" * (3 * log_source.MAX_LINE_BYTES) + b"\n" + LINES[1])
    result = commands(path)
    assert result.faults == [(f"trace:{len(LINES[0])}", "not JSON")]
    assert ids(result) == [0, 1]
    path.write_bytes(path.read_bytes() + LINES[2])
    assert ids(commands(path, result)) == [2]


def test_a_trace_that_is_moved_while_it_is_read_is_refused_with_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"".join(LINES))
    with recognise(f"main={path}").opened(tmp_path / "scratch", print, CONTEXT) as opened:
        span = opened.find_new("server_commands", {})
        assert span is not None
        with path.open("ab") as file:  # that it grows is as it should be
            file.write(line(77))
        assert len(rows_of(span)) == len(LINES)
        path.rename(tmp_path / "trace.1")
        path.write_bytes(line(78))
        with pytest.raises(SourceError, match="changed while it was read"):
            rows_of(span)


WHOLE = log({}, {})

UNPARSABLE: dict[str, tuple[bytes, list[tuple[str, str]], int]] = {
    "text": (b"hello", [("x:0", "not a timing log")], 0),
    "zeros": (bytes(9), [("x:0", "not a timing log")], 0),
    "cut off": (WHOLE[:-1], [(f"x:{SECOND}", "not a timing log")], 1),
    "two": (WHOLE + b"\n" + WHOLE, [(f"x:{len(WHOLE) + 1}", "not a timing log")], 2),
    "a trace's endless line": (b'{"a":"' + bytes(log_source.MAX_LINE_BYTES), [("x:0", "not a timing log")], 0),
    "deep": (b"[" + b"[" * 10**5 + b"]" * 10**5 + b", " + WHOLE[1:], [("x:1", "wrong type")], 2),
    "too large": (b"[" + bytes(1 << 20), [("x:0", "larger than any timing log")], 0),
    "an empty list": (b"[]", [], 0),
    "nothing": (b"", [], 0),
}


@pytest.mark.parametrize("name", UNPARSABLE)
def test_a_file_that_is_no_log_is_one_bad_row(name: str, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_source, "MAX_LOG_BYTES", 1 << 20)
    written, faults, clean = UNPARSABLE[name]
    (logs / "x").write_bytes(written)
    (logs / "y").write_bytes(log({"name": "print"}))
    result = events(logs)
    assert (result.faults, len(result.clean)) == (faults, clean + 1)
    assert commands(logs).span is None
    assert events(logs, result).span is None


def test_logs_and_traces_may_be_mixed_and_a_glob_reads_what_it_matches(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(log({}))
    (tmp_path / "trace.jsonl").write_bytes(LINES[0])
    (tmp_path / "b.log").write_bytes(log({}, {}))
    (tmp_path / ".hidden.json").write_bytes(log({}, {}, {}))
    assert (len(events(tmp_path).clean), ids(commands(tmp_path))) == (3, [0])
    assert len(events(tmp_path / "*.json").clean) == 1


def test_of_logs_and_traces_only_listed_words_and_times_are_read(tmp_path: Path) -> None:
    secrets = dict.fromkeys(("_side", "side", "nameplate", "mailbox", "body", "code", "welcome", "waiting"), "canary")
    details: dict[str, Any] = secrets | {"type": "canary", "phase": "canary", "id": "0a0a"}
    details["message"] = details.copy()
    names = ("canary", "input code", "ws_send", "ws_receive")
    (tmp_path / "x.json").write_bytes(log(*({"name": name, "details": details} for name in names)))
    (tmp_path / "trace").write_bytes(line(1, **secrets) + line(2, command="canary"))
    rows = events(tmp_path).rows + commands(tmp_path).rows
    assert len(rows) == 6
    assert "canary" not in repr(rows)
