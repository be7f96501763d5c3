"""Durations as percentiles: how long people waited, and where the time of clients went. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from restante.pipeline.report.model import (
    Fact,
    Figure,
    PercentileStrip,
    ReportColumn,
    ReportRow,
    ReportTable,
    Section,
    ValueKind,
)
from restante.pipeline.report.sections.subject import (
    DAYS,
    MAILBOX_SERVER_COLUMN,
    Rows,
    Scope,
    Subject,
    count_column,
    text_column,
)
from restante.timing.model import phases

MIDDLE: Final = Fraction(101, 100)
"""The middle of a bucket over its shortest duration. Buckets grow by 2 % (restante.pipeline.tables.buckets). So the
middle differs from any duration in the bucket by 1 % at most."""

PERCENTILES: Final = (50, 90, 99)

PHASE_MEANINGS: Final[Mapping[str, str]] = {
    phases.NETWORK_OUT: "From when the client sent a command until the server received it.",
    phases.SERVER: "From when the server received a command until it sent the answer.",
    phases.QUEUE: "From when the server received a command until the commit of its batch began, or until the answer"
    " if it changed nothing.",
    phases.COMMIT: "From when the commit of a command's batch began until its change was on disk.",
    phases.QUEUE_AND_COMMIT: "From when the server received a command until its change was on disk, in older traces.",
    phases.ANSWER: "From when the change of a command was on disk until the server sent the answer.",
    phases.NETWORK_IN: "From when the server sent an answer, or a message of the other side, until the client"
    " received it.",
    phases.ROUND_TRIP: "From when the client sent a command until it received the answer.",
    phases.TRANSIT_CONNECT: "The client connected to the other side, or to a relay.",
    phases.TRANSFER: "The client received a file, or sent one and waited until the receiver had confirmed it.",
    phases.HUMAN: "The client waited for its user.",
    phases.CRYPTO: "The client computed keys.",
}
"""What took the time of each phase, as docs/pipeline/tables.md explains it."""

Bucket = tuple[int | None, int]
"""The shortest duration of a bucket in microseconds, and a count. None: durations that are not known."""


def percentiles(buckets: Iterable[Bucket], percents: Sequence[int] = PERCENTILES) -> list[float | None]:
    """Return the percentiles in microseconds, to within 1 %; None for each if no duration is known.

    The percentile p of n durations is the least one that is at least as long as p % of them (nearest rank). Buckets
    may come several times: those of days, applications and servers are added up.
    """
    counts: Counter[int] = Counter()
    for shortest, count in buckets:
        if shortest is not None and count > 0:
            counts[shortest] += count
    total, below = counts.total(), 0
    if not total:
        return [None for _ in percents]
    values: dict[int, float] = {}
    for shortest in sorted(counts):
        below += counts[shortest]
        for percent in percents:
            if percent not in values and 100 * below >= percent * total:
                values[percent] = float(shortest * MIDDLE)  # exact: whole hundredths
    return [values[percent] for percent in percents]


def count_known(buckets: Iterable[Bucket]) -> tuple[int, int]:
    """Return how many durations are known, and how many are not."""
    sums = [0, 0]
    for shortest, count in buckets:
        sums[shortest is None] += count
    return sums[0], sums[1]


_ORDINALS: Final[Mapping[int, str]] = {50: "Half", 90: "90 %", 99: "99 %"}

PERCENTILE_COLUMNS: Final = tuple(
    ReportColumn(
        f"p{percent}_us",
        f"{_ORDINALS[percent]} within",
        ValueKind.DURATION,
        f"Percentile {percent}: so many of the durations are no longer than this, to within 1 %.",
        "-",
    )
    for percent in PERCENTILES
)
PERCENTILE_NAMES: Final = tuple(column.name for column in PERCENTILE_COLUMNS)

PERCENTILE_READING: Final = (
    " The circle is the median: half are no longer. 90 % are no longer than the square, and 99 % no longer than the"
    " triangle. Each line of the axis is about ten times the one before."
)

_SUMS: Final = f"from_us, sum(count) FROM durations WHERE {DAYS}"


def group_buckets(rows: Rows, names: int) -> dict[tuple[Any, ...], list[Bucket]]:
    """Return the buckets of each name. The rows begin with the parts of their names."""
    buckets_by_name: dict[tuple[Any, ...], list[Bucket]] = {}
    for row in rows:
        buckets_by_name.setdefault(row[:names], []).append((row[names], row[names + 1]))
    return buckets_by_name


def _row(name: ReportRow, buckets: list[Bucket]) -> ReportRow:
    return (*name, *count_known(buckets), *percentiles(buckets))


WAITING_QUERIES: Final[Mapping[str, str]] = {
    "kinds": f"SELECT kind, measure, {_SUMS} GROUP BY ALL ORDER BY ALL",
    "servers": f"SELECT source, {_SUMS} AND kind = 'nameplate' AND measure = 'waiting' GROUP BY ALL ORDER BY ALL",
}

_MEASURES: Final[Mapping[tuple[str, str], str]] = {
    ("nameplate", "waiting"): "nameplate: until the second side",
    ("nameplate", "total"): "nameplate: until its end",
    ("claimed", "waiting"): "mailbox of a nameplate: until the second side",
    ("claimed", "total"): "mailbox of a nameplate: until its end",
    ("opened", "waiting"): "mailbox without a nameplate: until the second side",
    ("opened", "total"): "mailbox without a nameplate: until its end",
}
"""The words for a kind and a measure of the table durations, in the order of the figure."""


def waiting_section(rows: Mapping[str, Rows], _scope: Scope) -> Section:
    """Return the section of waiting times."""
    kinds = group_buckets(rows["kinds"], 2)
    if not kinds:
        return Section("waiting", "Waiting times")
    columns = (
        count_column("durations", "Durations"),
        count_column("unknown", "No second side", "How many had no second side."),
        *PERCENTILE_COLUMNS,
    )
    typical = percentiles(kinds.get(("nameplate", "waiting"), []))
    return Section(
        "waiting",
        "Waiting times",
        (
            Figure(
                "waiting-by-kind",
                "Times since the first side",
                "Each line shows how long nameplates or mailboxes waited for their second side, or how long they"
                " existed." + PERCENTILE_READING,
                ReportTable(
                    (text_column("what", "What"), *columns),
                    tuple(_row((text,), kinds[key]) for key, text in _MEASURES.items() if key in kinds),
                ),
                PercentileStrip(("what",), PERCENTILE_NAMES),
            ),
            Figure(
                "waiting-by-server",
                "Time until the second side came, by server",
                "Each line shows how long the nameplates of a server waited for the second side."
                + PERCENTILE_READING,
                ReportTable(
                    (MAILBOX_SERVER_COLUMN, *columns),
                    tuple(_row(name, buckets) for name, buckets in group_buckets(rows["servers"], 1).items()),
                ),
                PercentileStrip(("source",), PERCENTILE_NAMES),
            ),
        ),
        tuple(
            Fact(f"{_ORDINALS[percent]} of the second sides came within", value, ValueKind.DURATION)
            for percent, value in zip(PERCENTILES, typical, strict=True)
        ),
        terms="A nameplate is the number in a code. It leads the two sides of the code to a mailbox, where they"
        " exchange messages.",
    )


TIMING_QUERIES: Final[Mapping[str, str]] = {
    "phases": f"SELECT phase, from_us, sum(count) FROM times WHERE {DAYS} GROUP BY ALL ORDER BY ALL",  # noqa: S608
}


def timing_section(rows: Mapping[str, Rows], _scope: Scope) -> Section:
    """Return the section of timing by cause, the longest median first."""
    phase_rows = [
        _row((phase, PHASE_MEANINGS.get(phase)), buckets)
        for (phase,), buckets in group_buckets(rows["phases"], 1).items()
    ]
    if not phase_rows:
        return Section("timing", "Timing by cause", nothing="The lake has no timing logs of the period.")
    return Section(
        "timing",
        "Timing by cause",
        (
            Figure(
                "timing-by-phase",
                "Times of clients by phase",
                "Each line shows how long a phase of a command, or a step of a client, took in the timing logs."
                + PERCENTILE_READING,
                ReportTable(
                    (
                        text_column("phase", "Phase"),
                        text_column("meaning", "What took the time", absent="-"),
                        count_column("durations", "Durations"),
                        count_column("unknown", "Not known", "How many durations are not known."),
                        *PERCENTILE_COLUMNS,
                    ),
                    tuple(sorted(phase_rows, key=_longest_first)),
                ),
                PercentileStrip(("phase",), PERCENTILE_NAMES),
            ),
        ),
        tuple(_timing_facts(phase_rows)),
        terms="A timing log is what a client writes about one transfer. A command is what the client asks of the"
        " mailbox server.",
    )


def _timing_facts(rows: list[ReportRow]) -> Iterator[Fact]:
    for phase, _, durations, _, median, *_ in rows:
        if phase == phases.ROUND_TRIP:  # every command has it
            yield Fact("Commands with a known round trip", durations, ValueKind.COUNT)
            yield Fact("Half of the round trips took at most", median, ValueKind.DURATION)


def _longest_first(row: ReportRow) -> tuple[float, str]:
    median = row[4]
    return (-median if isinstance(median, int | float) else 0.0), str(row[0])


WAITING_SUBJECT: Final = Subject(("durations",), WAITING_QUERIES, waiting_section)
TIMING_SUBJECT: Final = Subject(("times",), TIMING_QUERIES, timing_section)
