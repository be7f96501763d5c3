"""The data dictionary: what each column means, in the document and in comments."""

from __future__ import annotations

import re

from restante.pipeline.tables import TABLES
from restante.timing.model.phases import ALL_PHASES
from support.pipeline import dictionary


def test_the_document_is_what_the_schemas_say() -> None:
    page = dictionary.PATH.read_text()
    assert page == dictionary.dictionary(page), f"it is out of date: {dictionary.__doc__}"
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == [*TABLES]
    assert all(f"`{phase}`" in page for phase in ALL_PHASES)


def test_a_meaning_is_sentences_that_say_when_a_column_is_null_and_numbers_of_time_have_a_unit() -> None:
    for table in TABLES.values():
        for column in table.columns:
            name = f"{table.name}.{column.name}"
            assert re.fullmatch(r"[^ ].*[^ .]\.", column.meaning), name
            assert not column.null or "NULL" in column.meaning, name
            assert not column.name.endswith("_us") or column.comment.endswith(" In microseconds."), name
            assert column.type != "DOUBLE" or column.unit or column.name == "pow", name
