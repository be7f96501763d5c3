"""Reports to test pages and files with: of a lake, and with the names of somebody hostile."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import cycle
from random import Random

from msgspec.structs import replace

from pipeline.report_lakes import LakeTables, lake
from restante.pipeline.report.changes.measure import quoted
from restante.pipeline.report.making import made_report
from restante.pipeline.report.model import Cell, Changes, Fact, PunchCard, Report, ReportChange, ValueKind
from restante.pipeline.report.periods import parse

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

MADE = datetime(2026, 12, 1, 6, 30, tzinfo=UTC)


@cache
def of_lake(period: str) -> Report:
    """Return a report of a lake whose records begin on 3 November 2026."""
    rows = lake(Random(1), [date(2026, 11, 3) + timedelta(number) for number in range(28)])
    return made_report(LakeTables(rows).fetch, parse(period), MADE.date(), MADE)


def whole() -> Report:
    """Return the report of a month, with a change."""
    report = of_lake("2026-11")
    change = ReportChange("results", ("Failures grew.",), 0.1, 0.27, ValueKind.SHARE, days=report.period.days[:3])
    return replace(report, changes=Changes(("A rule.",), (change,)))


def hostile() -> Report:
    """Return a report whose names are those of somebody hostile: in tables, charts, facts and changes."""
    names = cycle(HOSTILE)
    sections = []
    for section in of_lake("2026-W47").sections:
        figures = []
        for figure in section.figures:
            texts = dict.fromkeys(cell for row in figure.table.rows for cell in row if isinstance(cell, str))
            renamed: dict[Cell, Cell] = dict(zip(texts, names, strict=False))
            rows = tuple(tuple(renamed.get(cell, cell) for cell in row) for row in figure.table.rows)
            known = isinstance(figure.chart, PunchCard)  # it has the names of weekdays
            figures.append(figure if known else replace(figure, table=replace(figure.table, rows=rows)))
        sections.append(replace(section, figures=tuple(figures)))
    facts = tuple(Fact(f"Name {at}", name, ValueKind.TEXT) for at, name in enumerate(HOSTILE))
    first, *others = sections
    changes = tuple(
        ReportChange(first.id, (quoted(name), " is new."), 0, 1, ValueKind.COUNT, days=(date(2026, 11, 20),))
        for name in HOSTILE
    )
    return Report(
        *(parse("2026-W47"), MADE, (replace(first, facts=facts), *others)), changes=Changes(("A rule.",), changes)
    )
