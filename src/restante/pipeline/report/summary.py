"""A report in some lines for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len, chop_cells

from restante.common.texts import in_one_line
from restante.pipeline.report.changes_table import NOTHING_CHANGED, changes_heading, omitted_words
from restante.pipeline.report.model import Name, Report, Section, Sentence
from restante.pipeline.report.values import value_text

MIN_WIDTH: Final = 40
"""ReportRow of a line at least: what a fact and its name need. A narrower terminal breaks the lines itself."""

MAX_WIDTH: Final = 80
"""ReportRow of a line at most. In a longer one a value would be too far from its name."""

ISOLATE: Final = "\u2068"
POP: Final = "\u2069"
"""FIRST STRONG ISOLATE and POP DIRECTIONAL ISOLATE: between them, a name has a direction of its own (UAX #9)."""


def summary_lines(report: Report, width: int = 80) -> Iterator[str]:
    """Yield the lines of a summary: what is missing, what changed, and the facts of each section."""
    room = min(max(width, MIN_WIDTH), MAX_WIDTH)
    yield from _wrapped(report.period.title, room, "")
    for remark in report.remarks:
        yield from _wrapped(remark, room, "  ")
    if report.changes:
        yield ""
        yield changes_heading(report.period)
        if not report.changes.listed:
            yield from _wrapped(NOTHING_CHANGED, room, "  ")
        for change in report.changes.listed:
            yield from _isolated_names(change.sentence, room, "! ")
            for part in change.parts:
                yield from _isolated_names(part.sentence, room, "  - ")
        if report.changes.omitted:
            yield from _wrapped(omitted_words(report.changes), room, "  ")
    for section in report.sections:
        yield ""
        yield section.title
        yield from _facts(section, room)


def _facts(section: Section, width: int) -> Iterator[str]:
    if not section.figures and not section.facts:
        yield from _wrapped(section.nothing, width, "  ")
        return
    for fact in section.facts:
        value = value_text(fact.value, fact.kind)
        name = in_one_line(fact.name)
        sign = "!" if fact.warns else " "
        if cell_len(name) + cell_len(value) + 5 > width:
            yield from _wrapped(f"{name}: {value}", width, f"{sign} ")
        else:
            yield f"{sign} {name}{' ' * (width - 2 - cell_len(name) - cell_len(value))}{value}"


def _isolated_names(sentence: Sentence, width: int, indent: str) -> Iterator[str]:
    """Yield a sentence in lines. Names that are not ASCII cannot reorder the words around them.

    A terminal orders each line by itself. So a name that continues on the next line is isolated in both.
    """
    is_open = False
    for line in _lines("".join(map(_isolated, sentence)), width, indent):
        opened = f"{line[: len(indent)]}{ISOLATE}{line[len(indent) :]}" if is_open else line
        is_open = opened.count(ISOLATE) > opened.count(POP)
        yield opened + POP if is_open else opened


def _isolated(part: str | Name) -> str:
    text = in_one_line(part.text if isinstance(part, Name) else part)
    return f"{ISOLATE}{text}{POP}" if isinstance(part, Name) and not text.isascii() else text


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """Return a text in lines of so many cells at most. The first one begins with `indent`, the others with spaces."""
    return _lines(in_one_line(text), width, indent)


def _lines(text: str, width: int, indent: str) -> list[str]:
    room = width - len(indent)
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines += chop_cells(word, room)
    return [f"{' ' * len(indent) if index else indent}{line}".rstrip() for index, line in enumerate(lines or [""])]
