"""A timeline as text for terminals."""

from __future__ import annotations

import re

import msgspec
import pytest

from restante.common.units import columns, duration, moment, percent
from restante.timing.model.timeline import Timeline
from restante.timing.outputs.diagram import MAX_ROWS, diagram
from restante.timing.outputs.text import text
from support.timing.timelines import drawn_timeline, waiting_human

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def without_clock() -> Timeline:
    """Return a timeline of a client that never heard of the server."""
    whole = drawn_timeline(roles=["sender"], traced=False)
    client = msgspec.structs.replace(whole.clients[0], offset_us=None, error_us=None)
    return msgspec.structs.replace(whole, clients=[client], commands=[], frames=[], delays=[])


def repeated(times: int, apart_us: int) -> Timeline:
    """Return a timeline with many messages."""
    whole = drawn_timeline()
    commands = [
        msgspec.structs.replace(
            each, sent_us=each.sent_us + turn * apart_us, answer_received_us=None, phase=str(turn)
        )
        for turn in range(times)
        for each in whole.commands
    ]
    return msgspec.structs.replace(whole, commands=commands)


TIMELINES = {
    "both": drawn_timeline(),
    "human": waiting_human(),
    "days": waiting_human(2 * 86_400.0),
    "untraced": drawn_timeline(traced=False),
    "sender": drawn_timeline(roles=["sender"]),
    "receiver": drawn_timeline(roles=["receiver"], traced=False),
    "without clock": without_clock(),
    "many": repeated(100, 2_000_000),
    "at once": repeated(100, 0),
}


@pytest.mark.parametrize("name", TIMELINES)
def test_no_line_is_wider_than_the_terminal_or_ends_with_a_space(name: str) -> None:
    for width in range(40, 201, 40 if name in {"many", "at once"} else 1):
        for line in text(TIMELINES[name], width).splitlines():
            assert len(line) <= width, (width, line)
            assert line == line.rstrip(), (width, line)


@pytest.mark.parametrize(("given", "used"), [(1, 40), (1000, 200)])
def test_a_width_that_no_terminal_has_becomes_the_nearest(given: int, used: int) -> None:
    assert text(TIMELINES["human"], given) == text(TIMELINES["human"], used)


@pytest.mark.parametrize("name", TIMELINES)
def test_without_unicode_it_is_ascii_of_the_same_widths(name: str) -> None:
    plain = text(TIMELINES[name], 80, unicode=False)
    assert plain.isascii()
    assert [len(line) for line in plain.splitlines()] == [
        len(line) for line in text(TIMELINES[name], 80).splitlines()
    ]


@pytest.mark.parametrize("name", TIMELINES)
def test_colours_change_nothing_else(name: str) -> None:
    coloured = text(TIMELINES[name], 80, colour=True)
    assert "\x1b[" in coloured
    assert ESCAPE.sub("", coloured) == text(TIMELINES[name], 80)
    assert "\x1b" not in text(TIMELINES[name], 80)


def test_the_first_sentences_say_where_the_time_went_and_what_the_other_client_did() -> None:
    sender, _, receiver = text(TIMELINES["human"], 200).splitlines()[:3]
    assert re.match(
        r"The sender ran for \S+ s\. For 9\.\d+ s \(\d+%\) it waited for the receiver,"
        r" which waited for its user for 8\.\d+ s\.",
        sender,
    ), sender
    assert re.match(r"The receiver ran for \S+ s\. For 9 s \(\d+%\) it waited for its user\.", receiver), receiver


def test_with_one_log_the_other_client_is_not_named() -> None:
    written = text(TIMELINES["sender"], 200)
    assert "receiver" not in written
    assert "it waited for the other client." in written


def test_an_unknown_clock_is_said() -> None:
    assert "The sender's clock could not be compared with the server's" in text(TIMELINES["without clock"], 200)


def test_a_clock_that_moved_is_said() -> None:
    whole = TIMELINES["both"]
    clients = [msgspec.structs.replace(each, moved_us=500_000) for each in whole.clients]
    assert text(msgspec.structs.replace(whole, clients=clients), 200).count("; it moved by 500 ms or more.") == 2


