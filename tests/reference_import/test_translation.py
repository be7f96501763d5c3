"""The translation, handed whatever SQLite may hold: no row makes it fail, none is lost without being counted."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from restante.mailbox.core.state import State
from restante.mailbox.reference_import import translation
from restante.mailbox.reference_import.reference import CHANNEL, USAGE
from restante.mailbox.reference_import.report import Counts
from restante.mailbox.store.load import load
from restante.mailbox.store.rows import Rows
from restante.mailbox.store.schema import connect
from support.effort import examples
from support.mailbox.picture import picture

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
ANYTHING = st.none() | NUMBERS | TEXTS | st.binary(max_size=3)
FEW: dict[str, st.SearchStrategy[Any]] = {
    "app_id": st.sampled_from(["x", "y"]),
    "mailbox_id": st.sampled_from(["m", "n", "o"]),
    "id": st.sampled_from(["m", "n", "o", "p"]),
    "nameplates_id": st.sampled_from([1, 2, 3]),
    "name": st.sampled_from(["4", "07", "4" * 40, "four", ""]),
    "side": st.sampled_from(["a", "b", "c"]),
    "added": st.sampled_from([1000, 1000.5, 1001]),
    "server_rx": st.sampled_from([1000, 1000.5, 1001]),
    "started": st.sampled_from([1000, 1000.5]),
    "waiting_time": st.sampled_from([None, 2.5]),
    "total_time": st.sampled_from([0, 2.5, -1]),
    "connect_time": st.just(1000),
    "for_nameplate": st.sampled_from([0, 1]),
    "result": st.sampled_from(["happy", "lonely", "quiet"]),
}
"""Mostly what it should be, so that rows find each other."""


def cell(table: str, column: str) -> st.SearchStrategy[Any]:
    if (table, column) == ("nameplates", "id"):
        return st.sampled_from([1, 2, 3, 4])
    usual = FEW.get(column, TEXTS)
    return st.integers(0, 9).flatmap(lambda luck: usual if luck else ANYTHING)


def tables(kind: Any) -> st.SearchStrategy[dict[str, list[tuple[Any, ...]]]]:
    def rows(table: str, shape: Any) -> st.SearchStrategy[list[tuple[Any, ...]]]:
        row = st.tuples(*(cell(table, column) for column in shape._fields))
        if "id" in shape._fields:  # SQLite sees to it that no two are the same
            return st.lists(row, max_size=6, unique_by=lambda row: repr(row[shape._fields.index("id")]))
        return st.lists(row, max_size=12)

    return st.fixed_dictionaries({table: rows(table, shape) for table, shape in kind.tables.items()})


def counted(taken: int, skipped: Counts, prefix: str) -> int:
    return taken + sum(number for name, number in skipped.items() if name.startswith(f"{prefix}_"))


NOTHING: dict[str, list[tuple[Any, ...]]] = {table: [] for table in CHANNEL.tables}
MESSAGE_AT_MINUS_ZERO = NOTHING | {
    "mailboxes": [("y", "n", None)],
    "mailbox_sides": [("n", None, "a", 1000, None)],
    "messages": [("y", "n", "a", None, None, -0.0, None)],
}


@examples(60)
@given(tables(CHANNEL))
@example(MESSAGE_AT_MINUS_ZERO)
def test_every_live_row_is_imported_or_counted_and_imported_rows_can_be_served(
    given: dict[str, list[tuple[Any, ...]]],
) -> None:
    state = State()
    found = translation.channel(given, state, 12.5)
    for table, rows in given.items():
        assert counted(found.imported[table], found.skipped, table) == len(rows), table
    assert found.clashes == {"mailboxes": 0, "nameplates": 0}
    with closing(connect(":memory:")) as database:
        for statement, parameters, _ in Rows(found.changes).statements():
            database.executemany(statement, parameters)
        loaded = load(database)
    for change in found.changes:
        state.fold(change)
    assert picture(loaded) == picture(state)
    for mailbox in loaded.mailboxes():
        assert 1 <= len(mailbox.sides) <= 2
        assert mailbox.touched == 12.5
    again = translation.channel(given, loaded, 0.0)
    assert again.clashes == {table: found.imported[table] for table in again.clashes}


@examples(60)
@given(tables(USAGE))
def test_every_usage_row_is_imported_or_counted(given: dict[str, list[tuple[Any, ...]]]) -> None:
    skipped = Counts()
    with closing(connect(":memory:")) as database:
        for table, rows in given.items():
            records = translation.usage(table, rows, skipped)
            assert counted(len(records), skipped, f"usage_{table}") == len(rows)
            for statement, parameters, _ in Rows(records, origin="file").statements():
                database.executemany(statement, parameters)
