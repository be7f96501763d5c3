"""What is live on the reference server is live on ours, and its usage records are among ours."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wormhole_mailbox_server.database import create_or_upgrade_usage_db
from wormhole_mailbox_server.server import CrowdedError

from reference_import.conftest import CHANNEL_V2, rows, state, take
from restante.common.errors import Misuse, StoreError
from restante.common.reference_rows import Counts
from restante.common.sqlite import execute_rows
from restante.common.usage_records import CurrentUsage
from restante.mailbox.core.model import Mailbox, Nameplate
from restante.mailbox.core.state import State
from restante.mailbox.reference_import import translation
from restante.mailbox.reference_import.exporting import export_usage
from restante.mailbox.reference_import.importing import RECORDS_PER_CHUNK
from restante.mailbox.reference_import.translation import CHANNEL, USAGE
from restante.mailbox.store.rows import Rows, load_state
from restante.mailbox.store.schema import connect
from restante.mailbox.store.sqlite import SqliteStore
from support.effort import examples
from support.mailbox.givens import mailbox_id
from support.mailbox.ledger import Ledger
from support.mailbox.picture import picture
from support.mailbox.reference_sources import Their, usage_v1
from support.sqlite import alter, select


def sides(owner: Mailbox | Nameplate) -> list[tuple[Any, ...]]:
    return [msgspec.structs.astuple(row) for row in owner.sides]


def wires(data: Path, mailbox: str, app: str = "x") -> list[dict[str, Any]]:
    stored = state(data).app(app).mailboxes[mailbox].messages
    return [msgspec.json.decode(message.wire + b"}") for message in stored]


def begin(their: Their) -> str:
    """The sender waits with its pake, the receiver has claimed the code."""
    mailbox = their.claim("a", "4", 1000.5)
    their.open("a", mailbox, 1001.0)
    their.add("a", mailbox, "pake", "aa", 1002.25, "id1")
    assert their.claim("b", "4", 1010.75) == mailbox
    return mailbox


def test_a_running_transfer_is_imported_completely(their: Their, data: Path) -> None:
    mailbox = begin(their)
    their.release("a", "4", 1011.5)
    for side in ("a", "b"):
        their.open(side, "m", 1000)
    their.close("b", "m", "scary", 1001)
    report = take(data, their.relay)
    rows = {"mailboxes": 2, "mailbox_sides": 4, "nameplates": 1, "nameplate_sides": 2, "messages": 1}
    assert (report.imported, report.skipped) == (rows, {})
    app = state(data).app("x")
    box, nameplate = app.mailboxes[mailbox], app.nameplates["4"]
    assert sides(box) == [("a", 1000.5, True, None), ("b", 1010.75, True, None)]
    assert (box.for_nameplate, box.crowded, box.nameplate, box.touched) == (True, False, "4", 0.0)
    assert sides(nameplate) == [("a", 1000.5, False, False), ("b", 1010.75, True, False)]
    assert (nameplate.mailbox_id, nameplate.crowded) == (mailbox, False)
    assert (app.allocated, app.counts_by_length) == ({}, {1: 1})
    assert wires(data, mailbox) == [
        {"type": "message", "side": "a", "phase": "pake", "body": "aa", "server_rx": 1002.25, "id": "id1"}
    ]
    assert sides(app.mailboxes["m"]) == [("a", 1000.0, True, None), ("b", 1000.0, False, "scary")]


@pytest.mark.parametrize("how", CHANNEL_V2)
def test_channel_v2_is_read_as_v1_is(their: Their, data: Path, tmp_path: Path, how: str) -> None:
    begin(their)
    take(data, their.relay)
    alter(their.relay, *CHANNEL_V2[how])
    assert take(tmp_path / "other", their.relay).skipped == {}
    assert picture(state(tmp_path / "other")) == picture(state(data))


@pytest.mark.parametrize("kind", ["claim", "open"])
def test_third_and_later_sides_become_the_mark_of_what_was_crowded(their: Their, data: Path, kind: str) -> None:
    mailbox = begin(their)
    for side in ("c", "d"):
        with pytest.raises(CrowdedError):
            getattr(their, kind)(side, "4" if kind == "claim" else mailbox, 1020)
    report = take(data, their.relay)
    app = state(data).app("x")
    for members in (app.mailboxes[mailbox].sides, app.nameplates["4"].sides):
        assert [row.side for row in members] == ["a", "b"]
    assert (app.mailboxes[mailbox].crowded, app.nameplates["4"].crowded) == (True, kind == "claim")
    beyond = {"mailbox_sides_beyond_two": 2, "nameplate_sides_beyond_two": 2}
    assert report.skipped == (beyond if kind == "claim" else {"mailbox_sides_beyond_two": 2})


def test_the_first_two_sides_are_the_earliest_and_then_the_first_rows(their: Their, data: Path) -> None:
    for side, when in (("c", 1003), ("b", 1001), ("d", 1001), ("a", 1000)):
        try:
            their.claim(side, "4", when)
        except CrowdedError:
            assert side in "da"
    take(data, their.relay)
    assert [row.side for row in state(data).app("x").nameplates["4"].sides] == ["a", "b"]


def test_messages_hold_what_the_reference_would_replay_in_its_order(their: Their, data: Path) -> None:
    strange = ['é\n"\0', "", 12, 2.5, None, True, "null", '{"a": 1}']
    for when, value in zip((1005.0, 1001.5, 1003.0, 1001.5, 1001.5, 1006.0, 1007.0, 1008.0), strange, strict=True):
        their.add("a", "m", value, value, when, value)
    take(data, their.relay)
    replayed = [
        {"side": m.side, "phase": m.phase, "body": m.body, "server_rx": m.server_rx, "id": m.msg_id}
        for m in their.open("nobody", "m", 0).get_messages()
    ]
    assert wires(data, "m") == [{"type": "message", **message} for message in replayed]
    assert [message["body"] for message in replayed] == ["", "2.5", None, "12", 'é\n"\0', "1", "null", '{"a": 1}']


LEFT_OUT = {
    "messages_without_mailbox": ["messages VALUES ('x', 'gone', 'a', 'p', '', 1000, NULL)"],
    "mailbox_sides_without_mailbox": ["mailbox_sides VALUES ('gone', 1, 'a', 1000, NULL)"],
    "mailboxes_without_sides": ["mailboxes VALUES ('x', 'bare', 1000, 0)"],
    "mailbox_sides_repeated": ["mailbox_sides VALUES ('m', 0, 'a', 2000, NULL)"],
    "nameplate_sides_without_nameplate": [
        "nameplate_sides VALUES (99, 1, 'a', 1000)",
        "nameplate_sides VALUES (7, 1, 'a', 1000)",  # of the repeated one
    ],
    "nameplates_without_mailbox": ["nameplates VALUES (9, 'x', '9', 'gone', NULL)"],
    "nameplates_that_nobody_can_claim": ["nameplates VALUES (8, 'x', '4' || char(10), 'm', NULL)"],
    "nameplates_repeated": ["nameplates SELECT 7, app_id, name, mailbox_id, NULL FROM nameplates WHERE name = '4'"],
    "mailboxes_unusable": ["mailboxes VALUES (NULL, 'n', 1000, 0)"],
    "mailbox_sides_unusable": ["mailbox_sides VALUES ('m', 1, NULL, 1000, NULL)"],
    "nameplates_unusable": ["nameplates VALUES (6, 'x', x'ff00', 'm', NULL)"],
    "nameplate_sides_unusable": ["nameplate_sides VALUES ('one', 1, 'a', 1000)"],
    "messages_unusable": [
        "messages VALUES ('x', 'm', 'a', 'p', x'00', 1000, NULL)",
        "messages VALUES ('x', 'm', 'a', 'p', '', 'noon', NULL)",
        "messages VALUES ('x', 'm', 'a', 'p', '', 9e999, NULL)",
    ],
}
"""What is inserted: the reference leaves some of these rows itself, the others stand for damage."""


def test_orphaned_rows_are_skipped_and_counted(their: Their, data: Path) -> None:
    their.claim("a", "4", 1000)
    their.add("a", "m", "p", "b", 1001)
    imported = take(data, their.relay).imported
    alter(their.relay, *(f"INSERT INTO {rows}" for statements in LEFT_OUT.values() for rows in statements))
    report = take(data.with_name("other"), their.relay)
    assert report.skipped == {kind: len(statements) for kind, statements in LEFT_OUT.items()}
    assert report.imported == imported
    assert picture(state(data.with_name("other"))) == picture(state(data))


async def test_a_nameplate_without_sides_still_leads_to_its_mailbox(their: Their, data: Path) -> None:
    mailbox = their.claim("a", "4", 1000)
    their.open("a", "m", 1001)
    their.close("a", "m", "happy", 1002)
    assert select(their.relay, "SELECT * FROM nameplate_sides") == []
    take(data, their.relay)
    store = SqliteStore.open(data)
    try:
        ledger = Ledger(await store.view())
        assert ledger.claim("b", "4") == mailbox
        ledger.close("a", mailbox)
        ledger.close("b", mailbox)
        await ledger.commit(store)
        assert not (await store.view()).apps
    finally:
        await store.close()


def test_rows_that_a_failed_last_close_leaves_in_the_reference_are_imported(their: Their, data: Path) -> None:
    """Both still hold the nameplate: then it fails, having committed the half of it."""
    mailbox = begin(their)
    their.close("a", mailbox, "happy", 1020)
    with pytest.raises(sqlite3.IntegrityError):
        their.close("b", mailbox, "happy", 1021)
    their.open("a", "another", 1022)  # which commits
    take(data, their.relay)
    app = state(data).app("x")
    assert [row.opened for row in app.mailboxes[mailbox].sides] == [False, False]
    assert [row.side for row in app.nameplates["4"].sides] == ["a"]


def test_an_unexpected_flag_or_mood_excludes_no_side(their: Their, data: Path) -> None:
    their.open("a", "m", 1000)
    alter(
        their.relay,
        "UPDATE mailbox_sides SET opened = NULL, mood = x'00'",
        "UPDATE mailboxes SET for_nameplate = NULL, updated = 'never'",
    )
    take(data, their.relay)
    mailbox = state(data).app("x").mailboxes["m"]
    assert sides(mailbox) == [("a", 1000.0, False, None)]
    assert mailbox.for_nameplate is False


def play_usage(their: Their) -> None:
    for when, side in enumerate(("a", "b", "c")):
        their.bind(side, 1000.5 + when)
    mailbox = their.claim("a", "4", 1000.5)
    their.claim("b", "4", 1002.25)
    their.release("a", "4", 1003)
    their.release("b", "4", 1004)
    their.close("a", mailbox, "happy", 1005)
    their.close("b", mailbox, "happy", 1006.5)
    for number, mood in enumerate(("lonely", "errory", "scary", None, "unwelcome")):
        their.open("a", f"m{number}", 1010)
        their.close("a", f"m{number}", mood, 1020)
    their.claim("a", "5", 1030, "y")
    their.prune(5000)


def test_usage_records_are_imported_and_exported_unchanged(their: Their, data: Path, tmp_path: Path) -> None:
    play_usage(their)
    their.stop()
    report = take(data, usage=their.usage)
    assert report.imported == {"usage_nameplates": 2, "usage_mailboxes": 7, "usage_client_versions": 3}
    assert report.skipped == {}
    export = tmp_path / "export.sqlite"
    assert export_usage(data, export) == {"nameplates": 2, "mailboxes": 7, "client_versions": 3}
    for table in ("nameplates", "mailboxes", "client_versions"):
        columns = ", ".join(name for (name,) in select(their.usage, f"SELECT name FROM pragma_table_info('{table}')"))
        theirs = select(their.usage, f"SELECT {columns} FROM {table} ORDER BY rowid")
        assert rows(data, f"SELECT {columns} FROM usage_{table} ORDER BY id") == theirs
        assert select(export, f"SELECT * FROM {table} ORDER BY rowid") == theirs
        assert rows(data, f"SELECT DISTINCT origin FROM usage_{table}") == [("usage.sqlite",)]
    types = "SELECT typeof(started), typeof(total_time), typeof(for_nameplate) FROM mailboxes ORDER BY rowid"
    assert select(export, types) == select(their.usage, types)
    assert rows(data, "SELECT DISTINCT address_id FROM usage_client_versions") == [(None,)]
    assert rows(data, "SELECT * FROM usage_current") == []


def test_usage_v1_has_no_client_versions(tmp_path: Path, data: Path) -> None:
    usage_v1(tmp_path / "usage.sqlite")
    report = take(data, usage=tmp_path / "usage.sqlite")
    assert report.imported == {"usage_nameplates": 1, "usage_mailboxes": 1, "usage_client_versions": 0}
    times = "app_id, started, waiting_time, total_time, result"
    assert rows(data, f"SELECT {times} FROM usage_nameplates") == [("x", 1.5e9, 2.5, 10.25, "happy")]
    mailboxes = rows(data, f"SELECT {times}, for_nameplate FROM usage_mailboxes")
    assert mailboxes == [("x", 1.5e9, None, 20.5, "lonely", 1)]


UNUSABLE = {
    "usage_nameplates_unusable": [
        "nameplates VALUES (NULL, 1, 1, 1, 'happy')",
        "nameplates VALUES ('x', 'noon', 1, 1, 'happy')",
        "nameplates VALUES ('x', 1, 1, 1, 'odd')",
        "nameplates VALUES ('x', 9e999, 1, 1, 'happy')",
    ],
    "usage_mailboxes_unusable": [
        "mailboxes VALUES ('x', NULL, 1, 1, 1, 'happy')",
        "mailboxes VALUES ('x', 1, 1, 1, 1, 'quiet')",
        "mailboxes VALUES ('x', 1, 1, 1, x'00', 'happy')",
    ],
    "usage_client_versions_unusable": [
        "client_versions VALUES ('x', 'a', NULL, 'python', '1')",
        "client_versions VALUES ('x', 'a', 1, CAST(x'ff' AS TEXT), '1')",
    ],
}


def test_invalid_usage_rows_are_skipped_and_counted(their: Their, data: Path) -> None:
    play_usage(their)
    alter(their.usage, *(f"INSERT INTO {rows}" for statements in UNUSABLE.values() for rows in statements))
    report = take(data, usage=their.usage)
    assert report.skipped == {kind: len(statements) for kind, statements in UNUSABLE.items()}
    assert report.imported == {"usage_nameplates": 2, "usage_mailboxes": 7, "usage_client_versions": 3}


def test_more_records_than_are_held_in_memory_at_a_time(their: Their, data: Path) -> None:
    count = 2 * RECORDS_PER_CHUNK + 1
    alter(
        their.usage,
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        " INSERT INTO mailboxes SELECT 'x', 1, i, 1, 1, CASE i % 2 WHEN 0 THEN 'happy' ELSE 'odd' END FROM n",
    )
    report = take(data, usage=their.usage)
    assert report.imported["usage_mailboxes"] == RECORDS_PER_CHUNK
    assert report.skipped == {"usage_mailboxes_unusable": RECORDS_PER_CHUNK + 1}
    extent = rows(data, "SELECT count(*), min(started), max(started) FROM usage_mailboxes")
    assert extent == [(RECORDS_PER_CHUNK, 2.0, 2.0 * RECORDS_PER_CHUNK)]


async def test_exported_records_are_read_by_the_reference_and_its_munin_plugins(tmp_path: Path, data: Path) -> None:
    """Beside a running server, whose store is open here."""
    store = SqliteStore.open(data)
    try:
        ledger = Ledger(await store.view(), wall=1_700_000_000.5)
        ledger.bind("a")
        ledger.claim("a", "4")
        ledger.pass_(2.0)
        ledger.release("a", "4")
        ledger.close("a", mailbox_id(1), "errory")
        ledger.note(CurrentUsage(1_699_999_000.0, 1_700_000_002.5, None, 3))
        await ledger.commit(store)
        export_usage(data, tmp_path / "export.sqlite")
    finally:
        await store.close()
    database = create_or_upgrade_usage_db(str(tmp_path / "export.sqlite"))
    [nameplate] = database.execute("SELECT * FROM nameplates")
    times = {"started": 1_700_000_000.5, "waiting_time": None, "total_time": 2.0}
    assert dict(nameplate) == {"app_id": "x", **times, "result": "lonely"}
    [client] = database.execute("SELECT implementation, version FROM client_versions")
    assert dict(client) == {"implementation": "python", "version": "0.24.0"}
    database.close()
    # as misc/munin/wormhole_event_rate asks
    current = select(tmp_path / "export.sqlite", "SELECT `updated`,`rebooted` FROM `current`")
    assert current == [(1_700_000_002.5, 1_699_999_000)]
    for result, count in (("errory", 1), ("happy", 0)):
        counting = f"SELECT COUNT() FROM `mailboxes` WHERE `result` = '{result}'"
        assert select(tmp_path / "export.sqlite", counting) == [(count,)]


def test_an_export_overwrites_nothing_and_leaves_none_if_it_fails(tmp_path: Path, data: Path, their: Their) -> None:
    take(data, usage=their.usage)
    there = tmp_path / "there.sqlite"
    there.write_text("something dear")
    with pytest.raises(Misuse, match="exists already"):
        export_usage(data, there)
    assert there.read_text() == "something dear"
    alter(data / "restante.sqlite", "DROP TABLE usage_client_versions")
    (tmp_path / "out").mkdir()
    with pytest.raises(StoreError, match=r"\Acannot export to [^\n]*\Z"):
        export_usage(data, tmp_path / "out" / "export.sqlite")
    assert list((tmp_path / "out").iterdir()) == []


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
    "for_nameplate": st.sampled_from([0, 1]),
    "result": st.sampled_from(["happy", "lonely", "quiet"]),
    **dict.fromkeys(("added", "server_rx", "started", "connect_time"), st.sampled_from([1000, 1000.5, 1001])),
    **dict.fromkeys(("waiting_time", "total_time"), st.sampled_from([0, 2.5, -1])),
}
"""Mostly what it should be, so that rows find each other."""


def cell(table: str, column: str) -> st.SearchStrategy[Any]:
    if (table, column) == ("nameplates", "id"):
        return st.sampled_from([1, 2, 3, 4])
    usual = FEW.get(column, TEXTS)
    return st.integers(0, 9).flatmap(lambda luck: usual if luck else ANYTHING)


TheirRows = dict[str, list[tuple[Any, ...]]]


def tables(kind: Any) -> st.SearchStrategy[TheirRows]:
    def rows(table: str, shape: Any) -> st.SearchStrategy[list[tuple[Any, ...]]]:
        row = st.tuples(*(cell(table, column) for column in shape._fields))
        if "id" in shape._fields:  # SQLite sees to it that no two are the same
            return st.lists(row, max_size=6, unique_by=lambda row: repr(row[shape._fields.index("id")]))
        return st.lists(row, max_size=12)

    return st.fixed_dictionaries({table: rows(table, shape) for table, shape in kind.tables.items()})


def counted(taken: int, skipped: Counts, prefix: str) -> int:
    return taken + sum(number for name, number in skipped.items() if name.startswith(f"{prefix}_"))


MESSAGE_AT_MINUS_ZERO: TheirRows = {table: [] for table in CHANNEL.tables} | {
    "mailboxes": [("y", "n", None)],
    "mailbox_sides": [("n", None, "a", 1000, None)],
    "messages": [("y", "n", "a", None, None, -0.0, None)],
}


@examples(60)
@given(tables(CHANNEL))
@example(MESSAGE_AT_MINUS_ZERO)
def test_every_live_row_is_imported_or_counted_and_imported_rows_can_be_served(theirs: TheirRows) -> None:
    state = State()
    channel = translation.translate_channel(theirs, state, 12.5)
    for table, their_rows in theirs.items():
        assert counted(channel.imported[table], channel.skipped, table) == len(their_rows), table
    assert channel.clashes == {"mailboxes": 0, "nameplates": 0}
    with closing(connect(":memory:")) as database:
        for statement, row, parameters, _ in Rows(channel.changes).statements():
            execute_rows(database, statement, row, parameters)
        loaded = load_state(database)
    for change in channel.changes:
        state.fold(change)
    assert picture(loaded) == picture(state)
    for mailbox in loaded.mailboxes():
        assert 1 <= len(mailbox.sides) <= 2
        assert mailbox.touched == 12.5
    again = translation.translate_channel(theirs, loaded, 0.0)
    assert again.clashes == {table: channel.imported[table] for table in again.clashes}


@examples(60)
@given(tables(USAGE))
def test_every_usage_row_is_imported_or_counted(theirs: TheirRows) -> None:
    skipped = Counts()
    with closing(connect(":memory:")) as database:
        for table, their_rows in theirs.items():
            records = translation.translate_usage(table, their_rows, skipped)
            assert counted(len(records), skipped, f"usage_{table}") == len(their_rows)
            for statement, row, parameters, _ in Rows(records, origin="file").statements():
                execute_rows(database, statement, row, parameters)
