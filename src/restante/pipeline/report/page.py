"""A report as an HTML page: one file that loads nothing and has no script. Pure, but for its template."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Final

from restante.common.content_policy import page_policy
from restante.common.texts import counted
from restante.pipeline.report.changes_table import NOTHING_CHANGED, changes_heading, omitted_words
from restante.pipeline.report.charts.elements import element
from restante.pipeline.report.charts.picture import legend, picture
from restante.pipeline.report.model import (
    NUMBERS,
    Cell,
    Fact,
    Figure,
    Name,
    Report,
    ReportChange,
    ReportColumn,
    ReportTable,
    Section,
    Sentence,
    ValueKind,
    value_columns,
)
from restante.pipeline.report.values import value_text

_WEB: Final = Path(__file__).with_name("web")


def page(report: Report, links: str = "") -> bytes:
    """Return a report as an HTML page in UTF-8. The same report gives the same bytes.

    `links` is the line of links to the pages of other reports.
    """
    return fill_template(
        "page.html",
        title=escape(f"{report.period.title} - Restante report"),
        kind=report.period.kind.value,
        links=links,
        heading=escape(report.period.title),
        made=escape(value_text(report.made, ValueKind.MOMENT)),
        remarks=item_list(map(escape, report.remarks), "remarks"),
        changes=_changes(report),
        contents=item_list(
            element("a", escape(section.title), href=f"#{_anchor(section.id)}") for section in report.sections
        ),
        sections="\n".join(map(_section, report.sections)),
    )


def fill_template(template: str, **values: str) -> bytes:
    """Return a page in UTF-8 from a template, the common style, and markup by name."""
    style = _file("page.css")
    return Template(_file(template)).substitute(policy=escape(page_policy(style)), style=style, **values).encode()


@functools.cache
def _file(name: str) -> str:
    return (_WEB / name).read_text("utf-8")


def item_list(items: Iterable[str], class_: str | None = None) -> str:
    """Return a list of items, which are markup, or nothing if there are none."""
    rows = "\n".join(element("li", item) for item in items)
    return element("ul", f"\n{rows}\n", class_=class_) if rows else ""


def _changes(report: Report) -> str:
    if report.changes is None:
        return ""
    titles = {section.id: section.title for section in report.sections}
    incidents = [_incident(change, titles) for change in report.changes.listed]
    omitted = omitted_words(report.changes)
    rule = element("summary", "What counts as a change") + item_list(map(escape, report.changes.rule))
    return element(
        "section",
        element("h2", escape(changes_heading(report.period)), id="changes-heading")
        + (item_list(incidents, "changes") or element("p", NOTHING_CHANGED))
        + (element("p", escape(omitted)) if omitted else "")
        + element("details", rule, class_="meanings"),
        aria_labelledby="changes-heading",
    )


def _incident(change: ReportChange, titles: Mapping[str, str]) -> str:
    """Return a change with its parts below it."""
    link = element("a", escape(titles[change.section]), href=f"#{_anchor(change.section)}")
    content = _numbers(change) + element("p", f"{_sentence(change.sentence)} See {link}.")
    return content + item_list((_incident(part, titles) for part in change.parts), "changes parts")


def _sentence(parts: Sentence) -> str:
    """Return a sentence with each name in an element of its own, which it cannot reorder the words around."""
    return "".join(element("bdi", escape(part.text)) if isinstance(part, Name) else escape(part) for part in parts)


def _numbers(change: ReportChange) -> str:
    """Return what to see of a change at a glance: its numbers and its days."""
    now, before = (escape(value_text(value, change.kind)) for value in (change.now, change.before))
    content = element("span", f"{element('strong', now)}, before {before}")
    if change.days:
        ends = dict.fromkeys((change.days[0].isoformat(), change.days[-1].isoformat()))
        number = f", {counted(len(change.days), 'day')}" if len(ends) > 1 else ""
        content += " " + element("span", " to ".join(ends) + number, class_="soft")
    return element("div", content, class_="numbers")


def _anchor(section: str) -> str:
    """Return the id of a section's element. A figure may have the same name."""
    return f"section-{section}"


