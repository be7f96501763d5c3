"""Shipped clients over wss://: to our own TLS, and to nginx, HAProxy and Caddy with TLS before our server.

test_reverse_proxies.py does the same with the `wormhole` of our own environment, in a quick run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from restante.mailbox.server.server import PING_INTERVAL_SECONDS
from support.client.parcels import content_of, write_parcel
from support.mailbox.deployment import Deployment
from support.mailbox.reverse_proxies import FRONTS, NGINX_LIMIT, Fronts, running_fronts
from support.mailbox.shipped import CURRENT, GO_NEW, OURS, RUST_NEW, RUST_TLS, SHIPPED, Running, Shipped, Words

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(2400),  # seconds; the first test that needs the Rust client compiles it
    pytest.mark.asyncio(loop_scope="module"),
]

TEXT: Final = "held until called for"
PARCEL: Final = "parcel.bin"

CLIENTS: Final = [RUST_TLS if each is RUST_NEW else each for each in (*SHIPPED, OURS)]
IDLE: Final = (CURRENT, GO_NEW, RUST_TLS, OURS)
"""A client of each language."""

SILENCE: Final = NGINX_LIMIT + 2 * PING_INTERVAL_SECONDS
"""Seconds, more than any default time limit. nginx has 60 s, Debian's HAProxy 50 s. The Python client pings after
30 s, and waits 60 s for the answer (_rendezvous.py:87). The others have no limit."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fronts(inside: Words, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fronts]:
    async with running_fronts(tmp_path_factory.mktemp("fronts"), FRONTS, inside) as fronts:
        yield fronts


@pytest_asyncio.fixture(loop_scope="module")
async def ends() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as ends:
        yield ends


async def send(deployment: Deployment, client: Shipped) -> Running:
    """Send a text, or a file with a client that knows no texts."""
    if client.language.send_text:
        return await deployment.send_text(client, TEXT)
    return await deployment.send(client, write_parcel(deployment.folder / "parcels", PARCEL))


async def assert_arrived(client: Shipped, sender: Running, receiver: Running) -> None:
    assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
    if client.language.send_text:
        assert receiver.said["stdout"] == f"{TEXT}\n"
    else:
        assert (receiver.folder / PARCEL).read_bytes() == content_of(PARCEL)


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("client", CLIENTS, ids=str)
async def test_each_client_sends_and_receives(
    inside: Words, fronts: Fronts, ends: AsyncExitStack, tmp_path: Path, client: Shipped, front: str
) -> None:
    trust = fronts.certificate.trust
    deployment = Deployment(inside, fronts.server, tmp_path, ends, url=fronts.url(front), variables=trust)

    async def transfer() -> tuple[Running, Running]:
        sending = await send(deployment, client)
        return sending, await deployment.receive(client, await sending.code())

    await assert_arrived(client, *await deployment.pair(transfer))


async def test_clients_that_are_idle_beyond_all_time_limits_stay_connected(
    inside: Words, ends: AsyncExitStack, tmp_path: Path
) -> None:
    """A client that had been disconnected would have used another connection to receive or send."""
    fronts = await ends.enter_async_context(running_fronts(tmp_path, FRONTS, inside))
    trust = fronts.certificate.trust

    async def idle(client: Shipped, front: str) -> tuple[Deployment, Running, str]:
        folder = tmp_path / f"{client} {front}"
        folder.mkdir()
        deployment = Deployment(inside, fronts.server, folder, ends, url=fronts.url(front), variables=trust)
        sender = await send(deployment, client)
        return deployment, sender, await sender.code()

    waiting = [(client, *await idle(client, front)) for client in IDLE for front in FRONTS]
    await asyncio.sleep(SILENCE)
    for client, deployment, sender, code in waiting:
        await assert_arrived(client, sender, await deployment.receive(client, code))
    connections = {json.loads(line)["connection"] for line in fronts.trace.read_text().splitlines()}
    assert len(connections) == 2 * len(waiting)
