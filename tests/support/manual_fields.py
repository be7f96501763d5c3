"""The fields of the JSON pages, as the manual has them and as pages have them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from support.documents import ROOT

MONITORING: Final = ROOT / "docs" / "monitoring.md"

_NAME: Final = re.compile(r"`([a-z_.]+)`")


def documented(*introductions: str) -> dict[str, str]:
    """Return each field of the tables after these sentences as a path, and what the manual says of it."""
    manual, found = MONITORING.read_text(), dict[str, str]()
    for introduction in introductions:
        table = manual.partition(introduction)[2].lstrip().partition("\n\n")[0]
        assert table, introduction
        for head, said in re.findall(r"^\| (`.+?) \| (.+) \|$", table, re.MULTILINE):
            parent, colon, children = head.partition(": ")
            prefix = f"{_NAME.findall(parent)[0]}." if colon else ""
            found |= {prefix + name: said for name in _NAME.findall(children if colon else parent)}
    return found


def sentences(beginning: str) -> set[str]:
    """Return the fields that the paragraph with this beginning names."""
    return set(_NAME.findall(MONITORING.read_text().partition(beginning)[2].partition("\n\n")[0]))


def fields(page: Mapping[str, Any], by_label: Collection[str], prefix: str = "") -> Iterator[str]:
    """Yield the path of each field of a page. What `by_label` names has labels, not fields."""
    for name, value in page.items():
        path = prefix + name
        if isinstance(value, dict) and path not in by_label:
            yield from fields(value, by_label, f"{path}.")
        else:
            yield path
