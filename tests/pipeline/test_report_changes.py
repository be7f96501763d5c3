"""What a report says has changed: the tests of the rule, and the rule on tables in which one thing changes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.pipeline.report.changes.failures import risen
from restante.pipeline.report.changes.measure import (
    Compared,
    Days,
)
from restante.pipeline.report.changes.statistics import (
    MIN_EXPECTED,
    MIN_MORE,
    MIN_RISE,
    Portion,
    added,
    evidence,
    excess,
    median,
    ordinary,
    rose,
    silence,
    threshold,
)
from restante.pipeline.report.files import report_files
from restante.pipeline.report.summary import summary
from support.pipeline.changed_lakes import (
    DAYS,
    LAKE,
    LAST,
    bad_version,
    changes,
    fails,
    gap,
    guessed,
    lake,
    only,
    outage,
    report,
    stopped,
    tried,
)
from support.pipeline.report_lakes import LakeTables, Row

PARTS = st.integers(0, 10**6).flatmap(lambda whole: st.integers(0, whole).map(lambda part: Portion(part, whole)))
COUNTS = st.lists(st.integers(0, 10**6), min_size=1, max_size=28)

# ── the tests of the rule ────────────────────────────────────────────────────────────────────────


@given(PARTS)
def test_equal_shares_are_no_change(of: Portion) -> None:
    assert not rose(of, of)
    assert abs(evidence(of, of)) < 1e-3


@given(PARTS, PARTS)
def test_a_share_that_rose_is_larger_and_did_not_rise_the_other_way(now: Portion, before: Portion) -> None:
    assert evidence(now, before) > -1e-3
    if rose(now, before):
        assert now.share - before.share >= MIN_RISE
        assert excess(now, before) >= MIN_MORE
        assert not rose(before, now)


@given(PARTS, PARTS, st.integers(2, 50))
def test_a_share_that_rose_also_rose_if_everything_is_more(now: Portion, before: Portion, times: int) -> None:
    if rose(now, before):
        assert rose(*(Portion(of.part * times, of.whole * times) for of in (now, before)))


@pytest.mark.parametrize(
    ("now", "before", "is_change"),
    [
        (Portion(60, 100), Portion(120, 1000), True),
        (Portion(20, 100), Portion(120, 1000), False),  # a tenth at least
        (Portion(9, 10), Portion(120, 1000), False),  # ten more at least
        (Portion(33, 100), Portion(20, 100), False),  # chance
        (Portion(5_000, 100_000), Portion(1, 100_000), False),  # no chance, but small
        (Portion(50, 100), Portion(0, 0), False),
        (Portion(0, 0), Portion(50, 100), False),
    ],
)
def test_a_rise_has_a_size_and_is_no_chance(now: Portion, before: Portion, is_change: bool) -> None:
    assert rose(now, before) == is_change


@given(st.lists(PARTS, max_size=28))
def test_the_days_with_the_highest_shares_are_left_out(days: list[Portion]) -> None:
    kept = ordinary(days)
    there = [day for day in days if day.whole]
    assert len(kept) == len(there) - len(there) // 4
    assert added(kept).share <= added(there).share + 1e-9


@given(COUNTS, st.integers(1, 100), st.floats(0, 2))
def test_a_count_like_the_median_is_usual(before: list[int], least: int, share: float) -> None:
    assert median(before) in before
    assert threshold(before, least, share) >= median(before) + least


@given(st.integers(0, 10**6), st.integers(1, 28))
def test_equal_days_have_a_threshold_of_the_least_distance(count: int, days: int) -> None:
    assert threshold([count] * days, 50) == count + 50


HOURS = st.dictionaries(st.integers(0, 23), st.integers(1, 500))


@given(HOURS, st.integers(1, 28), st.integers(0, 24))
def test_hours_like_those_before_are_not_silent(day: dict[int, int], days: int, known: int) -> None:
    assert silence([*day], known, [day] * days) is None


@given(HOURS, st.integers(0, 23), st.integers(1, 24))
def test_silent_hours_are_those_without_anything(day: dict[int, int], first: int, hours: int) -> None:
    last = min(23, first + hours - 1)
    now = [hour for hour in day if not first <= hour <= last]
    expected = sum(count for hour, count in day.items() if first <= hour <= last)
    found = silence(now, 24, [day] * 8)
    if expected >= MIN_EXPECTED:
        assert found is not None
        assert found.expected == expected
    else:
        assert found is None


def test_nothing_is_silent_without_days_before() -> None:
    assert silence([], 24, []) is None


# ── the rule on tables ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("period", [*(day.isoformat() for day in DAYS[1:]), "2026-W43", "2026-W46", "2026-11"])
def test_equal_periods_give_no_change(period: str) -> None:
    assert changes(LAKE, period).found == ()


@pytest.mark.parametrize("period", ["2026-10-12", "2026-W42", "2026-09", "2026-11-16", "2027-01"])
def test_a_period_without_one_before_or_without_records_is_not_compared(period: str) -> None:
    assert report(LAKE, period).changes is None


def test_an_empty_lake_is_not_compared() -> None:
    assert report(LakeTables({})).changes is None


EACH = {
    Compared.FAILURES_OF_SERVER: (
        fails,
        *("east", None, "results"),
        "At east, 40.0 % of the mailboxes failed on 15 November 2026. On 21 of the 28 days before, 10.0 % failed.",
    ),
    Compared.FAILURES_OF_VERSION: (
        bad_version,
        *(None, '1.2"\n', "versions"),
        (
            'Of the mailboxes of "phone" "1.2\'\\n", 80.0 % failed on 15 November 2026. On 21 of the 28 days before,'
            " 10.0 % of those of the client failed. Any client can claim any version."
        ),
    ),
    Compared.SILENT_HOURS: (
        outage,
        *("east", None, "busy-hours"),
        (
            "The lake has no connections of east on 15 November 2026 from 08:00 to 14:00 UTC: the server had none, or"
            " it was not read. On three quarters of the days before, it had at least 54 in these hours."
        ),
    ),
    Compared.MISSING: (
        gap,
        *("beta", None, "coverage"),
        (
            "beta lacks 100 of 600 envelopes that were sent on 15 November 2026 (16.7 %). On the 28 days before, the"
            " median is 0 %."
        ),
    ),
    Compared.GUESSES: (
        guessed,
        *("east", None, "guesses"),
        (
            'At east, 40 results of the application "app" on 15 November 2026 look like guesses of codes. More than'
            " 12 stand out, and the median of the 7 days before is 2."
        ),
    ),
    Compared.ONE_SIDE: (
        tried,
        *("east", None, "guesses"),
        (
            "At east, 400 nameplates had one side only on 15 November 2026. Somebody may try nameplates. On the 28"
            " days before, the median is 10."
        ),
    ),
    Compared.NO_ROWS: (
        stopped,
        *("beta", None, "sources"),
        "The lake has no rows of beta on 15 November 2026. On the 28 days before, it had 600 a day.",
    ),
}


@pytest.mark.parametrize("measure", list(Compared))
def test_each_measure_finds_its_change_and_no_other(measure: Compared) -> None:
    change, source, version, section, words = EACH[measure]
    found = only(lake(change))
    assert (found.measure, found.source, found.version, found.section) == (measure, source, version, section)
    assert found.words == words
    assert found.days == (LAST,)


@pytest.mark.parametrize("measure", [each for each in Compared if each is not Compared.NO_ROWS])
def test_a_week_is_compared_with_the_week_before(measure: Compared) -> None:
    change, source, version, _, _ = EACH[measure]
    week = [LAST - timedelta(back) for back in range(7)]

    def all_week(name: str, row: Row) -> None:
        day = row["day"]
        if day in week:
            row["day"] = LAST
        change(name, row)
        row["day"] = day

    found = only(lake(all_week), "2026-W46")
    assert (found.measure, found.source, found.version) == (measure, source, version)


BAD_DAY = LAST - timedelta(3)


@pytest.mark.parametrize("period", ["2026-W46", "2026-11"])
@pytest.mark.parametrize(
    "words",
    [
        "At east, 90.0 % of the mailboxes failed on 12 November 2026.",
        'Of the mailboxes of "phone" "1.1", 95.0 % failed on 12 November 2026.',
    ],
)
def test_one_bad_day_of_a_week_or_a_month_is_named_alone(period: str, words: str) -> None:
    def change(name: str, row: Row) -> None:
        if row["day"] != BAD_DAY:
            return
        if name == "outcomes" and row["source"] == "east" and words.startswith("At east"):
            row |= {"happy": 100, "errory": 890}
        if name == "versions" and row["version"] == "1.1" and words.startswith("Of the"):
            row |= {"mailboxes": 1_000, "happy": 50, "errory": 945}

    found = only(lake(change), period)
    assert found.words.startswith(words)
    assert found.days == (BAD_DAY,)
    assert found.now == pytest.approx(0.9 if found.source else 0.95)
    # Of the mailboxes of that day, a tenth was to fail. A version has rows of two servers.
    assert found.size == (800 if found.source else 1_700)


def test_days_that_did_not_rise_alone_are_judged_together() -> None:
    bad = [LAST - timedelta(back) for back in (0, 2, 3, 5, 6)]

    def change(name: str, row: Row) -> None:
        if name == "outcomes" and row["source"] == "east":
            row |= {"happy": 18, "lonely": 2}
            if row["day"] in bad:
                row |= {"happy": 10, "errory": 8}

    tables = lake(change)
    assert [changes(tables, day.isoformat()).found for day in bad] == [()] * 5
    found = only(tables, "2026-W46")
    assert found.days == tuple(sorted(bad))
    assert found.words.startswith(
        "At east, 50.0 % of the mailboxes failed on 5 days from 9 November 2026 to 15 November 2026."
    )
    assert found.size == 40


@given(st.lists(PARTS, max_size=31), PARTS)
def test_days_that_rose_are_those_of_which_a_larger_share_failed(days: list[Portion], before: Portion) -> None:
    of = dict(zip(DAYS, days, strict=False))
    found = risen(of, before, Days(tuple(of), ()))
    assert {day for day in of if rose(of[day], before)} <= found.keys()
    assert all(of[day] == part and part.share - before.share >= MIN_RISE for day, part in found.items())
    assert list(found) == sorted(found)
    assert not found or rose(added(found.values()), before)


def test_a_version_that_has_failed_for_a_week_is_no_change() -> None:
    def bad(days: int) -> Callable[[str, Row], None]:
        def change(name: str, row: Row) -> None:
            if name == "versions" and row["version"] == "1.1" and row["day"] > LAST - timedelta(days):
                row |= {"version": "1.2", "happy": 10, "errory": 35}

        return change

    assert [len(changes(lake(bad(days))).found) for days in (1, 5, 7, 8, 20)] == [1, 1, 1, 0, 0]


def test_hours_after_the_last_ingest_are_not_silent() -> None:
    def ingested(at: datetime) -> Callable[[str, Row], None]:
        def change(name: str, row: Row) -> None:
            outage(name, row)
            if name == "sources":
                row["last_ingest"] = at

        return change

    times = [datetime(2026, 11, 15, hour, 59, tzinfo=UTC) for hour in (8, 10, 11, 23)]
    assert [len(changes(lake(ingested(at))).found) for at in times] == [0, 0, 1, 1]


def test_a_server_that_is_silent_all_day_is_named_once() -> None:
    def change(name: str, row: Row) -> None:
        row["gone"] = name == "busy_hours" and row["source"] == "east" and row["day"] == LAST

    found = only(lake(change))
    assert "from 00:00 to 24:00 UTC" in found.words


def test_all_outputs_have_the_changes() -> None:
    made = report(lake(gap))
    files = {path.name: content.decode() for path, content in report_files(made)}
    *_, words = EACH[Compared.MISSING]
    assert f"<bdi>beta</bdi>{words.removeprefix('beta')}" in files["2026-11-15.html"]
    assert "What changed since the days before" in files["2026-11-15.html"]
    [said] = json.loads(files["2026-11-15.json"])["changes"]["found"]
    assert (said["measure"], said["source"], said["days"]) == ("missing envelopes", "beta", ["2026-11-15"])
    assert said["words"] == words
    [row] = csv.DictReader(io.StringIO(files["changes.csv"]))
    assert (row["measure"], row["source"], row["first_day"], row["size"]) == (
        *("missing envelopes", "beta"),
        *("2026-11-15", "100"),
    )
    lines = " ".join(" ".join(summary(made)).split())
    assert f"! {words}" in lines


def test_the_outputs_say_that_nothing_changed() -> None:
    made = report(LAKE)
    files = {path.name: content.decode() for path, content in report_files(made)}
    assert "Nothing changed that the rule counts as a change." in files["2026-11-15.html"]
    assert json.loads(files["2026-11-15.json"])["changes"]["found"] == []
    assert len(files["changes.csv"].splitlines()) == 1
