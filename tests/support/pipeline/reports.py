"""Reports to test pages and files with: one figure with each chart, and the words of somebody hostile."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from restante.pipeline.report.changes.measure import quoted
from restante.pipeline.report.model import (
    Cells,
    Changes,
    Chart,
    CoverageMap,
    Fact,
    Figure,
    PercentileStrip,
    PunchCard,
    RankedBars,
    Report,
    ReportChange,
    ReportColumn,
    ReportTable,
    Section,
    StackedBars,
    StepLines,
    ValueKind,
)
from restante.pipeline.report.periods import WEEKDAYS, parse

HOSTILE = (
    "</style></script></title><script>alert(1)</script>",
    "<!--<svg onload=alert(1)>&lt;\"' x=`",
    '=HYPERLINK("http://evil.example")',
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "\x1b[31mred\x1b]8;;http://evil.example\x07\x9b1m",
    "abc\u202egnp.exe\u2066\u2069\u200f\u061c",
    "\u05d0\u05d1\u05d2 \u0627\u0644\u0639",
    "line\r\nbreak\ttab\u2028\u2029\x0b\x0c",
    "\ufeff\u200b\u00ad\ue000\U000e0041",
    "e" + "\u0301" * 120,
    "W" * 128,
    "\u5b57" * 128,
    'a,b;"c"',
    "$policy ${style} $$ %s {0}",
    "",
    " ",
    "others",
)
"""Names as clients may send them."""

DAYS = parse("2026-11").days
RESULTS = ("happy", "lonely", "errory", "scary", "pruney", "crowded")
SHARES = ("p50_us", "p90_us", "p99_us")


def _figure(id_: str, columns: str, rows: Sequence[Cells], chart: Chart | None) -> Figure:
    """Return a figure whose columns are given as `KIND name name KIND name`."""
    kind, made = ValueKind.TEXT, list[ReportColumn]()
    for word in columns.split():
        if word.isupper():
            kind = ValueKind[word]
        else:
            absent = {"absent": "not judged"} if kind is ValueKind.FLAG else {}
            made.append(ReportColumn(word, word.capitalize(), kind, **absent))
    return Figure(id_, id_.capitalize(), f"It shows {id_}. Read it.", ReportTable(tuple(made), tuple(rows)), chart)


def steps(rows: Sequence[Cells]) -> Figure:
    return _figure("pressure", "TEXT source DAY day COUNT peak", rows, StepLines("day", "source", "peak"))


def ranked_bars(names: Sequence[str]) -> Figure:
    rows = [(name, 1_000 - 40 * at, 400 - 20 * at) for at, name in enumerate(names)]
    chart = RankedBars(("version",), "mailboxes", "failed")
    return _figure("versions", "TEXT version COUNT mailboxes failed", [*rows, (None, 0, 0)], chart)


def plain_table() -> Figure:
    moment = datetime(2026, 11, 30, 23, 59, 58, tzinfo=UTC)
    rows = (("north", moment, 0.123, 12_345_678, True), ("east", None, 1.0, 0, None))
    return _figure("sources", "TEXT source MOMENT last SHARE share BYTES size FLAG stands_out", rows, None)


def charts() -> tuple[Figure, ...]:
    """Return a figure with each kind of chart."""
    days: list[Cells] = [(day, 200 + 7 * at, 40, at % 3, 5 * (at % 7 == 0), 12, 3) for at, day in enumerate(DAYS)]
    days[9:11] = [(DAYS[9], *(None,) * 6), (DAYS[10], *(0,) * 6)]
    peaks = [
        (server, day, None if at == 4 else (at * 7 + len(server)) % 40)
        for server in ("north", "east", "south")
        for at, day in enumerate(DAYS)
    ]
    hours = [(name, hour, hour * (at + 1)) for at, name in enumerate(WEEKDAYS) for hour in range(24)]
    counts = [(600, 0), (599, 1), (300, 300), (0, 600), (0, 0), (None, None)]
    covered = [(name, day, *counts[at % 6]) for name in ("alpha", "beta") for at, day in enumerate(DAYS)]
    waits: list[Cells] = [
        ("nameplate", 4_000_000.4, 61_000_000, 700_000_000.0),
        ("opened", 10.1, 10.1, 10.1),
        ("claimed", None, None, None),
        ("none", 0, 0.0, 86_400_000_000),
    ]
    return (
        _figure("results", f"DAY day COUNT {' '.join(RESULTS)}", days, StackedBars("day", RESULTS)),
        steps(peaks),
        ranked_bars(("python", "rust", "go")),
        _figure(
            *("busy-hours", "TEXT weekday COUNT hour connections", [*hours[:-1], (WEEKDAYS[6], 23, None)]),
            PunchCard("weekday", "hour", "connections"),
        ),
        _figure(
            *("coverage", "TEXT source DAY day COUNT envelopes missing", covered),
            CoverageMap("day", "source", "envelopes", "missing"),
        ),
        _figure("waiting", f"TEXT kind DURATION {' '.join(SHARES)}", waits, PercentileStrip(("kind",), SHARES)),
    )


def whole() -> Report:
    """Return a report with all figures, and a section without any."""
    sections = [Section(f"of-{each.id}", f"Section of {each.id}", (each,)) for each in (*charts(), plain_table())]
    facts = (Fact("Mailboxes", 1234, ValueKind.COUNT), Fact("Failed", 0.27, ValueKind.SHARE, warns=True))
    return Report(
        parse("2026-11"),
        datetime(2026, 12, 1, 6, 30, tzinfo=UTC),
        (Section("all", "All", facts=facts), *sections, Section("nothing", "Nothing")),
        ("The lake has no records before 3 November 2026.",),
        Changes(("A rule.",), (ReportChange("all", ("Failures grew.",), 0.1, 0.27, ValueKind.SHARE, days=DAYS[:3]),)),
    )


def hostile() -> Report:
    """Return a report whose names are those of somebody hostile."""
    lanes = steps([(name, DAYS[0], at) for at, name in enumerate(HOSTILE)])
    facts = tuple(Fact(f"Name {at}", name, ValueKind.TEXT) for at, name in enumerate(HOSTILE))
    section = Section("versions-of-clients", "Versions", (ranked_bars(HOSTILE), lanes), facts)
    found = tuple(
        ReportChange(section.id, (quoted(name), " is new."), 0, 1, ValueKind.COUNT, days=DAYS[:1]) for name in HOSTILE
    )
    made = datetime(2026, 12, 1, tzinfo=UTC)
    return Report(parse("2026-W47"), made, (section,), changes=Changes(("A rule.",), found))
