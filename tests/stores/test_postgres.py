"""The lease of servers that share a database: who may write, who takes over, and when a term is over."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import re
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

import restante.common.postgres
from restante.common.errors import Misuse, StoreBusy, StoreError, StoreFull
from restante.common.logs import log_loop_errors
from restante.common.postgres import connect
from restante.mailbox.core import model
from restante.mailbox.server.commit_loop import CommitLoop, Retention
from restante.mailbox.store import status
from restante.mailbox.store.interface import TermOver
from restante.mailbox.store.postgres import (
    NOT_SYNCHRONOUS,
    POLL_SECONDS,
    SYNCHRONOUS,
    TRUST_SECONDS,
    TTL_SECONDS,
    Lease,
    LeaseWatch,
    Node,
    PostgresStore,
    boot_time,
    prepare,
    read_lease,
    reading,
    watch_lease,
)
from support.bounds import BOUND, bounded
from support.certificates import Certificate
from support.dice import FakeDice
from support.effort import examples
from support.loops import in_every_turn, meanwhile, on_uvloop, until
from support.mailbox.givens import FakeClock, Inbox
from support.mailbox.ledger import APP, Ledger
from support.mailbox.picture import picture
from support.postgres import Cluster, without_standby

pytestmark = pytest.mark.xdist_group("postgres")

WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
"""How many calls wait for a lock."""


async def take_over(server: Cluster, node: str, clock: FakeClock | None = None, url: str = "") -> PostgresStore:
    """Begin a term, whatever the clocks say."""
    connection = await connect(url or server.url)
    await prepare(connection, server.url)
    read = boot_time if clock is None else clock.monotonic
    store = await PostgresStore.take_over(connection, await read_lease(connection), node, read)
    assert store is not None
    return store


@pytest.fixture
async def store(postgres: Cluster) -> AsyncIterator[PostgresStore]:
    store = await take_over(postgres, "a")
    yield store
    store.abandon()


# ── who may write ────────────────────────────────────────────────────────────────────────────────


async def test_a_server_whose_term_is_over_writes_nothing(postgres: Cluster, store: PostgresStore) -> None:
    ledger = await Ledger.begin(store)
    ledger.open("a", "m")
    await ledger.commit(store)
    second = await take_over(postgres, "b")
    before = picture(await second.view())
    ledger.add("a", "m", b'"00"')
    with pytest.raises(TermOver, match=r"term 1 is over: another server has taken over, or the lease is lost$"):
        await ledger.commit(store)
    assert picture(await second.view()) == before
    for use in (store.view(), store.renew(), store.confirm(), store.forget_usage(1e12, 1)):
        with pytest.raises(TermOver):
            await use
    await store.close()
    assert postgres.rows("SELECT term, node, released FROM restante.lease") == [(2, "b", False)]
    await second.close()
    assert postgres.rows("SELECT term, node, released FROM restante.lease") == [(2, "b", True)]


async def test_a_term_is_that_of_one_connection(postgres: Cluster, store: PostgresStore) -> None:
    """A pooler may give each transaction another one, and that to a database which lacks what was stored last."""
    ledger = await Ledger.begin(store)
    ledger.open("a", "m")
    own = store._connection
    for use in (lambda: ledger.commit(store), store.renew):
        store._connection = await connect(postgres.url)
        with pytest.raises(TermOver, match="pool_mode = session"):
            await use()
    store._connection = own
    assert (await store.view()).mailbox_count == 0
    postgres.rows("UPDATE restante.lease SET started = 'epoch'")  # another one's process had the same number
    with pytest.raises(TermOver, match="pool_mode = session"):
        await store.renew()


async def test_a_take_over_waits_for_the_batch_that_is_under_way(postgres: Cluster, store: PostgresStore) -> None:
    batch = store._connection
    async with postgres.connected() as watcher:
        transaction = batch.transaction()
        await transaction.start()
        await batch.execute("SELECT restante.fence(1)")
        await batch.execute("UPDATE restante.service SET seconds = 5")
        taking_over = asyncio.create_task(take_over(postgres, "b"))
        async with bounded("a take-over that waits for a lock"):
            while not await watcher.fetchval(WAITING):
                assert not taking_over.done()
                await asyncio.sleep(0)
        await transaction.commit()
        second = await taking_over
    assert second.service == 5.0
    second.abandon()


async def test_of_two_servers_that_take_over_at_once_one_does(postgres: Cluster, store: PostgresStore) -> None:
    async with postgres.connected() as first, postgres.connected() as second:
        row = await read_lease(first)
        assert await PostgresStore.take_over(first, row, "b") is not None
        assert await PostgresStore.take_over(second, row, "c") is None
        await first.execute("SELECT restante.renew(2)")
        assert await PostgresStore.take_over(second, Lease(2, "b", 0, released=False), "c") is None


@pytest.mark.parametrize(("setting", "stored"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")])
async def test_a_batch_and_a_renewal_are_flushed_whatever_the_database_says(
    postgres: Cluster, setting: str, stored: str
) -> None:
    async with postgres.connected() as connection:
        await connection.execute(f"ALTER DATABASE postgres SET synchronous_commit = {setting}")
    try:
        store = await take_over(postgres, "a")
        async with postgres.connected() as connection:
            await connection.execute(
                "CREATE TABLE restante.seen (value text);"
                "CREATE FUNCTION restante.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " INSERT INTO restante.seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$;"
                "CREATE TRIGGER see BEFORE INSERT ON restante.mailboxes"
                " FOR EACH ROW EXECUTE FUNCTION restante.see();"
                "CREATE TRIGGER see BEFORE UPDATE ON restante.lease FOR EACH ROW EXECUTE FUNCTION restante.see();"
            )
        ledger = await Ledger.begin(store)
        ledger.open("a", "m")
        await ledger.commit(store)
        await store.renew()
        assert postgres.rows("SELECT DISTINCT value FROM restante.seen") == [(stored,)]
        assert await store._connection.fetchval("SHOW synchronous_commit") == setting
        await store.close()
    finally:
        async with postgres.connected() as connection:
            await connection.execute("ALTER DATABASE postgres RESET synchronous_commit")


# ── who takes over, and when ─────────────────────────────────────────────────────────────────────


def test_a_server_takes_over_when_the_lease_has_not_changed_for_its_time_to_live() -> None:
    watch, row = LeaseWatch(), Lease(7, "a", 1, released=False)
    assert not watch.may_take_over(row, 100.0)
    assert not watch.may_take_over(row, 100.0 + TTL_SECONDS - 0.01)
    renewed = row._replace(renewals=2)
    assert not watch.may_take_over(renewed, 100.0 + TTL_SECONDS)
    assert not watch.may_take_over(renewed, 100.0 + 2 * TTL_SECONDS - 0.01)
    assert watch.may_take_over(renewed, 100.0 + 2 * TTL_SECONDS)


def test_a_server_that_was_stopped_looks_at_the_lease_again_before_it_takes_over() -> None:
    watch, row = LeaseWatch(), Lease(7, "a", 1, released=False)
    assert not watch.may_take_over(row, 100.0)
    assert not watch.may_take_over(row._replace(renewals=31), 130.0)


def test_a_server_takes_over_at_once_from_one_that_has_released_the_lease_and_from_itself() -> None:
    assert LeaseWatch().may_take_over(Lease(7, "a", 1, released=True), 100.0)
    assert LeaseWatch((7, "a")).may_take_over(Lease(7, "a", 1, released=False), 100.0)
    assert not LeaseWatch((6, "a")).may_take_over(Lease(7, "a", 1, released=False), 100.0)


async def test_a_server_does_not_take_the_lease_of_another_in_a_new_schema_for_its_own(postgres: Cluster) -> None:
    """There the terms begin with 1 again."""
    first, second = Node(postgres.url, "a"), Node(postgres.url, "b")
    store = await first.take_over()
    await store.view()
    store.abandon()
    postgres.rows("DROP SCHEMA restante CASCADE")
    store = await second.take_over()
    taking_over = asyncio.create_task(first.take_over())
    async with bounded("a node that stands by"):
        while first.reason != "b has the lease":
            assert not taking_over.done()
            await asyncio.sleep(0.01)
    await store.close()
    (await taking_over).abandon()


async def test_a_batch_without_changes_is_answered_without_the_database_only_in_the_trust_window(
    postgres: Cluster,
) -> None:
    clock = FakeClock()
    store = await take_over(postgres, "a", clock)

    def renewals() -> int:
        [(number,)] = postgres.rows("SELECT renewals FROM restante.lease")
        return int(number)

    clock.now += TRUST_SECONDS - 0.01
    await store.confirm()
    assert renewals() == 0
    clock.now += 0.01
    await store.confirm()
    assert renewals() == 1
    clock.now += TRUST_SECONDS - 0.01
    await store.confirm()
    assert renewals() == 1
    await (await take_over(postgres, "b")).close()
    clock.now += 0.01
    with pytest.raises(TermOver):
        await store.confirm()


async def test_while_a_server_answers_without_the_database_no_other_may_take_over(postgres: Cluster) -> None:
    """The other one saw its last renewal at once, and has a clock that gains a second meanwhile."""
    clock, watch = FakeClock(), LeaseWatch()
    store = await take_over(postgres, "a", clock)
    async with postgres.connected() as other:
        row = await read_lease(other)
    assert not watch.may_take_over(row, clock.now)
    await (await take_over(postgres, "b")).close()  # so `confirm` fails as soon as it asks the database

    async def answer_until_the_database_is_asked() -> None:
        for _ in range(200):
            await store.confirm()
            assert not watch.may_take_over(row, clock.now + 1.0)
            clock.now += 1 / 16

    with pytest.raises(TermOver):
        await answer_until_the_database_is_asked()
    assert clock.now > 1.0


async def test_a_server_renews_its_term_while_it_is_trusted(
    postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    clock, renewals = FakeClock(uptime=loop.time()), list[float]()
    store = await take_over(postgres, "a", clock)

    async def renew() -> None:
        renewals.append(clock.now)

    def let_time_pass() -> None:
        clock.now += 1 / 64

    monkeypatch.setattr(store, "renew", renew)
    with monkeypatch.context() as patched:
        patched.setattr(loop, "time", clock.monotonic)
        async with meanwhile(store.hold()), in_every_turn(let_time_pass):
            await until("two renewals", lambda: len(renewals) == 2)
    clock.now = renewals[1] - renewals[0]
    await store.confirm()
    assert len(renewals) == 2
    store.abandon()


@pytest.mark.parametrize("call", ["take_over", "view", "renew"])
async def test_a_server_is_trusted_from_the_beginning_of_a_renewal(postgres: Cluster, call: str) -> None:
    clock = FakeClock()
    store = await take_over(postgres, "a", clock)

    async def renew() -> PostgresStore:
        if call == "take_over":
            return await take_over(postgres, "a", clock)
        await getattr(store, call)()
        return store

    async with postgres.connected() as other, other.transaction():
        await other.execute("SELECT 1 FROM restante.lease FOR SHARE")
        renewing = asyncio.create_task(renew())
        async with bounded("a renewal that waits for a lock"):
            while not await other.fetchval(WAITING):
                assert not renewing.done()
                await asyncio.sleep(0)
        clock.now += TRUST_SECONDS
    renewed = await renewing
    await (await take_over(postgres, "b")).close()
    with pytest.raises(TermOver):
        await renewed.confirm()
    store.abandon()


async def test_a_command_that_only_reads_is_not_answered_when_the_term_may_be_over(postgres: Cluster) -> None:
    clock, inbox = FakeClock(), Inbox()
    store = await take_over(postgres, "a", clock)
    commit_loop = await CommitLoop.open(store, clock, FakeDice(), model.Policy(), Retention(660.0))
    commit_loop.dispatcher.add_connection(inbox.connection)
    running = asyncio.create_task(commit_loop.run())
    commit_loop.receive(inbox.connection, '{"type": "ping", "ping": 1}', commit_loop.now())
    await until("a pong", lambda: len(inbox.frames) == 2)
    second = await take_over(postgres, "b")
    clock.now += TRUST_SECONDS
    commit_loop.receive(inbox.connection, '{"type": "ping", "ping": 2}', commit_loop.now())
    await until("an answer, or the end", lambda: running.done() or len(inbox.frames) > 2)
    assert [frame["type"] for frame in inbox.frames] == ["ack", "pong"]
    with pytest.raises(TermOver):
        await running
    await second.close()


async def test_a_command_that_only_reads_is_not_answered_with_a_batch_that_was_refused_before_the_lease_was_locked(
    postgres: Cluster,
) -> None:
    clock, inbox = FakeClock(), Inbox()
    store = await take_over(postgres, "a", clock)
    commit_loop = await CommitLoop.open(store, clock, FakeDice(), model.Policy(), Retention(660.0))
    commit_loop.dispatcher.add_connection(inbox.connection)
    running = asyncio.create_task(commit_loop.run())
    commit_loop.receive(inbox.connection, '{"type": "bind", "appid": "x", "side": "a"}', commit_loop.now())
    await until("an ack", lambda: len(inbox.frames) == 1)
    clock.now += TRUST_SECONDS
    async with postgres.connected() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT restante.take_over(term, renewals, 'b') FROM restante.lease")
        commit_loop.commit_deferred()  # the usage record of the bind
        commit_loop.receive(inbox.connection, '{"type": "ping", "ping": 1}', commit_loop.now())
        async with bounded("a batch that waits for a lock"):
            while not await other.fetchval(WAITING):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0)
        await other.execute("SELECT pg_cancel_backend(pid) FROM pg_locks WHERE NOT granted")
        async with bounded("a renewal that waits for a lock, or an answer"):
            while len(inbox.frames) == 1 and not await other.fetchval(WAITING):  # noqa: ASYNC110 - the same
                await asyncio.sleep(0)
        await transaction.commit()
    assert [frame["type"] for frame in inbox.frames] == ["ack"]
    with pytest.raises(TermOver):
        await running


async def test_to_read_the_state_renews_the_lease(postgres: Cluster, store: PostgresStore) -> None:
    """A server that waits has seen no renewal for as long as that took."""
    await store.view()
    assert postgres.rows("SELECT term, renewals FROM restante.lease") == [(1, 1)]


async def test_a_server_is_not_replaced_while_it_reads_the_state_however_long_that_takes(
    postgres: Cluster, store: PostgresStore
) -> None:
    """Otherwise servers would replace one another, and none would get to the end of a large state."""
    async with postgres.connected() as second, postgres.connected() as other:
        row = await read_lease(second)
        async with other.transaction(), bounded("a server that reads, and one that waits for it"):
            await other.execute("LOCK TABLE restante.messages")
            reading = asyncio.create_task(store.view())
            while not await other.fetchval(WAITING):
                assert not reading.done()
            taking_over = asyncio.create_task(PostgresStore.take_over(second, row, "b"))
            while await other.fetchval(WAITING) < 2:
                assert not taking_over.done()
        assert await taking_over is None
    assert (await reading).mailbox_count == 0


async def test_a_node_waits_while_another_has_the_lease_and_then_takes_over(postgres: Cluster) -> None:
    first, second = Node(postgres.url, "a"), Node(postgres.url, "b")
    store = await first.take_over()
    taking_over = asyncio.create_task(second.take_over())
    async with bounded("a node that stands by"):
        while second.reason != "a has the lease":  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.01)
    assert (first.serving, second.serving) == (True, False)
    await store.close()
    after = await taking_over
    assert (second.serving, second.term, second.take_overs, second.reason) == (True, 2, 1, "")
    await after.close()


async def test_a_server_that_could_not_read_the_state_does_not_take_over_again_before_others(
    postgres: Cluster,
) -> None:
    clock = FakeClock()
    node = Node(postgres.url, "a", clock.monotonic)
    store = await node.take_over()
    async with postgres.connected() as other:
        await other.execute("ALTER TABLE restante.messages RENAME TO others")
        with pytest.raises(TermOver, match="messages"):
            await store.view()
    taking_over = asyncio.create_task(node.take_over())
    async with bounded("a node that stands by"):
        while node.reason != "a has the lease":
            assert not taking_over.done()
            await asyncio.sleep(0.01)
    clock.now += TTL_SECONDS + 2 * POLL_SECONDS
    (await taking_over).abandon()


async def test_the_log_says_once_that_no_standby_of_the_database_is_synchronous(postgres: Cluster) -> None:
    node = Node(postgres.url, "a")
    with capture_logs() as logged:
        for _ in range(2):
            await (await node.take_over()).close()
    assert [event["event"] for event in logged].count(NOT_SYNCHRONOUS) == 1
    async with without_standby(postgres), bounded("another setting"):
        while postgres.rows(SYNCHRONOUS) != [(True,)]:
            pass


# ── what others see ──────────────────────────────────────────────────────────────────────────────


def watched(server: Cluster, meanwhile: Callable[[], object] = lambda: None) -> tuple[Lease, bool]:
    """Look at the lease; `meanwhile` happens between the first two looks."""
    clock, happen = FakeClock(), [meanwhile]

    def sleep(seconds: float) -> None:
        clock.now += seconds
        if happen:
            happen.pop()()

    with reading(server.url) as database:
        return watch_lease(database, clock.monotonic, sleep)


async def test_a_server_works_if_it_renews_its_lease_while_somebody_looks(
    postgres: Cluster, store: PostgresStore
) -> None:
    loop = asyncio.get_running_loop()

    def renew() -> None:
        asyncio.run_coroutine_threadsafe(store.renew(), loop).result(BOUND)

    assert await asyncio.to_thread(watched, postgres, renew) == (Lease(1, "a", 1, released=False), True)
    assert await asyncio.to_thread(watched, postgres) == (Lease(1, "a", 1, released=False), False)
    await store.close()
    assert await asyncio.to_thread(watched, postgres) == (Lease(1, "a", 1, released=True), False)


async def test_who_reads_waits_for_no_batch_and_no_batch_for_it(postgres: Cluster, store: PostgresStore) -> None:
    ledger = await Ledger.begin(store)
    under_way = Event()
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def read() -> list[tuple[int]]:
        with reading(postgres.url) as database, database.snapshot():
            database.execute("SELECT count(*) FROM mailboxes")
            loop.call_soon_threadsafe(begun.set)
            assert under_way.wait(BOUND)
            return database.execute("SELECT count(*) FROM mailboxes")

    counting = asyncio.create_task(asyncio.to_thread(read))
    await begun.wait()
    ledger.open("a", "m")
    await ledger.commit(store)
    async with store._connection.transaction():
        await store._connection.execute("SELECT restante.fence(1)")
        under_way.set()
        assert await counting == [(0,)]


def test_a_database_without_data_of_a_server_is_the_operator_s_mistake(postgres: Cluster) -> None:
    with pytest.raises(Misuse, match="there is no mailbox server's data in postgresql://"):
        status.read_status(postgres.url)


@pytest.mark.parametrize("login", ["hid/den@db", "hid?den@db", "hid#den@db", "hid@den@db", "hidden"])
def test_of_a_malformed_url_nothing_is_named(login: str) -> None:
    with pytest.raises(Misuse, match="the URL of the database is malformed") as refusal:
        status.read_status(f"postgresql://me:{login}/restante")
    assert not re.search("hid|den", str(refusal.value))


# ── when a term is over ──────────────────────────────────────────────────────────────────────────


async def test_a_term_is_over_with_its_connection(postgres: Cluster, store: PostgresStore) -> None:
    holding = asyncio.create_task(store.hold())
    await asyncio.sleep(0)
    async with postgres.connected() as connection:
        [(pid,)] = await store._connection.fetch("SELECT pg_backend_pid()")
        await connection.execute("SELECT pg_terminate_backend($1)", pid)
        with pytest.raises(TermOver):  # at once, not at the next renewal
            await holding
        with pytest.raises(TermOver):
            await store.apply([], (await Ledger.begin(store)).now)


async def test_a_batch_whose_connection_is_cut_while_it_waits_is_not_stored(
    postgres: Cluster, store: PostgresStore
) -> None:
    ledger = await Ledger.begin(store)
    ledger.open("a", "m")
    [(pid,)] = await store._connection.fetch("SELECT pg_backend_pid()")
    async with postgres.connected() as other, other.transaction():
        await other.execute("SELECT 1 FROM restante.lease FOR UPDATE")
        committing = asyncio.create_task(ledger.commit(store))
        async with bounded("a batch that waits for a lock"):
            while not await other.fetchval(WAITING):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0)
        await other.execute("SELECT pg_terminate_backend($1)", pid)
        with pytest.raises(TermOver):
            await committing
    after = await take_over(postgres, "a")
    assert (await after.view()).mailbox_count == 0
    await after.close()


@asynccontextmanager
async def losing_answers(server: Cluster) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Yield the URL of a proxy of the server, and an event: once it is set, an answer ends its connection."""
    lose = asyncio.Event()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        while (data := await reader.read(1 << 16)) and not (answers and lose.is_set()):
            writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        its_reader, its_writer = await asyncio.open_unix_connection(server.folder / ".s.PGSQL.5432")
        await asyncio.gather(
            pump(reader, its_writer, answers=False), pump(its_reader, writer, answers=True), return_exceptions=True
        )
        its_writer.close()

    with TemporaryDirectory(prefix="pg.") as folder:
        async with await asyncio.start_unix_server(relay, Path(folder) / ".s.PGSQL.5432"):
            yield server.url.replace(str(server.folder), folder), lose


