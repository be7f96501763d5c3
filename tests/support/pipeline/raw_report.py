"""The CSV files of a demo's reports, recomputed from its sources in DuckDB's SQL and plain Python.

Nothing of the pipeline's code is used: each function follows docs/pipeline/tables.md and docs/pipeline/operating.md.
A value of a percentile is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from support.pipeline.raw_periods import Period
from support.pipeline.raw_sources import RawSources

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Row]

RESULTS = ("happy", "lonely", "errory", "scary", "pruney", "crowded")
COUNTS = ", ".join(f"count(*) FILTER (result = '{result}')" for result in RESULTS)
OF_PERIOD = "day BETWEEN $first AND $last"
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
KINDS = {
    "nameplate": "nameplate",
    "claimed": "mailbox of a nameplate",
    "opened": "mailbox without a nameplate",
}
MEASURES = {"waiting_us": "until the second side", "total_us": "until its end"}
ATTRIBUTIONS = {
    "version": "the version is known",
    "mixed": "clients of several versions had just bound",
    "unbound": "no client had just bound",
}
HOUR_US = 3_600_000_000
LIVE_DAYS = 7
LISTED_NAMES = 20


class NotInSources:
    """The value of a column that the sources do not have. Any value is accepted."""


NOT_IN_SOURCES: Final = NotInSources()


# ── what several tables share ────────────────────────────────────────────────────────────────────


def listed(rows: Rows, names: int) -> Rows:
    """Return rows of names and counts, the largest first count first, and those beyond LISTED_NAMES as one row.

    The column `names` stands between the names and the counts.
    """
    ranked = sorted(rows, key=lambda row: (-row[names], [(part is not None, part or "") for part in row[:names]]))
    most = LISTED_NAMES if len(rows) <= LISTED_NAMES else LISTED_NAMES - 1
    found = [(*row[:names], 1, *row[names:]) for row in ranked[:most]]
    if rest := ranked[most:]:
        sums = (sum(row[place] for row in rest) for place in range(names, len(rest[0])))
        found.append(("all others", *("",) * (names - 1), len(rest), *sums))
    return found


def by_day(raw: RawSources, period: Period, rows: Rows, width: int) -> Rows:
    """Return a row for each day: 0 if nothing happened, empty if the sources do not have the day."""
    found = {row[0]: row for row in rows}
    return [found.get(day, (day, *(0 if raw.has(day) else None,) * width)) for day in period.days]


def share(part: int | None, whole: int | None) -> float | None:
    return part / whole if whole and part is not None else None


def percentiles(values: list[int]) -> Row:
    """Return the percentiles 50, 90 and 99 by nearest rank, exactly. A duration below 0 counts as 0."""
    ranked = sorted(max(value, 0) for value in values)
    return tuple(ranked[-(-len(ranked) * percent // 100) - 1] if ranked else None for percent in (50, 90, 99))


def durations(rows: Rows) -> Rows:
    """Return name, number of known and unknown durations, and percentiles, of rows of names and durations."""
    found: dict[Any, list[int | None]] = {}
    for name, duration in rows:
        found.setdefault(name, []).append(duration)
    known = {name: [value for value in of if value is not None] for name, of in found.items()}
    return [
        (name, len(known[name]), len(of) - len(known[name]), *percentiles(known[name])) for name, of in found.items()
    ]


def moment(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


# ── success, waiting times, versions ─────────────────────────────────────────────────────────────


def results_by_day(raw: RawSources, period: Period) -> Rows:
    sql = f"SELECT day, count(*), {COUNTS} FROM ended WHERE {OF_PERIOD} AND kind <> 'nameplate' GROUP BY day"
    rows = by_day(raw, period, raw.rows(sql, **period.ends), 7)
    return [(*row, share(row[2], row[1])) for row in rows]


def results_by_kind(raw: RawSources, period: Period) -> Rows:
    words = {
        "nameplate": "nameplates",
        "claimed": "mailboxes of a nameplate",
        "opened": "mailboxes without a nameplate",
    }
    sql = (
        f"SELECT kind, count(*), count(*) FILTER (result <> 'happy'), {COUNTS} FROM ended"
        f" WHERE {OF_PERIOD} GROUP BY kind ORDER BY kind"
    )
    return [(words[kind], *counts, share(counts[2], counts[0])) for kind, *counts in raw.rows(sql, **period.ends)]


def _results_by(column: str) -> Callable[[RawSources, Period], Rows]:
    def results(raw: RawSources, period: Period) -> Rows:
        sql = (
            f"SELECT {column}, count(*), count(*) FILTER (result <> 'happy'), {COUNTS} FROM ended"
            f" WHERE {OF_PERIOD} AND kind <> 'nameplate' GROUP BY {column}"
        )
        return [(*row, share(row[4], row[2])) for row in listed(raw.rows(sql, **period.ends), 1)]

    return results


def waiting_by_kind(raw: RawSources, period: Period) -> Rows:
    found = []
    for kind, what in KINDS.items():
        for measure, until in MEASURES.items():
            sql = f"SELECT '{what}: {until}', {measure} FROM ended WHERE {OF_PERIOD} AND kind = '{kind}'"
            found += durations(raw.rows(sql, **period.ends))
    return found


def waiting_by_server(raw: RawSources, period: Period) -> Rows:
    sql = f"SELECT source, waiting_us FROM ended WHERE {OF_PERIOD} AND kind = 'nameplate' ORDER BY source"
    return durations(raw.rows(sql, **period.ends))


def timing_by_phase(raw: RawSources, period: Period) -> Rows:
    rows = durations(raw.rows(f"SELECT phase, us FROM phases WHERE {OF_PERIOD}", **period.ends))
    return [(phase, NOT_IN_SOURCES, *numbers) for phase, *numbers in rows]


def versions(raw: RawSources, period: Period) -> Rows:
    sql = f"""
        SELECT implementation, version, count(result) AS mailboxes, count(result) FILTER (result <> 'happy'),
            count(*) - count(result), {COUNTS}
        FROM (
            SELECT day, implementation, version, result FROM attributed WHERE attribution = 'version'
            UNION ALL SELECT day, implementation, version, NULL FROM binds
        ) WHERE {OF_PERIOD} GROUP BY implementation, version
    """
    rows = listed(raw.rows(sql, **period.ends), 2)
    return [(*row[:5], share(row[4], row[3]), *row[5:]) for row in rows]


def attributions(raw: RawSources, period: Period) -> Rows:
    sql = f"SELECT attribution, count(*) FROM attributed WHERE {OF_PERIOD} GROUP BY attribution"
    counts = dict(raw.rows(sql, **period.ends))
    return [(words, counts[how]) for how, words in ATTRIBUTIONS.items() if how in counts]


# ── load ─────────────────────────────────────────────────────────────────────────────────────────


def busy_hours(raw: RawSources, period: Period) -> Rows:
    sql = f"""
        SELECT isodow(day), hour, count(*) FILTER (kind = 'bind'), count(*) FILTER (kind IN ('claimed', 'opened')),
            count(*) FILTER (kind = 'nameplate')
        FROM (SELECT day, hour, kind FROM ended UNION ALL SELECT day, hour, 'bind' FROM binds)
        WHERE {OF_PERIOD} GROUP BY ALL
    """
    found = {(weekday, hour): counts for weekday, hour, *counts in raw.rows(sql, **period.ends)}
    weekdays = [day.isoweekday() for day in period.days if raw.has(day)]
    rows = []
    for weekday in sorted(set(weekdays)):
        days = weekdays.count(weekday)
        for hour in range(24):
            connections, *others = found.get((weekday, hour), (0, 0, 0))
            rows.append((WEEKDAYS[weekday - 1], hour, days, connections / days, connections, *others))
    return rows


LIVE = """
WITH lived AS (  -- it is live until just before its end, and counts for seven days at most
    SELECT source, started, started + least(greatest(total_us, 0), $most) AS until, total_us > $most AS is_cut
    FROM ended WHERE list_contains($kinds, kind)
), units AS (
    SELECT unit, $begin + unit * $length AS opens, $begin + (unit + 1) * $length AS shuts
    FROM range($number) AS r(unit)
), cells AS (
    SELECT source, unit, count(*) FILTER (started >= opens) AS started,
        sum(greatest(least(until, shuts) - greatest(started, opens), 0))::BIGINT AS live_us,
        count(*) FILTER (started >= opens AND is_cut) AS cut
    FROM lived JOIN units ON started < shuts AND (until > opens OR started >= opens)
    GROUP BY source, unit
), steps AS (
    SELECT source, started AS moment, 1 AS change FROM lived WHERE until > started
    UNION ALL SELECT source, until, -1 FROM lived WHERE until > started
    UNION ALL SELECT source, opens, 0 FROM (SELECT DISTINCT source FROM lived) CROSS JOIN units
), counted AS (  -- of steps at one moment, ends come first
    SELECT *, sum(change) OVER (PARTITION BY source ORDER BY moment, change ROWS UNBOUNDED PRECEDING) AS live
    FROM steps
), peaks AS (
    SELECT source, (moment - $begin) // $length AS unit, max(live)::BIGINT AS peak
    FROM counted WHERE change >= 0 AND moment >= $begin AND moment < $begin + $number * $length GROUP BY ALL
)
SELECT source, unit, peak, started, live_us, cut FROM cells JOIN peaks USING (source, unit)
"""


def _live(*kinds: str) -> Callable[[RawSources, Period], Rows]:
    def live(raw: RawSources, period: Period) -> Rows:
        units: list[Any] = list(range(24)) if period.is_day else list(period.days)
        first = period.days[0]
        begin = int(datetime(first.year, first.month, first.day, tzinfo=UTC).timestamp()) * 1_000_000
        length = HOUR_US if period.is_day else 24 * HOUR_US
        limits = {"most": LIVE_DAYS * 24 * HOUR_US, "kinds": list(kinds)}
        rows = raw.rows(LIVE, begin=begin, length=length, number=len(units), **limits)
        found = {(source, units[unit]): (source, units[unit], *numbers) for source, unit, *numbers in rows}
        peaks: dict[str, int] = {}
        for source, _, peak, *_ in rows:
            peaks[source] = max(peaks.get(source, 0), peak)

        def nothing(source: str, at: Any) -> Row:
            return (source, at, *(0 if period.is_day or raw.has(at) else None,) * 4)

        servers = sorted(peaks, key=lambda source: (-peaks[source], source))
        return [found.get((source, at), nothing(source, at)) for source in servers for at in units]

    return live


# ── guesses ──────────────────────────────────────────────────────────────────────────────────────


def guesses_by_day(raw: RawSources, period: Period) -> Rows:
    sql = f"""
        SELECT day, count(*) FILTER (kind = 'nameplate' AND result = 'crowded'),
            count(*) FILTER (kind <> 'nameplate' AND result = 'scary')
        FROM ended WHERE {OF_PERIOD} GROUP BY day
    """
    return by_day(raw, period, raw.rows(sql, **period.ends), 2)


class Judged(NamedTuple):
    """A server, day and application whose suspects exceed the threshold (tables.md, "guesses")."""

    day: date
    source: str
    app_id: str
    crowded: int
    scary: int
    median: int
    threshold: int

    @property
    def suspects(self) -> int:
        return self.crowded + self.scary


def guesses(raw: RawSources, period: Period) -> list[Judged]:
    """Return what stands out in a period, by the distance from the threshold."""
    sql = """
        SELECT source, app_id, day, count(*) FILTER (kind = 'nameplate' AND result = 'crowded'),
            count(*) FILTER (kind <> 'nameplate' AND result = 'scary')
        FROM ended GROUP BY ALL
    """
    counts = {(source, app, day): (crowded, scary) for source, app, day, crowded, scary in raw.rows(sql)}
    served = {(source, day) for source, _, day in counts}
    found = []
    for (source, app, day), (crowded, scary) in counts.items():
        week = [day - timedelta(back) for back in range(1, 8)]
        before = [sum(counts.get((source, app, each), (0, 0))) for each in week if (source, each) in served]
        if day in period.days and len(before) >= 4:
            median = _greater_median(before)
            mad = _greater_median([abs(number - median) for number in before])
            threshold = median + max(6 * mad, 10, median // 2)
            if crowded + scary > threshold:
                found.append(Judged(day, source, app, crowded, scary, median, threshold))
    return sorted(found, key=lambda each: (each.threshold - each.suspects, each.day, each.source, each.app_id))


def _greater_median(numbers: list[int]) -> int:
    return sorted(numbers)[len(numbers) // 2]


def guesses_that_stand_out(raw: RawSources, period: Period) -> Rows:
    return [
        (each.day, each.source, each.app_id, each.suspects, each.threshold, each.crowded, each.scary)
        for each in guesses(raw, period)
    ]


# ── envelopes ────────────────────────────────────────────────────────────────────────────────────


def envelopes_by_day(raw: RawSources, period: Period) -> Rows:
    sql = f"SELECT day, count(*), sum(size)::BIGINT FROM envelopes WHERE {OF_PERIOD} GROUP BY day"
    return by_day(raw, period, raw.rows(sql, **period.ends), 2)


def envelopes_by_topic(raw: RawSources, period: Period) -> Rows:
    sql = f"SELECT topic, count(*), sum(size)::BIGINT FROM envelopes WHERE {OF_PERIOD} GROUP BY topic"
    return listed(raw.rows(sql, **period.ends), 1)


def coverage(raw: RawSources, period: Period) -> Rows:
    """Return a row for each Mailserver and day or hour. A day of which no source has an envelope is not known."""
    unit = "hour" if period.is_day else "day"
    sql = f"""
        SELECT source, {unit}, count(*) FILTER (there), count(*) FILTER (NOT there),
            count(*) FILTER (there AND holders = 1)
        FROM holdings WHERE {OF_PERIOD} GROUP BY ALL
    """
    found = {row[:2]: row for row in raw.rows(sql, **period.ends)}
    units: list[Any] = list(range(24)) if period.is_day else list(period.days)
    nothing = 0 if period.is_day else None
    sources = sorted({source for source, _ in found})
    return [found.get((source, at), (source, at, *(nothing,) * 3)) for source in sources for at in units]


def gaps(raw: RawSources, period: Period) -> Rows:
    sql = f"""
        SELECT source, day, min(sent), max(sent), count(DISTINCT topic), count(*) FROM holdings
        WHERE {OF_PERIOD} AND NOT there GROUP BY source, day ORDER BY count(*) DESC, source, day
    """
    return [
        (source, day, moment(first), moment(last), *counts)
        for source, day, first, last, *counts in raw.rows(sql, **period.ends)
    ]


# ── sources ──────────────────────────────────────────────────────────────────────────────────────


def sources(raw: RawSources, _period: Period) -> Rows:
    """Return what the lake should have read. When it did is not in the sources: `last_ingest`, `counted_since`.

    So neither is the lag between the last row and that time.
    """
    sql = """
        SELECT source, 'usage', max(began), count(*)
        FROM (SELECT source, started AS began FROM ended UNION ALL SELECT source, bound FROM binds) GROUP BY source
        UNION ALL SELECT source, 'archive', max(sent), count(*) FROM archived GROUP BY source
        UNION ALL SELECT 'probes', 'logs', max(began), count(*) FROM events
        UNION ALL SELECT 'north-trace', 'logs', max(stamp(server_rx)), count(*) FROM lines
    """
    unknown = NOT_IN_SOURCES
    return [
        (source, kind, moment(last), unknown, unknown, read, read, 0, 0, 0, 0, unknown)
        for source, kind, last, read in sorted(raw.rows(sql), key=lambda row: (-row[3], row[0]))
    ]


FIGURES: Mapping[str, Callable[[RawSources, Period], Rows]] = {
    "results-by-day": results_by_day,
    "results-by-kind": results_by_kind,
    "results-by-server": _results_by("source"),
    "results-by-application": _results_by("app_id"),
    "waiting-by-kind": waiting_by_kind,
    "waiting-by-server": waiting_by_server,
    "timing-by-phase": timing_by_phase,
    "versions": versions,
    "attributions": attributions,
    "busy-hours": busy_hours,
    "live-nameplates": _live("nameplate"),
    "live-mailboxes": _live("claimed", "opened"),
    "guesses-by-day": guesses_by_day,
    "guesses-that-stand-out": guesses_that_stand_out,
    "envelopes-by-day": envelopes_by_day,
    "envelopes-by-topic": envelopes_by_topic,
    "coverage": coverage,
    "gaps": gaps,
    "sources": sources,
}
"""The name of the CSV file of a figure, and the function that returns its rows."""
