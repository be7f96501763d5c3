"""Files of ranges: what is written is read, and what others wrote is refused in one sentence."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from restante.common.errors import Misuse
from restante.waku.files import missing_ranges
from restante.waku.files.missing_ranges import MAX_FILE_BYTES, MAX_RANGES, MAX_TOPICS, MissingRange, MissingRanges

RANGE: dict[str, Any] = {"from": 10, "to": 20, "topics": ["01020304"], "missing": 3, "holders": ["west"]}
FILE: dict[str, Any] = {
    "format": "restante missing ranges",
    "version": 1,
    "mailserver": "east",
    "missing": 3,
    "ranges": [RANGE],
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    ranges = (
        MissingRange(lower=10, upper=20, topics=("01020304", "ffffffff"), missing=3, holders=("north", "west")),
        MissingRange(lower=30, upper=30, topics=None, missing=0, holders=()),
    )
    written = MissingRanges(mailserver="east", missing=3, ranges=ranges)
    (tmp_path / "east.json").write_bytes(missing_ranges.write(written))
    assert missing_ranges.read(tmp_path / "east.json") == written
    assert [each.shown() for each in ranges] == ["10 to 20, 2 topics", "30 to 30, all topics"]


def test_the_largest_file_is_read(tmp_path: Path) -> None:
    topics = tuple(f"{number:08x}" for number in range(MAX_TOPICS))
    one = MissingRange(lower=1, upper=2**32 - 1, topics=topics, missing=2**53, holders=("west",))
    content = missing_ranges.write(MissingRanges(mailserver="east", missing=1, ranges=(one,) * 100))
    assert len(content) < MAX_FILE_BYTES // 5
    (tmp_path / "east.json").write_bytes(content)
    assert len(missing_ranges.read(tmp_path / "east.json").ranges) == 100


def test_keys_that_are_not_known_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "east.json").write_text(json.dumps({**FILE, "more": 1, "ranges": [{**RANGE, "more": [{}]}]}))
    assert missing_ranges.read(tmp_path / "east.json").ranges[0].topics == ("01020304",)


def with_range(**changes: Any) -> dict[str, Any]:
    return {**FILE, "ranges": [{**RANGE, **changes}]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not a file of `restante pipeline gaps`"),
        ("[" * 100_000, "is not a file of `restante pipeline gaps`"),
        ('{"known": {}, "recent": {}}', "missing required field `format`"),
        (" " * (MAX_FILE_BYTES + 1), "is larger than any file of ranges, which has 16 MiB"),
        (FILE | {"version": 2}, "was made by a newer version of Restante: use that version, or a newer one"),
        (FILE | {"version": 0}, "Expected `int` >= 1"),
        (FILE | {"format": "\x1b[31m"}, "Invalid enum value"),
        (FILE | {"mailserver": "\x1b[31m"}, "Expected `str` matching regex"),
        (FILE | {"ranges": [RANGE] * (MAX_RANGES + 1)}, f"Expected `array` of length <= {MAX_RANGES}"),
        (with_range(**{"from": -1}), "Expected `int` >= 0"),
        (with_range(to=2**32), "Expected `int` <= 4294967295"),
        (with_range(to=9), "range 1 ends before it begins"),
        (with_range(**{"from": 0, "to": 0}), "range 1 ends before it begins, or in 1970"),
        (with_range(topics=[]), "Expected `array` of length >= 1"),
        (with_range(topics=["01020304"] * (MAX_TOPICS + 1)), f"Expected `array` of length <= {MAX_TOPICS}"),
        (with_range(topics=["0102030g"]), "Expected `str` matching regex"),
        (with_range(holders=["we\nst"]), "Expected `str` matching regex"),
        (with_range(missing=-1), "Expected `int` >= 0"),
    ],
    ids=itertools.count(1),
)
def test_what_is_no_file_of_ranges_is_refused_in_one_sentence(
    content: str | dict[str, Any], said: str, tmp_path: Path
) -> None:
    file = tmp_path / "east.json"
    file.write_bytes((content if isinstance(content, str) else json.dumps(content)).encode("latin-1"))
    with pytest.raises(Misuse) as refusal:
        missing_ranges.read(file)
    sentence = str(refusal.value)
    assert said in sentence
    assert str(file) in sentence
    assert sentence.isprintable()
    assert len(sentence) < 400


def test_a_file_that_cannot_be_read_is_reported() -> None:
    for path in ("/nowhere", "/", "x" * 300):
        with pytest.raises(Misuse, match=r"cannot read .* \(--ranges\)"):
            missing_ranges.read(Path(path))