async def test_a_term_is_over_if_the_database_s_host_is_gone_while_a_batch_waits_for_it(
    postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has acknowledged the call. The kernel has nothing to send again, and would wait for ever."""
    monkeypatch.setattr(restante.common.postgres, "DEAD_PEER_MS", 1000)
    writers: list[asyncio.StreamWriter] = []
    gone = asyncio.Event()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        while data := await reader.read(1 << 16):
            if answers and gone.is_set():
                drop_all(writer)
            else:
                writer.write(data)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        its_reader, its_writer = await asyncio.open_unix_connection(postgres.folder / ".s.PGSQL.5432")
        writers.extend((writer, its_writer))
        await asyncio.gather(
            pump(reader, its_writer, answers=False), pump(its_reader, writer, answers=True), return_exceptions=True
        )

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        store = await take_over(postgres, "a", url=f"postgresql://restante@127.0.0.1:{port}/postgres")
        await store.renew()  # the call is prepared
        gone.set()
        async with bounded("the end of a connection that nobody acknowledges"):
            with pytest.raises(TermOver):
                await store.renew()
        for writer in writers:
            writer.close()


def drop_all(writer: asyncio.StreamWriter) -> None:
    """Let the kernel drop what comes, unacknowledged, by a filter that takes no byte of it (socket(7))."""
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # linux/bpf_common.h: BPF_RET, BPF_K
    program = struct.pack("HP", 1, ctypes.addressof(code))
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER


async def test_a_server_that_hangs_while_it_reads_the_state_is_replaced(
    postgres: Cluster, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has locked the lease."""

    async def hang(_: object) -> AsyncIterator[None]:
        hanging.set()
        await resumed.wait()
        return
        yield

    hanging, resumed = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(store, "_chunks", hang)
    reading = asyncio.create_task(store.view())
    await hanging.wait()
    async with bounded("a take-over from a server that hangs"):
        await (await take_over(postgres, "b")).close()
    resumed.set()
    with pytest.raises(TermOver):
        await reading


async def test_a_batch_whose_answer_is_lost_is_seen_in_the_next_term(postgres: Cluster) -> None:
    async with losing_answers(postgres) as (url, lose):
        store = await take_over(postgres, "a", url=url)
        ledger = await Ledger.begin(store)
        ledger.open("a", "m")
        await ledger.commit(store)  # the call is prepared, so the next answer says that a batch is stored
        ledger.open("a", "n")
        lose.set()
        with pytest.raises(TermOver):
            await ledger.commit(store)
    after = await take_over(postgres, "a")
    assert list((await after.view()).app(APP).mailboxes) == ["m", "n"]
    await after.close()


async def test_a_batch_whose_wait_for_the_standby_is_cancelled_is_not_answered(
    postgres: Cluster, store: PostgresStore
) -> None:
    """The database answers as if it had waited, with a warning. The next term begins with a COMMIT that waits."""
    await store._connection.execute("SET client_min_messages = error")  # as a role may have it
    ledger = await Ledger.begin(store)
    ledger.open("a", "m")
    async with without_standby(postgres), postgres.connected() as other:
        committing = asyncio.create_task(ledger.commit(store))
        async with bounded("a batch that waits for the standby"):
            while not await other.fetch("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"):
                assert not committing.done()
        await other.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        with pytest.raises(TermOver, match="standby"):
            await committing
    assert store._connection.is_closed()
    assert postgres.rows("SELECT mailbox_id FROM restante.mailboxes") == [("m",)]


async def test_a_term_is_over_if_it_is_replaced_before_its_state_is_read(
    postgres: Cluster, store: PostgresStore
) -> None:
    async with postgres.connected() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT restante.take_over(1, 0, 'b')")
        reading = asyncio.create_task(store.view())
        async with bounded("a view that waits for a lock"):
            while not await other.fetchval(WAITING):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0)
        await transaction.commit()
        with pytest.raises(TermOver):
            await reading


