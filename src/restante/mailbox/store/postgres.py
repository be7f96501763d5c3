"""The store on PostgreSQL: one server has the lease and writes, others wait to take over.

A batch is one call of one SQL function, which commits by itself. Before it writes, it locks the row of the lease for
the server's term, or fails. So a server whose term is over writes nothing, whatever the clocks say. A term ends with
its connection to the database: after any error that leaves open what was stored, the server takes a new term and
reads the state again.

asyncpg's timeouts are not used for these calls. They cancel the statement, and a COMMIT that waits for a synchronous
standby then becomes visible without having reached it (postgresql.org/docs/18/warm-standby.html, "Synchronous
Replication").
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from importlib import resources
from typing import Any, Final, NamedTuple, Self

import asyncpg

from restante.common import postgres
from restante.common.errors import InUse, Misuse, StoreBusy, StoreError, StoreFull
from restante.common.logs import log
from restante.common.postgres import CONNECT_SECONDS, DRIVER_ERRORS, Reader, connect, reason_of
from restante.common.settings import without_password
from restante.common.usage_records import ClientVersion, MailboxUsage, NameplateUsage
from restante.mailbox.core.model import Change, Now
from restante.mailbox.core.state import State
from restante.mailbox.store.interface import Role, TermOver
from restante.mailbox.store.rows import DAMAGE, MAILBOXES, MESSAGES, NAMEPLATES, Parameters, Rows, StateReader

SCHEMA_VERSION: Final = 1
OLDEST_SERVER: Final = 14

SERVER: Final = "restante serve"
"""What the database calls the connections of servers (application_name)."""

TTL_SECONDS: Final = 3.0
"""Seconds without a renewal after which another server may take over."""

RENEWAL_SECONDS: Final = 1.0
"""Seconds between renewals."""

POLL_SECONDS: Final = 0.25
"""Seconds between two looks of a waiting server at the lease, and between its attempts to reach the database."""

TRUST_SECONDS: Final = 2.0
"""Seconds after the beginning of a renewal in which no other server can have taken over: TTL_SECONDS, less a second
for clocks that run differently. In it a batch without changes is answered without asking the database."""

IDLE_LIMIT: Final = f"SET LOCAL idle_in_transaction_session_timeout = '{TTL_SECONDS:g}s'"
"""Lets the database end the connection of a server that hangs in a transaction: others wait for its locks."""

ROWS_PER_FETCH: Final = 2000

IDLE_MINUTES: Final = 10
"""Minutes that a command which has the lease may send nothing, as when its host is lost. Servers wait for it."""

SYNCHRONOUS: Final = "SELECT current_setting('synchronous_standby_names') <> ''"
"""Selects whether a COMMIT waits for a standby (postgresql.org/docs/18/runtime-config-replication.html)."""

NOT_SYNCHRONOUS: Final = (
    "synchronous_standby_names is empty: if the host of the database is lost, commands that were answered and have"
    " not reached a standby of the database are lost, too"
)

SCHEMA_LOCK: Final = 0x52657374
"""The advisory lock that one of several new servers has while it makes the tables."""

PASSING: Final = ("40001", "40P01", "53", "55", "57014", "22", "54")
"""SQLSTATEs, or their first characters, of errors after which nothing of the batch is stored and the connection
goes on (postgresql.org/docs/18/errcodes-appendix.html): a conflict, a full disk or too little memory, a lock, a
statement that an administrator has ended, and a value or a size that the database refuses."""


def boot_time() -> float:
    """Return the seconds since the machine was started, also those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# ── the schema ───────────────────────────────────────────────────────────────────────────────────


