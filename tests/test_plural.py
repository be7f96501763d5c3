from __future__ import annotations

import pytest

from restante.common.plural import counted


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1_000_000, "1,000,000 rows")]
)
def test_a_noun_agrees_with_its_number(number: int, text: str) -> None:
    assert counted(number, "row") == text
