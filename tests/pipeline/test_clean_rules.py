"""Rows as they stand at their sources, and what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.pipeline.clean import rules
from restante.pipeline.clean.rules import OWN_RULES, USAGE_FAULTS, Fault, TimeLimits
from restante.pipeline.schemas import MAX_TEXT_CHARACTERS
from restante.pipeline.sources.usage_scan import UsageScan, clean_rows
from support.pipeline.servers import FIRST_DAY, NOW, T0

CASES = json.loads((Path(__file__).parent / "clean_rules.json").read_text())["cases"]

WITHIN = rules.limits(FIRST_DAY, NOW)

RULES = {table: (*each, *OWN_RULES[table]) for table, each in rules.RULES.items()}
"""Of our own servers' rows."""

GOOD: dict[str, Any] = {
    "app_id": "x",
    "for_nameplate": 1,
    "started": T0,
    "connect_time": T0,
    "waiting_us": 1.5,
    "total_us": 4,
    "result": "happy",
    "implementation": "python",
    "version": "0.24.0",
    "visitors": 0,
    "blur_us": 0,
}


def value_of(written: Any) -> Any:
    """What a case cannot say in JSON."""
    match written:
        case {"blob": digits}:
            return bytes.fromhex(digits)
        case {"float": word}:
            return float(word)
        case {"int": digits}:
            return int(digits)
    return written


def row(table: str, **values: Any) -> list[Any]:
    return [(GOOD | values)[rule.column] for rule in RULES[table]]


@pytest.mark.parametrize(("table", "column", "value", "expected"), CASES, ids=lambda each: ascii(each)[:40])
def test_a_value_is_cleaned_or_makes_its_row_faulty(table: str, column: str, value: Any, expected: Any) -> None:
    cleaned = rules.clean(RULES[table], row(table, **{column: value_of(value)}), WITHIN)
    if isinstance(expected, dict):
        assert cleaned == expected["fault"]
        assert isinstance(cleaned, Fault)
    else:
        place = [rule.column for rule in RULES[table]].index(column)
        assert not isinstance(cleaned, Fault)
        assert cleaned[place] == expected
        assert type(cleaned[place]) is type(expected)


def test_a_row_has_the_first_of_its_faults_and_long_text_is_cut() -> None:
    assert rules.clean(RULES["nameplates"], [None, "x", "x", "x", "x", 0], WITHIN) == "missing value"
    assert rules.clean(RULES["nameplates"], ["x", 1e300, None, "x", "x", 0], WITHIN) == "out of range"
    assert rules.text("é" * 1000) == "é" * MAX_TEXT_CHARACTERS
    assert rules.text("\0" * 1000) == "\ufffd" * MAX_TEXT_CHARACTERS


values = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(),
    st.binary().map(lambda raw: raw.decode(errors="surrogateescape")),
    st.binary(),
    st.sampled_from(["happy", "lonely", T0, T0 + 1, 0, 1]),
)


@given(st.data(), st.sampled_from(sorted(RULES)))
def test_any_row_is_clean_or_has_a_known_fault(data: st.DataObject, table: str) -> None:
    found = data.draw(st.tuples(*(values for _ in RULES[table])))
    cleaned = rules.clean(RULES[table], found, WITHIN)
    if isinstance(cleaned, Fault):
        assert cleaned in USAGE_FAULTS
        return
    for rule, value in zip(RULES[table], cleaned, strict=True):
        if value is None:
            assert rule.null
        elif isinstance(value, str):
            assert len(value.encode()) <= 4 * MAX_TEXT_CHARACTERS
            assert "\0" not in value
        elif rule.column.endswith("_us"):
            assert 0 <= value < 2**63
        elif not isinstance(value, bool):
            assert WITHIN.earliest <= value <= WITHIN.latest


def scan(table: str, within: TimeLimits = WITHIN, blur_us: int | None = None, *duplicate: str) -> UsageScan:
    return UsageScan("north", table, "", "", "", (), within, blur_us, frozenset(duplicate))


def test_only_the_id_and_the_digest_of_a_faulty_row_are_kept() -> None:
    bad = (7, "", *row("nameplates", result="canary"))
    double = (8, "theirs.sqlite", *row("nameplates", app_id="canary"))
    assert list(clean_rows(scan("nameplates", WITHIN, 1, "theirs.sqlite"), [bad, double])) == [
        (7, *[None] * 8, "north", "unknown result", "7", rules.digest(bad[1:])),
        (8, *[None] * 8, "north", "duplicate", "8", rules.digest(double[1:])),
    ]


def test_a_day_is_that_of_the_first_time_in_utc() -> None:
    for started, day in ((86_399.999999, 0), (86_400, 1), (-0.5, -1)):
        rows = [(1, "", *row("mailboxes", started=started))]
        [found] = clean_rows(scan("mailboxes", TimeLimits(-(2**60), 2**60)), rows)
        assert found[10] == day


@pytest.mark.parametrize(
    ("recorded", "setting", "time", "blur"),
    [
        (0, 60_000_000, 1_700_000_040_000_000, None),  # not floored, whatever the setting was later
        (60_000_000, None, 1_700_000_040_000_000, 60_000_000),
        (60_000_000, 3_600_000_000, 1_699_999_200_000_000, 60_000_000),
        (None, 60_000_000, 1_700_000_040_000_000, 60_000_000),
        (None, 500_000, 1_700_000_040_500_000, 500_000),
        (None, 60_000_000, 1_700_000_040_250_000, None),  # written before the setting
        (None, 3_600_000_000, 1_700_000_040_000_000, 60_000_000),  # written with another one
        (None, None, 1_700_000_040_250_000, None),
        (None, None, 1_700_000_041_000_000, 1_000_000),  # written with one, which is none now
        (None, None, 1_699_999_200_000_000, 3_600_000_000),
        (None, None, 1_699_920_000_000_000, 86_400_000_000),
        (None, None, 1_700_000_041_000_001, None),  # the next microsecond: of a clock that runs, all but one in 10^6
    ],
)
def test_the_blur_of_a_row_is_recorded_or_inferred(
    recorded: int | None, setting: int | None, time: int, blur: int | None
) -> None:
    assert rules.blur_us(recorded, setting, time) == blur


def test_the_setting_of_our_server_does_not_apply_to_imported_rows() -> None:
    rows = [(1, origin, *row("nameplates", started=T0, blur_us=None)) for origin in ("", "theirs.sqlite")]
    assert [found[7] for found in clean_rows(scan("nameplates", WITHIN, 40_000_000), rows)] == [40_000_000, 1_000_000]
