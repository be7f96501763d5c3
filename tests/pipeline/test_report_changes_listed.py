"""Which changes a report lists, and what it says about them and about the rule."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from html import escape

import pytest

from restante.pipeline.report.changes import counts
from restante.pipeline.report.changes.failures import MAX_VERSIONS
from restante.pipeline.report.changes.measure import (
    MAX_OF_SOURCES,
    MAX_OF_VERSIONS,
    MIN_DAYS_BEFORE,
    Compared,
)
from restante.pipeline.report.changes.rule import MEASURES
from restante.pipeline.report.json_file import as_json
from restante.pipeline.report.page import page
from restante.pipeline.report.summary import summary
from restante.pipeline.tables import TABLES, failures
from support.pipeline.changed_lakes import (
    DAYS,
    LAKE,
    LAST,
    NONE,
    changes,
    gap,
    guessed,
    lake,
    only,
    outage,
    report,
)
from support.pipeline.report_lakes import Row


def many_versions(number: int) -> list[Row]:
    """Return rows of invented versions, all of whose mailboxes failed."""
    return [
        {"day": LAST, "source": "east", "app_id": "app", "attribution": "version", "implementation": "phone",
         "version": f"9.{at}", "connections": 0, "mailboxes": 150 + at % 7, "happy": 0,
         **(NONE | {"errory": 150 + at % 7})}
        for at in range(number)
    ]  # fmt: skip


def test_the_page_stays_short_with_many_versions_and_the_largest_change_is_first() -> None:
    tables = lake()
    tables.insert(TABLES["versions"], many_versions(3_000))
    found = changes(tables)
    assert len(found.found) == MAX_OF_VERSIONS
    assert found.omitted == {Compared.FAILURES_OF_VERSION: MAX_VERSIONS - MAX_OF_VERSIONS}
    sizes = [each.size for each in found.found]
    assert sizes == sorted(sizes, reverse=True)
    words = "Not listed: 195 smaller changes of failed mailboxes of a version."
    made = report(tables)
    assert words in " ".join(" ".join(summary(made)).split())
    assert words in page(made).decode()
    said = json.loads(as_json(made))["changes"]
    assert said["omitted"] == {"failed mailboxes of a version": 195}


def test_rare_versions_that_a_table_added_up_are_not_judged_as_one() -> None:
    tables = lake()
    tables.insert(
        TABLES["versions"], [row | {"implementation": "other", "version": "other"} for row in many_versions(1)]
    )
    assert changes(tables).found == ()
    tables.insert(
        TABLES["versions"], [row | {"implementation": "other", "version": "1.0"} for row in many_versions(1)]
    )
    assert only(tables).version == "1.0"


def test_invented_versions_do_not_displace_changes_of_other_measures() -> None:
    def change(name: str, row: Row) -> None:
        for each in (outage, gap, guessed):
            each(name, row)
            if row.get("gone"):
                return

    tables = lake(change)
    tables.insert(TABLES["versions"], many_versions(25))
    found = changes(tables)
    assert Counter(each.measure for each in found.found) == {
        Compared.FAILURES_OF_VERSION: MAX_OF_VERSIONS,
        Compared.SILENT_HOURS: 1,
        Compared.MISSING: 1,
        Compared.GUESSES: 1,
    }
    assert found.omitted == {Compared.FAILURES_OF_VERSION: 20}


def test_each_measure_has_a_limit_and_counts_what_is_not_listed() -> None:
    tables = lake()
    for day in DAYS:
        rows = [
            {"day": day, "source": f"archive {at:02}", "envelopes": 600, "alone": 0,
             "missing": (100 + at) * (day == LAST)}
            for at in range(13)
        ]  # fmt: skip
        tables.insert(TABLES["coverage"], rows)
    found = changes(tables)
    assert [each.source for each in found.found] == [f"archive {at:02}" for at in range(12, 2, -1)]
    assert found.omitted == {Compared.MISSING: 13 - MAX_OF_SOURCES}


def test_guesses_are_told_of_the_application_that_stands_out_most() -> None:
    day = LAST - timedelta(1)
    tables = lake()
    common = {"source": "east", "lonely": 0, "nameplates": 9, "crowded_nameplates": 1, "scary": 1, "stands_out": True}
    rows = [
        common | {"day": of, "app_id": app, "suspects": suspects, "threshold": threshold, "median": usual}
        for of, app, suspects, threshold, usual in (
            *((LAST, "small", 30, 12, 2), (LAST, "large", 200, 160, 100), (day, "large", 180, 160, 100)),
        )
    ]
    tables.insert(TABLES["guesses"], rows)
    found = only(tables, "2026-W46")
    assert found.words == (
        'At east, 200 results of the application "large" on 15 November 2026 look like guesses of codes. More than'
        " 160 stand out, and the median of the 7 days before is 100. This is the largest of 3 such counts on 2 days"
        " from 14 November 2026 to 15 November 2026, one for each application and day."
    )
    assert (found.before, found.now, found.size, found.days) == (100, 200, 28 + 100 + 80, (day, LAST))
    assert "the largest of 2 such counts on 15 November 2026, one for each application." in only(tables).words


def test_the_rule_has_an_item_for_each_measure_with_its_numbers() -> None:
    made = report(LAKE)
    assert made.changes is not None
    first, *items = made.changes.rule
    assert first.startswith("A day is compared with the 28 days before it. Of these, the lake has 28 days.")
    assert [item.partition(":")[0].lower() for item in items] == [each.compared for each in MEASURES]
    numbers = {
        Compared.FAILURES_OF_SERVER: ["10 percentage points", "by 10 mailboxes", "at least 12", "25%", "on 4 days"],
        Compared.FAILURES_OF_VERSION: ["20 mailboxes", "200 versions", "on 7 days", "100 together", "on 4 days"],
        Compared.SILENT_HOURS: ["at least 20", "on 4 days"],
        Compared.NO_ROWS: ["7 days or more"],
        Compared.MISSING: ["by 0.5 percentage points", "by 6 median", "3 envelopes more"],
        Compared.GUESSES: ["7 days", "by 6 median", "by 10", "divided by 2", "on 4 of these days"],
        Compared.ONE_SIDE: ["by 100%", "by 50", "by 6 median", "on 4 days"],
    }
    for measure, item in zip(MEASURES, items, strict=True):
        assert all(number in item for number in numbers[measure.compared]), item
    content = page(made).decode()
    assert all(f"<li>{escape(item)}</li>" in content for item in made.changes.rule)
    assert json.loads(as_json(made))["changes"]["rule"] == list(made.changes.rule)


def test_the_rule_of_guesses_has_the_numbers_of_their_table() -> None:
    assert (counts.GUESSES_DAYS, counts.GUESSES_MADS) == (failures.COMPARED_DAYS, failures.MADS)
    assert (*(failures.MIN_EXCESS, failures.MIN_EXCESS_SHARE),) == (
        counts.GUESSES_MIN_EXCESS,
        counts.GUESSES_MIN_EXCESS_SHARE,
    )
    assert failures.MIN_COMPARED_DAYS == MIN_DAYS_BEFORE


@pytest.mark.parametrize(
    ("period", "heading", "first", "number"),
    [
        (LAST.isoformat(), "What changed since the days before", "2026-10-18", 28),
        ("2026-W46", "What changed since the week before", "2026-11-02", 7),
        ("2026-11", "What changed since the month before", "2026-10-12", 20),
    ],
)
def test_the_outputs_name_the_days_that_are_compared(period: str, heading: str, first: str, number: int) -> None:
    made = report(LAKE, period)
    assert heading in page(made).decode()
    assert heading in list(summary(made))
    before = json.loads(as_json(made))["changes"]["days_before"]
    assert (before[0], len(before)) == (first, number)
