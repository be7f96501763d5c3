"""`restante serve --database`: of several servers that share a database, one serves, and the others stand by."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import platform
from functools import partial

from restante.common import admin_http
from restante.common.errors import Misuse
from restante.common.logs import log
from restante.common.running_settings import ReadSettings
from restante.common.service_manager import ServiceManager
from restante.common.settings import parse_address
from restante.common.signals import ServerSignals, run_server
from restante.mailbox.server import status_pages
from restante.mailbox.server.main import NO_RESTART, read_files, serve_store
from restante.mailbox.settings import Serve
from restante.mailbox.store.interface import TermOver
from restante.mailbox.store.postgres import Node, PostgresStore


def serve(settings: Serve, read_settings: ReadSettings[Serve]) -> None:
    """Stand by and serve until SIGTERM or SIGINT. `read_settings` reads the settings again.

    Raises Misuse and StoreError.
    """
    run_server(partial(_serve_in_turn, settings, read_settings))


async def _serve_in_turn(settings: Serve, read_settings: ReadSettings[Serve], signals: ServerSignals) -> None:
    """Stand by until no other server works, then serve until the term is over, and so on, until `signals.stop`."""
    assert settings.database is not None
    node = Node(settings.database, platform.node())
    while (store := await _stand_by(node, settings, signals)) is not None:
        settings = _read_again(settings, read_settings)
        try:
            await serve_store(settings, read_settings, None, signals, store, node)
        except TermOver as error:
            log.error("all connections were closed", reason=str(error))
            node.reason = str(error)
        finally:
            node.serving = False
            store.abandon()
            gc.enable()  # it is disabled if the state could not be read
            gc.unfreeze()  # what `exempt_survivors` has exempted
        if signals.stop.is_set():
            return


async def _stand_by(node: Node, settings: Serve, signals: ServerSignals) -> PostgresStore | None:
    """Wait until this server may serve. Return None if it is to stop."""
    manager = ServiceManager(os.environ)
    _, token = read_files(settings)
    signals.serve(
        lambda: log.info("this server stands by: it reads its settings again when it takes over"),
        lambda: log.error(NO_RESTART),
    )
    async with contextlib.AsyncExitStack() as stack:
        if settings.admin != "off":
            pages = status_pages.of_standby(node, lambda: f"standby: {node.reason}")
            address = parse_address(settings.admin, "--admin")
            await stack.enter_async_context(admin_http.serving_admin(*address, pages, token, settings.admin_host))
        await stack.enter_async_context(manager.serving(signals.stop))
        manager.notify("STATUS=standing by")
        taking_over = asyncio.create_task(node.take_over())
        stopping = asyncio.create_task(signals.stop.wait())
        await asyncio.wait((taking_over, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if taking_over.done():
            return taking_over.result()
        taking_over.cancel()
        await asyncio.wait((taking_over,))
    return None


def _read_again(settings: Serve, read_settings: ReadSettings[Serve]) -> Serve:
    """Return the settings as they are now. SIGHUP may have come in the last term, or while this server stood by."""
    try:
        return read_settings()[0]
    except Misuse as error:
        log.error("the settings cannot be read again; those from before are used", reason=str(error))
        return settings