FULL = (
    "CREATE FUNCTION restante.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$;"
    "CREATE TRIGGER refuse BEFORE INSERT ON restante.messages FOR EACH ROW EXECUTE FUNCTION restante.refuse();"
)


async def test_a_batch_that_a_full_disk_refuses_leaves_nothing_and_the_term_goes_on(
    postgres: Cluster, store: PostgresStore
) -> None:
    async with postgres.connected() as connection:
        await connection.execute(FULL)
        ledger = await Ledger.begin(store)
        ledger.open("a", "m")
        ledger.add("a", "m", b'"00"')
        with pytest.raises(StoreFull, match="no space left"):
            await ledger.commit(store)
        assert (await store.view()).mailbox_count == 0
        await connection.execute("DROP TRIGGER refuse ON restante.messages")
    again = await Ledger.begin(store)
    again.open("a", "m")
    await again.commit(store)
    assert list((await store.view()).app(APP).mailboxes) == ["m"]


strange_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9) | st.text(
    "\0\x01\x7f\ufeff\U0010ffff'\\\"{},a"
)
strange_names = st.one_of(
    strange_texts.map(json.dumps),
    strange_texts.map(partial(json.dumps, ensure_ascii=False)),
    st.sampled_from(
        ('"\\u0000"', '"\0"', '"\\ud800"', '"\\udfff\\ud800"', json.dumps("\U0010ffff" * 500), '"NULL"', '"{}"')
    ),
)
strange_values = strange_names | st.sampled_from(
    ("-0.0", "1e400", "9" * 4000, f"[{'[' * 900}{']' * 900}]", "null", "true", '{"": []}', "[[null]]")
)


