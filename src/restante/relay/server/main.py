"""`restante relay serve`: builds the relay from its parts, runs it until a signal, and shuts it down."""

from __future__ import annotations

import asyncio
import contextlib
import os
from functools import partial
from pathlib import Path

from restante import __version__
from restante.common.address_registry import SECONDS_PER_DAY
from restante.common.admin_access import read_admin_token
from restante.common.certificate import CERTIFICATE_SECONDS, ServerCertificate, read_certificate
from restante.common.data_directory import refuse_unusable_directory
from restante.common.descriptors import OWN_DESCRIPTORS, raise_descriptors, required_descriptors
from restante.common.disk_probe import DiskSpace
from restante.common.listening import ListenAddress, parse_listen_addresses, shown_address
from restante.common.logs import log, log_refusals
from restante.common.net import EVERYBODY_TRUSTED, parse_networks, trusts_everybody
from restante.common.running_settings import ReadSettings
from restante.common.service_manager import ServiceManager
from restante.common.settings import parse_address
from restante.common.signals import ServerSignals, run_server
from restante.common.system import SystemClock, system_secret
from restante.relay.core.relay import Relay
from restante.relay.protocol.refusals import KINDS
from restante.relay.server.recording import SAVE_SECONDS, Recording
from restante.relay.server.running_settings import RelaySettings
from restante.relay.server.server import Admission, Server
from restante.relay.settings import RelayServe
from restante.relay.store.sqlite import Store


def serve(settings: RelayServe, read_settings: ReadSettings[RelayServe]) -> None:
    """Relay until SIGTERM or SIGINT. `read_settings` reads the settings again. Raises Misuse and StoreError."""
    run_server(partial(_serve, settings, read_settings))


def read_files(settings: RelayServe) -> tuple[ServerCertificate | None, str | None]:
    """Return the certificate and the token of the admin port.

    Raises Misuse if one of the named files, or the data directory, cannot be used.
    """
    refuse_unusable_directory(Path(settings.data))
    certificate = read_certificate(settings.tls_cert, settings.tls_key)
    return certificate, read_admin_token(settings.admin, settings.admin_token_file)


async def _serve(settings: RelayServe, read_settings: ReadSettings[RelayServe], signals: ServerSignals) -> None:
    descriptors = raise_descriptors(required_descriptors(OWN_DESCRIPTORS))
    addresses = parse_listen_addresses(settings.listen, "--listen")
    certificate, token = read_files(settings)
    store = Store.open(Path(settings.data))
    relay = Relay(settings.limits, blur=settings.blur_usage)
    trusted = parse_networks(settings.trust_proxy, "--trust-proxy")
    server = Server(relay, SystemClock(), Admission(system_secret, relay, trusted), descriptors=descriptors)
    server.certificate = certificate
    keep_seconds = settings.keep_usage * SECONDS_PER_DAY if settings.keep_usage else None
    recording = Recording(server, store, keep_seconds, DiskSpace(Path(settings.data)))
    async with contextlib.AsyncExitStack() as stack:
        running_settings = RelaySettings(settings, read_settings, server)
        manager = ServiceManager(os.environ)
        dashboard = ""
        if settings.admin != "off":
            from restante.common import admin_http  # importing aiohttp takes a third of the start-up time
            from restante.relay.server import status_pages

            admin_host, admin_port = parse_address(settings.admin, "--admin")
            pages = status_pages.of(server, recording, running_settings)
            admin = admin_http.serving_admin(admin_host, admin_port, pages, token, settings.admin_host)
            sockets = await stack.enter_async_context(admin)
            dashboard = f"http://{shown_address(sockets[0])}/"
        bound_addresses = []
        for listen_address in addresses:
            for bound_address in await server.listeners.listen(listen_address):
                bound_addresses.append(bound_address)
                url = _url(listen_address, bound_address, tls=server.speaks_tls(listen_address))
                log.info("listening", url=url, version=__version__, data=settings.data)
        if dashboard:
            log.info("the dashboard is open", url=dashboard)
        if trusts_everybody(trusted, bound_addresses):
            log.warning(EVERYBODY_TRUSTED)
        async with manager.serving(signals.stop):
            signals.serve(partial(manager.reload, running_settings.reload))
            disk_answers = await _run_until(signals.stop, server, recording, settings)
    if disk_answers:
        await store.close()


def _url(listen: ListenAddress, bound_address: str, *, tls: bool) -> str:
    """Return what clients are given: with TLS only WebSockets can use it."""
    if listen.is_unix:
        return bound_address
    return f"wss://{bound_address}/" if tls else f"tcp:{bound_address}"


async def _run_until(stop: asyncio.Event, server: Server, recording: Recording, settings: RelayServe) -> bool:
    """Run until `stop` is set, then drain. Return whether the disk has taken the last records, or refused them."""
    ticking = asyncio.create_task(_tick(server, recording))
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait((ticking, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if ticking.done():
        ticking.result()  # it ends only with an error
    await server.drain(settings.drain)
    ticking.cancel()
    log_refusals(server.relay.refusal_counts, KINDS)  # of the last, unfinished minute
    return await recording.close()


async def _tick(server: Server, recording: Recording) -> None:
    """Run what is due every second, and every few seconds."""
    while True:
        await asyncio.sleep(1)
        server.tick()
        if not server.draining:
            await server.listeners.check_descriptors(server.connected)
        if server.certificate is not None and server.second % CERTIFICATE_SECONDS == 0:
            server.certificate.check_soon()
        if server.second % SAVE_SECONDS == 0:
            recording.save_soon()
        if server.second % 60 == 0:
            log_refusals(server.relay.refusal_counts, KINDS)
