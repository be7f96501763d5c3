"""A report as data: sections of figures, each a table, a sentence about it, and the columns that are drawn. Pure.

A chart only names columns of its figure's table, so its numbers are those of the table. What is not consistent is a
bug of the function that made it, and raises ValueError.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from restante.pipeline.report.periods import Period

Cell: TypeAlias = str | bool | int | float | date | datetime | None


class ValueKind(StrEnum):
    """What the values of a column are, and so their unit and how they are written."""

    TEXT = "text"
    COUNT = "count"
    """A number of things."""
    AVERAGE = "average"
    """An average of counts."""
    SHARE = "share"
    """A part of a whole, from 0 to 1."""
    DURATION = "duration"
    """In microseconds."""
    BYTES = "bytes"
    DAY = "day"
    MOMENT = "moment"
    """A time with its zone."""
    FLAG = "flag"
    """Yes or no."""


UNITS: Final[Mapping[ValueKind, str]] = {ValueKind.DURATION: "microseconds", ValueKind.BYTES: "bytes"}
"""The units of kinds whose numbers have one."""

NUMBERS: Final = frozenset((ValueKind.COUNT, ValueKind.AVERAGE, ValueKind.SHARE, ValueKind.DURATION, ValueKind.BYTES))

_TYPES: Final[Mapping[ValueKind, tuple[type, ...]]] = {
    ValueKind.TEXT: (str,),
    ValueKind.COUNT: (int,),
    ValueKind.AVERAGE: (int, float),
    ValueKind.SHARE: (int, float),
    ValueKind.DURATION: (int, float),
    ValueKind.BYTES: (int,),
    ValueKind.DAY: (date,),
    ValueKind.MOMENT: (datetime,),
    ValueKind.FLAG: (bool,),
}

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_SLUG: Final = re.compile(r"[a-z][a-z0-9-]*")


class ReportColumn(msgspec.Struct, frozen=True):
    """A column of a figure's table."""

    name: str
    """Its name in CSV and JSON, which stays the same in later versions."""
    head: str
    """Its name in the page."""
    kind: ValueKind
    meaning: str = ""
    """Sentences that the head does not say."""
    absent: str = "?"
    """What the page shows in place of a value that is None."""
    usual: Cell = None
    """The page leaves the column out if all rows have this value."""

    def accepts(self, value: Cell) -> bool:
        """Return whether a value may be in the column."""
        if value is None:
            return True
        if isinstance(value, bool) != (self.kind is ValueKind.FLAG):
            return False
        if isinstance(value, datetime) and (self.kind is ValueKind.DAY or value.tzinfo is None):
            return False
        return isinstance(value, _TYPES[self.kind]) and not (isinstance(value, float) and not math.isfinite(value))


ReportRow: TypeAlias = tuple[Cell, ...]