@examples(25)
@given(
    names=st.tuples(*[strange_names] * 4),
    values=st.tuples(*[strange_values] * 5),
    nameplate=st.text("0123456789", min_size=1, max_size=40),
    binary=st.booleans(),
)
def test_postgresql_refuses_nothing_that_clients_send(
    postgres: Cluster,
    names: tuple[str, ...],
    values: tuple[str, ...],
    nameplate: str,
    binary: bool,
) -> None:
    """So no batch is refused for its content."""
    app_id, side, mailbox_id, mood = names
    phase, body, number, implementation, version = values
    bind = '{{"type": "bind", "appid": {}, "side": {}, "client_version": [{}, {}]}}'
    rest = (
        f'{{"type": "claim", "nameplate": "{nameplate}"}}',
        f'{{"type": "open", "mailbox": {mailbox_id}}}',
        f'{{"type": "add", "phase": {phase}, "body": {body}, "id": {number}}}',
    )
    sides = (
        (bind.format(app_id, side, implementation, version), *rest, f'{{"type": "close", "mood": {mood}}}'),
        (bind.format(app_id, '"b"', implementation, version), *rest),  # it keeps the mailbox
    )

    async def converse() -> None:
        store, clock = await take_over(postgres, "a"), FakeClock()
        commit_loop = await CommitLoop.open(store, clock, FakeDice(), model.Policy(), Retention(660.0))
        running = asyncio.create_task(commit_loop.run())
        for texts in sides:
            connection = Inbox().connection
            commit_loop.dispatcher.add_connection(connection)
            for text in texts:
                commit_loop.receive(connection, text.encode() if binary else text, commit_loop.now())
        commit_loop.stop()
        await running
        stored = await store.view()
        await store.close()
        assert commit_loop.measurements.batches_not_stored == 0
        assert picture(stored, touches=False) == picture(commit_loop.dispatcher.state, touches=False)

    asyncio.run(converse())


