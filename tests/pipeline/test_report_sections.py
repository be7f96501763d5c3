"""The sections of a report: their queries on a DuckDB with the lake's tables, compared with sums in plain Python."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any

import pytest

from restante.pipeline.report.files import FIGURE_IDS
from restante.pipeline.report.making import TABLES_READ, lake_days, made_report
from restante.pipeline.report.model import Figure, Report, ValueKind, drawn, figures
from restante.pipeline.report.page import page
from restante.pipeline.report.percentiles import percentiles
from restante.pipeline.report.periods import LakeDays, Period, parse
from restante.pipeline.report.sections import SUBJECTS
from restante.pipeline.report.summary import summary
from restante.pipeline.report.top_rows import MAX_ROWS_OF_NAMES
from restante.pipeline.report.values import spoken_value
from restante.pipeline.tables import BUILT_TABLES, TABLES
from restante.timing.model.phases import ALL_PHASES, EXCHANGE_PHASES
from support.documents import ROOT
from support.markup import Tags
from support.pipeline.report_lakes import RESULTS, LakeTables, Row, Tables, lake

WEEK = parse("2026-W47")
AFTER = datetime(2026, 11, 25, 6, tzinfo=UTC)
DAYS = [date(2026, 11, 5) + timedelta(number) for number in range(20)]
LAKE = lake(Random(1), DAYS)
EMPTY: Tables = {}


def made(rows: Tables, period: Period = WEEK, when: datetime = AFTER) -> Report:
    return made_report(LakeTables(rows).fetch, period, when.date(), when)


REPORT = made(LAKE)
FIGURES = {figure.id: figure for _, figure in figures(REPORT)}


def test_reports_read_built_tables_only_remove_files_of_all_figures_and_say_what_words_mean() -> None:
    assert FIGURES.keys() <= {*FIGURE_IDS}
    assert set(TABLES_READ) <= {*BUILT_TABLES, "quarantine"}
    for subject in SUBJECTS:
        for sql in subject.queries.values():
            assert not {name for name in set(TABLES) - set(subject.tables) if f" {name} " in f"{sql} "}, sql
    for section in REPORT.sections:
        assert section.terms.endswith(".")
        if section.id in {"results", "versions"}:
            assert "counts as failed, also if only one side came" in section.terms


def within(table: str, period: Period = WEEK, where: Callable[[Row], Any] = lambda _: True) -> list[Row]:
    return [row for row in LAKE[table] if row["day"] in period.days and where(row)]


def sums(rows: Iterable[Row], key: Sequence[str], *names: str) -> dict[tuple[Any, ...], tuple[int, ...]]:
    found: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        sum_ = found.setdefault(tuple(row[each] for each in key), [0] * len(names))
        for at, name in enumerate(names):
            sum_[at] += row[name]
    return {name: tuple(counts) for name, counts in found.items()}


def table(figure: Figure, key: Sequence[str], *names: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    places = [[figure.table.place(each) for each in of] for of in (key, names)]
    return {tuple(row[at] for at in places[0]): tuple(row[at] for at in places[1]) for row in figure.table.rows}


def not_nameplates(row: Row) -> bool:
    return bool(row["kind"] != "nameplate")


@pytest.mark.parametrize(("by", "column"), [("day", "day"), ("server", "source"), ("application", "app_id")])
def test_results_are_the_sums_of_the_period_s_mailboxes(by: str, column: str) -> None:
    expected = sums(within("outcomes", where=not_nameplates), [column], *RESULTS, "ended")
    assert table(FIGURES[f"results-by-{by}"], [column], *RESULTS, "ended") == expected


def test_results_by_kind_have_the_shares_of_their_counts() -> None:
    figure = FIGURES["results-by-kind"]
    expected = sums(within("outcomes"), ["kind"], *RESULTS)
    assert sorted(table(figure, ["kind"], *RESULTS).values()) == sorted(expected.values())
    for ended, failed, happy, share in table(figure, ["kind"], "ended", "failed", "happy", "happy_share").values():
        assert ended == failed + happy
        assert share == happy / ended


@pytest.mark.parametrize(
    ("figure", "column", "name", "where"),
    [
        ("waiting-by-kind", "what", "mailbox of a nameplate: until the second side", {"kind": "claimed"}),
        ("waiting-by-server", "source", "north", {"kind": "nameplate", "source": "north"}),
    ],
)
def test_waiting_times_are_percentiles_of_the_added_histograms(
    figure: str, column: str, name: str, where: Row
) -> None:
    rows = within("durations", where=lambda row: (where | {"measure": "waiting"}).items() <= row.items())
    buckets = [(row["from_us"], row["count"]) for row in rows]
    found = table(FIGURES[figure], [column], "p50_us", "p90_us", "p99_us", "durations", "unknown")
    unknown = sum(count for least, count in buckets if least is None)
    known = sum(count for least, count in buckets if least is not None)
    assert found[name,] == (*percentiles(buckets), known, unknown)
    assert len(found) == {"what": 6, "source": 3}[column]


def test_versions_are_those_of_mailboxes_whose_version_is_known() -> None:
    rows = within("versions", where=lambda row: row["attribution"] == "version")
    expected = sums(rows, ["implementation", "version"], "mailboxes", "connections", *RESULTS)
    key = ("implementation", "version")
    assert table(FIGURES["versions"], key, "mailboxes", "connections", *RESULTS) == expected
    others = within("versions", where=lambda row: row["attribution"] == "unbound")
    assert table(FIGURES["attributions"], ["attribution"], "mailboxes") == {
        ("the version is known",): sums(rows, [], "mailboxes")[()],
        ("no client had just bound",): sums(others, [], "mailboxes")[()],
    }


def test_busy_hours_have_every_hour_of_every_weekday() -> None:
    rows = [{**row, "weekday": row["day"].strftime("%A")} for row in within("busy_hours") if row["hour"] is not None]
    expected = sums(rows, ["weekday", "hour"], "connections", "mailboxes", "nameplates")
    found = table(FIGURES["busy-hours"], ["weekday", "hour"], "connections", "mailboxes", "nameplates")
    assert {days for (days,) in table(FIGURES["busy-hours"], ["weekday", "hour"], "days").values()} == {1}
    assert len(found) == 7 * 24
    assert {key: counts for key, counts in found.items() if key in expected} == expected
    assert all(counts == (0, 0, 0) for key, counts in found.items() if key not in expected)
    [remark] = FIGURES["busy-hours"].remarks
    blurred = sum(row["connections"] for row in within("busy_hours") if row["hour"] is None)
    assert remark.startswith(f"Left out: {blurred:,} connections, ")


def test_busy_hours_are_averages_of_the_weekdays_of_which_the_lake_has_records() -> None:
    month = parse("2026-11")
    figure = {each.id: each for _, each in figures(made(LAKE, month))}["busy-hours"]
    weekdays = Counter(day.strftime("%A") for day in DAYS if day in month.days)
    assert set(weekdays.values()) == {2, 3}
    rows = table(figure, ["weekday", "hour"], "days", "connections", "connections_a_day")
    for (weekday, _), (days, connections, average) in rows.items():
        assert days == weekdays[weekday]
        assert average == connections / days
    assert drawn(figure.chart) == ("connections_a_day",)


@pytest.mark.parametrize(("name", "of"), [("pressure", "live-nameplates"), ("mailbox_pressure", "live-mailboxes")])
def test_pressure_is_the_largest_peak_of_a_day_or_an_hour(name: str, of: str) -> None:
    peaks: Counter[tuple[str, date]] = Counter()
    for row in within(name):
        key = (row["source"], row["day"])
        peaks[key] = max(peaks[key], row["peak"] or 0)
    assert table(FIGURES[of], ["source", "day"], "peak") == {key: (peak,) for key, peak in peaks.items()}
    day = parse("2026-11-20")
    found = {figure.id: figure for _, figure in figures(made(LAKE, day))}[of]
    by_hour = {(row["source"], row["hour"]): (row["peak"],) for row in within(name, day) if row["hour"] is not None}
    hours = table(found, ["source", "hour"], "peak")
    assert len(hours) == 3 * 24
    assert {key: peak for key, peak in hours.items() if peak != (0,)} == by_hour


def test_servers_that_the_chart_of_pressure_leaves_out_are_in_its_table() -> None:
    key = {"day": WEEK.first, "hour": 1, "started": 1, "live_us": 1, "cut": 0}
    live = [{**key, "source": f"server {at}", "peak": at} for at in range(40)]
    rows = {"pressure": live, "outcomes": LAKE["outcomes"]}
    [figure] = [each for _, each in figures(made(rows)) if each.id == "live-nameplates"]
    assert figure.table.values("source")[0] == "server 39"
    assert len(figure.table.rows) == 40 * 7
    assert figure.remarks == ("The chart has the 8 servers with the highest peaks. The table has all 40.",)


def test_guesses_that_stand_out_are_listed_and_counted() -> None:
    rows = within("guesses", where=lambda row: row["stands_out"])
    found = table(FIGURES["guesses-that-stand-out"], ["day", "source", "app_id"], "suspects", "threshold")
    assert found == {(row["day"], row["source"], row["app_id"]): (row["suspects"], row["threshold"]) for row in rows}
    [fact] = next(section for section in REPORT.sections if section.id == "guesses").facts
    assert (fact.value, fact.warns) == (len(rows), True)
    expected = sums(within("guesses"), ["day"], "crowded_nameplates", "scary")
    assert table(FIGURES["guesses-by-day"], ["day"], "crowded_nameplates", "scary") == expected


def test_the_first_days_of_a_lake_are_not_judged() -> None:
    unjudged = [row | {"median": None, "mad": None, "threshold": None, "stands_out": None} for row in LAKE["guesses"]]
    report = made({**LAKE, "guesses": unjudged})
    [section] = [section for section in report.sections if section.id == "guesses"]
    assert [(fact.value, fact.warns) for fact in section.facts] == [(0, False)]
    [_, figure] = section.figures
    assert figure.table.rows == ()
    assert figure.remarks == (
        "No day stands out.",
        f"{len(within('guesses'))} rows of the period could not be judged: the lake has too few days before.",
    )


def test_traffic_and_coverage_are_the_sums_of_the_period() -> None:
    assert table(FIGURES["envelopes-by-topic"], ["topic"], "envelopes", "bytes") == sums(
        within("traffic"), ["topic"], "envelopes", "bytes"
    )
    assert table(FIGURES["envelopes-by-day"], ["day"], "envelopes", "bytes") == sums(
        within("traffic"), ["day"], "envelopes", "bytes"
    )
    key = ("source", "day")
    names = ("envelopes", "missing", "alone")
    assert table(FIGURES["coverage"], key, *names) == sums(within("coverage"), key, *names)
    gaps = {(row["source"], row["day"]): (row["first"], row["last"], row["missing"]) for row in within("gaps")}
    assert table(FIGURES["gaps"], key, "first", "last", "missing") == gaps


def test_timing_has_the_phase_with_the_longest_median_first() -> None:
    medians = FIGURES["timing-by-phase"].table.numbers("p50_us")
    assert medians == sorted(medians, key=lambda each: -(each or 0))
    counts = sums([{**row} for row in within("times") if row["from_us"] is not None], ["phase"], "count")
    assert table(FIGURES["timing-by-phase"], ["phase"], "durations") == counts


def test_timing_says_what_took_the_time() -> None:
    times = [within("times")[0] | {"phase": phase} for phase in (*ALL_PHASES, "new")]
    [figure] = [figure for _, figure in figures(made({"times": times})) if figure.id == "timing-by-phase"]
    meanings = {phase: meaning for (phase,), (meaning,) in table(figure, ["phase"], "meaning").items()}
    assert meanings.pop("new") is None
    assert meanings.keys() == {*ALL_PHASES}
    for meaning in meanings.values():
        assert spoken_value(meaning, ValueKind.TEXT) == meaning, "the page shows all of it"
    _, _, described = (ROOT / "docs/pipeline/tables.md").read_text().partition("| phase | from | to |")
    for phase in EXCHANGE_PHASES:
        pattern = rf"^\| `{phase}` \| ([^|,.]+)[^|]* \| ([^|,.]+)[^|]* \|$"
        [(start, end)] = re.findall(pattern, described, re.MULTILINE)
        assert start.split()[-1] in meanings[phase]
        assert end.split()[-1] in meanings[phase]


def test_the_summary_says_how_long_a_round_trip_takes() -> None:
    buckets = [(row["from_us"], row["count"]) for row in within("times") if row["phase"] == "round trip"]
    count, median = next(section for section in REPORT.sections if section.id == "timing").facts
    assert count.value == sum(number for least, number in buckets if least is not None)
    assert median.value == percentiles(buckets)[0]


def test_the_ledger_adds_up_and_times_are_exact() -> None:
    names = ("read", "clean", "duplicate", "quarantined", "last_row", "last_ingest")
    found = table(FIGURES["sources"], ["source"], *names)
    assert found == {(row["source"],): tuple(row[name] for name in names) for row in LAKE["sources"]}


def test_quarantine_counts_the_rows_that_runs_of_the_period_rejected() -> None:
    key = ("source", "table", "reason")
    expected = sums([{**row, "one": 1} for row in within("quarantine")], key, "one")
    assert table(FIGURES["quarantine"], key, "rows") == expected


@pytest.mark.parametrize("name", ["2026-11-20", "2026-W47", "2026-12", "9998-12"])
@pytest.mark.parametrize("rows", [LAKE, EMPTY], ids=["lake", "empty lake"])
def test_every_period_of_every_lake_is_a_page_and_a_summary(name: str, rows: Tables) -> None:
    report = made(rows, parse(name))
    Tags(page(report).decode())
    assert len(report.sections) == len(SUBJECTS)
    assert report.remarks or name in {"2026-11-20", "2026-W47"}
    lines = list(summary(report))
    assert len(lines) > len(SUBJECTS)


@pytest.mark.parametrize("missing", [*LAKE])
def test_a_lake_without_one_table_is_a_report_without_its_figures(missing: str) -> None:
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
    report = made(quiet, parse("2026-11"))
    found = {figure.id: figure for _, figure in figures(report)}["results-by-day"]
    days = table(found, ["day"], "ended")
    assert days[date(2026, 11, 18),] == (0,)
    assert days[date(2026, 11, 4),] == days[date(2026, 11, 25),] == (None,)
    assert len(days) == 30


NAMES_A_DAY = 1_000
"""As many names of a server and day as a built table has; all others are `other`."""


def test_thousands_of_names_are_twenty_rows_that_add_up() -> None:
    cells = [(server, day) for server in ("a", "b") for day in DAYS[:2]]
    outcomes: list[Row] = []
    versions: list[Row] = []
    for source, day in cells:
        key = {"source": source, "day": day}
        for at in range(NAMES_A_DAY + 1):
            number = 40 if at == NAMES_A_DAY else at % 7 + 1
            results = {**dict.fromkeys(RESULTS, 0), "happy": number, "scary": 1}
            name = "other" if at == NAMES_A_DAY else f"{source} {day} {at}"
            outcomes.append({**key, "app_id": name, "kind": "opened", "ended": number + 1, **results})
            client = {"attribution": "version", "implementation": name, "version": name, "app_id": "app"}
            versions.append({**key, **client, "connections": 1, "mailboxes": number + 1, **results})
    report = made({**LAKE, "outcomes": outcomes, "versions": versions}, parse("2026-11"))
    found = {figure.id: figure for _, figure in figures(report)}
    for name, head, counted in (
        ("results-by-application", "app_id", "ended"),
        ("versions", "implementation", "mailboxes"),
    ):
        figure = found[name]
        assert len(figure.table.rows) == MAX_ROWS_OF_NAMES
        assert "other" not in figure.table.values(head)
        assert figure.table.values(head)[-1] == "all others"
        assert sum(n or 0 for n in figure.table.numbers("names")) == len(cells) * NAMES_A_DAY
        assert sum(n or 0 for n in figure.table.numbers(counted)) == sum(row["ended"] for row in outcomes)
        least = len(cells) * NAMES_A_DAY - MAX_ROWS_OF_NAMES + 1
        [remark] = figure.remarks
        assert remark.startswith(f'The row "all others" has {least:,} names or more: the lake has the 1,000 most')
    [fact] = [each for section in report.sections if section.id == "versions" for each in section.facts]
    assert (fact.name, fact.value) == ("Versions, at least", len(cells) * NAMES_A_DAY)


def test_the_rare_names_of_a_few_rows_are_all_others() -> None:
    rows = [
        row | {"app_id": "other" if row["app_id"] == "other.example" else row["app_id"]} for row in LAKE["outcomes"]
    ]
    guesses = [row | {"app_id": "other", "stands_out": True} for row in LAKE["guesses"]]
    found = {each.id: each for _, each in figures(made({**LAKE, "outcomes": rows, "guesses": guesses}))}
    expected = sums(within("outcomes", where=not_nameplates), ["app_id"], "ended")
    assert table(found["results-by-application"], ["app_id"], "ended", "names") == {
        ("lothar.com/wormhole",): (*expected["lothar.com/wormhole",], 1),
        ("all others",): (*expected["other.example",], 1),
    }
    assert set(found["guesses-that-stand-out"].table.values("app_id")) == {"all others"}


def test_a_server_or_source_may_be_called_other() -> None:
    rows = [row | {"source": "other"} for row in LAKE["outcomes"]]
    found = {each.id: each for _, each in figures(made({**LAKE, "outcomes": rows}))}["results-by-server"]
    assert found.table.values("source") == ["other"]
    assert found.remarks == ()
