"""`restante serve`: puts the parts together, waits for a signal, takes them apart again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from pathlib import Path
from typing import Final

import uvloop

from restante import __version__
from restante.config import Serve, address
from restante.mailbox.model import Policy
from restante.mailbox.office import Lifetime, Office
from restante.mailbox.server import Manners, Server, SystemClock, SystemDice
from restante.mailbox.store import Store, open_store
from restante.ops.logs import log, watch

SAVE_EVERY: Final = 60
"""Seconds between saves of when mailboxes were touched: a crash makes them seem idle for this much longer."""

DAY: Final = 86400.0


def serve(settings: Serve) -> None:
    """Serve until SIGTERM or SIGINT. Raises Misuse and StoreError."""
    uvloop.run(_serve(settings))


async def _serve(settings: Serve) -> None:
    watch(asyncio.get_running_loop())
    told = _listen_for_signals()
    host, port = address(settings.listen, "--listen")
    store = open_store(Path(settings.data))
    clock = SystemClock()
    gc.disable()  # while all that is live is made, there is nothing to collect
    office = await Office.open(
        store,
        clock,
        SystemDice(),
        Policy(blur=settings.blur_usage, list_nameplates=not settings.no_list),
        Lifetime(
            prune_after=settings.prune_after,
            keep_usage=settings.keep_usage * DAY if settings.keep_usage else None,
        ),
    )
    # What was loaded lives long; the collector need not look at it again.
    gc.freeze()
    gc.enable()
    manners = Manners(
        motd=settings.motd,
        current_cli_version=settings.advertise_version,
        error=settings.signal_error,
        binary=settings.frames == "binary",
    )
    server = Server(office, clock, manners)
    async with contextlib.AsyncExitStack() as stack:
        if settings.admin != "off":
            from restante.ops import admin  # aiohttp takes a third of the start

            runner = await admin.start(*address(settings.admin, "--admin"))
            stack.push_async_callback(runner.cleanup)
        addresses = await server.listen(host, port)
        for each in addresses:
            log.info("listening", url=f"ws://{_shown(each)}/v1", version=__version__, data=settings.data)
        await _until(told, server, office, store, settings)
    log.info("stopped")


def _listen_for_signals() -> asyncio.Event:
    """Give the event that SIGTERM and SIGINT set; the second one ends the process."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()

    def stop(name: str) -> None:
        if told.is_set():
            os._exit(1)  # at once: a thread may be waiting for a disk that never answers
        told.set()
        log.info("draining", signal=name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    return told


async def _until(told: asyncio.Event, server: Server, office: Office, store: Store, settings: Serve) -> None:
    """Serve until told, then drain. Raises StoreError when a commit failed."""
    running = asyncio.create_task(office.run())
    ticking = asyncio.create_task(_tick(server, office, settings.prune_every))
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait((running, ticking, waiting), return_when=asyncio.FIRST_COMPLETED)
    for task in (running, ticking):
        if task.done():
            task.result()  # neither ends by itself but by an error
    ticking.cancel()
    waiting.cancel()
    await server.drain(running)
    await store.close()


async def _tick(server: Server, office: Office, prune_every: float) -> None:
    loop = asyncio.get_running_loop()
    next_sweep = loop.time() + prune_every
    while True:
        await asyncio.sleep(1)
        server.tick()
        if loop.time() >= next_sweep:
            next_sweep += prune_every
            office.sweep()
        elif server.second % SAVE_EVERY == 0:
            office.save()


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