class ReportTable(msgspec.Struct, frozen=True):
    """The table of a figure."""

    columns: tuple[ReportColumn, ...]
    rows: tuple[ReportRow, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        _require(len(set(names)) == len(names) > 0, f"the columns {names} are not different, or there is none")
        _require(all(map(_NAME.fullmatch, names)), f"{names}: letters, digits and _ only")
        for row in self.rows:
            _require(len(row) == len(names), f"{row} has not one value for each of {names}")
            for column, value in zip(self.columns, row, strict=True):
                if not column.accepts(value):  # not `_require`, which would format the error for all values
                    raise ValueError(f"{value!r} is no {column.kind} of {column.name}")

    def column_index(self, name: str) -> int:
        """Return the index of a column, from 0."""
        return [column.name for column in self.columns].index(name)

    def column(self, name: str) -> ReportColumn:
        """Return a column."""
        return self.columns[self.column_index(name)]

    def values(self, name: str) -> list[Cell]:
        """Return the values of a column."""
        index = self.column_index(name)
        return [row[index] for row in self.rows]

    def numbers(self, name: str) -> list[float | None]:
        """Return the values of a column of numbers."""
        _require(self.column(name).kind in NUMBERS, f"{name} has no numbers")
        return [value if isinstance(value, int | float) else None for value in self.values(name)]


class StackedBars(msgspec.Struct, frozen=True):
    """A bar for each row, upright and in the rows' order, of several counts on top of each other."""

    across: str
    parts: tuple[str, ...]
    """From below. Their sum is the height of the bar."""


class StepLines(msgspec.Struct, frozen=True):
    """A line of steps for each name in a column, each on an axis of its own. All axes have the same scale."""

    across: str
    down: str
    value: str


class RankedBars(msgspec.Struct, frozen=True):
    """A bar for each row, lying and in the rows' order, of which a part may be marked."""

    labels: tuple[str, ...]
    value: str
    part: str | None = None
    """A part of the value."""


class PunchCard(msgspec.Struct, frozen=True):
    """A square for each row, at a place in a grid, whose area is the value."""

    down: str
    across: str
    value: str


class CoverageMap(msgspec.Struct, frozen=True):
    """A cell for each row, at a day and in a lane, which is filled as far as something is there."""

    across: str
    down: str
    present: str
    missing: str


class PercentileStrip(msgspec.Struct, frozen=True):
    """A line for each row with marks at percentiles, on a logarithmic axis."""

    labels: tuple[str, ...]
    percentiles: tuple[str, ...]


Chart: TypeAlias = StackedBars | StepLines | RankedBars | PunchCard | CoverageMap | PercentileStrip

MAX_PERCENTILES: Final = 3
"""Percentiles that a strip draws: it has so many shapes of marks."""

MAX_PARTS: Final = 6
"""Parts of a bar: there are so many hatchings that people can tell apart. A mailbox has so many results."""


class Figure(msgspec.Struct, frozen=True):
    """A table, what it shows, and a chart of it."""

    id: str
    title: str
    reading: str
    """Sentences: what the figure shows and how to read it."""
    table: ReportTable
    chart: Chart | None = None
    remarks: tuple[str, ...] = ()
    """Sentences about this period's data."""

    def __post_init__(self) -> None:
        _require(_SLUG.fullmatch(self.id) is not None, f"{self.id!r}: letters, digits and - only")
        match self.chart:
            case StackedBars(parts=parts):
                _require(0 < len(parts) <= MAX_PARTS, f"{len(parts)} parts: a bar has 1 to {MAX_PARTS}")
            case PercentileStrip(percentiles=percentiles):
                _require(
                    0 < len(percentiles) <= MAX_PERCENTILES,
                    f"{len(percentiles)} percentiles: a strip has 1 to {MAX_PERCENTILES}",
                )
        for name in value_columns(self.chart):
            self.table.numbers(name)
        for name in name_columns(self.chart):
            self.table.column_index(name)


def value_columns(chart: Chart | None) -> tuple[str, ...]:
    """Return the columns whose numbers a chart draws."""
    match chart:
        case StackedBars(parts=columns) | PercentileStrip(percentiles=columns):
            return columns
        case RankedBars(value=value, part=part):
            return (value,) if part is None else (value, part)
        case PunchCard(value=value) | StepLines(value=value):
            return (value,)
        case CoverageMap(present=present, missing=missing):
            return (present, missing)
        case None:
            return ()


def name_columns(chart: Chart | None) -> tuple[str, ...]:
    """Return the columns that say what a mark of a chart belongs to."""
    match chart:
        case StackedBars(across=across):
            return (across,)
        case RankedBars(labels=labels) | PercentileStrip(labels=labels):
            return labels
        case (
            PunchCard(down=down, across=across)
            | CoverageMap(down=down, across=across)
            | StepLines(down=down, across=across)
        ):
            return (down, across)
        case None:
            return ()


class Fact(msgspec.Struct, frozen=True):
    """A value of the summary."""

    name: str
    value: Cell
    kind: ValueKind
    warns: bool = False
    """Whether an operator should look at it."""


class Section(msgspec.Struct, frozen=True):
    """What a report says about one subject."""

    id: str
    title: str
    figures: tuple[Figure, ...] = ()
    facts: tuple[Fact, ...] = ()
    nothing: str = "The lake has no records of this in the period."
    """What is said if there are no figures."""
    terms: str = ""
    """Sentences: what the words of the section mean."""

    def __post_init__(self) -> None:
        _require(_SLUG.fullmatch(self.id) is not None, f"{self.id!r}: letters, digits and - only")


class Name(msgspec.Struct, frozen=True):
    """A name in a sentence. Outputs isolate it, because its letters may run from right to left."""

    text: str


Sentence: TypeAlias = tuple[str | Name, ...]
"""The parts of a sentence, in order."""


class ReportChange(msgspec.Struct, frozen=True):
    """What changed since the days before."""

    section: str
    """Id of the section that shows it."""
    sentence: Sentence
    before: Cell
    now: Cell
    kind: ValueKind
    measure: str
    """What was compared."""
    source: str | None = None
    """The server, Mailserver or other source. None: all together."""
    implementation: str | None = None
    version: str | None = None
    """The client, if it is about one."""
    days: tuple[date, ...] = ()
    """The days of the period on which it is seen."""
    size: int = 0
    """How far the number of mailboxes, connections, nameplates, envelopes or rows is from the expected one."""
    size_at: Mapping[tuple[date, str | None], float] = {}
    """The size, by day and server, if it is about a version. It is not in CSV or JSON."""
    parts: tuple[ReportChange, ...] = ()
    """Other changes that it can have caused."""

    @property
    def text(self) -> str:
        """The sentence as one text."""
        return "".join(part.text if isinstance(part, Name) else part for part in self.sentence)


class ReportChanges(msgspec.Struct, frozen=True):
    """All that changed since the days before, by a rule."""

    rule: tuple[str, ...]
    """What counts as a change: an item says which days are compared, others are of the measures and of parts."""
    listed: tuple[ReportChange, ...]
    omitted: Mapping[str, int] = {}
    """How many more there are of a measure, also as parts."""
    days_before: tuple[date, ...] = ()
    """The days with which the period is compared."""

    @property
    def with_parts(self) -> Iterator[ReportChange]:
        """All changes, each before its parts."""
        for change in self.listed:
            yield from (change, *change.parts)


class Report(msgspec.Struct, frozen=True):
    """A report of a period."""

    period: Period
    made: datetime
    sections: tuple[Section, ...]
    remarks: tuple[str, ...] = ()
    """Sentences: why figures may be too small."""
    changes: ReportChanges | None = None
    """None: there is nothing to compare with."""

    def __post_init__(self) -> None:
        _require(self.made.tzinfo is not None, "the time has a zone")
        for ids in ([item.id for item in self.sections], [item.id for _, item in figures(self)]):
            _require(len(ids) == len(set(ids)), f"{ids} are not different")
        if self.changes:
            sections = {section.id for section in self.sections}
            missing = {change.section for change in self.changes.with_parts} - sections
            _require(not missing, f"no section has the ids {sorted(missing)}")


def figures(report: Report) -> Iterator[tuple[Section, Figure]]:
    """Yield all figures, each with its section."""
    for section in report.sections:
        for figure in section.figures:
            yield section, figure


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise ValueError(fault)