# ── databases that cannot be used ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ("CREATE SCHEMA restante; CREATE TABLE restante.other ()", "of another program: use another database"),
        ("CREATE SCHEMA restante; CREATE TABLE restante.schema AS SELECT 2 AS version", "use the newer restante"),
    ],
)
async def test_another_program_s_database_is_refused(postgres: Cluster, made: str, sentence: str) -> None:
    async with postgres.connected() as connection:
        await connection.execute(made)
    with pytest.raises(StoreError, match=sentence) as refusal:
        await Node(postgres.url, "a").take_over()
    assert not isinstance(refusal.value, StoreBusy)
    assert len(postgres.rows("SELECT 1 FROM pg_tables WHERE schemaname = 'restante'")) == 1


async def test_a_server_that_waits_does_not_take_over_when_a_newer_one_has_converted_the_tables(
    postgres: Cluster, store: PostgresStore
) -> None:
    node = Node(postgres.url, "b")
    taking_over = asyncio.create_task(node.take_over())
    async with bounded("a node that stands by"):
        while node.reason != "a has the lease":  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
    postgres.rows("UPDATE restante.schema SET version = 2")
    await store.close()
    with pytest.raises(StoreError, match="use the newer restante"):
        await taking_over


async def test_the_user_needs_its_schema_and_no_right_to_the_database(postgres: Cluster) -> None:
    url = postgres.url.replace("restante@", "writer@")
    async with postgres.connected() as owner:
        await owner.execute("CREATE ROLE writer LOGIN")
        try:
            with pytest.raises(
                Misuse, match=r"permission denied for database .* CREATE SCHEMA restante AUTHORIZATION"
            ):
                await Node(url, "a").take_over()
            await owner.execute("CREATE SCHEMA restante AUTHORIZATION writer")
            store = await Node(url, "a").take_over()
            ledger = await Ledger.begin(store)
            ledger.open("a", "m")
            await ledger.commit(store)
            await store.close()
        finally:
            await owner.execute("DROP OWNED BY writer CASCADE; DROP ROLE writer")