async def prepare(connection: asyncpg.Connection, url: str) -> None:
    """Make the tables if there are none. Raises StoreError if the database cannot be used."""
    name = without_password(url)
    if connection.get_server_version().major < OLDEST_SERVER:
        raise StoreError(f"{name}: PostgreSQL {OLDEST_SERVER} or newer is needed")
    encoding = connection.get_settings().server_encoding
    if encoding != "UTF8":
        raise StoreError(f"{name} has the encoding {encoding}: create a database with ENCODING 'UTF8'")
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(f"{IDLE_LIMIT}; SELECT pg_advisory_xact_lock({SCHEMA_LOCK})")
        if await connection.fetchval("SELECT to_regnamespace('restante') IS NULL"):
            await connection.execute("CREATE SCHEMA restante")
        relations = "SELECT FROM pg_class WHERE relnamespace = to_regnamespace('restante')"
        if not await connection.fetchval(f"SELECT EXISTS ({relations})"):
            sql = resources.files("restante.mailbox.store") / "sql" / "postgres-0001.sql"
            await connection.execute(sql.read_text("utf-8"))
        if await connection.fetchval("SELECT to_regclass('restante.schema') IS NULL"):
            raise StoreError(f"{name} has a schema restante of another program: use another database")
        _refuse_newer(await connection.fetchval("SELECT version FROM restante.schema"), name)


def _refuse_newer(version: int, name: str) -> None:
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{name} has schema {version}, this program knows up to {SCHEMA_VERSION}: use the newer restante"
        )


def not_owner(url: str, error: asyncpg.InsufficientPrivilegeError) -> Misuse:
    """Return the error for a user that does not own the schema."""
    return Misuse(
        f"{without_password(url)}: {reason_of(error)}: the user of the URL must own the schema restante and all in"
        " it; if there is no such schema: CREATE SCHEMA restante AUTHORIZATION that user"
    )


@contextlib.contextmanager
def reading(url: str) -> Iterator[Reader]:
    """Connect for reading, even while a server runs. Raises Misuse if there is no data of a server, StoreError."""
    with postgres.reading(url) as database:
        [(exists,)] = database.execute("SELECT to_regclass('restante.schema') IS NOT NULL")
        if not exists:
            raise Misuse(f"there is no mailbox server's data in {without_password(url)}")
        [(version,)] = database.execute("SELECT version FROM restante.schema")
        _refuse_newer(version, without_password(url))
        yield database


def is_cancelled_wait(message: asyncpg.PostgresLogMessage) -> bool:
    """Return whether a message says that a COMMIT has not waited for the standby.

    The call has succeeded, with this warning, whose text depends on the language. asyncpg calls who listens for
    messages before the call returns.
    """
    return bool(message.server_source_filename == "syncrep.c")


# ── the lease ────────────────────────────────────────────────────────────────────────────────────


class Lease(NamedTuple):
    """The row of the lease."""

    term: int
    node: str
    renewals: int
    released: bool


class LeaseWatch:
    """Decides when a server may take over. The clock is its own: it is compared with no other."""

    def __init__(self, own: tuple[int, str] | None = None, longer: float = 0.0) -> None:
        """Begin. `longer`: seconds beyond TTL_SECONDS.

        `own`: the last term of this server, which is over, and its name. Terms begin at 1 again in a schema that was
        dropped and made anew, so another server may have the same term.
        """
        self._own = own
        self._longer = longer
        self._row: Lease | None = None
        self._since = 0.0
        """When the row was first read as it is."""

    def may_take_over(self, row: Lease, now: float) -> bool:
        """Return whether the row, read at `now`, says that no server works."""
        if row != self._row:
            self._row, self._since = row, now
        return row.released or row[:2] == self._own or now - self._since >= TTL_SECONDS + self._longer


LOST_LEASE: Final = "the row of restante.lease is lost: restore it with a term higher than any before"


async def read_lease(connection: asyncpg.Connection) -> Lease:
    """Return the row of the lease. Raises StoreError if it is lost."""
    row = await connection.fetchrow(
        "SELECT term, node, renewals, released FROM restante.lease", timeout=CONNECT_SECONDS
    )
    if row is None:
        raise StoreError(LOST_LEASE)
    return Lease(*row)