def _section(section: Section) -> str:
    anchor = _anchor(section.id)
    heading = f"{anchor}-heading"
    parts = [element("h2", escape(section.title), id=heading)]
    if section.terms:
        parts.append(element("p", escape(section.terms), class_="soft"))
    parts += [_facts(section.facts), *map(_figure, section.figures)]
    if not section.figures:
        parts.append(element("p", escape(section.nothing)))
    return element("section", "\n".join(parts), id=anchor, aria_labelledby=heading)


def _facts(facts: Iterable[Fact]) -> str:
    items = [
        element(
            "div",
            element("dt", escape(fact.name))
            + element(
                "dd",
                ("! " if fact.warns else "") + element("bdi", escape(value_text(fact.value, fact.kind))),
                class_="warns" if fact.warns else None,
            ),
        )
        for fact in facts
    ]
    return element("dl", "\n".join(items), class_="facts") if items else ""


def _figure(figure: Figure) -> str:
    heading = f"{figure.id}-heading"
    parts = [element("h3", escape(figure.title), id=heading), element("p", escape(figure.reading))]
    parts += [element("p", escape(remark)) for remark in figure.remarks]
    chart = picture(figure)
    table = _scrolled(figure)
    if chart:
        table = element("div", f"<div>{chart}\n{legend(figure)}</div>\n{table}", class_="beside")
    return element("div", "\n".join([*parts, table]), id=figure.id, class_="figure")


def _scrolled(figure: Figure) -> str:
    """Return the table of a figure in a box that is scrolled, by keys as well."""
    return element(
        "div",
        element(
            "div", _table(figure), class_="scrolled", tabindex="0", role="region", aria_labelledby=f"{figure.id}-rows"
        )
        + _meanings(column for _, column in _shown_columns(figure.table)),
    )


def _table(figure: Figure) -> str:
    table = figure.table
    columns = _shown_columns(table)
    heads = "".join(element("th", escape(column.head), scope="col", class_=_class(column)) for _, column in columns)
    header = _header_place(figure)
    rows = "\n".join(
        element("tr", "".join(_cell(column, row[index], is_header=index == header) for index, column in columns))
        for row in table.rows
    )
    return element(
        "table",
        element("caption", escape(f"{figure.title}: {counted(len(table.rows), 'row')}"), id=f"{figure.id}-rows")
        + element("thead", element("tr", heads))
        + element("tbody", f"\n{rows}\n"),
    )


def _shown_columns(table: ReportTable) -> list[tuple[int, ReportColumn]]:
    """Return the columns that the page has, with their places: not those that say the usual in every row."""
    return [
        (index, column)
        for index, column in enumerate(table.columns)
        if column.usual is None or any(row[index] != column.usual for row in table.rows)
    ]


def _header_place(figure: Figure) -> int:
    """Return the place of the column whose values are the headers of the rows: the first without drawn numbers."""
    names = value_columns(figure.chart)
    return next((index for index, column in enumerate(figure.table.columns) if column.name not in names), -1)


def _cell(column: ReportColumn, value: Cell, *, is_header: bool) -> str:
    text = escape(value_text(value, column.kind, column.absent))
    content = element("bdi", text) if column.kind is ValueKind.TEXT else text
    return element("th" if is_header else "td", content, scope="row" if is_header else None, class_=_class(column))


def _class(column: ReportColumn) -> str | None:
    if column.kind in NUMBERS:
        return "number"
    if column.kind in {ValueKind.DAY, ValueKind.MOMENT}:
        return "time"
    return "text" if column.kind is ValueKind.TEXT else None


def _meanings(columns: Iterable[ReportColumn]) -> str:
    items = [
        element("dt", escape(f"{column.head}: ")) + element("dd", escape(column.meaning))
        for column in columns
        if column.meaning
    ]
    if not items:
        return ""
    heading = element("summary", "What the columns mean")
    return element("details", heading + element("dl", "\n".join(items)), class_="meanings")
