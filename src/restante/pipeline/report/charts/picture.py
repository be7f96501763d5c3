"""The chart of a figure as one SVG, and its legend. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import assert_never

from restante.pipeline.report.charts import bars, maps, step_lines, strips
from restante.pipeline.report.charts.elements import WIDTH, element
from restante.pipeline.report.charts.marks import filled_rectangle
from restante.pipeline.report.model import (
    Chart,
    CoverageMap,
    Figure,
    PercentileStrip,
    PunchCard,
    RankedBars,
    ReportTable,
    StackedBars,
    StepLines,
)


def picture(figure: Figure) -> str:
    """Return the chart of a figure as SVG, or "" if it has none or no rows. Its table says the same to a reader."""
    if figure.chart is None or not figure.table.rows:
        return ""
    shapes, height = _shapes(figure.chart, figure.table)
    names = [f"{figure.id}-{part}" for part in ("title", "desc")]
    texts = element("title", escape(figure.title), id=names[0]) + element(
        "desc", escape(f"{figure.reading} The table {figure.title} has the same numbers."), id=names[1]
    )
    return element(
        "svg",
        texts + shapes,
        class_="chart",
        role="img",
        aria_labelledby=names[0],
        aria_describedby=names[1],
        viewBox=f"0 0 {WIDTH} {height:.0f}",
    )


def _shapes(chart: Chart, table: ReportTable) -> tuple[str, float]:
    match chart:
        case StackedBars():
            return bars.stacked_bars(chart, table)
        case RankedBars():
            return bars.ranked_bars(chart, table)
        case StepLines():
            return step_lines.step_lines(chart, table)
        case PunchCard():
            return maps.punch_card(chart, table)
        case CoverageMap():
            return maps.coverage_map(chart, table)
        case PercentileStrip():
            return strips.percentile_strip(chart, table)
    assert_never(chart)


def legend(figure: Figure) -> str:
    """Return a list of what the hatchings and shapes of a figure's chart mean, or "" if it needs none."""
    items = list(_legend(figure.chart, figure.table)) if figure.table.rows else []
    return element("ul", "\n".join(element("li", item) for item in items), class_="legend") if items else ""


def _legend(chart: Chart | None, table: ReportTable) -> Iterator[str]:
    match chart:
        case StackedBars(parts=parts):
            for number, part in reversed(list(enumerate(parts, 1))):
                yield _swatch(number) + escape(table.column(part).head)
        case RankedBars(value=value, part=part) if part is not None:
            yield _swatch(1) + escape(table.column(value).head)
            yield _swatch(2) + escape(f"{table.column(part).head}, a part of it")
        case CoverageMap(present=present, missing=missing):
            yield _swatch(1) + escape(table.column(present).head)
            yield _swatch(2) + escape(table.column(missing).head)
        case PercentileStrip(percentiles=percentiles):
            for shape, name in zip(strips.SHAPES, percentiles, strict=False):
                yield _small(shape(8, 8)) + escape(table.column(name).head)


def _swatch(part: int) -> str:
    return _small(filled_rectangle(0.5, 0.5, 15, 15, part))


def _small(shape: str) -> str:
    return element("svg", shape, class_="swatch", aria_hidden="true", width=16, height=16)
