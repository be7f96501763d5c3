"""A comparison for a terminal: the changes in sentences, then a table. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from restante.common.texts import counted
from restante.common.units import columns, duration, plain_ascii
from restante.timing.comparison import TOTAL, Comparison, MeasureChange, too_few
from restante.timing.outputs.text import MAX_WIDTH, MIN_WIDTH
from restante.timing.rank_test import Interval

_HEADS: Final = ("", "old", "new", "change", "at least", "at most", "")

_CANNOT_TELL: Final = "?"

_COLOURS: Final = {"slower": 31, "faster": 32, "same": 36}
"""Colours of verdicts (ECMA-48, SGR)."""


def comparison_text(comparison: Comparison, width: int, *, colour: bool = False, unicode: bool = True) -> str:
    """Return a comparison as lines of at most `width` columns (40 to 200)."""
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    blocks = [[line for sentence in _answer_sentences(comparison) for line in textwrap.wrap(sentence, width)]]
    for group in comparison.groups:
        changes = [change for change in comparison.changes if change.role == group.role]
        for kind, heading in (("elapsed", "elapsed time of a run"), ("median", "median of a run's commands")):
            rows = [_change_cells(change) for change in changes if change.kind == kind]
            if rows:
                lines = columns([_HEADS, *rows], width - 2, drop=((1,), (2,), (4, 5)))
                lines = [
                    _colour_verdict(line, row[-1]) if colour else line
                    for line, row in zip(lines, [_HEADS, *rows], strict=True)
                ]
                blocks.append([f"{group.role.capitalize()}: {heading}", *(f"  {line}" for line in lines)])
    blocks.append([line for sentence in _remark_sentences(comparison) for line in textwrap.wrap(sentence, width)])
    text = "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"
    return text if unicode else plain_ascii(text)


def _answer_sentences(comparison: Comparison) -> Iterator[str]:
    groups = (f"{group.role}: {counted(group.old, 'old run')}, {group.new:,} new" for group in comparison.groups)
    yield f"{'; '.join(groups).capitalize()}."
    for verdict in ("slower", "faster"):
        changes = [change for change in comparison.changes if change.verdict == verdict]
        listed = [change for change in changes if change.kind == "elapsed"] or changes
        if listed:
            yield f"{verdict.capitalize()}: {'; '.join(_change_text(change, comparison) for change in listed)}."
    if any(change.verdict in {"slower", "faster"} for change in comparison.changes):
        return
    if not comparison.changes:
        yield "There is nothing to compare."
    elif all(too_few(change, comparison) for change in comparison.changes):
        runs = counted(comparison.runs_needed, "run")
        yield f"Cannot tell: there are too few runs. Each group needs at least {runs}, even if the change is large."
    elif all(change.verdict == "same" for change in comparison.changes):
        yield f"The same: no change is larger than {comparison.margin:.0%}."
    else:
        yield "No change is shown. The table has how large each may be."


def _change_text(change: MeasureChange, comparison: Comparison) -> str:
    several = len({change.role for change in comparison.changes}) > 1
    name = f"{change.role}, {change.name}" if several else change.name
    kind = " of a command" if change.kind == "median" else ""
    sizes = f"{duration(change.old_median_us)} to {duration(change.new_median_us)}"
    return f"{name}{kind}, {sizes}" + (f" ({_size_text(change, 0)})" if change.difference_us else "")


def _change_cells(change: MeasureChange) -> Sequence[str]:
    return (
        change.name,
        duration(change.old_median_us),
        duration(change.new_median_us),
        *(_size_text(change, index) for index in range(3)),
        _CANNOT_TELL if change.verdict == "cannot tell" else change.verdict,
    )


def _size_text(change: MeasureChange, index: int) -> str:
    """Return the estimate of a change, or the lower or upper end of its interval."""
    if change.ratio is not None:
        ratio = _interval_part(change.ratio, index)
        return f"{ratio - 1:+.0%}" if ratio < 10 else f"x{ratio:,.0f}"
    if change.difference_us is None:
        return "?"
    difference = _interval_part(change.difference_us, index)
    return ("+" if difference > 0 else "") + duration(difference)


def _interval_part(interval: Interval, index: int) -> float:
    return (interval.estimate, interval.low, interval.high)[index]


def _colour_verdict(line: str, verdict: str) -> str:
    colour = _COLOURS.get(verdict)
    return line if colour is None else f"{line.removesuffix(verdict)}\x1b[{colour}m{verdict}\x1b[m"


def _remark_sentences(comparison: Comparison) -> Iterator[str]:
    if any(change.name == TOTAL for change in comparison.changes):
        yield f'"{TOTAL}" is the elapsed time without "human" and "peer". "{_CANNOT_TELL}": cannot tell.'
    yield (
        '"change" is the median of the changes from each old run to each new one. If all runs change by one factor,'
        f' all of "at least" and "at most" are true with a probability of {1 - comparison.alpha:.0%}.'
    )
    tests = counted(len(comparison.changes), "measure")
    yield (
        f"If nothing changed, the probability that any of the {tests} is reported as slower or faster is"
        f" {comparison.alpha:.0%} at most."
        " This needs runs that do not influence each other: alternate old and new ones."
    )
