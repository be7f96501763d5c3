"""`restante serve`: builds the server from its parts, runs it until a signal, and shuts it down."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from restante import __version__
from restante.common.address_registry import SECONDS_PER_DAY
from restante.common.admin_access import read_admin_token
from restante.common.certificate import CERTIFICATE_SECONDS, ServerCertificate, read_certificate
from restante.common.data_directory import refuse_unusable_directory
from restante.common.descriptors import OWN_DESCRIPTORS, raise_descriptors, required_descriptors
from restante.common.dice import BufferedDice
from restante.common.disk_probe import free_bytes
from restante.common.handover import Handover, Head, key_of_admin, seconds_since
from restante.common.listening import parse_listen_addresses, shown_address
from restante.common.logs import log
from restante.common.net import EVERYBODY_TRUSTED, parse_networks, trusts_everybody
from restante.common.running_settings import ReadSettings
from restante.common.service_manager import ServiceManager
from restante.common.settings import parse_address
from restante.common.signals import ServerSignals, run_server
from restante.common.system import SystemClock, system_secret
from restante.common.worker import Worker
from restante.mailbox.core.admission import Admission
from restante.mailbox.core.model import Policy
from restante.mailbox.server.commit_loop import CommitLoop, Retention
from restante.mailbox.server.handover import Body, enter_or_start_anew, read_body
from restante.mailbox.server.restart import Restart
from restante.mailbox.server.running_settings import MailboxSettings, admission_terms, welcome_options
from restante.mailbox.server.server import Server
from restante.mailbox.server.trace import Trace, TraceFile, check_path
from restante.mailbox.server.user_address import UNENCRYPTED, first_lines, user_address
from restante.mailbox.settings import Serve
from restante.mailbox.store.interface import Role, Store, TermOver
from restante.mailbox.store.schema import FILE, SCHEMA
from restante.mailbox.store.sqlite import SqliteStore

NO_RESTART: Final = "a server with --database is not restarted: stop it, and another one takes over at once"

SAVE_INTERVAL_SECONDS: Final = 60
"""Seconds between saves of when mailboxes were last touched. After a crash a mailbox may seem idle for up to this
much longer than it was."""


def serve(settings: Serve, read_settings: ReadSettings[Serve], handover: Handover | None = None) -> None:
    """Serve until SIGTERM or SIGINT. `read_settings` reads the settings again. Raises Misuse and StoreError.

    `handover` is what this process was left by the program that it ran before.
    """
    run_server(partial(serve_store, settings, read_settings, handover))


def check_database(data: Path) -> None:
    """Raise StoreError if this version cannot use the database of a data directory, Misuse if there is none."""
    with SCHEMA.reading(data):
        pass


def import_lazy_modules(settings: Serve) -> None:
    """Import what `serve` imports late."""
    import uvloop  # noqa: F401

    if settings.admin != "off":
        from restante.common import admin_http  # noqa: F401
        from restante.mailbox.server import status_pages  # noqa: F401


def read_files(settings: Serve) -> tuple[ServerCertificate | None, str | None]:
    """Return the certificate and the token of the admin port.

    Raises Misuse if one of the named files, or the data directory, cannot be used.
    """
    if settings.database is None:
        refuse_unusable_directory(Path(settings.data))
    certificate = read_certificate(settings.tls_cert, settings.tls_key)
    if settings.trace is not None:
        check_path(Path(settings.trace), Path(settings.data))
    return certificate, read_admin_token(settings.admin, settings.admin_token_file)


async def serve_store(
    settings: Serve,
    read_settings: ReadSettings[Serve],
    handover: Handover | None,
    signals: ServerSignals,
    store: Store | None = None,
    role: Role | None = None,
) -> None:
    """Serve until `signals.stop`. `store`: in place of the one in the data directory, with its role.

    Raises TermOver when another server may serve. Then all connections are closed.
    """
    manager, loading = ServiceManager(os.environ), contextlib.ExitStack()
    body = None if handover is None else read_body(handover, Path(settings.data))
    if handover is not None:  # a conversion of the database may take longer than the watchdog waits
        loading.enter_context(manager.loading())
    descriptors = raise_descriptors(required_descriptors(OWN_DESCRIPTORS))
    addresses = parse_listen_addresses(settings.listen, "--listen")
    certificate, token = read_files(settings)
    head = None if handover is None else handover.head
    locks: Sequence[int] = ()
    data = None if store is not None else Path(settings.data)
    if store is None:
        store = SqliteStore.open(Path(settings.data), () if head is None else head.locks)
        locks = [] if store.directory_lock is None else store.directory_lock.descriptors
    if body is not None:
        store.service = max(store.service, body.commit_loop.service)
    server = await _load(store, settings, certificate, descriptors, head, body)
    commit_loop, server.listens = server.commit_loop, handover is not None
    async with contextlib.AsyncExitStack() as stack:
        trace_file = None if settings.trace is None else TraceFile(Path(settings.trace))
        if trace_file is not None:
            stack.callback(trace_file.close)
            commit_loop.trace = Trace(trace_file.write)
        running_settings = MailboxSettings(settings, read_settings, server, trace_file)
        running = asyncio.create_task(commit_loop.run())  # who is connected already waits no longer
        waited = 0.0 if handover is None else seconds_since(handover.head)
        left = {} if handover is None else handover.head.listening
        dashboard, admin_key, admin_listening = "", key_of_admin(settings.admin), {}
        if settings.admin != "off":
            # Importing aiohttp takes a third of the start-up time.
            admin_http, status_pages = await asyncio.to_thread(
                lambda: [*map(import_module, ("restante.common.admin_http", "restante.mailbox.server.status_pages"))]
            )
            pages = status_pages.of(server, store, data or str(settings.database), running_settings, role)
            admin = admin_http.serving_admin(
                *parse_address(settings.admin, "--admin"), pages, token, settings.admin_host, left.get(admin_key, ())
            )
            sockets = await stack.enter_async_context(admin)
            admin_listening[admin_key] = [listening.fileno() for listening in sockets]
            dashboard = f"http://{shown_address(sockets[0])}/"
        bound_addresses = []
        # An address that is named twice, like 127.0.0.1:0, has left the sockets of both.
        for listen_address in {address.text: address for address in addresses}.values() if left else addresses:
            descriptors_left = None if handover is None else left.get(listen_address.text, ())
            for bound_address in await server.listeners.listen(listen_address, descriptors_left):
                bound_addresses.append(bound_address)
                server.user_addresses.append(
                    user_address(
                        listen_address,
                        bound_address,
                        tls=server.speaks_tls(listen_address),
                        names=certificate.names if certificate else (),
                        proxies=bool(settings.trust_proxy),
                    )
                )
        server.listens = True
        _announce(server, settings, dashboard, bound_addresses)
        disk = None if data is None else Disk(data, commit_loop)
        restart = Restart(server, settings, list(locks), admin_listening, manager, signals, trace_file)
        loading.close()
        async with manager.serving(signals.stop, lambda: store.flushing is not None):
            if handover is not None:
                restart.succeeded(handover.head.version, waited, None if body is None else len(server.sockets()))
                del handover, body
            signals.serve(
                partial(manager.reload, running_settings.reload),
                restart.begin if locks else lambda: log.error(NO_RESTART),
            )
            await _run_until(signals.stop, server, store, settings, running, disk, restart)


async def _load(
    store: Store,
    settings: Serve,
    certificate: ServerCertificate | None,
    descriptors: int,
    head: Head | None,
    body: Body | None,
) -> Server:
    """Read the database, and return a server that does not listen yet.

    `descriptors` may be open. `head` and `body` are what the program before has left. Raises StoreError.
    """
    clock = SystemClock()
    gc.collect(1)  # before there is live data to search: of 50,000 mailboxes that takes 20 ms
    gc.disable()
    commit_loop = await CommitLoop.open(
        store,
        clock,
        BufferedDice(),
        Policy(settings.blur_usage, not settings.no_list, settings.limits),
        Retention(
            prune_after=settings.prune_after,
            keep_usage=settings.keep_usage * SECONDS_PER_DAY if settings.keep_usage else None,
        ),
    )
    server = Server(
        commit_loop,
        clock,
        welcome_options(settings),
        Admission(admission_terms(settings), system_secret),
        descriptors=descriptors,
        binary=settings.frames == "binary",
    )
    server.certificate = certificate
    if head is not None and body is not None:
        await enter_or_start_anew(server, head, body)
    gc.freeze()  # as `exempt_survivors` does
    gc.enable()
    return server


def _announce(server: Server, settings: Serve, dashboard: str, bound_addresses: list[str]) -> None:
    """Say where the server listens: first to somebody at a terminal, then in the log."""
    if sys.stderr.isatty():
        sys.stderr.write(first_lines(server.user_addresses, proxies=bool(settings.trust_proxy)))
    if dashboard:
        log.info("the dashboard is open", url=dashboard)
    data = settings.data if settings.database is None else "PostgreSQL"
    for url in [listener.url for listener in server.user_addresses]:
        log.info("listening", url=url, version=__version__, data=data)
    if unencrypted := [listener.url for listener in server.user_addresses if listener.unencrypted]:
        log.warning(UNENCRYPTED, url=unencrypted[0])
    if trusts_everybody(parse_networks(settings.trust_proxy, "--trust-proxy"), bound_addresses):
        log.warning(EVERYBODY_TRUSTED)


def exempt_survivors() -> None:
    """Collect recent garbage, and let the garbage collector ignore everything else from now on.

    Otherwise it searches all live data whenever that has grown by a quarter, and the loop waits: 40 ms with 37,000
    mailboxes. What the server creates has no reference cycles when it ends, so it is freed without the collector.
    """
    gc.collect(1)  # what survived two collections already is not searched: there may be much of it
    gc.freeze()


async def _run_until(
    stop: asyncio.Event,
    server: Server,
    store: Store,
    settings: Serve,
    running: asyncio.Task[None],
    disk: Disk | None,
    restart: Restart,
) -> None:
    """Run until `stop` is set, then drain. Raises StoreError if a commit failed."""
    commit_loop = server.commit_loop
    ticking = asyncio.create_task(_tick(server, commit_loop, disk, settings.prune_every))
    holding = asyncio.create_task(store.hold())
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((running, ticking, holding, waiting), return_when=asyncio.FIRST_COMPLETED)
        for task in (running, ticking, holding):
            if task.done():
                task.result()  # each ends only with an error
        ticking.cancel()
        waiting.cancel()
        await restart.give_up()
        if disk is not None:
            disk.close()
        await server.drain(running)
        holding.cancel()
    except TermOver:
        tasks: tuple[asyncio.Task[Any], ...] = (running, ticking, holding, waiting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.close_all()
        raise
    finally:
        commit_loop.log_refusals()  # of the last, unfinished minute
    await store.close()


class Disk:
    """Checks whether the disk has room for new data, in a thread: a disk of another machine may not answer."""

    def __init__(self, data: Path, commit_loop: CommitLoop) -> None:
        self._data = data
        self._commit_loop = commit_loop
        self._worker = Worker("disk space")
        self._under_way: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Begin to find out how much is free, unless that is under way."""
        if self._under_way is not None:
            if self.is_busy:
                return
            self._under_way.result()  # raises our own errors
        self._under_way = asyncio.create_task(self._look())

    @property
    def is_busy(self) -> bool:
        """Whether the disk has not answered yet."""
        return self._under_way is not None and not self._under_way.done()

    def close(self) -> None:
        """End the thread when the disk has answered."""
        self._worker.end(wait=False)

    async def _look(self) -> None:
        """Measure the disk and the log of the database. Set `State.room`, and log when it changes."""
        free = await self._worker.do(partial(free_bytes, self._data))
        wal_bytes = await self._worker.do(partial(_size, self._data / f"{FILE}-wal"))
        self._commit_loop.measurements.wal_bytes = wal_bytes
        min_free, state = self._commit_loop.dispatcher.policy.limits.free_disk, self._commit_loop.dispatcher.state
        self._commit_loop.measurements.disk_free = free
        room = free >= min_free  # NaN is not
        if room != state.room:
            state.room = room
            if room:
                log.info("the disk has room again")
            else:
                log.error(
                    "the disk is nearly full: the server accepts nothing new until there is room", free_disk=min_free
                )


def _size(file: Path) -> float:
    """Return the bytes of a file; NaN if there is none."""
    try:
        return float(file.stat().st_size)
    except OSError:
        return math.nan


async def _tick(server: Server, commit_loop: CommitLoop, disk: Disk | None, prune_every: float) -> None:
    """Run what is due every second, every minute and every `prune_every` seconds."""
    commit_loop.next_pruning = min(commit_loop.next_pruning, commit_loop.now().service + prune_every)
    while True:
        await asyncio.sleep(1)
        server.tick()
        exempt_survivors()
        await server.listeners.check_descriptors(len(server.admitted))
        if server.certificate is not None and server.second % CERTIFICATE_SECONDS == 0:
            server.certificate.check_soon()
        commit_loop.commit_deferred()
        if disk is not None:
            disk.look()
        if server.second % 60 == 0:
            commit_loop.log_refusals()
        if commit_loop.now().service >= commit_loop.next_pruning:
            commit_loop.next_pruning += prune_every
            commit_loop.start_pruning()
        elif server.second % SAVE_INTERVAL_SECONDS == 0:
            commit_loop.start_saving()
