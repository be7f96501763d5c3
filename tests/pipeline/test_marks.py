"""Where reading stopped, held against what is there now."""

from __future__ import annotations

import pytest

from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.sources.marks import IdRange, behind, broken

MARK = Mark(last=9, last_digest="nine", first=3, first_digest="three")

SAME = {3: "three", 9: "nine"}


@pytest.mark.parametrize(
    ("kept", "last", "rows", "why"),
    [
        (True, 9, SAME, ""),
        (False, 20, SAME | {20: "twenty"}, ""),
        (True, 9, {9: "nine"}, ""),  # what is old is dropped
        (False, 9, {9: "nine"}, ""),
        (True, 9, {}, ""),
        (True, 20, {20: "twenty"}, ""),
        (False, 20, {3: "three", 20: "twenty"}, "the row with id 9 has changed"),  # no server of theirs drops it
        (False, 8, {3: "three"}, "its last id was 9 and is 8 now"),
        (True, 0, {}, "its last id was 9 and is 0 now"),
        (True, 9, {3: "three", 9: "other"}, "the row with id 9 has changed"),
        (True, 9, {3: "other", 9: "nine"}, "the row with id 3 has changed"),
        (False, 9, {3: "other", 9: "nine"}, "the row with id 3 has changed"),
        (True, 20, {3: "other", 20: "twenty"}, "the row with id 3 has changed"),
    ],
)
def test_reading_continues_if_the_marked_rows_are_unchanged(
    kept: bool, last: int, rows: dict[int, str], why: str
) -> None:
    found = broken(MARK, IdRange(min(rows, default=0), last, kept), lambda row_id: rows.get(row_id, ""))
    assert found.partition(":")[0] == why


def test_a_row_at_an_id_that_had_none_contradicts_the_mark() -> None:
    mark = behind(IdRange(0, 9, kept=True), lambda _: "")
    assert mark == Mark(9, "", 0, "")
    assert broken(mark, IdRange(0, 9, kept=True), lambda _: "") == ""
    assert broken(mark, IdRange(9, 9, kept=True), {9: "nine", 0: ""}.__getitem__).startswith(
        "the row with id 9 has changed"
    )
