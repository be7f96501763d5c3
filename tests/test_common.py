"""Small modules of `restante.common`: errors in plain words, counts of an hour, fields of CSV."""

from __future__ import annotations

import asyncio
import csv
import io
import socket
from collections.abc import Callable

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from restante.common.csv_fields import END_OF_LINE, FORMULA, field
from restante.common.errors import plain
from restante.common.last_hour import HOUR_SECONDS, STEP_SECONDS, LastHour

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
        assert field(f"{start}1", is_text=True).removeprefix('"').startswith("'")
        assert not field(f"{start}1", is_text=False).removeprefix('"').startswith("'")
    assert (field(None, is_text=True), field("", is_text=True)) == ("", '""'), "NULL and an empty text"


@given(st.lists(st.text().filter(lambda text: not text.startswith(FORMULA)), min_size=1))
def test_a_reader_of_csv_gets_the_same_texts(texts: list[str]) -> None:
    line = ",".join(field(text, is_text=True) for text in texts) + END_OF_LINE
    assert list(csv.reader(io.StringIO(line, newline=""))) == [texts]
