"""Reports to test pages and files with: one figure with each chart, and the words of somebody hostile."""

from __future__ import annotations

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

TEXT, COUNT, DURATION = ValueKind.TEXT, ValueKind.COUNT, ValueKind.DURATION
DAYS = parse("2026-11").days


def stacked_bars(rows: tuple[Cells, ...] | None = None) -> Figure:
    names = ("happy", "lonely", "errory", "scary", "pruney", "crowded")
    columns = (ReportColumn("day", "Day", ValueKind.DAY), *(ReportColumn(each, each, COUNT) for each in names))
    if rows is None:
        rows = tuple((day, 200 + 7 * at, 40, at % 3, 5 * (at % 7 == 0), 12, 3) for at, day in enumerate(DAYS))
        rows = (*rows[:9], (DAYS[9], *(None,) * 6), (DAYS[10], *(0,) * 6), *rows[11:])
    return _figure("results", columns, rows, StackedBars("day", names))


def steps(rows: tuple[Cells, ...] | None = None) -> Figure:
    columns = (
        *(ReportColumn("source", "Server", TEXT), ReportColumn("day", "Day", ValueKind.DAY)),
        ReportColumn("peak", "Peak", COUNT),
    )
    if rows is None:
        rows = tuple(
            (server, day, None if at == 4 else (at * 7 + len(server)) % 40)
            for server in ("north", "east", "south")
            for at, day in enumerate(DAYS)
        )
    return _figure("pressure", columns, rows, StepLines("day", "source", "peak"))


def ranked_bars(names: tuple[str, ...] = ("python", "rust", "go")) -> Figure:
    columns = (
        *(ReportColumn("version", "Version", TEXT), ReportColumn("mailboxes", "mailboxes", COUNT)),
        ReportColumn("failed", "failed", COUNT, "Mailboxes that did not end happy."),
    )
    rows = tuple((name, 1_000 - 40 * at, 400 - 20 * at) for at, name in enumerate(names))
    return _figure("versions", columns, (*rows, (None, 0, 0)), RankedBars(("version",), "mailboxes", "failed"))


def punch_card() -> Figure:
    columns = (
        *(ReportColumn("weekday", "Weekday", TEXT), ReportColumn("hour", "Hour", COUNT)),
        ReportColumn("connections", "Connections", COUNT),
    )
    rows = tuple((name, hour, hour * (at + 1)) for at, name in enumerate(WEEKDAYS) for hour in range(24))
    return _figure(
        "busy-hours", columns, (*rows[:-1], (WEEKDAYS[6], 23, None)), PunchCard("weekday", "hour", "connections")
    )


def coverage_map() -> Figure:
    columns = (
        *(ReportColumn("source", "Mailserver", TEXT), ReportColumn("day", "Day", ValueKind.DAY)),
        *(ReportColumn("envelopes", "there", COUNT), ReportColumn("missing", "missing", COUNT)),
    )
    counts = [(600, 0), (599, 1), (300, 300), (0, 600), (0, 0), (None, None)]
    rows = tuple((name, day, *counts[at % 6]) for name in ("alpha", "beta") for at, day in enumerate(DAYS))
    return _figure("coverage", columns, rows, CoverageMap("day", "source", "envelopes", "missing"))


def percentile_strip() -> Figure:
    names = ("p50_us", "p90_us", "p99_us")
    columns = (
        ReportColumn("kind", "Kind", TEXT),
        *(ReportColumn(name, name[:3], DURATION) for name in names),
    )
    rows: tuple[Cells, ...] = (
        ("nameplate", 4_000_000.4, 61_000_000, 700_000_000.0),
        ("opened", 10.1, 10.1, 10.1),
        ("claimed", None, None, None),
        ("none", 0, 0.0, 86_400_000_000),
    )
    return _figure("waiting", columns, rows, PercentileStrip(("kind",), names))


def plain_table() -> Figure:
    columns = (
        *(ReportColumn("source", "Source", TEXT), ReportColumn("last", "Last row", ValueKind.MOMENT)),
        *(ReportColumn("share", "Share", ValueKind.SHARE), ReportColumn("size", "Size", ValueKind.BYTES)),
        ReportColumn("stands_out", "Stands out", ValueKind.FLAG, absent="not judged"),
    )
    moment = datetime(2026, 11, 30, 23, 59, 58, tzinfo=UTC)
    rows = (("north", moment, 0.123, 12_345_678, True), ("east", None, 1.0, 0, None))
    return _figure("sources", columns, rows, None)


def _figure(id_: str, columns: tuple[ReportColumn, ...], rows: tuple[Cells, ...], chart: Chart | None) -> Figure:
    return Figure(id_, id_.capitalize(), f"It shows {id_}. Read it.", ReportTable(columns, rows), chart)


def charts() -> tuple[Figure, ...]:
    """Return a figure with each kind of chart."""
    return (stacked_bars(), steps(), ranked_bars(), punch_card(), coverage_map(), percentile_strip())


def whole() -> Report:
    """Return a report with all figures, and a section without any."""
    sections = tuple(
        Section(f"of-{each.id}", f"Section of {each.id}", (each,)) for each in (*charts(), plain_table())
    )
    facts = (Fact("Mailboxes", 1234, COUNT), Fact("Failed", 0.27, ValueKind.SHARE, warns=True))
    return Report(
        parse("2026-11"),
        datetime(2026, 12, 1, 6, 30, tzinfo=UTC),
        (Section("all", "All", facts=facts), *sections, Section("nothing", "Nothing")),
        ("The lake has no records before 3 November 2026.",),
        Changes(("A rule.",), (ReportChange("all", ("Failures grew.",), 0.1, 0.27, ValueKind.SHARE, days=DAYS[:3]),)),
    )


def hostile() -> Report:
    """Return a report whose names are those of somebody hostile."""
    figure = ranked_bars(HOSTILE)
    facts = tuple(Fact(f"Name {at}", words, TEXT) for at, words in enumerate(HOSTILE))
    section = Section("versions-of-clients", "Versions", (figure, steps(_lanes())), facts)
    found = tuple(
        ReportChange(section.id, (quoted(words), " is new."), 0, 1, COUNT, days=DAYS[:1]) for words in HOSTILE
    )
    changes = Changes(("A rule.",), found)
    return Report(parse("2026-W47"), datetime(2026, 12, 1, tzinfo=UTC), (section,), changes=changes)


def _lanes() -> tuple[Cells, ...]:
    return tuple((name, DAYS[0], at) for at, name in enumerate(HOSTILE))