@contextlib.asynccontextmanager
async def without_servers(
    connection: asyncpg.Connection, url: str, clock: Callable[[], float] = boot_time
) -> AsyncIterator[None]:
    """Use a database in one transaction, which has the lease. Make the tables if there are none.

    Servers that wait for the lease wait until the transaction ends. The terms of servers that were killed or hang are
    over then. Raises InUse if a server works, StoreError if the database cannot be used.
    """
    in_use = InUse(f"a server uses {without_password(url)}: stop all its servers")
    async with connection.transaction(isolation="read_committed"):
        await prepare(connection, url)
        await connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_MINUTES}min'")
        watch, first = LeaseWatch(), await read_lease(connection)
        row = first
        while not watch.may_take_over(row, clock()):
            await asyncio.sleep(POLL_SECONDS)
            row = await read_lease(connection)
            if row != first:
                raise in_use
        term = await connection.fetchval("SELECT restante.take_over($1, $2, '')", row.term, row.renewals)
        if term is None:
            raise in_use
        yield
        await connection.execute(f"SELECT restante.release({term})")


def watch_lease(
    database: Reader, clock: Callable[[], float] = boot_time, sleep: Callable[[float], None] = time.sleep
) -> tuple[Lease, bool]:
    """Return the row of the lease, and whether its server works: it renews the lease while we look.

    Raises StoreError.
    """
    watch, rows = LeaseWatch(), list[Lease]()
    while True:
        row = database.execute("SELECT term, node, renewals, released FROM lease")
        if not row:
            raise StoreError(LOST_LEASE)
        rows.append(Lease(*row[0]))
        if watch.may_take_over(rows[-1], clock()):
            return rows[-1], False
        if rows[-1] != rows[0]:
            return rows[-1], True
        sleep(POLL_SECONDS)


class Node(Role):
    """One of several servers that share a database."""

    def __init__(self, url: str, name: str, clock: Callable[[], float] = boot_time) -> None:
        """Begin without a term. `name` is for people."""
        super().__init__(serving=False)
        self.name = name
        self.reason = "the server starts"
        """Why this server does not serve."""
        self._url = url
        self._clock = clock
        self._connection: asyncpg.Connection | None = None
        self._last: PostgresStore | None = None
        self._warned = False
        """Whether the log says what may be lost with the host of the database."""

    async def take_over(self) -> PostgresStore:
        """Wait until no other server works, and begin a term. Raises Misuse and StoreError if that cannot help."""
        watch = LeaseWatch((self.term, self.name))
        if self._last is not None and not self._last.was_read:
            watch = LeaseWatch(longer=2 * POLL_SECONDS)  # another server, which may be able to read it, comes first
        try:
            while True:
                try:
                    store = await self._try(watch)
                except asyncpg.InsufficientPrivilegeError as error:
                    raise not_owner(self._url, error) from error
                except (StoreBusy, asyncpg.PostgresError, *DRIVER_ERRORS) as error:
                    self._disconnect()
                    self._wait(str(error) if isinstance(error, StoreBusy) else reason_of(error))
                    store = None
                if store is not None:
                    return store
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self._disconnect()

    async def _try(self, watch: LeaseWatch) -> PostgresStore | None:
        """Look at the lease once, and take over if no other server works."""
        if self._connection is None:
            self._connection = await connect(self._url, SERVER)
            await prepare(self._connection, self._url)
            if not self._warned and not await self._connection.fetchval(SYNCHRONOUS):
                log.warning(NOT_SYNCHRONOUS)
                self._warned = True
        row = await read_lease(self._connection)
        store = None
        if watch.may_take_over(row, self._clock()):
            # A newer server may have converted the tables since `prepare`, in a term after that of `row`.
            version = await self._connection.fetchval("SELECT version FROM restante.schema")
            _refuse_newer(version, without_password(self._url))
            store = await PostgresStore.take_over(self._connection, row, self.name, self._clock)
        if store is None:
            self._wait(f"{row.node or 'no server'} has the lease")
            return None
        self._connection = None  # the store's
        self._last = store
        self.term, self.serving, self.reason = store.term, True, ""
        self.take_overs += 1
        log.info("took over", term=store.term, before=row.node or None)
        return store

    def _wait(self, reason: str) -> None:
        if reason != self.reason:
            log.info("standing by", reason=reason)
        self.reason = reason

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


