"""Fields of CSV: what a spreadsheet takes for a formula, and what is quoted."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.csv_fields import END_OF_LINE, FORMULA, field


@pytest.mark.parametrize("start", FORMULA)
def test_a_text_that_begins_like_a_formula_begins_with_an_apostrophe(start: str) -> None:
    assert field(f"{start}1", is_text=True).removeprefix('"').startswith("'")
    assert not field(f"{start}1", is_text=False).removeprefix('"').startswith("'")


def test_null_is_empty_and_an_empty_text_is_quoted() -> None:
    assert field(None, is_text=True) == ""
    assert field("", is_text=True) == '""'


@given(st.lists(st.text().filter(lambda text: not text.startswith(FORMULA)), min_size=1))
def test_a_reader_of_csv_gets_the_same_texts(texts: list[str]) -> None:
    line = ",".join(field(text, is_text=True) for text in texts) + END_OF_LINE
    assert list(csv.reader(io.StringIO(line, newline=""))) == [texts]
