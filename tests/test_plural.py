from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from restante.common.plural import counted
from support.documents import ROOT


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1_000_000, "1,000,000 rows")]
)
def test_a_noun_agrees_with_its_number(number: int, said: str) -> None:
    assert counted(number, "row") == said


def test_no_other_code_writes_a_plural_after_a_number() -> None:
    """A number in a text for people is formatted with commas; none of them has a plural right behind it."""
    for path in (ROOT / "src").rglob("*.py"):
        for number, behind in numbers(ast.parse(path.read_text())):
            assert not re.match(r" \w+s\b", behind), f"{path}: {number}{behind}"


def numbers(code: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each number that is formatted for people, and the text behind it."""
    for text in (node for node in ast.walk(code) if isinstance(node, ast.JoinedStr)):
        for each, after in zip(text.values, text.values[1:], strict=False):
            if isinstance(each, ast.FormattedValue) and each.format_spec and ast.unparse(each).count(":,"):
                yield ast.unparse(each), str(after.value) if isinstance(after, ast.Constant) else ""
