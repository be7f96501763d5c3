"""PROXY headers: whom they name, which are refused, and that the mailbox server believes nobody else."""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from restante.common.listening import listen_address
from restante.common.net import networks
from restante.common.proxy_header import (
    LOCAL,
    MAX_REST_BYTES,
    PROXY,
    SIGNATURE,
    START_BYTES,
    Peer,
    client,
    rest_bytes,
)
from restante.common.tls import ServerCertificate
from restante.mailbox.core.admission import Admission, AdmissionTerms
from restante.mailbox.core.limits import UNLIMITED, Limits
from restante.mailbox.server.refusals import NO_PROXY_HEADER, TOO_MANY_HANDSHAKES
from restante.mailbox.server.system import system_secret
from support.bounds import bounded
from support.certificates import Certificate
from support.effort import examples
from support.loops import on_uvloop, until
from support.mailbox.live import LiveServer, open_live
from support.mailbox.raw_socket import RawSocket, handshake
from support.proxy_headers import UNIX, UNKNOWN, header

PROXY_HOST = Peer("10.0.0.9", 5)


def parsed(data: bytes) -> Peer | None:
    size = rest_bytes(data[:START_BYTES])
    return None if size is None else client(data[:START_BYTES], data[START_BYTES : START_BYTES + size], PROXY_HOST)


NAMED = {
    "the client": (header(more=b"\x04\x00\x03abc"), Peer("203.0.113.7", 4321)),
    "the proxy itself, for a health check": (header(command=LOCAL), PROXY_HOST),
    "the proxy itself, without addresses": (SIGNATURE + bytes([LOCAL, UNKNOWN, 0, 0]), PROXY_HOST),
    "a client over a Unix socket": (SIGNATURE + bytes([PROXY, UNIX, 0, 216]) + bytes(216), PROXY_HOST),
    "another protocol": (SIGNATURE + bytes([PROXY, UNKNOWN, 0, 0]), PROXY_HOST),
}


@pytest.mark.parametrize(("data", "peer"), NAMED.values(), ids=NAMED)
def test_a_header_names(data: bytes, peer: Peer) -> None:
    assert parsed(data) == peer


MALFORMED = {
    "version 1": b"PROXY TCP4 203.0.113.7 10.0.0.1 4321 443\r\n",
    "a request": handshake(),
    "a TLS handshake": b"\x16\x03\x01\x02\x00" + bytes(500),
    "version 3": SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12),
    "an unknown command": SIGNATURE + b"\x22\x11\x00\x0c" + bytes(12),
    "fewer bytes than addresses take": SIGNATURE + b"\x21\x11\x00\x0b" + bytes(11),
    "no addresses": SIGNATURE + b"\x21\x21\x00\x00",
    "more than may follow": SIGNATURE + b"\x21\x11" + struct.pack("!H", MAX_REST_BYTES + 1) + bytes(12),
}


@examples(200)
@given(st.ip_addresses(), st.integers(0, 65535), st.binary(max_size=100))
def test_every_address_and_port_is_read_as_it_was_written(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, more: bytes
) -> None:
    assert parsed(header(str(address), port, more=more)) == Peer(str(address), port)


@examples(200)
@given(st.binary(min_size=START_BYTES, max_size=300))
def test_no_bytes_raise_an_error(data: bytes) -> None:
    for each in (data, SIGNATURE + data):
        found = parsed(each)
        assert found is None or found == PROXY_HOST or ipaddress.ip_address(found.host)


# ── the mailbox server ───────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def behind(folder: Path, trusted: str, limits: Limits = UNLIMITED) -> AsyncIterator[tuple[LiveServer, int]]:
    """Serve to proxies of a network."""
    admission = Admission(AdmissionTerms(trusted=networks([trusted], "--trust-proxy")), system_secret)
    async with open_live(folder, admission=admission, limits=limits) as live:
        [at] = await live.server.listeners.listen(listen_address("proxy:127.0.0.1:0", "--listen"))
        yield live, int(at.rpartition(":")[2])


async def welcome_after(port: int, *pieces: bytes, **headers: str) -> dict[str, object]:
    """Send a header in pieces, then a request, and return the welcome."""
    socket = await RawSocket.connect(port)
    try:
        for piece in pieces:
            socket.write(piece)
            await socket.writer.drain()
            await asyncio.sleep(0)
        socket.write(handshake(**headers))
        async with bounded("an answer"):
            await socket.reader.readuntil(b"\r\n\r\n")
        welcome: dict[str, object] = (await socket.hear())["welcome"]
        return welcome
    finally:
        socket.cut()


