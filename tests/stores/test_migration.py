"""`restante migrate`: all that one store has is in the other, or nothing is; and no server uses either meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from restante.common.data_directory import lock_data_directory
from restante.common.errors import InUse, Misuse, StoreDamaged, StoreError
from restante.common.postgres import connect
from restante.common.usage_records import MailboxUsage
from restante.mailbox.core.model import Now
from restante.mailbox.store import migration
from restante.mailbox.store.interface import TermOver
from restante.mailbox.store.postgres import (
    TTL_SECONDS,
    Node,
    PostgresStore,
    prepare,
    read_lease,
    without_servers,
)
from restante.mailbox.store.schema import FILE
from restante.mailbox.store.schema import connect as open_database
from restante.mailbox.store.sqlite import SqliteStore
from stores.test_schema import thaw
from support.bounds import bounded
from support.disk import no_file_beyond
from support.document_shell import shell
from support.documents import Document
from support.mailbox.ledger import Ledger
from support.mailbox.picture import picture
from support.postgres import Cluster, without_standby
from support.processes import RESTANTE, child
from support.sqlite import alter, select

pytestmark = pytest.mark.xdist_group("postgres")

WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a row of every kind, which no server uses."""
    data = tmp_path / "post"
    data.mkdir()
    thaw(6, data / FILE).close()
    return data


async def migrate(source: Path | str, target: Path | str) -> migration.Migration:
    return await migration.migrate(str(source), str(target), lambda _: None)


