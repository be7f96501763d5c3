"""Small modules of `restante.common`: errors in plain words, counts of an hour, CSV, lines that a thread writes."""

from __future__ import annotations

import asyncio
import csv
import fcntl
import io
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from restante.common import line_writer
from restante.common.dice import POOL_BYTES, BufferedDice
from restante.common.errors import plain
from restante.common.last_hour import HOUR_SECONDS, STEP_SECONDS, LastHour
from restante.common.line_writer import LineWriter, unblock_standard_error
from restante.common.texts import END_OF_LINE, FORMULA, csv_field
from restante.mailbox.server.trace import TraceFile

SEVERAL = "Multiple exceptions: [Errno 111] a ('::1', 1), [Errno 111] b, [Errno 113] c"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(111, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (ConnectionResetError(104, "x"), "Connection reset by peer"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (OSError(SEVERAL), "Connection refused, No route to host"),
        (OSError("could not bind"), "could not bind"),
    ],
)
def test_a_system_error_is_reported_in_its_words_alone(error: OSError, text: str) -> None:
    assert plain(error) == text


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_refused_connection_is_reported_in_plain_words(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def call() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and does not listen
            await asyncio.get_running_loop().create_connection(asyncio.Protocol, *taken.getsockname())

    with asyncio.Runner(loop_factory=new_loop) as runner, pytest.raises(OSError) as refused:
        runner.run(call())
    assert plain(refused.value) == "Connection refused"


def test_a_random_byte_is_drawn_once_and_all_remainders_are_equally_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = iter([bytes([255, 16]) * (POOL_BYTES // 2), b"more" * POOL_BYTES])
    monkeypatch.setattr(os, "urandom", lambda size: next(pools)[:size])
    dice = BufferedDice()
    assert [dice.below(10) for _ in range(POOL_BYTES // 2)] == [6] * (POOL_BYTES // 2)  # 250 to 255 are not used
    assert dice.draw(2 * POOL_BYTES) == b"more" * (POOL_BYTES // 2)


@given(st.lists(st.tuples(st.floats(1, 600), st.integers(0, 3)), min_size=1, max_size=200))
def test_growth_is_that_of_an_hour_or_little_more_in_bounded_memory(steps: list[tuple[float, int]]) -> None:
    now, count, times = [1000.0], 0, []
    hour = LastHour(lambda: now[0])
    longest = max(step for step, _ in steps) + STEP_SECONDS
    for step, grown in steps:
        now[0] += step
        count += grown
        times += [now[0]] * grown
        hour.remember({"a": count})
        growth = hour.growth({"a": count, "new": 2})
        at_least = sum(time > now[0] - HOUR_SECONDS for time in times)
        at_most = sum(time > now[0] - HOUR_SECONDS - longest for time in times)
        assert at_least <= growth["a"] <= at_most
        assert growth["new"] == 2
        assert len(hour._states) <= HOUR_SECONDS / STEP_SECONDS + 2  # the memory that it takes shows nowhere else


def test_a_text_that_begins_like_a_formula_begins_with_an_apostrophe() -> None:
    for start in FORMULA:
        assert csv_field(f"{start}1", is_text=True).removeprefix('"').startswith("'")
        assert not csv_field(f"{start}1", is_text=False).removeprefix('"').startswith("'")
    assert (csv_field(None, is_text=True), csv_field("", is_text=True)) == ("", '""'), "NULL and an empty text"


@given(st.lists(st.text().filter(lambda text: not text.startswith(FORMULA)), min_size=1))
def test_a_reader_of_csv_gets_the_same_texts(texts: list[str]) -> None:
    line = ",".join(csv_field(text, is_text=True) for text in texts) + END_OF_LINE
    assert list(csv.reader(io.StringIO(line, newline=""))) == [texts]


LINE = b"x" * 99 + b"\n"

PIPE_BYTES = 4096


class Notices:
    def __init__(self) -> None:
        self.notices: list[tuple[str, int]] = []
        self.came = threading.Event()

    def __call__(self, error: str, dropped: int) -> None:
        self.notices.append((error, dropped))
        self.came.set()


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    try:
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("ending", [False, True], ids=["", "somebody reads again only at the end"])
@pytest.mark.parametrize("blocking", [True, False], ids=["a blocking pipe", "another process set O_NONBLOCK"])
def test_lines_that_nobody_reads_are_dropped_and_a_line_in_their_place_has_their_number(
    blocking: bool, ending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def notice(_: str, dropped: int) -> None:
        lines.write(b"%d dropped\n" % dropped)  # this exceeds the capacity

    monkeypatch.setattr(line_writer, "CAPACITY_BYTES", 100 * len(LINE) + len(b"last\n"))
    with pipe() as (reader, descriptor):
        os.set_blocking(descriptor, blocking)
        lines = LineWriter(descriptor, notice)
        lines.write(LINE * 50)
        text = os.read(reader, 1)  # from now on the thread waits for a reader of the rest
        for _ in range(100):
            assert lines.write(LINE) == len(LINE)
        lines.write(b"last\n")
        if ending:
            lines.end(0)
        while not text.endswith(b"last\n"):
            text += os.read(reader, PIPE_BYTES)
        lines.end()
    assert text == LINE * 100 + b"50 dropped\nlast\n"


def test_the_end_waits_for_the_last_lines_but_not_for_ever() -> None:
    with pipe() as (reader, descriptor):
        lines = LineWriter(descriptor, Notices())
        lines.write(LINE)
        lines.end()
        assert os.read(reader, PIPE_BYTES) == LINE
        lines = LineWriter(descriptor, Notices())
        lines.write(LINE * 100)
        lines.end(0.01)
        lines.write(LINE)  # too late
        text = b""
        while len(text) < 100 * len(LINE):
            text += os.read(reader, PIPE_BYTES)
        os.set_blocking(reader, False)
        with pytest.raises(BlockingIOError):
            os.read(reader, PIPE_BYTES)


def test_an_error_is_reported_when_it_begins_and_the_lines_that_it_cost_when_it_ends(tmp_path: Path) -> None:
    notice = Notices()
    with pipe() as (_, descriptor):
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, descriptor)
        lines = LineWriter(descriptor, notice)
        lines.write(LINE * 3)
        assert notice.came.wait(60)
        notice.came.clear()
        file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
        lines.write(LINE)
        assert notice.came.wait(60)
        lines.end()
        os.close(full)
        os.close(file)
    assert notice.notices == [("No space left on device", 0), ("", 3)]
    assert (tmp_path / "file").read_bytes() == LINE


def test_a_line_that_an_error_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    notice = Notices()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    lines = LineWriter(file, notice, owns=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (250, hard))
    try:
        lines.write(LINE * 4)
        assert notice.came.wait(60)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    lines.write(LINE)
    lines.write(LINE)
    lines.end(60)
    assert notice.notices == [("File too large", 0), ("", 2)]
    assert (tmp_path / "file").read_bytes() == LINE * 2 + LINE[:50] + b"\n" + LINE * 2


def test_a_program_that_has_closed_standard_error_can_start_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    unblock_standard_error()
    sys.stderr.write("nobody reads this\n")
    sys.stderr.close()


def test_a_trace_that_is_still_the_same_file_is_not_written_by_two_threads(tmp_path: Path) -> None:
    """Otherwise each would write pieces of lines between the other's, and each SIGHUP would leave a thread."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        threads, descriptors = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
        trace = TraceFile(path)
        for _ in range(5):
            trace.write(LINE * 100)
            trace.reopen()
        assert threading.active_count() == threads + 1
        assert len(list(Path("/proc/self/fd").iterdir())) == descriptors + 1
        os.set_blocking(reader, True)
        text = b""
        while len(text) < 500 * len(LINE):
            text += os.read(reader, PIPE_BYTES)
        trace.close()
        assert text == LINE * 500
    finally:
        os.close(reader)