@on_uvloop
async def test_the_client_is_whom_the_header_names_however_it_is_cut(tmp_path: Path) -> None:
    whole = header(more=b"\x04\x00\x03abc")
    async with behind(tmp_path, "127.0.0.0/8") as (live, port):
        for cut in range(len(whole)):
            welcome = await welcome_after(port, whole[:cut], whole[cut:])
            assert welcome["your-address"] == {"ipv4": "203.0.113.7", "port": 4321}, cut
        assert live.server.commit_loop.dispatcher.quotas.refusals == {}
        # A proxy of TCP passes on what the client has written.
        welcome = await welcome_after(port, header(), X_Forwarded_For="198.51.100.1", X_Real_IP="198.51.100.1")
        assert welcome["your-address"] == {"ipv4": "203.0.113.7", "port": 4321}
        # A trusted proxy of HTTP behind it names the client.
        welcome = await welcome_after(port, header("127.0.0.5"), X_Forwarded_For="198.51.100.1")
        assert welcome["your-address"] == {"ipv4": "198.51.100.1", "port": 0}


async def refused(live: LiveServer, port: int, data: bytes) -> None:
    """Send something that must close the connection and count once."""
    before = live.server.commit_loop.dispatcher.quotas.refusals[NO_PROXY_HEADER]
    socket = await RawSocket.connect(port)
    socket.write(data)
    assert await socket.rest() == b""
    assert live.server.commit_loop.dispatcher.quotas.refusals[NO_PROXY_HEADER] == before + 1


@on_uvloop
async def test_without_a_valid_header_the_connection_is_closed_and_counted(tmp_path: Path) -> None:
    async with behind(tmp_path, "127.0.0.0/8", replace(UNLIMITED, handshake=0.2)) as (live, port):
        for data in MALFORMED.values():
            assert parsed(data) is None
            await refused(live, port, data)
        await refused(live, port, header()[:-1])  # never completed
        await refused(live, port, b"")
        assert live.server.admitted == set()
    async with behind(tmp_path / "other", "10.0.0.0/8") as (live, port):
        await refused(live, port, header())  # of somebody who is not trusted


@on_uvloop
async def test_limits_per_address_count_the_clients_that_headers_name(tmp_path: Path) -> None:
    limits = replace(UNLIMITED, address_connections=1)
    async with behind(tmp_path, "127.0.0.0/8", limits) as (live, port):
        first, second, other = [await RawSocket.connect(port) for _ in range(3)]
        first.write(header("203.0.113.7"), b"GET")
        await until("the first", lambda: live.server.reading)
        second.write(header("203.0.113.7"))
        assert await second.rest() == b""
        other.write(header("203.0.113.8"), handshake())
        async with bounded("an answer to the other"):
            assert b"101" in await other.reader.readuntil(b"\r\n\r\n")
        for each in (first, second, other):
            each.cut()


@on_uvloop
async def test_tls_begins_after_the_header_and_an_address_has_a_limit_of_handshakes(tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    limits = replace(UNLIMITED, address_connects=1.0, address_connects_at_once=1)
    async with behind(tmp_path / "data", "127.0.0.0/8", limits) as (live, port):
        live.server.certificate = ServerCertificate(certificate.path, certificate.path)
        refusals = live.server.commit_loop.dispatcher.quotas.refusals
        sockets = [await RawSocket.connect(port) for _ in range(3)]
        for socket in sockets[:2]:
            socket.write(header())
            await socket.writer.start_tls(certificate.client, server_hostname="127.0.0.1")
        sockets[0].write(handshake())
        async with bounded("an answer"):
            await sockets[0].reader.readuntil(b"\r\n\r\n")
        assert (await sockets[0].hear())["welcome"]["your-address"] == {"ipv4": "203.0.113.7", "port": 4321}
        assert refusals[TOO_MANY_HANDSHAKES] == 0
        # The headers of a record and a ClientHello.
        sockets[2].write(header(), bytes.fromhex("16 0301 0200 01 0001fc"))
        assert await sockets[2].rest() == b""
        for socket in sockets:
            socket.cut()
        assert refusals[TOO_MANY_HANDSHAKES] == 1
