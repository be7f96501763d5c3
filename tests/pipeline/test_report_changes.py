"""What a report says has changed: the rule as such, and the rule on tables in which one thing changes."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from html import escape
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.reports import LakeTables, Row
from restante.pipeline.report.changes import counts
from restante.pipeline.report.changes.failures import MAX_VERSIONS
from restante.pipeline.report.changes.measure import MAX_OF_SOURCES, MAX_OF_VERSIONS, MIN_DAYS_BEFORE, Compared
from restante.pipeline.report.changes.rule import MEASURES, changes_of
from restante.pipeline.report.changes.statistics import MIN_EXPECTED, Portion, ordinary, rose, silence, sum_portions
from restante.pipeline.report.csv_json import as_json
from restante.pipeline.report.files import report_files
from restante.pipeline.report.making import lake_days, make_report
from restante.pipeline.report.model import Report, ReportChange, ReportChanges
from restante.pipeline.report.page import page
from restante.pipeline.report.periods import parse_period
from restante.pipeline.report.sections.subject import Scope
from restante.pipeline.report.summary import summary_lines
from restante.pipeline.tables import TABLES, guesses

PORTIONS = st.integers(0, 10**6).flatmap(lambda all_: st.integers(0, all_).map(lambda part: Portion(part, all_)))
HOURS = st.dictionaries(st.integers(0, 23), st.integers(1, 500))


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


@given(st.lists(PORTIONS, max_size=28))
def test_the_days_with_the_highest_shares_are_left_out(days: list[Portion]) -> None:
    usual = ordinary(days)
    with_mailboxes = [day for day in days if day.total]
    assert len(usual) == len(with_mailboxes) - len(with_mailboxes) // 4
    assert sum_portions(usual).share <= sum_portions(with_mailboxes).share + 1e-9


@given(HOURS, st.integers(0, 23), st.integers(1, 24), st.integers(0, 24))
def test_silent_hours_are_those_without_anything(day: dict[int, int], first: int, hours: int, known: int) -> None:
    assert silence([*day], known, [day] * 8) is None
    silent = range(first, min(24, first + hours))
    result = silence([hour for hour in day if hour not in silent], 24, [day] * 8)
    expected = sum(count for hour, count in day.items() if hour in silent)
    assert (result and result.expected) == (expected if expected >= MIN_EXPECTED else None)


DAYS = [date(2026, 10, 12) + timedelta(number) for number in range(35)]
LAST = DAYS[-1]
MADE = datetime(2026, 11, 20, 6, tzinfo=UTC)
NONE = {"lonely": 0, "errory": 0, "scary": 0, "pruney": 0, "crowded": 0}

Change = Callable[[str, Row], object]
"""Changes a row of a table. A row that gets the key `gone` is left out."""


def lake(change: Change = lambda _name, _row: None) -> LakeTables:
    tables: dict[str, list[Row]] = {}

    def add(name: str, **row: Any) -> None:
        change(name, row)
        if "ended" in row:
            row["ended"] = sum(row[result] for result in ("happy", *NONE))
        if not row.pop("gone", False):
            tables.setdefault(name, []).append(row)

    for day in DAYS:
        for source in ("north", "east"):
            key = {"day": day, "source": source, "app_id": "app"}
            add("outcomes", **key, kind="claimed", ended=0, happy=90, **(NONE | {"lonely": 10}))
            for hour in range(24):
                add("busy_hours", day=day, source=source, hour=hour, connections=9, mailboxes=4, nameplates=4)
            rule = {"suspects": 2, "threshold": 12, "median": 2, "stands_out": False}
            add("guesses", **key, **rule, lonely=10, nameplates=90, crowded_nameplates=1, scary=1)
            for version in ("1.0", "1.1"):
                client = {"attribution": "version", "implementation": "phone", "version": version}
                add("versions", **key, **client, connections=90, mailboxes=50, happy=45, **(NONE | {"lonely": 5}))
        for source in ("alpha", "beta"):
            add("coverage", day=day, source=source, envelopes=600, alone=0, missing=0)
    counts = dict.fromkeys(("read", "clean", "duplicate", "quarantined", "missed", "in_quarantine"), 0)
    add("sources", source="north", kind="usage", last_ingest=MADE, counted_since=MADE, day=MADE.date(), **counts)
    return LakeTables(tables)


def report(tables: LakeTables, period: str = LAST.isoformat()) -> Report:
    return make_report(tables.fetch, parse_period(period), MADE.date(), MADE)


def changes(tables: LakeTables, period: str = LAST.isoformat()) -> ReportChanges:
    result = changes_of(tables.fetch, Scope(parse_period(period), lake_days(tables.fetch), MADE))
    assert result is not None
    return result


def only(tables: LakeTables, period: str = LAST.isoformat()) -> ReportChange:
    [change] = changes(tables, period).listed
    return change


LAKE = lake()


@pytest.mark.parametrize("period", [*(day.isoformat() for day in DAYS[1::8]), "2026-W43", "2026-W46", "2026-11"])
def test_equal_periods_give_no_change(period: str) -> None:
    assert changes(LAKE, period).listed == ()


@pytest.mark.parametrize("period", ["2026-10-12", "2026-W42", "2026-09", "2026-11-16", "2027-01"])
def test_a_period_without_one_before_or_without_records_is_not_compared(period: str) -> None:
    assert report(LAKE, period).changes is None
    assert report(LakeTables({}), period).changes is None


def on(table: str, where: Row, to: Row, days: Sequence[date] = (LAST,)) -> Change:
    def change(name: str, row: Row) -> None:
        if name == table and row["day"] in days and where.items() <= row.items():
            row.update(to)

    return change


def all_of(*changes: Change) -> Change:
    return lambda name, row: [change(name, row) for change in changes]


outage = all_of(*(on("busy_hours", {"source": "east", "hour": hour}, {"gone": True}) for hour in range(8, 14)))
gap = on("coverage", {"source": "beta"}, {"envelopes": 500, "missing": 100})
guessed = on("guesses", {"source": "east"}, {"suspects": 40, "stands_out": True})

MISSING = (
    "beta lacks 100 of 600 envelopes that were sent on 15 November 2026 (16.7 %). On the 28 days before, the median"
    " is 0 %."
)
CHANGES: dict[Compared, tuple[Change, str | None, str | None, str, str]] = {
    Compared.FAILURES_OF_SERVER: (
        on("outcomes", {"source": "east"}, {"happy": 60, "errory": 30}),
        *("east", None, "results"),
        "At east, 40.0 % of the mailboxes failed on 15 November 2026. On 21 of the 28 days before, 10.0 % failed.",
    ),
    Compared.FAILURES_OF_VERSION: (
        on("versions", {"version": "1.1"}, {"version": '1.2"\n', "happy": 10, "errory": 35}),
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
            "The lake has no connections of east on 15 November 2026 from 08:00 to 14:00 UTC: the server had none,"
            " or it was not read. On three quarters of the days before, it had at least 54 in these hours."
        ),
    ),
    Compared.MISSING: (gap, "beta", None, "coverage", MISSING),
    Compared.GUESSES: (
        guessed,
        *("east", None, "guesses"),
        (
            'At east, 40 results of the application "app" on 15 November 2026 look like guesses of codes. More'
            " than 12 stand out, and the median of the 7 days before is 2."
        ),
    ),
    Compared.ONE_SIDE: (
        on("guesses", {"source": "east"}, {"lonely": 400}),
        *("east", None, "guesses"),
        (
            "At east, 400 nameplates had one side only on 15 November 2026. Somebody may try nameplates. On the 28"
            " days before, the median is 10."
        ),
    ),
    Compared.NO_ROWS: (
        on("coverage", {"source": "beta"}, {"gone": True}),
        *("beta", None, "sources"),
        "The lake has no rows of beta on 15 November 2026. On the 28 days before, it had 600 a day.",
    ),
}


@pytest.mark.parametrize("measure", Compared)
def test_a_measure_finds_its_change_on_a_day_and_in_a_week_and_no_other(measure: Compared) -> None:
    change, source, version, section, sentence = CHANGES[measure]
    result = only(lake(change))
    assert (result.measure, result.source, result.version, result.section) == (measure, source, version, section)
    assert result.text == sentence
    assert result.days == (LAST,)

    def all_week(name: str, row: Row) -> None:
        day = row["day"]
        if LAST - timedelta(7) < day <= LAST:
            row["day"] = LAST
        change(name, row)
        row["day"] = day

    if measure is not Compared.NO_ROWS:
        result = only(lake(all_week), "2026-W46")
        assert (result.measure, result.source, result.version) == (measure, source, version)


def test_a_relay_without_rows_is_named() -> None:
    tables = lake()
    row = {
        "source": "relay",
        "hour": 7,
        "result": "happy",
        "ended": 70,
        "bytes": 5,
        "waiting_us": 1,
        "relaying_us": 1,
    }
    tables.insert(TABLES["relay_hours"], [row | {"day": day} for day in DAYS[:-1]])
    assert changes(tables, DAYS[-2].isoformat()).listed == ()
    assert only(tables).text == (
        "The lake has no rows of relay on 15 November 2026. On the 28 days before, it had 70 a day."
    )


def test_bad_days_are_named_alone_and_days_that_did_not_rise_alone_are_judged_together() -> None:
    bad, east = [LAST - timedelta(back) for back in (0, 2, 3, 5, 6)], {"source": "east"}
    bad_results = on("outcomes", east, {"happy": 100, "errory": 890}, [bad[2]])
    bad_version = on("versions", {"version": "1.1"}, {"mailboxes": 1_000, "happy": 50, "errory": 945}, [bad[2]])
    few = on("outcomes", east, {"happy": 18, "lonely": 2}, DAYS)
    server = only(lake(bad_results), "2026-W46")
    assert server.text.startswith("At east, 90.0 % of the mailboxes failed on 12 November 2026.")
    assert (server.days, server.size) == ((bad[2],), 800)
    assert server.now == pytest.approx(0.9)
    # Of the mailboxes of that day, a tenth was to fail. A version has rows of two servers.
    version = only(lake(bad_version), "2026-11")
    assert version.text.startswith('Of the mailboxes of "phone" "1.1", 95.0 % failed on 12 November')
    assert (version.days, version.size) == ((bad[2],), 1_700)
    assert version.now == pytest.approx(0.95)

    tables = lake(all_of(few, on("outcomes", east, {"happy": 10, "errory": 8}, bad)))
    assert [changes(tables, day.isoformat()).listed for day in bad] == [()] * 5
    result = only(tables, "2026-W46")
    assert (result.days, result.size) == (tuple(sorted(bad)), 40)
    assert result.text.startswith(
        "At east, 50.0 % of the mailboxes failed on 9 November 2026, 10 November 2026, 12 November 2026,"
        " 13 November 2026 and 15 November 2026."
    )


def test_days_with_a_gap_between_them_are_changes_of_their_own() -> None:
    bad = [LAST - timedelta(back) for back in (0, 1, 4)]
    for change in (
        on("outcomes", {"source": "east"}, {"happy": 100, "errory": 890}, bad),
        on("versions", {"version": "1.1"}, {"mailboxes": 1_000, "happy": 50, "errory": 945}, bad),
        on("busy_hours", {"source": "east", "hour": 8}, {"connections": 0}, bad),
        on("coverage", {"source": "beta"}, {"envelopes": 500, "missing": 100}, bad),
        on("guesses", {"source": "east"}, {"suspects": 40, "stands_out": True}, bad),
        on("guesses", {"source": "east"}, {"lonely": 400}, bad),
    ):
        tables = lake(all_of(on("busy_hours", {"hour": 8}, {"connections": 60}, DAYS), change))
        assert [one.days for one in changes(tables, "2026-W46").listed] == [(bad[1], bad[0]), (bad[2],)]
    without_rows = on("outcomes", {"source": "east"}, {"gone": True}, [bad[1]])
    failed = on("outcomes", {"source": "east"}, {"happy": 100, "errory": 890}, [bad[0], LAST - timedelta(2)])
    assert len(only(lake(all_of(without_rows, failed)), "2026-W46").days) == 2, "a day without rows is no gap"


@pytest.mark.parametrize(("days", "number"), [(1, 1), (7, 1), (8, 0)])
def test_a_version_that_has_failed_for_a_week_is_no_change(days: int, number: int) -> None:
    failed = {"version": "1.2", "happy": 10, "errory": 35}
    assert len(changes(lake(on("versions", {"version": "1.1"}, failed, DAYS[-days:]))).listed) == number


def test_hours_after_the_last_ingest_are_not_silent_and_a_silent_day_is_named_once() -> None:
    for hour, number in ((10, 0), (11, 1)):
        ingested = on("sources", {}, {"last_ingest": datetime(2026, 11, 15, hour, 59, tzinfo=UTC)}, [MADE.date()])
        assert len(changes(lake(all_of(outage, ingested))).listed) == number
    silent = on("busy_hours", {"source": "east"}, {"gone": True})
    assert "from 00:00 to 24:00 UTC" in only(lake(silent)).text


def many_versions(number: int, **fields: str) -> list[Row]:
    key = {"day": LAST, "source": "east", "app_id": "app", "attribution": "version", "implementation": "phone"}
    rows: list[Row] = []
    for at in range(number):
        count = 150 + at % 7
        failed = {"connections": 0, "mailboxes": count, "happy": 0, **NONE, "errory": count}
        rows.append({**key, "version": f"9.{at}", **failed, **fields})
    return rows


def test_many_changes_of_a_measure_displace_no_others_and_those_that_are_not_listed_are_counted() -> None:
    tables = lake(all_of(outage, gap, guessed))
    tables.insert(TABLES["versions"], many_versions(3_000))
    for at in range(13):
        row = {"source": f"archive {at:02}", "envelopes": 600, "alone": 0}
        missing = [(day, 101 + at if day == LAST else 0) for day in DAYS]
        tables.insert(TABLES["coverage"], [row | {"day": day, "missing": number} for day, number in missing])
    made = report(tables)
    assert made.changes is not None
    listed = Counter(one.measure for one in made.changes.with_parts)
    limited = {Compared.FAILURES_OF_VERSION: MAX_OF_VERSIONS, Compared.MISSING: MAX_OF_SOURCES}
    assert listed == limited | {Compared.SILENT_HOURS: 1, Compared.GUESSES: 1}
    archives = [one.source for one in made.changes.listed if one.measure == Compared.MISSING]
    assert archives == [f"archive {at:02}" for at in range(12, 2, -1)]
    assert made.changes.omitted == {
        Compared.FAILURES_OF_VERSION: MAX_VERSIONS - MAX_OF_VERSIONS,
        Compared.MISSING: 14 - MAX_OF_SOURCES,
    }
    sentence = "195 changes of failed mailboxes of a version"
    assert sentence in " ".join(" ".join(summary_lines(made)).split())
    assert sentence in page(made).decode()
    assert json.loads(as_json(made))["changes"]["omitted"]["failed mailboxes of a version"] == 195


def test_an_attack_is_one_incident_with_its_parts_and_its_results_do_not_count_in_the_share() -> None:
    before = LAST - timedelta(1)
    east = {"source": "east"}
    attack = all_of(
        on("guesses", east, {"suspects": 40, "stands_out": True, "scary": 30, "crowded_mailboxes": 10}),
        on("guesses", east, {"lonely": 400}, [before, LAST]),
        on("outcomes", east, {"scary": 30, "crowded": 10}),
        on("outcomes", {"source": "north"}, {"happy": 60, "errory": 30}),
        on("versions", {"version": "1.1"}, {"happy": 10, "errory": 35}, [before]),
    )
    made = report(lake(attack), "2026-W46")
    assert made.changes is not None
    of_attack, other = sorted(made.changes.listed, key=lambda one: one.source == "north")
    assert (of_attack.measure, other.source, other.parts) == (Compared.GUESSES, "north", ())
    assert [part.measure for part in of_attack.parts] == [
        *(Compared.ONE_SIDE, Compared.FAILURES_OF_VERSION, Compared.FAILURES_OF_SERVER)
    ]
    files = {path.name: content.decode() for path, content in report_files(made)}
    numbers = {row["measure"]: row["incident"] for row in csv.DictReader(io.StringIO(files["changes.csv"]))}
    assert numbers[Compared.ONE_SIDE] == numbers[Compared.GUESSES]
    incidents = json.loads(files["2026-W46.json"])["changes"]["found"]
    assert [len(change["parts"]) for change in incidents if change["measure"] == Compared.GUESSES] == [3]
    assert "  - At east, up to 400 nameplates a day" in " ".join(summary_lines(made))
    facts = {fact.name: fact.value for fact in made.sections[0].facts}
    ended, happy = 2 * 7 * 100 + 40, 2 * 7 * 90 - 30
    assert facts["Mailboxes that ended"] == ended
    lonely = 2 * 7 * 10  # all: there are more nameplates of one side
    assert facts["Suspected guesses among them"] == 40 + lonely
    assert facts["Happy, without suspected guesses"] == pytest.approx(happy / (ended - 40 - lonely))


def test_failures_of_a_server_are_parts_of_those_of_a_version_that_fails_there() -> None:
    where = {"source": "east", "version": "1.1"}
    version = on("versions", where, {"mailboxes": 100, "happy": 10, "errory": 85})
    both = on("outcomes", {}, {"happy": 60, "errory": 45})
    release, north = changes(lake(all_of(version, both))).listed
    assert (release.measure, [part.source for part in release.parts]) == (Compared.FAILURES_OF_VERSION, ["east"])
    assert (north.source, north.parts) == ("north", ()), "its failures are of other versions"


def test_failures_of_a_version_at_another_server_than_the_attack_are_an_incident_of_their_own() -> None:
    results = on("outcomes", {"source": "north"}, {"happy": 60, "errory": 40})
    version = on("versions", {"source": "north", "version": "1.1"}, {"version": "7.0", "happy": 5, "errory": 40})
    release, attack = changes(lake(all_of(guessed, results, version))).listed
    assert (attack.measure, attack.parts) == (Compared.GUESSES, ())
    assert (release.version, [part.source for part in release.parts]) == ("7.0", ["north"])


def test_parts_of_an_incident_take_no_place_of_their_measure_and_those_that_are_not_listed_are_counted() -> None:
    north = on("outcomes", {"source": "north"}, {"happy": 60, "errory": 90})
    for change, omitted in ((north, 3), (all_of(north, guessed), 2)):
        tables = lake(change)
        tables.insert(TABLES["versions"], many_versions(MAX_OF_VERSIONS + 2))
        tables.insert(TABLES["versions"], many_versions(1, source="north", implementation="vx"))
        result = changes(tables)
        assert result.omitted == {Compared.FAILURES_OF_VERSION: omitted}
        assert "north" in {change.source for change in result.with_parts}, "no invented version can hide it"
    release, attack = result.listed
    assert (release.implementation, [part.source for part in release.parts]) == ("vx", ["north"])
    assert (attack.source, len(attack.parts)) == ("east", MAX_OF_VERSIONS)


def test_failures_before_or_after_an_attack_are_no_part_of_it() -> None:
    failed = on("outcomes", {"source": "east"}, {"happy": 10, "errory": 80}, [LAST - timedelta(1), LAST])
    incidents = changes(lake(all_of(guessed, failed)), "2026-W46").listed
    assert [len(change.parts) for change in incidents] == [0, 0]


def test_the_rare_versions_of_a_client_together_are_no_version() -> None:
    tables = lake()
    tables.insert(TABLES["versions"], many_versions(1, implementation="other", version="other"))
    assert changes(tables).listed == ()
    tables.insert(TABLES["versions"], many_versions(1, implementation="other", version="1.0"))
    assert only(tables).version == "1.0"


def test_guesses_are_those_of_the_application_that_stands_out_most() -> None:
    day = LAST - timedelta(1)
    common = {"source": "east", "lonely": 0, "nameplates": 9, "crowded_nameplates": 1, "scary": 1, "stands_out": True}
    tables = lake()
    for of, app, suspects, limit, usual in (
        (LAST, "small", 30, 12, 2),
        (LAST, "large", 200, 160, 100),
        (day, "large", 180, 160, 100),
    ):
        row = {"day": of, "app_id": app, "suspects": suspects, "threshold": limit, "median": usual}
        tables.insert(TABLES["guesses"], [common | row])
    result = only(tables, "2026-W46")
    assert result.text == (
        'At east, 200 results of the application "large" on 15 November 2026 look like guesses of codes. More than'
        " 160 stand out, and the median of the 7 days before is 100. This is the largest of 3 such counts on 2 days"
        " from 14 November 2026 to 15 November 2026, one for each application and day."
    )
    assert (result.before, result.now, result.size, result.days) == (100, 200, 28 + 100 + 80, (day, LAST))
    assert "the largest of 2 such counts on 15 November 2026, one for each application." in only(tables).text


def test_the_rule_has_an_item_for_each_measure() -> None:
    made = report(LAKE)
    assert made.changes is not None
    first, *items, of_incidents = made.changes.rule
    assert first.startswith("A day is compared with the 28 days before it. Of these, the lake has 28 days.")
    assert [item.partition(":")[0].lower() for item in items] == [measure.compared for measure in MEASURES]
    assert of_incidents.startswith("Incidents: ")
    assert items[0].count("10 percentage points") == items[0].count("25%") == 1
    content = page(made).decode()
    assert all(f"<li>{escape(item)}</li>" in content for item in made.changes.rule)
    assert json.loads(as_json(made))["changes"]["rule"] == list(made.changes.rule)
    assert (counts.GUESSES_DAYS, counts.GUESSES_MADS) == (guesses.COMPARED_DAYS, guesses.MADS)
    assert (counts.GUESSES_MIN_EXCESS, MIN_DAYS_BEFORE) == (guesses.MIN_EXCESS, guesses.MIN_COMPARED_DAYS)
    assert counts.GUESSES_MIN_EXCESS_SHARE == guesses.MIN_EXCESS_SHARE


def test_all_outputs_have_the_changes_or_say_that_there_are_none() -> None:
    made = report(lake(gap))
    files = {path.name: content.decode() for path, content in report_files(made)}
    assert f"<bdi>beta</bdi>{MISSING.removeprefix('beta')}" in files["2026-11-15.html"]
    [change] = json.loads(files["2026-11-15.json"])["changes"]["found"]
    assert (change["measure"], change["source"], change["days"]) == ("missing envelopes", "beta", ["2026-11-15"])
    assert change["words"] == MISSING
    [row] = csv.DictReader(io.StringIO(files["changes.csv"]))
    assert (row["measure"], row["source"]) == ("missing envelopes", "beta")
    assert (row["first_day"], row["size"]) == ("2026-11-15", "100")
    assert f"! {MISSING}" in " ".join(" ".join(summary_lines(made)).split())
    files = {path.name: content.decode() for path, content in report_files(report(LAKE))}
    assert "Nothing changed that the rule counts as a change." in files["2026-11-15.html"]
    assert json.loads(files["2026-11-15.json"])["changes"]["found"] == []
    assert len(files["changes.csv"].splitlines()) == 1


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
    assert heading in list(summary_lines(made))
    before = json.loads(as_json(made))["changes"]["days_before"]
    assert (before[0], len(before)) == (first, number)
