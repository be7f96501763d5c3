"""Links between the pages in a folder of reports, and the page that lists them all. Pure, but for its template."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import date
from html import escape
from typing import Final

from restante.common.errors import Misuse
from restante.pipeline.report.charts.elements import element
from restante.pipeline.report.page import fill_template, item_list
from restante.pipeline.report.periods import MONTHS, Period, PeriodKind, parse_period, period_containing

INDEX: Final = "index.html"

INDEX_MARK: Final = b'<meta name="generator" content="Restante, list of reports">'
"""A file with the name of the list is replaced only if it has this."""

_LINKS: Final = re.compile(rb'^<nav aria-label="Other reports">.*</nav>$', re.MULTILINE)
"""The links of a page, which are one line. What strangers chose cannot begin a line with an element."""


def periods_of_pages(names: Iterable[str]) -> set[Period]:
    """Return the periods of which there is a page among the names of files."""
    return {period for name in names if name.endswith(".html") and (period := _period(name[: -len(".html")]))}


def _period(name: str) -> Period | None:
    try:
        period = parse_period(name)
    except Misuse:
        return None
    return period if period.name == name else None


def neighbours(period: Period) -> dict[Period, str]:
    """Return the periods that the page of a period links to, and the texts of the links."""
    linked = {period.before: f"The {period.kind} before", period.after: f"The {period.kind} after"}
    longer = [PeriodKind.WEEK, PeriodKind.MONTH][[*PeriodKind].index(period.kind) :]
    for kind in longer:
        for day in (period.first, period.last):
            around = period_containing(kind, day)
            linked.setdefault(around, _short_title(around))
    return linked


def _short_title(period: Period) -> str:
    if period.kind is PeriodKind.WEEK:
        year, week, _ = period.first.isocalendar()
        return f"Week {week} of {year}"
    return period.title


def page_links(period: Period, page_periods: Collection[Period]) -> str:
    """Return the links of a page to the pages that are there, in one line."""
    items = [_link(other, text) for other, text in neighbours(period).items() if other in page_periods]
    items.append(element("a", "All reports", href=INDEX))
    return element("nav", element("ul", "".join(element("li", item) for item in items)), aria_label="Other reports")


def replace_links(page: bytes, period: Period, page_periods: Collection[Period]) -> bytes:
    """Return a page with the links to the pages that are there now. One of an earlier version stays as it is."""
    line = page_links(period, page_periods).encode()
    return _LINKS.sub(lambda _: line, page, count=1)


def _link(period: Period, text: str) -> str:
    return element("a", escape(text), href=f"{period.name}.html")


def index_page(page_periods: Collection[Period]) -> bytes:
    """Return the page that lists all reports, by month, the latest first."""
    by_month: dict[date, dict[PeriodKind, list[Period]]] = defaultdict(lambda: defaultdict(list))
    for period in sorted(page_periods, key=lambda of: of.first, reverse=True):
        by_month[period.first.replace(day=1)][period.kind].append(period)
    sections = "\n".join(_month(month, by_month[month]) for month in sorted(by_month, reverse=True))
    return fill_template("index.html", generator=INDEX_MARK.decode(), sections=sections)


def _month(month: date, periods: dict[PeriodKind, list[Period]]) -> str:
    title = escape(f"{MONTHS[month.month - 1]} {month.year}")
    of_month = periods[PeriodKind.MONTH]
    heading = element("h2", _link(of_month[0], title) if of_month else title)
    weeks = item_list(_link(of, of.title) for of in periods[PeriodKind.WEEK])
    days = item_list(_link(of, of.title) for of in periods[PeriodKind.DAY])
    return element("section", "\n".join(filter(None, (heading, weeks, days))))
