"""Transfers through transit relays: whether they succeed, how much they carry, how long sides wait. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time
from typing import Any, Final

from restante.common.transfer_records import MEANINGS, TransferResult
from restante.pipeline.report.model import (
    Fact,
    Figure,
    PercentileStrip,
    RankedBars,
    ReportColumn,
    ReportRow,
    ReportTable,
    Section,
    StackedBars,
    ValueKind,
)
from restante.pipeline.report.periods import PeriodKind
from restante.pipeline.report.sections.histograms import (
    PERCENTILE_COLUMNS,
    PERCENTILE_NAMES,
    PERCENTILE_READING,
    Bucket,
    group_buckets,
    percentiles,
)
from restante.pipeline.report.sections.subject import (
    ALL_OTHERS,
    DAY_COLUMN,
    DAYS,
    HOUR_COLUMN,
    NAMES_COLUMN,
    Rows,
    Scope,
    Subject,
    blurred_remarks,
    count_column,
    daily,
    hourly,
    share_of,
    text_column,
)
from restante.pipeline.report.top_rows import top_rows

_SUMS: Final = ", ".join(f"coalesce(sum(ended) FILTER (result = '{result}'), 0)" for result in MEANINGS)
_COUNTS: Final = f"{_SUMS}, sum(bytes) FROM relay_hours WHERE {DAYS}"
"""The sums of the results, in the order of MEANINGS, and that of the bytes."""

QUERIES: Final[Mapping[str, str]] = {
    "days": f"SELECT day, {_COUNTS} GROUP BY day ORDER BY day",
    "hours": f"SELECT hour, {_COUNTS} GROUP BY hour ORDER BY hour",
    "relays": f"SELECT source, {_COUNTS} GROUP BY source ORDER BY source",
    "peak": f"SELECT day, hour, sum(bytes) FROM relay_hours WHERE {DAYS} AND hour IS NOT NULL"  # noqa: S608 - constants
    " GROUP BY day, hour ORDER BY sum(bytes) DESC, day, hour LIMIT 1",
    "durations": f"SELECT measure, result, from_us, sum(count) FROM relay_durations WHERE {DAYS}"  # noqa: S608
    " GROUP BY ALL ORDER BY ALL",
}

_RESULTS: Final = tuple(MEANINGS)
_HAPPY: Final = _RESULTS.index("happy")
_ASKED: Final[Sequence[TransferResult]] = ("happy", "lonely", "impatient")
"""The results of connections that asked for another side, without those whose client was connected otherwise."""

_RESULT_COLUMNS: Final = tuple(
    count_column(result, result.capitalize(), f"{meaning[0].upper()}{meaning[1:]}.")
    for result, meaning in MEANINGS.items()
)
_ENDED: Final = count_column("ended", "Ended", "The sum of the results.")
_FOUND: Final = ReportColumn(
    "found_share", "Found the other side", ValueKind.SHARE, "Happy, of happy, lonely and impatient.", "-"
)
_BYTES: Final = ReportColumn("bytes", "Bytes", ValueKind.BYTES, "Of both directions.")

_DURATIONS: Final[Mapping[tuple[str, str], str]] = {
    ("waiting", "happy"): "until the second side came",
    ("waiting", "lonely"): "until a side left that had waited in vain",
    ("relaying", "happy"): "from the second side to the end of the transfer",
}
"""The words for a measure and a result of the table relay_durations, in the order of the figure."""


def relay_section(rows: Mapping[str, Rows], scope: Scope) -> Section:
    """Return the section."""
    if not rows["days"]:
        return Section("relay", "Transfers through relays")
    *counts, relayed = (sum(row[index] for row in rows["days"]) for index in range(1, len(_RESULTS) + 2))
    durations = group_buckets(rows["durations"], 2)
    return Section(
        "relay",
        "Transfers through relays",
        (*_by_time(rows, scope), _by_duration(durations), _by_relay(rows["relays"])),
        (
            Fact("Transfers", counts[_HAPPY], ValueKind.COUNT),
            Fact("Requests that found the other side", _found_share(counts), ValueKind.SHARE),
            Fact("Bytes", relayed, ValueKind.BYTES),
            *_peak(rows["peak"]),
            *(
                Fact(f"{share} of the second sides came within", value, ValueKind.DURATION)
                for share, value in zip(
                    ("Half", "90 %"), percentiles(durations.get(("waiting", "happy"), []), (50, 90)), strict=True
                )
            ),
        ),
        terms="A transit relay passes on the bytes of two computers that cannot reach each other. Both sides of a"
        " transfer ask it for the same token. Clients may ask it before they know whether they need it, so a lonely"
        " connection is a failure only if the sides did not reach each other directly. A redundant one is none. A"
        " transfer counts on the day and in the hour in which its first side connected.",
    )


def _found_share(counts: Sequence[int | None]) -> float | None:
    asked = [counts[_RESULTS.index(result)] for result in _ASKED]
    return share_of(counts[_HAPPY], None if None in asked else sum(count or 0 for count in asked))


def _peak(rows: Rows) -> tuple[Fact, ...]:
    """Return the hour with the most bytes, if any hour is known."""
    return tuple(
        fact
        for day, hour, size in rows
        for fact in (
            Fact("Most bytes in an hour", size, ValueKind.BYTES),
            Fact("This hour began", datetime.combine(day, time(hour), UTC), ValueKind.MOMENT),
        )
    )


def _with_ended(counts: Sequence[Any]) -> ReportRow:
    """Return the sum of results, the results, the share that found the other side, and the bytes."""
    *results, size = counts
    return (None if None in results else sum(results), *results, _found_share(results), size)


def _by_time(rows: Mapping[str, Rows], scope: Scope) -> tuple[Figure, Figure]:
    is_day = scope.period.kind is PeriodKind.DAY
    unit, column, when = ("hour", HOUR_COLUMN, "in an hour (UTC)") if is_day else ("day", DAY_COLUMN, "on a day")
    width = len(_RESULTS) + 1
    counts = hourly(rows["hours"], scope, width) if is_day else daily(rows["days"], scope, width)
    remarks = blurred_remarks(
        sum(sum(row[1:width]) for row in rows["hours"] if row[0] is None) if is_day else 0, "result"
    )
    return (
        Figure(
            f"relay-results-by-{unit}",
            f"Results at relays by {unit}",
            f"Each bar is the number of connections that began {when} and have ended, by result. The two connections"
            " of a transfer count once, as happy.",
            ReportTable(
                (column, _ENDED, *_RESULT_COLUMNS, _FOUND, _BYTES),
                tuple((at, *_with_ended(values)) for at, *values in counts),
            ),
            StackedBars(unit, _RESULTS),
            remarks,
        ),
        Figure(
            f"relay-bytes-by-{unit}",
            f"Bytes through relays by {unit}",
            f"Each bar is the number of bytes of the transfers that began {when}, whenever they ended.",
            ReportTable(
                (column, count_column("transfers", "Transfers"), _BYTES),
                tuple((at, values[_HAPPY], values[-1]) for at, *values in counts),
            ),
            StackedBars(unit, ("bytes",)),
            remarks,
        ),
    )


def _by_duration(durations: Mapping[tuple[Any, ...], list[Bucket]]) -> Figure:
    return Figure(
        "relay-durations",
        "Times at relays",
        "Each line shows how long connections waited for the second side, or how long transfers took."
        + PERCENTILE_READING,
        ReportTable(
            (text_column("what", "What"), count_column("durations", "Durations"), *PERCENTILE_COLUMNS),
            tuple(
                (words, sum(count for _, count in durations[key]), *percentiles(durations[key]))
                for key, words in _DURATIONS.items()
                if key in durations
            ),
        ),
        PercentileStrip(("what",), PERCENTILE_NAMES),
    )


def _by_relay(rows: Rows) -> Figure:
    ranked = top_rows([((source,), tuple(counts)) for source, *counts in rows], len(_RESULTS))
    return Figure(
        "relays",
        "Bytes by relay",
        "Each bar is the number of bytes that a relay passed on, the largest first.",
        ReportTable(
            (text_column("source", "Relay"), NAMES_COLUMN, _ENDED, *_RESULT_COLUMNS, _FOUND, _BYTES),
            tuple((row.name[0] if row.name else ALL_OTHERS, row.names, *_with_ended(row.counts)) for row in ranked),
        ),
        RankedBars(("source",), "bytes"),
    )


RELAY_SUBJECT: Final = Subject(("relay_hours", "relay_durations"), QUERIES, relay_section)