def rows(data: Path) -> dict[str, list[tuple[Any, ...]]]:
    tables = [name for (name,) in select(data / FILE, "SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return {table: select(data / FILE, f"SELECT * FROM {table} ORDER BY 1") for table in tables}


def counts(server: Cluster) -> dict[str, int]:
    return {name: server.rows(f"SELECT count(*) FROM restante.{name}")[0][0] for name in migration.RECORDS}


async def take_over(server: Cluster) -> PostgresStore:
    store = await Node(server.url, "a").take_over()
    assert store.term
    return store


# ── what arrives ─────────────────────────────────────────────────────────────────────────────────


async def test_all_rows_go_there_and_come_back(postgres: Cluster, data: Path, tmp_path: Path) -> None:
    before = rows(data)
    there = await migrate(data, postgres.url)
    back = await migrate(postgres.url, tmp_path / "back")
    assert rows(tmp_path / "back") == rows(data) == before
    assert all(before.values())
    assert there == back
    assert there.copied
    assert there.rows == {name: len(before[name]) for name in migration.TABLES}


def test_the_commands_of_the_guide(postgres: Cluster, data: Path, tmp_path: Path) -> None:
    guide = Document("docs/mailbox/standby.md")
    with shell(tmp_path) as here:
        for command in (*guide.lines("migrate"), *guide.lines("back")):
            lines = here.run(command.replace("$RESTANTE_DATABASE", postgres.url)).splitlines()
            assert "copied    messages               3" in lines
    assert rows(tmp_path / "new-post") == rows(data)


async def test_a_user_without_the_schema_is_told_to_own_it(postgres: Cluster, data: Path) -> None:
    with postgres.user_of_the_schema() as url:
        postgres.empty()
        with pytest.raises(Misuse, match=r"permission denied for database .* CREATE SCHEMA restante AUTHORIZATION"):
            await migrate(data, url)


async def test_every_table_of_either_store_is_copied(postgres: Cluster, data: Path) -> None:
    await migrate(data, postgres.url)
    columns = postgres.rows(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'restante'"
    )
    of_postgres = {(table, column) for table, column in columns if table not in {"lease", "schema"}}
    with closing(open_database(":memory:")) as database:
        of_sqlite = database.execute(
            "SELECT t.name, c.name FROM pragma_table_list AS t, pragma_table_info(t.name) AS c"
            " WHERE t.name NOT LIKE 'sqlite_%'"
        ).fetchall()
    assert of_postgres == set(of_sqlite)
    assert {table for table, _ in of_sqlite} == set(migration.TABLES)


async def test_a_server_goes_on_with_the_mailboxes_and_gives_no_id_again(postgres: Cluster, data: Path) -> None:
    before = SqliteStore.open(data)
    live, service = picture(await before.view()), before.service
    await before.close()
    await migrate(data, postgres.url)
    store = await take_over(postgres)
    assert (picture(await store.view()), store.service) == (live, service)
    await store.apply([MailboxUsage("x", False, 1.0, None, 1.0, "lonely")], Now(1.7e9, service + 1))
    assert postgres.rows("SELECT max(id) FROM restante.usage_mailboxes") == [(10,)]  # 7 to 9 were forgotten
    await store.close()


async def test_u_0000_of_old_records_is_replaced(postgres: Cluster, data: Path) -> None:
    alter(data / FILE, "UPDATE usage_client_versions SET version = 'a' || char(0) || 'b' WHERE id = 1")
    await migrate(data, postgres.url)
    assert postgres.rows("SELECT version FROM restante.usage_client_versions WHERE id = 1") == [("a\ufffdb",)]
    assert not (await migrate(data, postgres.url)).copied


async def test_more_rows_than_are_in_memory_at_once_are_copied(
    postgres: Cluster, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "ROWS_PER_CHUNK", 2)
    monkeypatch.setattr(migration, "MESSAGES_PER_CHUNK", 2)
    await migrate(data, postgres.url)
    await migrate(postgres.url, tmp_path / "back")
    assert rows(tmp_path / "back") == rows(data)


# ── again, and after a kill ──────────────────────────────────────────────────────────────────────


async def test_to_migrate_again_compares_and_changes_nothing(postgres: Cluster, data: Path, tmp_path: Path) -> None:
    first = await migrate(data, postgres.url)
    assert await migrate(data, postgres.url) == migration.Migration(False, first.rows, first.sha256)
    await migrate(postgres.url, tmp_path / "back")
    assert not (await migrate(postgres.url, tmp_path / "back")).copied
    alter(tmp_path / "back" / FILE, "UPDATE messages SET body = '\"62\"' WHERE sequence = 1")
    for source, target in ((tmp_path / "back", postgres.url), (postgres.url, tmp_path / "back")):
        with pytest.raises(StoreError, match="has other data: name a new data directory or database with --to"):
            await migrate(source, target)
    assert not (await migrate(data, postgres.url)).copied


@pytest.mark.parametrize(
    "table",
    [
        "usage_mailboxes",
        *(
            pytest.param(table, marks=pytest.mark.thorough)
            for table in migration.TABLES
            if table != "usage_mailboxes"
        ),
    ],
)
async def test_a_kill_leaves_the_target_as_it_was_and_the_next_attempt_succeeds(
    postgres: Cluster, data: Path, tmp_path: Path, table: str
) -> None:
    """The command is killed when it waits for the lock of a table that it has not copied yet."""
    async with postgres.connected() as connection:
        await prepare(connection, postgres.url)
    await killed(postgres, f"LOCK TABLE restante.{table} IN SHARE MODE", data, postgres.url)
    assert not any(counts(postgres).values())
    assert (await migrate(data, postgres.url)).copied
    back = tmp_path / "back"
    await killed(postgres, f"LOCK TABLE restante.{table} IN ACCESS EXCLUSIVE MODE", postgres.url, back)
    if table == "nameplates":  # it is read first: a source without data leaves no target
        assert not back.exists()
    else:
        assert not any(select(back / FILE, f"SELECT count(*) FROM {name}")[0][0] for name in migration.RECORDS)
    assert (await migrate(postgres.url, back)).copied
    assert rows(back) == rows(data)


async def killed(server: Cluster, lock: str, source: Path | str, target: Path | str) -> None:
    async with server.connected() as holder, server.connected() as watcher:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(lock)
        async with child(*RESTANTE, "migrate", "--from", str(source), "--to", str(target)) as command:
            async with bounded("a command that waits for a lock"):
                while not await watcher.fetchval(WAITING):
                    assert command.running, command.said
                    await asyncio.sleep(0.01)
            command.kill()
            await command.ended()
        await transaction.rollback()


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("there", [True, False])
async def test_while_a_server_uses_the_data_directory_nothing_is_copied(
    postgres: Cluster, data: Path, tmp_path: Path, there: bool
) -> None:
    await migrate(data, postgres.url)
    source, target = (data, postgres.url) if there else (postgres.url, tmp_path / "back")
    flag = "--from" if there else "--to"
    refused = pytest.raises(InUse, match=f"another process is using .*: stop it, or name another with {flag}")
    with lock_data_directory(data if there else tmp_path / "back"), refused:
        await migrate(source, target)


@pytest.mark.parametrize("there", [True, False])
async def test_while_a_server_has_the_lease_nothing_is_copied(
    postgres: Cluster, data: Path, tmp_path: Path, there: bool
) -> None:
    store = await take_over(postgres)
    migrating = asyncio.create_task(migrate(*((data, postgres.url) if there else (postgres.url, tmp_path / "back"))))
    async with bounded("a refusal"):
        while not migrating.done():
            await store.renew()
            await asyncio.sleep(0.01)
    with pytest.raises(InUse, match=r"a server uses postgresql://.*: stop all its servers"):
        await migrating
    await store.renew()
    assert not any(counts(postgres).values())
    await store.close()


async def test_a_server_that_was_killed_does_not_prevent_it_and_one_that_hung_writes_nothing_more(
    postgres: Cluster,
) -> None:
    store, connection = await take_over(postgres), await connect(postgres.url)
    ledger = await Ledger.begin(store)
    ledger.open("a", "m")
    times = iter((100.0, 100.0 + TTL_SECONDS))
    async with without_servers(connection, postgres.url, lambda: next(times)):
        pass
    with pytest.raises(TermOver):
        await ledger.commit(store)
    assert (await read_lease(connection)).released
    await connection.close()


async def test_a_server_that_starts_meanwhile_waits_and_then_has_all(postgres: Cluster, data: Path) -> None:
    async with postgres.connected() as connection, postgres.connected() as watcher:
        async with without_servers(connection, postgres.url):
            starting = asyncio.create_task(take_over(postgres))
            async with bounded("a server that waits for a lock"):
                while not await watcher.fetchval(WAITING):
                    assert not starting.done()
                    await asyncio.sleep(0.01)
            await connection.execute("UPDATE restante.service SET seconds = 5")
        store = await starting
    assert store.service == 5.0
    await store.close()


async def test_a_wait_for_the_standby_that_is_cancelled_is_said_and_the_next_attempt_waits(
    postgres: Cluster, data: Path, tmp_path: Path
) -> None:
    async with without_standby(postgres), postgres.connected() as other:

        async def cancelled(source: Path | str, target: Path | str) -> migration.Migration:
            waiting, migrating = False, asyncio.create_task(migrate(source, target))
            async with bounded("a command that waits for the standby"):
                while not waiting:
                    assert not migrating.done()
                    waiting = await other.fetchval(
                        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                    )
            return await migrating

        for _ in range(2):
            with pytest.raises(StoreError, match="may not have reached its standby: run the command again"):
                await cancelled(data, postgres.url)
        assert (await cancelled(postgres.url, tmp_path / "back")).copied, "what was read is in the target"
    assert not (await migrate(data, postgres.url)).copied


async def test_a_row_that_arrives_otherwise_is_noticed(postgres: Cluster, data: Path) -> None:
    async with postgres.connected() as connection:
        await prepare(connection, postgres.url)
        await connection.execute(
            "CREATE FUNCTION restante.alter() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " NEW.total_time := NEW.total_time + 1; RETURN NEW; END $$;"
            "CREATE TRIGGER alter BEFORE INSERT ON restante.usage_mailboxes"
            " FOR EACH ROW EXECUTE FUNCTION restante.alter();"
        )
    with pytest.raises(StoreError, match=r"does not have what .* has; nothing was changed"):
        await migrate(data, postgres.url)
    assert not any(counts(postgres).values())


async def test_a_connection_that_is_cut_leaves_nothing(postgres: Cluster, data: Path) -> None:
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'restante'"

    def advance(_rows: int) -> None:
        postgres.rows(cut)

    with pytest.raises(StoreError, match=r"postgresql://.*; run the command again"):
        await migration.migrate(str(data), postgres.url, advance)
    assert (await migrate(data, postgres.url)).copied


async def test_a_disk_that_is_full_leaves_nothing(postgres: Cluster, data: Path, tmp_path: Path) -> None:
    alter(data / FILE, "UPDATE messages SET body = '\"' || hex(zeroblob(1000000)) || '\"'")
    await migrate(data, postgres.url)
    with (
        no_file_beyond(1_000_000),
        pytest.raises(StoreError, match=r"back/restante\.sqlite: .*; run the command again"),
    ):
        await migrate(postgres.url, tmp_path / "back")
    assert (await migrate(postgres.url, tmp_path / "back")).copied
    assert rows(tmp_path / "back") == rows(data)


async def test_a_source_without_data_is_refused_and_leaves_no_trace(postgres: Cluster, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"postgresql://.* has nothing to copy: name another .* with --from"):
        await migrate(postgres.url, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "new").mkdir()
    open_database(str(tmp_path / "new" / FILE)).close()
    with pytest.raises(Misuse, match="has nothing to copy"):
        await migrate(tmp_path / "new", postgres.url)
    assert postgres.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'restante'") == []


async def test_a_damaged_source_is_refused(postgres: Cluster, data: Path) -> None:
    alter(data / FILE, "UPDATE messages SET mailbox = 99")
    with pytest.raises(StoreDamaged, match=r"is damaged \(it has messages without a mailbox\): restore a backup"):
        await migrate(data, postgres.url)
