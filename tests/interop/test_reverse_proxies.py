"""Behind a real nginx, HAProxy and Caddy, set up as the guides say, and with TLS of its own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interop.reverse_proxies import BALANCERS, CADDY, DIRECT, HAPROXY, HAPROXY_OF_TCP, PROXIES, behind, running_fronts
from support.bounds import bounded
from support.certificates import Certificate
from support.documents import Document
from support.mailbox.raw_socket import BINARY, RawSocket, frame, handshake
from support.mailbox.wormhole import Client
from support.ports import held_everywhere
from support.postgres import Cluster
from support.processes import RESTANTE, Serving, serving, started

TEXT = "held until called for"


async def welcomed(socket: RawSocket, **headers: str) -> dict[str, Any]:
    socket.write(handshake(**headers))
    await socket.head()
    welcome: dict[str, Any] = (await socket.hear())["welcome"]
    await socket.is_served()
    socket.cut()
    return welcome


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_client_is_served_and_has_an_address_of_its_own(tmp_path: Path, proxy: str) -> None:
    options = ("--trust-proxy", "127.0.0.1/32")
    async with serving(tmp_path / "data", options=options) as server, behind(proxy, tmp_path, server.port) as port:
        socket = RawSocket(*await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)))
        welcome = await welcomed(socket, X_Forwarded_For="203.0.113.9")
        assert welcome["your-address"] == {"ipv4": "127.0.0.2", "port": 0}


async def test_a_browser_reaches_the_relay_beside_the_mailbox_server(tmp_path: Path) -> None:
    """The other side is a command, which uses TCP."""
    command = (*RESTANTE, "relay")
    options = ("--trust-proxy", "127.0.0.1/32")
    async with serving(tmp_path / "data", command, options) as relay:
        relay_port = int(relay.url.rpartition(":")[2])
        block = Document("docs/relay/operating.md").blocks["browsers"]
        block = block.replace("127.0.0.1:4001", f"127.0.0.1:{relay_port}")
        proxy = replace(CADDY, instead={"relay.example.org {\n": f"relay.example.org {{\n{block}"})
        async with behind("caddy", tmp_path, relay_port, proxy=proxy) as port:
            browser = await RawSocket.dial(port, "/transit")
            browser.write(frame(BINARY, b"please relay " + b"a" * 64))
            other = await RawSocket.connect(relay_port)
            other.write(b"please relay " + b"a" * 64 + b"\n")
            assert (await browser.read(), await other.reader.readexactly(3)) == ((BINARY, b"ok\n"), b"ok\n")
            browser.write(frame(BINARY, b"from the browser"))
            assert await other.reader.readexactly(16) == b"from the browser"
            other.write(b"from the command")
            assert await browser.read() == (BINARY, b"from the command")
            browser.cut()
            other.cut()


async def test_the_health_check_of_haproxy_succeeds(tmp_path: Path) -> None:
    """Its page of statistics shows the result of the last check (HAProxy's management.txt, section 9.1)."""
    server_line = "    server restante 127.0.0.1:4000"
    proxy = replace(
        HAPROXY,
        config=HAPROXY.config.replace("    default_backend", "    stats enable\n    default_backend"),
        instead={server_line: f"    option httpchk\n{server_line} check"},
    )
    async with (
        serving(tmp_path / "data") as server,
        behind("haproxy", tmp_path, server.port, proxy=proxy) as port,
        bounded("a check"),
    ):
        row = ""
        while ",L7" not in row:  # before the first check it is INI
            socket = await RawSocket.connect(port)
            socket.write(b"GET /haproxy?stats;csv HTTP/1.0\r\n\r\n")
            lines = (await socket.rest()).decode().splitlines()
            [row] = [line for line in lines if line.startswith("restante,restante,")]
            await asyncio.sleep(0.05)
    assert ",L7OK,200," in row


@pytest.mark.parametrize("option", ["send-proxy-v2", "send-proxy"])
async def test_a_proxy_of_tcp_names_the_client_in_a_proxy_header(tmp_path: Path, option: str) -> None:
    """The client's address is that of its end of the connection to the proxy. The TLS is the server's."""
    certificate = Certificate(tmp_path)
    proxy = replace(HAPROXY_OF_TCP, instead={"send-proxy-v2": option})
    options = (
        *("--listen", "proxy:127.0.0.1:0", "--trust-proxy", "127.0.0.0/8"),
        *("--tls-cert", str(certificate.path), "--tls-key", str(certificate.path)),
    )
    async with (
        serving(tmp_path / "data", options=options) as server,
        behind("haproxy", tmp_path, server.port, proxy=proxy) as port,
    ):
        socket = RawSocket(*await asyncio.open_connection("127.0.0.1", port, ssl=certificate.client))
        _, own_port = socket.writer.get_extra_info("sockname")
        assert (await welcomed(socket))["your-address"] == {"ipv4": "127.0.0.1", "port": own_port}


@pytest.mark.thorough
@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("proxy", BALANCERS)
async def test_clients_of_two_hosts_go_on_when_the_one_that_serves_is_killed(
    tmp_path: Path, postgres: Cluster, proxy: str
) -> None:
    """One waits for its code to be used, and the other comes while no host serves."""
    with held_everywhere() as port, held_everywhere() as admin:
        addresses = {f"10.0.0.{number}:4000": f"127.0.0.{number}:{port}" for number in (1, 2)}
        hosts = replace(BALANCERS[proxy], instead={**addresses, "4010": str(admin)})

        async def start(number: int) -> Serving:
            listen = ("--listen", f"127.0.0.{number}:{port}", "--admin", f"127.0.0.{number}:{admin}")
            server = started(tmp_path, options=("--database", postgres.url, *listen))
            return await ends.enter_async_context(server)

        async def client(name: str, *command: str) -> Client:
            (tmp_path / name).mkdir()
            running = await Client.start(tmp_path / name, f"ws://127.0.0.1:{front}/v1", *command)
            ends.push_async_callback(running.end)
            return running

        async with AsyncExitStack() as ends:
            first = await start(1)
            await first.logged("listening")
            second = await start(2)
            await second.logged("standing by")
            front = await ends.enter_async_context(behind(proxy, tmp_path, port, proxy=hosts))
            sender = await client("sender", "send", "--no-qr", "--text", TEXT)
            code = await sender.code()
            first.kill()
            receiver = await client("receiver", "receive", code)
            assert await receiver.ended() == 0, receiver.said
            assert (await sender.ended(), receiver.said["stdout"]) == (0, f"{TEXT}\n")


async def test_a_text_arrives_over_tls_if_the_certificate_is_trusted(tmp_path: Path) -> None:
    async with running_fronts(tmp_path, [DIRECT]) as fronts, AsyncExitStack() as ends:

        async def start(name: str, trusted: Certificate, *command: str) -> Client:
            (tmp_path / name).mkdir()
            started = await Client.start(tmp_path / name, fronts.url(DIRECT), *command, **trusted.trust)
            ends.push_async_callback(started.end)
            return started

        sender = await start("sender", fronts.certificate, "send", "--no-qr", "--text", TEXT)
        receiver = await start("receiver", fronts.certificate, "receive", await sender.code())
        distrustful = await start("distrustful", Certificate(tmp_path, name="other"), "send", "--text", TEXT)
        assert [await client.ended() for client in (receiver, sender, distrustful)] == [0, 0, 1]
        assert receiver.said["stdout"] == f"{TEXT}\n"
        assert "code is" not in distrustful.said["stderr"]
