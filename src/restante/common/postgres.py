"""Connections to PostgreSQL, and reads of a database without an event loop."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from restante.common.errors import Misuse, StoreBusy, StoreError, plain
from restante.common.settings import without_password

CONNECT_SECONDS: Final = 5.0
"""Seconds within which the database must answer when a connection is made, or the row of the lease is read."""

READ_SECONDS: Final = 30.0
"""Seconds within which a statement that only reads must be answered. Then it is cancelled."""

ROWS_PER_FETCH: Final = 2000

FILES: Final = frozenset({"sslrootcert", "sslcert", "sslkey", "sslcrl"})
"""Parameters of a URL that name files (postgresql.org/docs/18/libpq-connect.html). The driver does not say which one
it cannot read."""

DEAD_PEER_MS: Final = 10_000
"""Milliseconds that data may be unacknowledged before the kernel ends the connection (tcp(7), TCP_USER_TIMEOUT): the
host of the database is gone. A database that only takes long acknowledges, also the kernel's probes of a connection
on which nothing is sent."""

PROBE_SECONDS: Final = 1
"""Seconds of silence after which the kernel sends a probe, and between probes (tcp(7), TCP_KEEPIDLE)."""

DRIVER_ERRORS: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""Errors that are not the database's: mostly the connection is lost, or no answer has come in time."""


_HOST: Final = r"(?:\[[^\]/?#@]*\]|[^/?#@:,\[\]]*)(?::\d+)?"

_WELL_FORMED: Final = re.compile(rf"\w+://(?:[^/?#@]*@)?{_HOST}(?:,{_HOST})*(?:/[^?#@]*)?(?:[?#][^@]*)?")
"""A URL in which a password ends where it seems to. Otherwise a part of it would be looked up as a host."""


async def connect(url: str, name: str = "restante") -> asyncpg.Connection:
    """Connect to a database, which shows `name` to its administrators (application_name).

    Raises StoreBusy if it cannot be reached now, Misuse if it refuses us for good.
    """
    check_url(url)
    try:
        connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS, server_settings={"application_name": name})
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message.rstrip(".")
        raise Misuse(
            f"the certificate of {without_password(url)} is not trusted: {reason}: renew it, connect to a host"
            " that it names, or name the file of its authority (sslrootcert)"
        ) from error
    except (
        asyncpg.InvalidAuthorizationSpecificationError,
        asyncpg.InvalidCatalogNameError,
        asyncpg.ClientConfigurationError,
        asyncpg.UndefinedObjectError,  # a parameter of the URL
        asyncpg.InvalidParameterValueError,
        ValueError,
    ) as error:
        raise Misuse(f"cannot use {without_password(url)}: {reason_of(error)}") from error
    except (asyncpg.PostgresError, *DRIVER_ERRORS) as error:
        raise StoreBusy(f"cannot reach {without_password(url)}: {reason_of(error)}") from error
    endpoint = connection._transport.get_extra_info("socket")
    if endpoint is not None and endpoint.family != socket.AF_UNIX:
        endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
        endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
        endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connection


def check_url(url: str) -> None:
    """Raise Misuse if a URL is malformed, or a file that it names cannot be read."""
    if _WELL_FORMED.fullmatch(url) is None:
        raise Misuse(
            "the URL of the database is malformed: write @ : / ? # and % in a user or a password as"
            " %40 %3A %2F %3F %23 and %25"
        )
    for name, file in parse_qsl(urlsplit(url).query):
        if name in FILES:
            try:
                Path(file).read_bytes()
            except OSError as error:
                raise Misuse(f"cannot use {without_password(url)}: {name} {file}: {plain(error)}") from error


def reason_of(error: BaseException) -> str:
    """Return the text of an error in one line."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, asyncpg.InvalidSQLStatementNameError | asyncpg.DuplicatePreparedStatementError):
        return "another connection has the prepared statements: a pooler must have pool_mode = session"
    return " ".join(str(error).split()) or type(error).__name__


class Reader:
    """A connection that only reads. Statements are executed as with sqlite3, with `?` for their parameters.

    Names are those of the schema restante. Each statement is a transaction, or one of those of `snapshot`. Nothing
    is set for the session, so that a pooler of connections can stand between.
    """

    def __init__(self, url: str, run: Callable[..., Any], connection: asyncpg.Connection) -> None:
        self.name = without_password(url)
        self._run, self._connection = run, connection

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a statement selects. Raises StoreError."""
        if not self._connection.is_in_transaction():
            with self.snapshot():
                return self.execute(sql, parameters)
        numbers = count(1)
        sql = re.sub(r"\?", lambda _: f"${next(numbers)}", sql)
        return list(map(tuple, self._do(self._connection.fetch(sql, *parameters, timeout=READ_SECONDS))))

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Execute all statements in one transaction, which sees one state. No writer waits for it.

        Raises StoreError.
        """
        transaction = self._connection.transaction(isolation="repeatable_read", readonly=True)
        self._do(transaction.start())
        self._do(self._connection.execute("SET LOCAL search_path = restante"))
        yield
        self._do(transaction.rollback())

    def stream(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that a statement selects, in a snapshot. Few are in memory. Raises StoreError."""

        async def open_cursor() -> asyncpg.cursor.Cursor:
            return await self._connection.cursor(sql)

        cursor = self._do(open_cursor())
        while rows := self._do(cursor.fetch(ROWS_PER_FETCH, timeout=READ_SECONDS)):
            yield from map(tuple, rows)

    def _do(self, call: Awaitable[Any]) -> Any:
        try:
            return self._run(call)
        except (asyncpg.PostgresError, *DRIVER_ERRORS) as error:
            raise StoreError(f"cannot read {self.name}: {reason_of(error)}") from error


@contextmanager
def reading(url: str) -> Iterator[Reader]:
    """Connect to a database for reading. Raises StoreBusy and Misuse as `connect` does."""
    with asyncio.Runner() as runner:
        connection = runner.run(connect(url))
        try:
            yield Reader(url, runner.run, connection)
        finally:
            connection.terminate()