# ── the store ────────────────────────────────────────────────────────────────────────────────────


class PostgresStore:
    """The `Store` of one term. Its errors end the term, but for StoreBusy."""

    def __init__(
        self, connection: asyncpg.Connection, term: int, service: float, clock: Callable[[], float] = boot_time
    ) -> None:
        self.term = term
        self.service = service
        self.flushing: float | None = None
        self.was_read = False
        """Whether `view` has returned the state."""
        self._connection = connection
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        """The connection carries out one call at a time: batches and renewals."""
        self._wait_cancelled = False
        """Whether the database has committed something without waiting for its standby."""
        connection.add_log_listener(self._on_notice)
        self._trusted_until = float("-inf")
        self._saved = float("-inf")
        """Service time of the last commit that wrote the row of `service`."""

    @classmethod
    async def take_over(
        cls, connection: asyncpg.Connection, row: Lease, node: str, clock: Callable[[], float] = boot_time
    ) -> Self | None:
        """Begin a term in place of that of a row. Return None if the row has changed."""
        began = clock()
        term = await connection.fetchval("SELECT restante.take_over($1, $2, $3)", row.term, row.renewals, node)
        if term is None:
            return None
        store = cls(connection, term, await connection.fetchval("SELECT seconds FROM restante.service"), clock)
        store._trusted_until = began + TRUST_SECONDS
        return store

    async def view(self) -> State:
        """Read the state in one transaction, which first locks the lease.

        It renews the lease at its end: to a server that waits, there was no renewal while the state was read.
        """
        with self._ending_if_busy():
            return await self._read()

    async def _read(self) -> State:
        reader = StateReader()
        async with self._term(), self._connection.transaction(isolation="repeatable_read"):
            await self._connection.execute(f"{IDLE_LIMIT}; SELECT restante.fence({self.term})")
            try:
                mailboxes = f"SELECT {MAILBOXES} FROM restante.mailboxes ORDER BY key"  # noqa: S608
                async for rows in self._chunks(mailboxes):
                    reader.add_mailboxes(rows)
                nameplates = f"SELECT {NAMEPLATES} FROM restante.nameplates ORDER BY key"  # noqa: S608
                async for rows in self._chunks(nameplates):
                    reader.add_nameplates(rows)
                reader.begin_messages()
                messages = f"SELECT {MESSAGES} FROM restante.messages ORDER BY sequence"  # noqa: S608
                async for rows in self._chunks(messages):
                    reader.add_messages(rows)
            except DAMAGE as error:
                raise StoreError(f"the database is damaged ({type(error).__name__}: {error})") from error
            began = self._clock()
            await self._connection.execute(f"SELECT restante.renew({self.term})")
        self._trusted_until = began + TRUST_SECONDS
        self.was_read = True
        return reader.state()

    async def _chunks(self, sql: str) -> AsyncIterator[list[Any]]:
        cursor = await self._connection.cursor(sql)
        while rows := await cursor.fetch(ROWS_PER_FETCH):
            yield rows

    async def apply(self, changes: Sequence[Change], now: Now) -> None:
        """Write changes that the state has already folded in. Returns when they are durable."""
        rows = Rows(changes)
        writes_service = not 0.0 <= now.service - self._saved < 1.0
        current = rows.current
        async with self._term():
            await self._connection.execute(
                "SELECT restante.apply($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
                self.term,
                rows.mailbox_rows() or None,
                rows.nameplate_rows() or None,
                rows.message_rows() or None,
                _first_values(rows.gone_mailboxes),
                _first_values(rows.gone_nameplates),
                _first_values(rows.gone_messages),
                now.service if writes_service else None,
                now.wall if writes_service else None,
                rows.pruned,
                current and (1, current.rebooted, current.updated, current.blur_time, current.connections_websocket),
                *(_without_id(rows.usage.get(kind)) for kind in (NameplateUsage, MailboxUsage, ClientVersion)),
            )
        if writes_service:
            self._saved = now.service

    async def confirm(self) -> None:
        """Renew the term unless that was done within TRUST_SECONDS. Raises TermOver if that fails."""
        if self._clock() < self._trusted_until:
            return
        with self._ending_if_busy():
            await self.renew()

    async def renew(self) -> None:
        """Say that this server works. Raises StoreBusy if the database refuses it, TermOver if the term is over."""
        async with self._term():
            began = self._clock()
            await self._connection.execute("SELECT restante.renew($1)", self.term)
            self._trusted_until = began + TRUST_SECONDS

    async def hold(self) -> None:
        """Renew the term until it is over, or the connection is lost. Raises TermOver."""
        lost = asyncio.Event()
        self._connection.add_termination_listener(lambda _: lost.set())
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEWAL_SECONDS):
                    await lost.wait()
            with contextlib.suppress(StoreBusy):
                await self.renew()

    async def tend(self) -> None:
        """Do nothing: the database does it itself."""

    async def forget_usage(self, before: float, limit: int) -> int:
        """Delete usage records older than a wall time, up to `limit` of each kind. Return the number deleted."""
        async with self._term():
            deleted: int = await self._connection.fetchval(
                "SELECT restante.forget_usage($1, $2, $3)", self.term, before, limit
            )
            return deleted

    async def close(self) -> None:
        """Let another server take over at once, and close the connection."""
        try:
            async with self._term():
                await self._connection.execute("SELECT restante.release($1)", self.term)
                await self._connection.close(timeout=CONNECT_SECONDS)
        except StoreError:  # the next server waits for TTL_SECONDS
            self.abandon()

    def abandon(self) -> None:
        """End the connection, and with it the term. Nothing is sent: what is under way is not cancelled."""
        self._trusted_until = float("-inf")
        self._connection.terminate()

    @contextlib.asynccontextmanager
    async def _term(self) -> AsyncIterator[None]:
        """Use the connection. Raises StoreBusy if nothing was stored, TermOver if the term is over."""
        async with self._one_at_a_time:
            self.flushing = time.monotonic()
            try:
                yield
                if self._wait_cancelled:
                    raise self._over("the wait for the standby of the database was cancelled")
            except asyncpg.PostgresError as error:
                if not self._connection.is_closed() and (error.sqlstate or "").startswith(PASSING):
                    kind = StoreFull if error.sqlstate == "53100" else StoreBusy
                    raise kind(f"the database has refused it: {reason_of(error)}") from error
                raise self._over(reason_of(error)) from error
            except DRIVER_ERRORS as error:
                raise self._over(reason_of(error)) from error
            finally:
                self.flushing = None

    @contextlib.contextmanager
    def _ending_if_busy(self) -> Iterator[None]:
        """End the term also if nothing was stored."""
        try:
            yield
        except StoreBusy as busy:
            raise self._over(str(busy)) from busy

    def _over(self, reason: str) -> TermOver:
        self.abandon()
        return TermOver(f"term {self.term} is over: {reason}")

    def _on_notice(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        """End the term if a COMMIT has not waited for the standby.

        The next term begins with a COMMIT that waits, so what it reads is on the standby.
        """
        self._wait_cancelled |= is_cancelled_wait(message)


def _first_values(rows: Parameters) -> list[Any] | None:
    return [row[0] for row in rows] or None


def _without_id(rows: Parameters | None) -> Parameters | None:
    """Return rows of usage records with a column for the id, which the database gives them."""
    return rows and [(None, *row) for row in rows]
