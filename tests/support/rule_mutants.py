"""Rules for Prometheus in each of which one number is wrong or one label is not asked for.

With them it is tested that the tests of the rules notice it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from support.monitoring import RULES, RULES_TEST, recorded_names

RULE: Final = re.compile(r"^      - (?:record|alert): (\S+)\n(?:^        .*\n)+", re.MULTILINE)
"""A rule in the file, from its name to its last line."""

EXPRESSION: Final = re.compile(r"^        expr: (?:\|\n(?:^          .*\n)+|.*\n)", re.MULTILINE)

FOR: Final = re.compile(r"(?<=^        for: )(\d+)m$", re.MULTILINE)
"""How many minutes the expression must be true before the alert fires."""

SPAN: Final = re.compile(r"(?:(?<=\[)|(?<=offset ))(\d+)([mhd])\b")
"""The length of a window, or an offset."""

NUMBER: Final = re.compile(r"(?<![\w.:])\d+(?:\.\d+)?(?![\w.:])")
"""A number that is neither part of a name nor a duration: a limit, a part of one, or a quantile."""

MATCHER: Final = re.compile(r'\w+=~?"[^"]*"')
"""What a label of a series must be."""

SECONDS: Final = {"m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Mutant:
    """A rule with one change."""

    kind: str
    """What is changed: `for`, `span`, `quantile`, `limit` or `matcher`."""

    change: str
    """The number with the text before it, and the wrong number; or the matcher that is left out."""

    rules: str
    """A file with the rule, and with the records that it is made from."""


def rules() -> dict[str, str]:
    """Return the text of each rule by its name, without comments."""
    return {match[1]: match[0] for match in RULE.finditer(RULES.read_text())}


def expression(rule: str) -> tuple[int, int]:
    """Return where the expression of a rule begins and ends in its text."""
    found = EXPRESSION.search(rule)
    assert found is not None, rule
    return found.span()


def rules_for(name: str, text: str) -> str:
    """Return a file with a rule that has this text, and with the records that it is made from."""
    texts = rules() | {name: text}
    needed, new = {name}, {name}
    while new:
        new = {each for each in recorded_names() for other in new if each in texts[other]} - needed
        needed |= new
    return "groups:\n  - name: one\n    rules:\n" + "".join(texts[each] for each in texts if each in needed)


def own_tests(name: str) -> str:
    """Return a file with the tests that are named after a rule."""
    head, _, tests = RULES_TEST.read_text().partition("\ntests:\n")
    own = re.compile(rf"  - name: {re.escape(name)}(?: at its limits)?\n")
    found = [test for test in re.split(r"^(?=  - name: )", tests, flags=re.MULTILINE) if own.match(test)]
    assert found, f"{name} has no tests"
    return f"{head}\ntests:\n{''.join(found)}"


def mutants(name: str) -> Iterator[Mutant]:
    """Yield a rule with each of its numbers a little too small and too large, and without each of its matchers."""
    text = rules()[name]
    start, end = expression(text)
    for matcher in dict.fromkeys(MATCHER.findall(text, start, end)):
        changed = re.sub(re.escape(matcher) + "(, )?", "", text[start:end])
        yield Mutant("matcher", f"without {matcher}", rules_for(name, text[:start] + changed + text[end:]))
    for kind, number, wrong_numbers in _numbers(text):
        before = " ".join(text[max(0, number.start() - 20) : number.start()].split())
        for wrong in wrong_numbers:
            changed = text[: number.start()] + wrong + text[number.end() :]
            yield Mutant(kind, f"{before} {number[0]} -> {wrong}", rules_for(name, changed))


def _numbers(text: str) -> Iterator[tuple[str, re.Match[str], tuple[str, str]]]:
    """Yield the numbers of a rule, each with its kind and the two wrong numbers that take its place."""
    start, end = expression(text)
    for found in FOR.finditer(text):
        minutes = int(found[1])
        yield "for", found, (f"{minutes - 1}m", f"{minutes + 1}m")
    for found in SPAN.finditer(text, start, end):
        seconds = int(found[1]) * SECONDS[found[2]]
        yield "span", found, (f"{seconds // 2}s", f"{seconds * 2}s")
    for found in NUMBER.finditer(text, start, end):
        value, before = float(found[0]), text[: found.start()]
        if before.endswith("histogram_quantile("):
            yield "quantile", found, (f"{1 - 2 * (1 - value):g}", f"{1 - (1 - value) / 2:g}")
        elif value == 0 or before.endswith("== ") or "changes(" in text:
            # A tenth of 0 is 0, and where a number of things is counted, 10 % less or more is no whole number.
            yield "limit", found, (f"{value - 1:g}", f"{value + 1:g}")
        else:
            yield "limit", found, (f"{value * 0.9:g}", f"{value * 1.1:g}")