def test_a_given_skew_has_no_error() -> None:
    whole = TIMELINES["both"]
    clients = [msgspec.structs.replace(each, given=True) for each in whole.clients]
    written = text(msgspec.structs.replace(whole, clients=clients), 200)
    assert "as --skew says." in written
    assert "error is at most" not in written


def test_the_messages_that_are_left_out_are_counted() -> None:
    lines = diagram(TIMELINES["many"], 80)
    assert len(lines) <= 2 * MAX_ROWS + 2
    left = re.fullmatch(r"([\d,]+) of ([\d,]+) are left out: those that took least\.", lines[-1])
    assert left is not None, lines[-1]
    assert int(left[2].replace(",", "")) > 1_000
    assert int(left[2].replace(",", "")) - int(left[1].replace(",", "")) >= MAX_ROWS


def test_consecutive_messages_of_one_type_are_one_row() -> None:
    lines = diagram(TIMELINES["at once"], 80)
    assert any("bind x100─" in line for line in lines)
    assert "left out" not in lines[-1]


def test_a_message_that_was_delivered_at_once_goes_through_the_server() -> None:
    through = [line for line in diagram(TIMELINES["both"], 80) if line.count(">") == 2 or line.count("<") == 2]
    assert {each for line in through for each in re.findall("add [a-z]+|add [0-9]", line)} >= {
        "add pake",
        "add version",
    }


def test_a_stored_message_has_a_row_when_it_is_sent_on() -> None:
    whole = TIMELINES["both"]
    at, frame = next(
        (at, each) for at, each in enumerate(whole.frames) if each.command is not None and each.author != each.role
    )
    late = msgspec.structs.replace(
        frame, sent_us=(frame.sent_us or 0) + 50_000, received_us=frame.received_us + 50_000
    )
    frames = [*whole.frames[:at], late, *whole.frames[at + 1 :]]
    assert len(diagram(msgspec.structs.replace(whole, frames=frames), 80)) > len(diagram(whole, 80))


@pytest.mark.parametrize(
    ("us", "words"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (1, "1 µs"),
        (999, "999 µs"),
        (999.6, "1 ms"),
        (1_234, "1.23 ms"),
        (12_000, "12 ms"),
        (12_340, "12.3 ms"),
        (99_960, "100 ms"),
        (999_499, "999 ms"),
        (999_500, "1 s"),
        (2_980_000, "2.98 s"),
        (-2_980_000, "-2.98 s"),
        (59_940_000, "59.9 s"),
        (59_960_000, "1 min"),
        (63_000_000, "1 min 3 s"),
        (3_599_700_000, "1 h"),
        (3_720_000_000, "1 h 2 min"),
        (86_400_000_000, "1 d"),
        (1_000 * 86_400_000_000, "1,000 d"),
        (-97_200_000_000, "-1 d 3 h"),
    ],
)
def test_durations_are_written_as_people_read_them(us: float, words: str) -> None:
    assert duration(us) == words


@pytest.mark.parametrize(
    ("us", "words"),
    [
        (0, "0.000 s"),
        (3_112_499, "3.112 s"),
        (-400, "0.000 s"),
        (-1_500, "-0.002 s"),
        (999_999_499, "999.999 s"),
        (999_999_500, "0:16:40"),
        (3_723_000_000, "1:02:03"),
        (-100 * 3_600_000_000, "-100:00:00"),
    ],
)
def test_moments_have_milliseconds_or_hours(us: float, words: str) -> None:
    assert moment(us) == words


@pytest.mark.parametrize(
    ("part", "whole", "words"), [(0, 0, "0%"), (0, 5, "0%"), (1, 1000, "<1%"), (1, 3, "33%"), (3, 3, "100%")]
)
def test_percents(part: int, whole: int, words: str) -> None:
    assert percent(part, whole) == words


def test_columns_are_left_out_in_the_given_order() -> None:
    rows = [("a", "bb", "ccc"), ("aaaa", "b", "c")]
    assert columns(rows, 20, drop=((1,), (2,))) == ["a     bb  ccc", "aaaa   b    c"]
    assert columns(rows, 10, drop=((1,), (2,))) == ["a     ccc", "aaaa    c"]
    assert columns(rows, 4, drop=((1,), (2,))) == ["a", "aaaa"]
    assert columns(rows, 11, drop=((1, 2),)) == ["a", "aaaa"]
