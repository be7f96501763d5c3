"""Days and versions in few numbers."""

from __future__ import annotations

import json
from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from restante.pipeline.lake.changed import from_numbers, to_numbers
from support.effort import examples

START = date(2016, 1, 1)

near = st.builds(lambda days: START + timedelta(days), st.integers(0, 30))
days = st.one_of(near, st.dates()).map(date.isoformat)


@examples(200)
@given(st.dictionaries(days, st.integers(0, 4) | st.integers(0, 2**40)))
def test_encoded_days_are_decoded_unchanged(versions: dict[str, int]) -> None:
    assert from_numbers(to_numbers(versions)) == versions


def test_ten_years_of_days_take_some_tens_of_kilobytes() -> None:
    for versions, limit in (([7] * 3650, 20), ([day * 7919 % 438_000 for day in range(3650)], 41_000)):
        days = {(START + timedelta(day)).isoformat(): version for day, version in enumerate(versions)}
        assert len(json.dumps(to_numbers(days), separators=(",", ":"))) < limit
