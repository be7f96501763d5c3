"""The Waku node behind a proxy that names its peers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from restante.common.listening import listen_address
from restante.common.net import networks
from restante.waku.node.housekeeping import Housekeeping
from restante.waku.node.node import NO_PROXY_HEADER
from support.bounds import bounded
from support.loops import on_uvloop
from support.mailbox.reverse_proxies import Setup, behind_haproxy
from support.proxy_headers import header
from support.waku.inside import Inside, inside
from support.waku.raw_peer import GoneError, RawPeer


async def proxied(here: Inside, trusted: str) -> int:
    """Listen where connections begin with a PROXY header, and return the port."""
    where = listen_address("proxy:127.0.0.1:0", "--listen")
    [at] = await here.node.listen(where, networks([trusted], "--trust-proxy"))
    return int(at.rpartition(":")[2])


@on_uvloop
async def test_peers_are_counted_by_the_address_that_the_header_names(tmp_path: Path) -> None:
    async with inside(tmp_path, housekeeping=Housekeeping(max_peers_per_address=1)) as here:
        port = await proxied(here, "127.0.0.0/8")
        first, second, other = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        first[1].write(header("203.0.113.7"))
        await here.until("the first connection", lambda: len(here.node.connections) == 1)
        second[1].write(header("203.0.113.7"))
        async with bounded("the end of the second"):
            with suppress(ConnectionResetError):
                assert await second[0].read() == b""
        other[1].write(header("203.0.113.8"))
        await here.until("the other connection", lambda: len(here.node.connections) == 2)
        assert sorted(each.address for each in here.node.connections) == ["203.0.113.7", "203.0.113.8"]
        for _, writer in (first, second, other):
            writer.close()


@on_uvloop
async def test_without_a_header_or_from_a_stranger_the_connection_is_closed_and_counted(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        for trusted, data in (("127.0.0.0/8", bytes(16)), ("10.0.0.0/8", header())):
            reader, writer = await asyncio.open_connection("127.0.0.1", await proxied(here, trusted))
            writer.write(data)
            async with bounded("the end"):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
        assert here.node.counts[NO_PROXY_HEADER] == 2
        assert not here.node.connections


@pytest.mark.thorough
@on_uvloop
async def test_a_real_haproxy_names_the_peers(tmp_path: Path) -> None:
    async with inside(tmp_path / "data", housekeeping=Housekeeping(max_peers_per_address=1)) as here:
        upstream = await proxied(here, "127.0.0.1/32")
        async with behind_haproxy(tmp_path, Setup(upstream), of_tcp=True) as port:
            public = here.node.key.public
            first = await RawPeer.greet(port, public, source="127.0.0.2")
            other = await RawPeer.greet(port, public, source="127.0.0.3")
            with suppress(GoneError, ConnectionError):
                again = await RawPeer.greet(port, public, source="127.0.0.2")
                await again.ended()
            for peer in (first, other):
                await peer.fence()
            assert sorted(each.address for each in here.node.connections) == ["127.0.0.2", "127.0.0.3"]
