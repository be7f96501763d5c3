"""The sections, percentiles and periods of a report, compared with sums in plain Python."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.reports import RESULTS, TRANSFER_RESULTS, LakeTables, Row, Tables, lake
from restante.common.errors import Misuse
from restante.pipeline.report.files import FIGURE_IDS
from restante.pipeline.report.making import TABLES_READ, lake_days, make_report
from restante.pipeline.report.model import Figure, Report, Section, ValueKind, figures, value_columns
from restante.pipeline.report.page import page
from restante.pipeline.report.periods import (
    LakeDays,
    Period,
    PeriodKind,
    choose_period,
    due_periods,
    last_finished,
    parse_period,
    period_containing,
    period_remarks,
)
from restante.pipeline.report.sections import SUBJECTS
from restante.pipeline.report.sections.histograms import PERCENTILES, count_known, percentiles
from restante.pipeline.report.summary import summary_lines
from restante.pipeline.report.top_rows import MAX_ROWS_OF_NAMES
from restante.pipeline.report.values import value_text
from restante.pipeline.tables import BUILT_TABLES
from restante.pipeline.tables.buckets import bucket_edges
from restante.timing.model.phases import ALL_PHASES
from support.markup import Tags

WEEK = parse_period("2026-W47")
AFTER = datetime(2026, 11, 25, 6, tzinfo=UTC)
DAYS = [date(2026, 11, 5) + timedelta(number) for number in range(20)]
LAKE = lake(Random(1), DAYS)
EMPTY: Tables = {}


def made(rows: Tables, period: Period = WEEK) -> Report:
    return make_report(LakeTables(rows).fetch, period, AFTER.date(), AFTER)


def figure_of(report: Report, id_: str) -> Figure:
    return next(figure for _, figure in figures(report) if figure.id == id_)


def section_of(report: Report, id_: str) -> Section:
    return next(section for section in report.sections if section.id == id_)


REPORT = made(LAKE)
FIGURES = {figure.id: figure for _, figure in figures(REPORT)}


def test_reports_read_built_tables_only_and_remove_files_of_all_figures() -> None:
    assert FIGURES.keys() <= {*FIGURE_IDS}
    assert set(TABLES_READ) <= {*BUILT_TABLES, "quarantine"}
    assert "counts as failed, also if only one side came" in section_of(REPORT, "results").terms


def within(table: str, period: Period = WEEK, where: Callable[[Row], Any] = bool) -> list[Row]:
    return [row for row in LAKE[table] if row["day"] in period.days and where(row)]


def sums(rows: Iterable[Row], key: Sequence[str], *names: str) -> dict[tuple[Any, ...], tuple[int, ...]]:
    added: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        counts = added.setdefault(tuple(row[name] for name in key), [0] * len(names))
        for at, name in enumerate(names):
            counts[at] += row[name]
    return {values: tuple(counts) for values, counts in added.items()}


def table(figure: Figure, key: Sequence[str], *names: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    keys, values = [[figure.table.column_index(name) for name in of] for of in (key, names)]
    return {tuple(row[at] for at in keys): tuple(row[at] for at in values) for row in figure.table.rows}


def not_nameplates(row: Row) -> bool:
    return bool(row["kind"] != "nameplate")


COUNTED = ("mailboxes", "connections", *RESULTS)
SUMS: list[tuple[str, str, tuple[str, ...], tuple[str, ...], Callable[[Row], Any]]] = [
    ("results-by-day", "outcomes", ("day",), (*RESULTS, "ended"), not_nameplates),
    ("results-by-server", "outcomes", ("source",), (*RESULTS, "ended"), not_nameplates),
    ("results-by-application", "outcomes", ("app_id",), (*RESULTS, "ended"), not_nameplates),
    ("versions", "versions", ("implementation", "version"), COUNTED, lambda row: row["attribution"] == "version"),
    ("guesses-by-day", "guesses", ("day",), ("crowded_nameplates", "scary"), bool),
    ("envelopes-by-topic", "traffic", ("topic",), ("envelopes", "bytes"), bool),
    ("envelopes-by-day", "traffic", ("day",), ("envelopes", "bytes"), bool),
    ("coverage", "coverage", ("source", "day"), ("envelopes", "missing", "alone"), bool),
]


@pytest.mark.parametrize(("figure", "name", "key", "counts", "where"), SUMS, ids=[row[0] for row in SUMS])
def test_counts_are_the_sums_of_the_period(figure: str, name: str, key: Any, counts: Any, where: Any) -> None:
    rows = within(name, where=where)
    assert table(FIGURES[figure], key, *counts) == sums(rows, key, *counts)


def test_a_day_is_shown_by_hours() -> None:
    day = parse_period("2026-11-20")
    of_day = {figure.id: figure for _, figure in figures(made(LAKE, day))}
    assert not [id_ for id_ in of_day if id_.endswith("-by-day")]
    rows = [{**row, "happy": row["ended"] - row["failed"]} for row in within("failures", day, not_nameplates)]
    expected = sums([row for row in rows if row["hour"] is not None], ["hour"], *RESULTS)
    results = of_day["results-by-hour"]
    assert table(results, ["hour"], *RESULTS) == {(at,): expected.get((at,), (0,) * len(RESULTS)) for at in range(24)}
    blurred = sum(row["ended"] for row in rows if row["hour"] is None)
    assert results.remarks == (f"Left out: {blurred} results, because the server rounds times to more than an hour.",)
    wrong = table(of_day["guesses-by-hour"], ["hour"], "crowded_nameplates", "scary")
    count = sum(row["crowded"] for row in within("failures", day) if row["kind"] == "nameplate" and row["hour"] == 5)
    assert wrong[5,] == (count, expected[5,][RESULTS.index("scary")])
    largest = max(row["envelopes"] + row["missing"] for row in within("hourly_coverage", day))
    assert table(of_day["envelopes-by-hour"], ["hour"], "envelopes")[12,] == (largest,)


def test_hours_of_today_that_have_not_begun_are_not_known() -> None:
    today = period_containing(PeriodKind.DAY, DAYS[-1])
    at = datetime.combine(DAYS[-1], datetime.min.time(), UTC) + timedelta(hours=18, minutes=5)
    of_today = make_report(LakeTables(LAKE).fetch, today, at.date(), at)
    known = table(figure_of(of_today, "results-by-hour"), ["hour"], "ended")
    assert [hour for (hour,), (ended,) in known.items() if ended is None] == [19, 20, 21, 22, 23]


def test_kinds_have_the_shares_of_their_counts_and_attributions_their_mailboxes() -> None:
    kinds = FIGURES["results-by-kind"]
    expected = sums(within("outcomes"), ["kind"], *RESULTS)
    assert sorted(table(kinds, ["kind"], *RESULTS).values()) == sorted(expected.values())
    for ended, failed, happy, share in table(kinds, ["kind"], "ended", "failed", "happy", "happy_share").values():
        assert (ended, share) == (failed + happy, happy / ended)
    mailboxes = sums(within("versions"), ["attribution"], "mailboxes")
    assert table(FIGURES["attributions"], ["attribution"], "mailboxes") == {
        ("the version is known",): mailboxes["version",],
        ("no client had just bound",): mailboxes["unbound",],
    }


@pytest.mark.parametrize(
    ("figure", "column", "name", "where"),
    [
        ("waiting-by-kind", "what", "mailbox of a nameplate: until the second side", {"kind": "claimed"}),
        ("waiting-by-server", "source", "north", {"kind": "nameplate", "source": "north"}),
    ],
)
def test_waiting_times_are_percentiles_of_added_histograms(figure: str, column: str, name: str, where: Row) -> None:
    rows = within("durations", where=lambda row: (where | {"measure": "waiting"}).items() <= row.items())
    buckets = [(row["from_us"], row["count"]) for row in rows]
    waiting = table(FIGURES[figure], [column], "p50_us", "p90_us", "p99_us", "durations", "unknown")
    unknown = sum(count for least, count in buckets if least is None)
    known = sum(count for least, count in buckets if least is not None)
    assert waiting[name,] == (*percentiles(buckets), known, unknown)
    assert len(waiting) == {"what": 6, "source": 3}[column]


def relayed(period: Period, key: str) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """The results and bytes of a period by a column of its table."""
    rows = [
        {**dict.fromkeys(TRANSFER_RESULTS, 0), **row, row["result"]: row["ended"]}
        for row in within("relay_hours", period)
    ]
    return sums(rows, [key], *TRANSFER_RESULTS, "ended", "bytes")


def test_transfers_through_relays_are_the_sums_of_their_hours() -> None:
    columns = (*TRANSFER_RESULTS, "ended", "bytes")
    by_day = relayed(WEEK, "day")
    assert table(FIGURES["relay-results-by-day"], ["day"], *columns) == by_day
    assert table(FIGURES["relay-bytes-by-day"], ["day"], "transfers", "bytes") == {
        day: (counts[0], counts[-1]) for day, counts in by_day.items()
    }
    by_relay = relayed(WEEK, "source")
    assert table(FIGURES["relays"], ["source"], *columns) == by_relay
    sizes = FIGURES["relays"].table.numbers("bytes")
    assert sizes == sorted(sizes, key=lambda size: -(size or 0))
    for happy, lonely, impatient, share in table(
        FIGURES["relay-results-by-day"], ["day"], "happy", "lonely", "impatient", "found_share"
    ).values():
        assert share == happy / (happy + lonely + impatient)

    day = parse_period("2026-11-20")
    report = made(LAKE, day)
    expected = relayed(day, "hour")
    blurred = expected.pop((None,))
    hours = table(figure_of(report, "relay-results-by-hour"), ["hour"], *columns)
    assert hours == {(hour,): expected.get((hour,), (0,) * len(columns)) for hour in range(24)}
    assert figure_of(report, "relay-bytes-by-hour").remarks == (
        f"Left out: {blurred[-2]} results, because the server rounds times to more than an hour.",
    )
    facts = {fact.name: fact.value for fact in section_of(report, "relay").facts}
    size, hour = max((counts[-1], -hour) for (hour,), counts in expected.items())
    assert facts["Most bytes in an hour"] == size
    assert facts["This hour began"] == datetime(2026, 11, 20, -hour, tzinfo=UTC)


def test_the_times_at_relays_are_percentiles_of_added_histograms() -> None:
    rows = within("relay_durations", where=lambda row: row["result"] == "happy")
    shown = table(FIGURES["relay-durations"], ["what"], "p50_us", "p90_us", "p99_us", "durations")
    for what, measure in (("until the second side came", "waiting"), ("from the second side to the end", "relaying")):
        buckets = [(row["from_us"], row["count"]) for row in rows if row["measure"] == measure]
        [values] = [values for (words,), values in shown.items() if words.startswith(what)]
        assert values == (*percentiles(buckets), sum(count for _, count in buckets))
        if measure == "waiting":
            facts = {fact.name: fact.value for fact in section_of(REPORT, "relay").facts}
            assert facts["Half of the second sides came within"] == values[0]
            assert facts["90 % of the second sides came within"] == values[1]


@pytest.mark.parametrize(
    ("first", "names"),
    [
        (None, ["2026-11-24", "2026-W47", "2026-10"]),
        ("2026-11-24", ["2026-11-24", "2026-W48", "2026-11"]),
        ("2026-11-25", ["2026-11-25", "2026-W48", "2026-11"]),
        ("2026-10-31", ["2026-11-24", "2026-W47", "2026-10"]),
    ],
)
def test_a_run_reports_the_present_where_the_lake_has_nothing_before_it(first: str | None, names: list[str]) -> None:
    days = None if first is None else LakeDays(date.fromisoformat(first), date(2026, 11, 25))
    assert [period.name for period in due_periods(date(2026, 11, 25), days)] == names


def test_busy_hours_have_every_hour_of_every_weekday_and_its_average() -> None:
    rows = [{**row, "weekday": row["day"].strftime("%A")} for row in within("busy_hours") if row["hour"] is not None]
    expected = sums(rows, ["weekday", "hour"], "connections", "mailboxes", "nameplates")
    hours = table(FIGURES["busy-hours"], ["weekday", "hour"], "connections", "mailboxes", "nameplates")
    assert len(hours) == 7 * 24
    assert {key: counts for key, counts in hours.items() if counts != (0, 0, 0)} == expected
    [remark] = FIGURES["busy-hours"].remarks
    blurred = sum(row["connections"] for row in within("busy_hours") if row["hour"] is None)
    assert remark.startswith(f"Left out: {blurred:,} connections, ")

    month = parse_period("2026-11")
    figure = figure_of(made(LAKE, month), "busy-hours")
    weekdays = Counter(day.strftime("%A") for day in DAYS if day in month.days)
    assert set(weekdays.values()) == {2, 3}, "the lake has records of so many days"
    averages = table(figure, ["weekday", "hour"], "days", "connections", "connections_a_day")
    for (weekday, _), (days, connections, average) in averages.items():
        assert (days, average) == (weekdays[weekday], connections / days)
    assert value_columns(figure.chart) == ("connections_a_day",)


@pytest.mark.parametrize(("name", "of"), [("pressure", "live-nameplates"), ("mailbox_pressure", "live-mailboxes")])
def test_pressure_is_the_largest_peak_of_a_day_or_an_hour(name: str, of: str) -> None:
    peaks: Counter[tuple[str, date]] = Counter()
    for row in within(name):
        key = (row["source"], row["day"])
        peaks[key] = max(peaks[key], row["peak"] or 0)
    assert table(FIGURES[of], ["source", "day"], "peak") == {key: (peak,) for key, peak in peaks.items()}
    day = parse_period("2026-11-20")
    by_hour = {(row["source"], row["hour"]): (row["peak"],) for row in within(name, day) if row["hour"] is not None}
    hours = table(figure_of(made(LAKE, day), of), ["source", "hour"], "peak")
    assert len(hours) == 3 * 24
    assert {key: peak for key, peak in hours.items() if peak != (0,)} == by_hour


def test_servers_that_the_chart_of_pressure_leaves_out_are_in_its_table() -> None:
    key = {"day": WEEK.first, "hour": 1, "started": 1, "live_us": 1, "cut": 0}
    live = [{**key, "source": f"server {at}", "peak": at} for at in range(40)]
    figure = figure_of(made({"pressure": live, "outcomes": LAKE["outcomes"]}), "live-nameplates")
    assert figure.table.values("source")[0] == "server 39"
    assert len(figure.table.rows) == 40 * 7
    assert figure.remarks == ("The chart has the 8 servers with the highest peaks. The table has all 40.",)


def test_guesses_that_stand_out_are_listed_and_counted_and_the_first_days_are_not_judged() -> None:
    rows = within("guesses", where=lambda row: row["stands_out"])
    listed = table(FIGURES["guesses-that-stand-out"], ["day", "source", "app_id"], "suspects", "threshold")
    assert listed == {(row["day"], row["source"], row["app_id"]): (row["suspects"], row["threshold"]) for row in rows}
    [fact] = section_of(REPORT, "guesses").facts
    assert (fact.value, fact.warns) == (len(rows), True)
    unjudged = [row | {"median": None, "mad": None, "threshold": None, "stands_out": None} for row in LAKE["guesses"]]
    section = section_of(made({**LAKE, "guesses": unjudged}), "guesses")
    assert [(fact.value, fact.warns) for fact in section.facts] == [(0, False)]
    [_, figure] = section.figures
    assert figure.table.rows == ()
    assert figure.remarks == (
        "No day stands out.",
        f"{len(within('guesses'))} rows of the period could not be judged: the lake has too few days before.",
    )


def test_timing_has_the_phase_with_the_longest_median_first_and_the_time_of_a_round_trip() -> None:
    medians = FIGURES["timing-by-phase"].table.numbers("p50_us")
    assert medians == sorted(medians, key=lambda us: -(us or 0))
    known = [row for row in within("times") if row["from_us"] is not None]
    assert table(FIGURES["timing-by-phase"], ["phase"], "durations") == sums(known, ["phase"], "count")
    round_trips = [(row["from_us"], row["count"]) for row in known if row["phase"] == "round trip"]
    count, median = section_of(REPORT, "timing").facts
    assert (count.value, median.value) == (sum(n for _, n in round_trips), percentiles(round_trips)[0])


def test_timing_says_what_took_the_time() -> None:
    times = [within("times")[0] | {"phase": phase} for phase in (*ALL_PHASES, "new")]
    figure = figure_of(made({"times": times}), "timing-by-phase")
    meanings = {phase: meaning for (phase,), (meaning,) in table(figure, ["phase"], "meaning").items()}
    assert meanings.pop("new") is None
    assert meanings.keys() == {*ALL_PHASES}
    for meaning in meanings.values():
        assert value_text(meaning, ValueKind.TEXT) == meaning, "the page shows all of it"


def test_rows_of_sources_gaps_and_the_quarantine() -> None:
    names = ("read", "clean", "duplicate", "quarantined", "last_row", "last_ingest")
    assert table(FIGURES["sources"], ["source"], *names) == {
        (row["source"],): tuple(row[name] for name in names) for row in LAKE["sources"]
    }
    key = ("source", "table", "reason")
    expected = sums([{**row, "one": 1} for row in within("quarantine")], key, "one")
    assert table(FIGURES["quarantine"], key, "rows") == expected
    gaps = {(row["source"], row["day"]): (row["first"], row["last"], row["missing"]) for row in within("gaps")}
    assert table(FIGURES["gaps"], ("source", "day"), "first", "last", "missing") == gaps


@pytest.mark.parametrize("name", ["2026-11-20", "2026-W47", "2026-12", "9998-12"])
@pytest.mark.parametrize("rows", [LAKE, EMPTY], ids=["lake", "empty lake"])
def test_every_period_of_every_lake_is_a_page_and_a_summary(name: str, rows: Tables) -> None:
    report = made(rows, parse_period(name))
    Tags(page(report).decode())
    assert len(report.sections) == len(SUBJECTS)
    assert report.remarks or name in {"2026-11-20", "2026-W47"}
    assert len(list(summary_lines(report))) > len(SUBJECTS)


def test_a_lake_without_one_table_is_a_report_without_its_figures() -> None:
    for missing in LAKE:
        report = made({name: rows for name, rows in LAKE.items() if name != missing})
        Tags(page(report).decode())
        assert len(list(figures(report))) <= len(FIGURES)


def test_the_lake_s_days_are_those_of_all_of_its_kinds_of_records() -> None:
    assert lake_days(LakeTables(EMPTY).fetch) is None
    assert lake_days(LakeTables(LAKE).fetch) == LakeDays(DAYS[0], DAYS[-1])
    early = {**LAKE, "traffic": [{**LAKE["traffic"][0], "day": date(2026, 1, 1)}]}
    assert lake_days(LakeTables(early).fetch) == LakeDays(date(2026, 1, 1), DAYS[-1])


def test_a_day_without_records_is_not_known_and_a_day_without_rows_is_zero() -> None:
    quiet = {name: [row for row in rows if row["day"] != date(2026, 11, 18)] for name, rows in LAKE.items()}
    days = table(figure_of(made(quiet, parse_period("2026-11")), "results-by-day"), ["day"], "ended")
    assert days[date(2026, 11, 18),] == (0,)
    assert days[date(2026, 11, 4),] == days[date(2026, 11, 25),] == (None,)
    assert len(days) == 30


def test_thousands_of_names_are_twenty_rows_that_add_up() -> None:
    """A built table has a thousand names of a server and day; all others are `other`."""
    cells = [(server, day) for server in ("a", "b") for day in DAYS[:2]]
    outcomes: list[Row] = []
    versions: list[Row] = []
    for source, day in cells:
        key = {"source": source, "day": day}
        for at in range(1_001):
            number = 40 if at == 1_000 else at % 7 + 1
            results = {**dict.fromkeys(RESULTS, 0), "happy": number, "scary": 1}
            name = "other" if at == 1_000 else f"{source} {day} {at}"
            outcomes.append({**key, "app_id": name, "kind": "opened", "ended": number + 1, **results})
            client = {"attribution": "version", "implementation": name, "version": name, "app_id": "app"}
            versions.append({**key, **client, "connections": 1, "mailboxes": number + 1, **results})
    report = made({**LAKE, "outcomes": outcomes, "versions": versions}, parse_period("2026-11"))
    for name, head, counted in (
        ("results-by-application", "app_id", "ended"),
        ("versions", "implementation", "mailboxes"),
    ):
        figure = figure_of(report, name)
        assert len(figure.table.rows) == MAX_ROWS_OF_NAMES
        assert "other" not in figure.table.values(head)
        assert figure.table.values(head)[-1] == "all others"
        assert sum(n or 0 for n in figure.table.numbers("names")) == 4_000
        assert sum(n or 0 for n in figure.table.numbers(counted)) == sum(row["ended"] for row in outcomes)
        [remark] = figure.remarks
        least = 4_000 - MAX_ROWS_OF_NAMES + 1
        assert remark.startswith(f'The row "all others" has {least:,} names or more: the lake has the 1,000 most')
    [fact] = section_of(report, "versions").facts
    assert (fact.name, fact.value) == ("Versions, at least", 4_000)
    assert "Names" in Tags(page(report).decode()).texts["th"], "a column with the usual number only is left out"


def test_rare_names_are_all_others_and_a_server_may_be_called_other() -> None:
    other = {"other.example": "other"}
    rows = [row | {"app_id": other.get(row["app_id"], row["app_id"])} for row in LAKE["outcomes"]]
    guesses = [row | {"app_id": "other", "stands_out": True} for row in LAKE["guesses"]]
    report = made({**LAKE, "outcomes": rows, "guesses": guesses})
    expected = sums(within("outcomes", where=not_nameplates), ["app_id"], "ended")
    assert table(figure_of(report, "results-by-application"), ["app_id"], "ended", "names") == {
        ("lothar.com/wormhole",): (*expected["lothar.com/wormhole",], 1),
        ("all others",): (*expected["other.example",], 1),
    }
    assert set(figure_of(report, "guesses-that-stand-out").table.values("app_id")) == {"all others"}
    servers = made({**LAKE, "outcomes": [row | {"source": "other"} for row in LAKE["outcomes"]]})
    figure = figure_of(servers, "results-by-server")
    assert (figure.table.values("source"), figure.remarks) == (["other"], ())


@given(st.lists(st.integers(-10, 10**9) | st.integers(1, 200), min_size=1, max_size=60), st.data())
def test_a_percentile_is_within_one_percent_of_that_of_the_durations(durations: list[int], data: Any) -> None:
    parts: list[tuple[int | None, int]] = [
        (0 if us <= 0 else bucket_edges()[bisect_right(bucket_edges(), us) - 1], 1) for us in durations
    ]
    parts.insert(data.draw(st.integers(0, len(parts))), (None, 7))
    result = percentiles(parts)
    for percent, us in zip(PERCENTILES, result, strict=True):
        exact = sorted(durations)[max(math.ceil(percent * len(durations) / 100), 1) - 1]
        assert us is not None
        assert us == pytest.approx(max(exact, 0), rel=0.01 + 1e-9)
    assert percentiles(reversed(parts)) == percentiles(parts * 2) == result
    assert count_known(parts) == (len(durations), 7)
    nothing: list[list[tuple[int | None, int]]] = [[], [(None, 5)], [(10, 0)]]
    assert [percentiles(none) for none in nothing] == [[None] * 3] * 3


@given(st.sampled_from(PeriodKind), st.dates(date(1970, 2, 1), date(9998, 12, 1)))
def test_each_day_is_in_one_period_of_each_kind(kind: PeriodKind, day: date) -> None:
    period = period_containing(kind, day)
    assert day in period.days
    assert all(period_containing(kind, other) == period for other in period.days)
    assert parse_period(period.name) == period == period.after.before == period.before.after
    assert period.before.last + timedelta(1) == period.first
    assert last_finished(kind, day).after == period


def test_a_kind_stands_for_the_last_period_that_is_over() -> None:
    today = date(2026, 12, 1)
    names = ("day", "week", "month", "2026-W01")
    assert [choose_period(name, today).name for name in names] == ["2026-11-30", "2026-W48", "2026-11", "2026-W01"]


@pytest.mark.parametrize(
    ("name", "first", "last", "title"),
    [
        ("2026-11-21", "2026-11-21", "2026-11-21", "Saturday, 21 November 2026"),
        ("2026-W53", "2026-12-28", "2027-01-03", "Week 53 of 2026, 28 December 2026 to 3 January 2027"),
        ("2024-02", "2024-02-01", "2024-02-29", "February 2024"),
    ],
)
def test_a_period_has_the_days_of_the_calendar(name: str, first: str, last: str, title: str) -> None:
    period = parse_period(name)
    assert (str(period.first), str(period.last), period.title) == (first, last, title)


INVALID = "2026 2026-13 2026-00 2026-W54 2025-W53 2026-W00 2026-02-29 9999-01 1969-12 26-11 2026-11-21T00 2026-1"


@pytest.mark.parametrize("text", [*INVALID.split(), "", "2026-11-21 ", "2026-w47", "٢٠٢٦-11", "\x1b[31m", "-026-11"])
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(Misuse):
        parse_period(text)


NONE_BEFORE = "The lake has no records of the period before. Nothing is compared with it."
OF_OTHERS = "The lake has no records of this period. It has records of "
FUTURE = "The period begins on 1 November 2026, which is in the future. There are no records of it."


@pytest.mark.parametrize(
    ("days", "today", "sentences"),
    [
        (None, "2026-12-01", ["The lake has no records yet. Run `restante pipeline run`."]),
        ("2026-09-01 2026-10-20", "2026-10-21", [FUTURE]),
        ("2026-09-01 2026-11-20", "2026-11-20", ["The period is not over. Its last day is 30 November 2026."]),
        ("2026-09-01 2026-11-30", "2026-11-30", ["The period is not over. Its last day is 30 November 2026."]),
        ("2026-10-01 2026-11-30", "2026-12-01", []),
        ("2026-09-01 2026-11-20", "2026-12-02", ["The lake has no records after 20 November 2026."]),
        ("2026-11-03 2026-12-01", "2026-12-02", ["The lake has no records before 3 November 2026.", NONE_BEFORE]),
        (
            "2026-10-30 2026-12-01",
            "2026-12-02",
            ["The lake has records of the period before only from 30 October 2026 on."],
        ),
        ("2026-09-01 2026-10-20", "2026-12-02", [f"{OF_OTHERS}1 September 2026 to 20 October 2026."]),
        ("2026-12-03 2026-12-05", "2026-12-06", [f"{OF_OTHERS}3 December 2026 to 5 December 2026.", NONE_BEFORE]),
    ],
)
def test_what_a_lake_lacks_of_a_period_is_in_its_remarks(days: str | None, today: str, sentences: list[str]) -> None:
    of_lake = None if days is None else LakeDays(*map(date.fromisoformat, days.split()))
    assert period_remarks(parse_period("2026-11"), of_lake, date.fromisoformat(today)) == sentences
