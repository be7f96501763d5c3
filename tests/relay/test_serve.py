"""`restante relay serve` as a process: signals, restarts, and what its surroundings lack."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from restante.relay.core.limits import Limits
from restante.relay.store.schema import FILE
from support.bounds import bounded
from support.certificates import Certificate
from support.loops import on_uvloop, until
from support.mailbox.raw_socket import RawSocket
from support.ports import held_port
from support.processes import RESTANTE, Serving, environment, started
from support.proxy_headers import line
from support.relay.live import LiveRelay, request
from support.sqlite import select

RELAY: Final = (*RESTANTE, "relay")

REMOTE: Final = ("--trust-proxy", "127.0.0.0/8", "--listen", "proxy:127.0.0.1:0")
"""A relay whose clients have the addresses that they name."""

SHORT: Final = "file descriptors are short: new connections wait (ulimit -n)"


@asynccontextmanager
async def serving(data: Path, *options: str, program: tuple[str, ...] = RELAY) -> AsyncIterator[tuple[Serving, int]]:
    """Run a relay, and yield it with its port."""
    async with started(data, program, options) as server:
        url = (await server.logged("listening"))["url"]
        yield server, int(url.rstrip("/").rpartition(":")[2])


async def ask(port: int, token: str = "t", before: bytes = b"", side: str = "", **where: Any) -> RawSocket:
    client = await RawSocket.connect(port, **where)
    client.write(before + request(token, side))
    return client


async def pair(port: int, token: str = "t", before: bytes = b"", **where: Any) -> tuple[RawSocket, RawSocket]:
    clients = [await ask(port, token, before, **where) for _ in range(2)]
    async with bounded("ok"):
        for client in clients:
            assert await client.reader.readexactly(3) == b"ok\n"
    return clients[0], clients[1]


async def transfer(port: int, size: int, before: bytes = b"") -> None:
    """Pass on so many bytes, and leave."""
    one, other = await pair(port, before=before)
    one.write(bytes(size))
    one.writer.write_eof()
    assert await other.rest() == bytes(size)
    one.cut()


def saved(data: Path, query: str) -> list[tuple[Any, ...]]:
    return select(data / FILE, query)


async def test_sigterm_closes_who_waits_and_lets_pairs_end(tmp_path: Path) -> None:
    async with serving(tmp_path, "--drain", "600") as (server, port):
        one, other = await pair(port)
        waiting, silent = await ask(port, "w"), await RawSocket.connect(port)
        await transfer(port, 1, b"")  # the relay has read what the others sent
        server.send(signal.SIGTERM)
        assert await waiting.rest() == await silent.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await RawSocket.connect(port)
        other.write(b"still here")
        async with bounded("bytes of a pair"):
            assert await one.reader.readexactly(10) == b"still here"
        one.writer.write_eof()
        assert await other.rest() == b""
        one.cut()
        assert await server.ended() == 0
    results = saved(tmp_path, "SELECT result, total_bytes FROM transfers ORDER BY result, total_bytes")
    assert results == [("empty", 0), ("happy", 1), ("happy", 10), ("lonely", 0)]
    assert saved(tmp_path, "SELECT month_bytes FROM traffic") == [(11,)]


async def test_pairs_that_last_longer_than_the_drain_are_ended(tmp_path: Path) -> None:
    async with serving(tmp_path, "--drain", "0.1") as (server, port):
        one, other = await pair(port)
        one.write(b"12345")
        async with bounded("bytes of a pair"):
            assert await other.reader.readexactly(5) == b"12345"
        await server.stop()
        assert await one.rest() == await other.rest() == b""
    assert saved(tmp_path, "SELECT result, total_bytes FROM transfers") == [("happy", 5)]


async def test_counts_go_on_after_a_restart_and_an_address_keeps_its_name_for_the_day(tmp_path: Path) -> None:
    counts = "SELECT day, day_bytes, month_bytes, address_id, bytes FROM traffic, address_bytes"
    rows = []
    for _ in range(2):
        async with serving(tmp_path, *REMOTE) as (server, port):
            await transfer(port, 1000, line("203.0.113.7"))
            await server.stop()
            rows += saved(tmp_path, counts)
    (day, *first), (later_day, *second) = rows
    if day == later_day:  # it is not midnight
        assert first[:2] == [1000, 1000]
        assert second == [2000, 2000, first[2], 2000]
        assert len({*saved(tmp_path, "SELECT address_id FROM transfers")}) == 1


async def test_a_kill_loses_what_came_since_the_last_save(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, port):
        await transfer(port, 1000)
        async with bounded("the record"):
            while not saved(tmp_path, "SELECT * FROM transfers"):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
        await transfer(port, 1)
        server.kill()
        await server.ended()
    async with serving(tmp_path) as (server, port):
        await transfer(port, 20)
        await server.stop()
    sizes = [size for (size,) in saved(tmp_path, "SELECT total_bytes FROM transfers ORDER BY id")]
    assert [size for size in sizes if size != 1] == [1000, 20]
    assert saved(tmp_path, "SELECT month_bytes FROM traffic") == [(sum(sizes),)]


async def test_sighup_applies_limits_and_the_certificate_and_says_what_needs_a_restart(tmp_path: Path) -> None:
    old = Certificate(tmp_path, name="old")
    used = tmp_path / "used.pem"
    used.write_bytes(old.path.read_bytes())
    file = tmp_path / "r.toml"
    file.write_text("[relay]\n[relay.limits]\npairs = 1\n")
    options = ("--config", str(file), "--tls-cert", str(used), "--tls-key", str(used))
    async with serving(tmp_path / "data", *options) as (server, port):
        clients = [*await pair(port, ssl=old.client)]
        clients += [await ask(port, "u", ssl=old.client) for _ in range(2)]
        assert [await clients.pop().rest() for _ in range(2)] == [b"bad handshake\n"] * 2
        new = Certificate(tmp_path, name="new")
        used.write_bytes(new.path.read_bytes())
        file.write_text("[relay]\nblur_usage = 60\n[relay.limits]\npairs = 3\npair_bytes = 10\n")
        server.send(signal.SIGHUP)
        await server.logged("the setting has changed", setting="limits.pairs", before=1, after=3)
        await server.logged("the setting needs a restart", setting="blur_usage", before=0, after=60)
        await server.logged("the certificate was read again")
        clients += await pair(port, "u", ssl=new.client)
        clients[0].write(b"1234567890")
        assert await clients[0].rest() == b"", "the pair has had its bytes"
        for client in clients:
            client.cut()
        await server.stop()


@on_uvloop
async def test_other_rates_apply_to_pairs_that_run(tmp_path: Path) -> None:
    size = 4 << 20
    async with LiveRelay(tmp_path).serving() as live:
        one, other = await live.pair()
        one.write(bytes(size))
        await other.reader.readexactly(size)
        live.server.apply_limits(Limits(pair_rate=1))
        one.write(bytes(size))
        [running] = live.server.running.values()
        await until("it has to wait", lambda: running.flow.queue is not None)
        [pair_] = live.server.running
        assert pair_.bytes - size < 100_000
        live.server.apply_limits(Limits())
        await other.reader.readexactly(size)
        assert pair_.bytes == 2 * size


async def test_when_descriptors_run_out_further_connections_wait(tmp_path: Path) -> None:
    limited = ("bash", "-c", 'ulimit -n 250; exec "$0" "$@"', *RELAY)
    async with serving(tmp_path, program=limited) as (server, port):
        one, other = await pair(port)
        # It accepts about 140. The others find room in the queue of the socket (ACCEPT_BACKLOG).
        clients = [await ask(port, "s", side="a") for _ in range(200)]
        await server.logged(SHORT)
        one.write(b"goes on")
        async with bounded("bytes of a pair"):
            assert await other.reader.readexactly(7) == b"goes on"
        late = [await ask(port, "y") for _ in range(2)]
        for client in clients:
            client.cut()
        await server.logged("new connections are accepted again")
        async with bounded("ok"):
            for client in late:
                assert await client.reader.readexactly(3) == b"ok\n"
        for client in (one, other, *late):
            client.cut()
        await server.stop()
        assert not any('"level":"error"' in text for text in server.log)


async def test_a_log_that_nobody_reads_delays_nothing(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    assert os.write(writer, bytes(size)) == size
    with held_port() as port:
        arguments = (*RELAY, "serve", "--data", str(tmp_path), "--listen", f"127.0.0.1:{port}", "--admin", "off")
        process = await asyncio.create_subprocess_exec(*arguments, stderr=writer, env=environment())
        os.close(writer)
        try:
            async with bounded("the relay"):
                while not await is_listening(port):  # noqa: ASYNC110 - it cannot say so
                    await asyncio.sleep(0.05)
            await transfer(port, 100_000)
            process.send_signal(signal.SIGTERM)
            async with bounded("the end"):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            os.close(reader)
    assert ("happy", 100_000) in saved(tmp_path, "SELECT result, total_bytes FROM transfers")


async def is_listening(port: int) -> bool:
    try:
        (await RawSocket.connect(port)).cut()
    except ConnectionRefusedError:
        return False
    return True
