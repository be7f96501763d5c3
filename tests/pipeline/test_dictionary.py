"""The data dictionary: what each column means, in the document and in comments."""

from __future__ import annotations

import re

from restante.pipeline.schemas import Column
from restante.pipeline.tables import TABLES
from restante.timing.model.phases import ALL_PHASES
from support.pipeline import dictionary
from support.rows import every

COLUMNS = [(name, column) for name, table in TABLES.items() for column in table.columns]


def test_the_document_is_what_the_schemas_say() -> None:
    assert dictionary.PATH.read_text() == dictionary.dictionary(), f"it is out of date: {dictionary.__doc__}"


@every(("table", "column"), COLUMNS)
def test_a_meaning_is_sentences_that_say_when_a_column_is_null(table: str, column: Column) -> None:
    assert re.fullmatch(r"[^ ].*[^ .]\.", column.meaning)
    assert not column.null or "NULL" in column.meaning


def test_numbers_that_measure_time_have_a_unit() -> None:
    for table, column in COLUMNS:
        assert not column.name.endswith("_us") or column.unit == "microseconds", f"{table}.{column.name}"
        assert column.type != "DOUBLE" or column.unit or column.name == "pow", f"{table}.{column.name}"


def test_the_unit_is_part_of_the_comment() -> None:
    assert Column("a", "BIGINT", "How long.", unit="seconds").comment == "How long. In seconds."
    assert Column("a", "BIGINT", "How many.").comment == "How many."


def test_every_phase_of_timing_is_explained() -> None:
    assert all(f"`{phase}`" in dictionary.PHASES for phase in ALL_PHASES)
