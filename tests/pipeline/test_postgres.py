"""Usage records of a mailbox server on PostgreSQL: they are read as those of one on SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.test_extract import World, reference
from restante.common import extras
from restante.common.errors import Misuse
from restante.common.postgres import Reader
from restante.mailbox.core.model import Change, Now
from restante.mailbox.core.state import State
from restante.mailbox.reference_import.importing import import_databases
from restante.mailbox.store.migration import migrate
from restante.mailbox.store.postgres import Node
from restante.pipeline.sources import databases
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.sources.source import DUPLICATE, SourceError
from support.documents import Document
from support.mailbox.ledger import Ledger
from support.pipeline.servers import CONTEXT, T0, client, context_of, current, mailbox, nameplate, ours
from support.pipeline.source_reads import Marks, read, read_source
from support.postgres import Cluster
from support.processes import called

pytestmark = pytest.mark.xdist_group("postgres")

DAY = 86_400


class OnPostgres:
    """A mailbox server on PostgreSQL, as `Ours` is one on SQLite."""

    def __init__(self, server: Cluster) -> None:
        self._runner = asyncio.Runner()
        self.store = self._runner.run(Node(server.url, "a").take_over())

    def write(self, *changes: Change) -> None:
        self._runner.run(self.store.apply(changes, Now(T0, 0.0)))

    def forget(self, before: float) -> None:
        self._runner.run(self.store.forget_usage(before, 1_000_000))

    def close(self) -> None:
        self._runner.run(self.store.close())
        self._runner.close()


@contextmanager
def on_postgres(server: Cluster, *changes: Change) -> Iterator[OnPostgres]:
    its = OnPostgres(server)
    try:
        if changes:
            its.write(*changes)
        yield its
    finally:
        its.close()


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


def live() -> list[Change]:
    """What a server has while two sides use a nameplate, and one waits in a mailbox."""
    ledger = Ledger(State(), T0 + 5)
    ledger.claim("canary", "4")
    ledger.claim("other", "4")
    ledger.pass_(4)
    ledger.open("canary", "m")
    return ledger.changes


ROUNDS: list[list[Change]] = [
    [
        *live(),
        current(60),
        *(nameplate(number, waiting_time=None if number % 2 else 0.1) for number in range(5)),
        nameplate(6, result="canary", app_id="é😀\x07"),
        mailbox(7, visitors=None, blur_time=None),
        mailbox(8, for_nameplate=False, started=1e300),
        client(9),
        client(9, address_id=None, implementation=None, version=None),
    ],
    [
        nameplate(20.25, total_time=1e-7),
        client(21),
        client(22, address_id="another"),
        client(23, app_id="y"),
        client(24, connect_time=T0 + DAY),
        client(25, connect_time=float("inf")),
    ],
]
"""What is written before a first run reads it, and before a second one."""


def test_the_tables_are_those_of_the_same_records_in_sqlite(tmp_path: Path, scratch: Path, postgres: Cluster) -> None:
    marks: list[Marks] = [Marks(), Marks()]
    with ours(tmp_path / "data") as first, on_postgres(postgres) as second:
        specs = [f"north={tmp_path / 'data'}", f"north={postgres.url}"]
        for changes in ROUNDS:
            first.write(*changes)
            second.write(*changes)
            live_rows = [read_source(spec, "live", scratch) for spec in specs]
            assert live_rows[0] == live_rows[1]
            assert {row["kind"] for row in live_rows[0].rows} == {"listener", "mailbox", "nameplate"}
            tables = [read(spec, scratch, its) for spec, its in zip(specs, marks, strict=True)]
            assert tables[0] == tables[1]
            assert set(tables[0]) >= {"nameplates", "client_versions"}
        assert [read(spec, scratch, its) for spec, its in zip(specs, marks, strict=True)] == [{}, {}]


def test_a_row_whose_batch_is_under_way_is_read_later(scratch: Path, postgres: Cluster) -> None:
    """Its id is assigned already, and reading stops before it."""
    marks: Marks = {}
    insert = (
        "INSERT INTO restante.usage_nameplates (origin, app_id, started, total_time, result)"
        f" VALUES ('', 'x', {T0}, 1, 'lonely')"
    )

    async def meanwhile() -> None:
        async with postgres.connected() as batch, batch.transaction():
            await batch.execute(insert)
            assert (await asyncio.to_thread(read, spec, scratch, marks))["nameplates"].ids == [1]

    spec = f"a={postgres.url}"
    with on_postgres(postgres, nameplate(1)):
        asyncio.run(meanwhile())
        assert read(spec, scratch, marks)["nameplates"].ids == [2]


def test_forgotten_records_are_missed_and_read_again_by_nobody(scratch: Path, postgres: Cluster) -> None:
    marks: Marks = {}
    spec = f"a={postgres.url}"
    with on_postgres(postgres, *map(nameplate, range(5))) as server:
        read(spec, scratch, marks)
        server.forget(T0 + 100)
        assert read(spec, scratch, marks) == {}, "all are forgotten, also the last one"
        server.write(nameplate(1), nameplate(101))
        server.forget(T0 + 100)
        new = read(spec, scratch, marks)["nameplates"]
        assert (new.ids, new.span.missed, new.span.replace) == ([7], 1, False)


def test_a_database_that_was_replaced_is_read_again(scratch: Path, postgres: Cluster) -> None:
    marks: Marks = {}
    spec = f"a={postgres.url}"
    with on_postgres(postgres, *map(nameplate, range(5))):
        read(spec, scratch, marks)
    for count, reason in ((2, "its last id was 5 and is 2 now"), (9, "the row with id 2 has changed")):
        postgres.empty()
        with on_postgres(postgres, *(nameplate(number + count) for number in range(count))):
            again = read(spec, scratch, marks)["nameplates"]
        assert (again.ids, again.span.replace) == (list(range(1, count + 1)), True)
        assert again.span.reason.startswith(reason)


def test_a_server_that_moved_to_postgresql_is_read_on_and_what_it_imported_only_once(
    tmp_path: Path, scratch: Path, postgres: Cluster
) -> None:
    data, their, url = tmp_path / "data", reference(tmp_path / "their"), f"north={postgres.url}"
    import_databases(data, None, their, merge=False)
    with ours(data, *map(nameplate, range(3)), client(4)):
        pass
    context, marks = context_of(recognise(f"their={their}")), Marks()
    before = read(f"north={data}", scratch, marks, context=context)
    assert [fault for _, fault in before["nameplates"].faults] == [DUPLICATE]
    asyncio.run(migrate(str(data), postgres.url, lambda _: None))
    assert read(url, scratch, marks, context=context) == {}
    assert read(url, scratch, context=context) == before


def test_rows_are_copied_in_short_transactions(
    scratch: Path, postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "POSTGRES_STEP_ROWS", 2)
    states: list[int] = []
    execute = Reader.execute

    def watched(database: Reader, *arguments: object) -> list[tuple[object, ...]]:
        [(number,)] = postgres.rows(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'restante' AND backend_xmin IS NOT NULL"
        )
        states.append(number)
        return execute(database, *arguments)  # type: ignore[arg-type]

    with on_postgres(postgres, *map(nameplate, range(5))):
        source = recognise(f"a={postgres.url}")
        with source.opened(scratch, print, CONTEXT) as opened:
            monkeypatch.setattr(Reader, "execute", watched)
            span = opened.find_new("nameplates", {})
    assert span is not None
    assert span.counted == 5
    assert set(states) == {0}, "no statement begins while an earlier one has a snapshot"


def test_only_columns_of_the_allow_list_are_read(scratch: Path, postgres: Cluster) -> None:
    with on_postgres(postgres, *ROUNDS[0]):
        asyncio.run(execute(postgres, Document("docs/pipeline/operating.md").blocks["reader"]))
        try:
            spec = f"a={postgres.url.replace('//restante@', '//pipeline@')}"
            assert read(spec, scratch) == read(f"a={postgres.url}", scratch)
            assert read_source(spec, "live", scratch).rows
        finally:
            asyncio.run(execute(postgres, "DROP OWNED BY pipeline; DROP ROLE pipeline"))


async def execute(server: Cluster, sql: str) -> None:
    async with server.connected() as connection:
        await connection.execute(sql)


def test_extracts_are_those_of_the_same_records_in_sqlite(tmp_path: Path, postgres: Cluster) -> None:
    worlds = [World(tmp_path / name) for name in ("sqlite", "postgres")]
    for name in ("sqlite", "postgres"):
        (tmp_path / name).mkdir()
    with ours(tmp_path / "data") as first, on_postgres(postgres) as second:
        for hour, changes in enumerate(ROUNDS):
            first.write(*changes)
            second.write(*changes)
            results = [
                world.run(f"north={where}", hour=hour)
                for world, where in zip(worlds, (tmp_path / "data", postgres.url), strict=True)
            ]
            assert results[0] == results[1]
    for table in ("live", "nameplates", "mailboxes", "client_versions"):
        assert worlds[0].files(table) == worlds[1].files(table) != {}


def test_the_commands_name_no_user_and_no_password(tmp_path: Path, postgres: Cluster) -> None:
    url = f"{postgres.url.replace('restante@', 'restante:hidden@')}&password=hidden"
    with on_postgres(postgres, nameplate(1), current(None)):
        lake = ("--lake", tmp_path / "lake")
        planned = called("pipeline", "ingest", "--plan", "--source", f"a={url}", *lake)
        assert (planned.returncode, "nameplates" in planned.stdout) == (0, True)
        extracted = called("extract", "--source", f"a={url}", "--output", tmp_path / "out")
        assert (extracted.returncode, "a: nameplates: 1 row" in extracted.stdout) == (0, True)
        twice = called(
            "extract", "--source", f"a={url}", "--source", f"b={postgres.url}", "--output", tmp_path / "out"
        )
        assert "is read as source b, too" in twice.stderr
    absent = called("extract", "--source", f"a={url.replace('/postgres', '/nowhere')}", "--output", tmp_path / "out")
    assert "source a: cannot use postgresql://restante:***@/nowhere?host=" in absent.stderr
    named = [called("extract", "--source", f"{name}={url}", "--output", "out") for name in ("B", "a@b", "")]
    assert [done.returncode for done in named] == [2, 1, 2]
    for done in (planned, extracted, twice, absent, *named):
        assert "hidden" not in done.stdout + done.stderr


def test_a_database_without_usage_records_is_refused_and_so_is_a_missing_extra(
    postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = f"a={postgres.url}"
    with pytest.raises(SourceError, match="source a: there is no mailbox server's data in postgresql://"):
        recognise(spec)
    monkeypatch.setattr(extras, "MODULES", {**extras.MODULES, "postgres": ("no_such_module",)})
    with pytest.raises(Misuse, match="extra 'postgres'"):
        recognise(spec)