@on_uvloop
async def test_who_stops_while_the_name_of_the_host_is_looked_up_logs_no_error() -> None:
    """uvloop goes on with the look-up."""
    loop, name = asyncio.get_running_loop(), "no name"  # which no server of names is asked for
    log_loop_errors(loop)
    with capture_logs() as logged:
        connecting = asyncio.create_task(connect(f"postgresql://restante@{name.replace(' ', '%20')}/restante"))
        await asyncio.sleep(0)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        del connecting
        for _ in range(10):  # threads begin look-ups in their order
            with pytest.raises(socket.gaierror):
                await loop.getaddrinfo(name, 1)
        gc.collect()
    assert logged == []


async def test_a_file_of_the_url_that_cannot_be_read_is_named() -> None:
    with pytest.raises(Misuse, match=r"sslrootcert /nowhere/ca\.pem: No such file"):
        await connect("postgresql://restante@localhost/restante?sslmode=verify-full&sslrootcert=/nowhere/ca.pem")


async def test_a_certificate_that_is_not_trusted_is_the_operator_s_mistake(tmp_path: Path) -> None:
    """PostgreSQL answers a request for TLS with S (postgresql.org/docs/18/protocol-flow.html, 54.2.10)."""
    certificate, other = Certificate(tmp_path), Certificate(tmp_path, name="other")

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"S")
        with suppress(OSError):
            await writer.start_tls(certificate.server)
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"postgresql://restante@127.0.0.1:{port}/restante?sslmode=verify-full&sslrootcert={other.path}"
        with pytest.raises(Misuse, match=r"not trusted: self-signed certificate: .*sslrootcert"):
            await connect(url)


async def test_a_server_uses_the_tables_that_another_makes_meanwhile(postgres: Cluster) -> None:
    async with postgres.connected() as first, postgres.connected() as second:
        await second.execute("SET default_transaction_isolation = 'repeatable read'")
        transaction = first.transaction()
        await transaction.start()
        await prepare(first, postgres.url)
        preparing = asyncio.create_task(prepare(second, postgres.url))
        async with bounded("a server that waits for the tables"):
            while not await first.fetchval(WAITING):
                assert not preparing.done()
                await asyncio.sleep(0)
        await transaction.commit()
        await preparing


async def test_a_database_that_does_not_exist_is_the_operator_s_mistake(postgres: Cluster) -> None:
    with pytest.raises(Misuse, match=r"cannot use postgresql://restante@/nowhere\?host=\S+: .*does not exist"):
        await Node(postgres.url.replace("/postgres", "/nowhere"), "a").take_over()


@pytest.mark.parametrize("parameter", ["bogus=1", "statement_timeout=soon"])
async def test_a_parameter_that_the_database_does_not_know_is_the_operator_s_mistake(
    postgres: Cluster, parameter: str
) -> None:
    with pytest.raises(Misuse, match=f"cannot use postgresql://.*{parameter.partition('=')[0]}"):
        async with bounded("an error"):  # a server waits for a database that cannot be reached
            await Node(f"{postgres.url}&{parameter}", "a").take_over()


async def test_a_lost_lease_is_reported(postgres: Cluster, store: PostgresStore) -> None:
    async with postgres.connected() as connection:
        await connection.execute("DELETE FROM restante.lease")
    with pytest.raises(TermOver):
        await store.renew()
    with pytest.raises(StoreError, match="lease is lost"):
        await Node(postgres.url, "a").take_over()


async def test_a_database_that_is_read_only_ends_the_term(postgres: Cluster, store: PostgresStore) -> None:
    """So is one that was demoted to a standby: it answers with 25006, too."""
    await store._connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(TermOver, match="read-only"):
        await store.renew()
    assert store._connection.is_closed()
    assert asyncpg.ReadOnlySQLTransactionError.sqlstate == "25006"
