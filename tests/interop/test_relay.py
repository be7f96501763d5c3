"""Files through our transit relay, between clients that cannot reach each other: they do not listen."""

from __future__ import annotations

import asyncio
import filecmp
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from interop.shipped_clients import CURRENT, OURS, Deployment, Running, Shipped, write_sparse
from restante.relay.protocol.request import OK
from support.bounds import bounded
from support.mailbox.servers import Restante
from support.ports import held_port
from support.relay.servers import RestanteRelay

pytestmark = pytest.mark.asyncio(loop_scope="module")

thorough = pytest.mark.thorough

MIB: Final = 1 << 20
GIB: Final = 1 << 30

Pair = tuple[Shipped, Shipped]

PAIRS: Final = list(itertools.product((CURRENT, OURS), (CURRENT, OURS)))
"""Senders and receivers."""

SLOW: Final = ("--limit", "pair_rate=2000000")
"""A transfer of `LONG` bytes then takes longer than a test waits."""
LONG: Final = GIB


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Restante]:
    async with Restante(tmp_path_factory.mktemp("server") / "mailbox").running() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def relay(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RestanteRelay]:
    """Run a relay with the flags that a test names."""
    async with RestanteRelay(tmp_path / "relay", *getattr(request, "param", ())).running() as relay:
        yield relay


@pytest_asyncio.fixture(loop_scope="module")
async def deployment(server: Restante, relay: RestanteRelay, tmp_path: Path) -> AsyncIterator[Deployment]:
    url, address = f"ws://127.0.0.1:{server.port}/v1", f"127.0.0.1:{relay.port}"
    async with AsyncExitStack() as ends:
        yield Deployment(url, tmp_path, ends, relay=address, options=("--no-listen",))


def flags(*arguments: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("relay", [arguments], ids=arguments[-1:], indirect=True)


def between(*pairs: Pair) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pair", pairs, ids=lambda pair: f"{pair[0]} to {pair[1]}")


async def until(what: str, holds: Callable[[], object]) -> None:
    """Wait for something that other processes do, of which nothing tells."""
    async with bounded(what):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def started(deployment: Deployment, pair: Pair, sent: Path) -> tuple[Running, Running]:
    """Start a sender, and a receiver that has received some."""
    sender = await deployment.send(pair[0], sent)
    receiver = await deployment.receive(pair[1], await sender.code())

    def has_received() -> bool:
        assert receiver.running, (receiver.said, sender.said)
        return any(path.is_file() and path.stat().st_size > MIB for path in receiver.folder.rglob("*"))

    await until("bytes arrive", has_received)
    return sender, receiver


async def arrive(deployment: Deployment, pairs: list[Pair], sent: Path) -> None:
    """Let all of these transfer at once."""

    async def arrives(number: int, pair: Pair) -> None:
        folder = deployment.folder / str(number)
        folder.mkdir()
        [arrived] = (await replace(deployment, folder=folder).carry(*pair, sent)).folder.iterdir()
        assert filecmp.cmp(sent, arrived, shallow=False)
        arrived.unlink()  # pytest keeps folders

    await asyncio.gather(*(arrives(number, pair) for number, pair in enumerate(pairs)))


@pytest.mark.parametrize(
    ("times", "size"),
    [(1, 8 * MIB), pytest.param(8, 32 * MIB, marks=thorough)],
    ids=["four", "thirty-two"],
)
async def test_files_arrive_at_once(
    deployment: Deployment, relay: RestanteRelay, tmp_path: Path, times: int, size: int
) -> None:
    before = relay.sockets()
    await arrive(deployment, times * PAIRS, write_sparse(tmp_path, size))
    await until("the relay closes its sockets", lambda: relay.sockets() == before)
    transfers = times * len(PAIRS)
    assert await relay.results() == {"happy": transfers}
    assert transfers * size < relay.relayed_bytes() < 1.01 * transfers * size


@thorough
@between(*PAIRS)
async def test_a_large_file_arrives(deployment: Deployment, relay: RestanteRelay, tmp_path: Path, pair: Pair) -> None:
    await arrive(deployment, [pair], write_sparse(tmp_path, GIB))
    assert await relay.results() == {"happy": 1}


async def test_a_file_arrives_if_the_sides_use_two_addresses_of_the_relay(
    server: Restante, deployment: Deployment, tmp_path: Path
) -> None:
    """Both sides dial both addresses, so that there are two pairs, or connections that are left over."""
    sent = write_sparse(tmp_path, MIB)
    with held_port("127.0.0.2") as port:
        other = f"127.0.0.2:{port}"
        async with RestanteRelay(tmp_path / "two", "--listen", other).running() as relay:
            for number, pair in enumerate(PAIRS[1:3]):
                folder = tmp_path / str(number)
                folder.mkdir()
                ours = replace(deployment, folder=folder, relay=f"127.0.0.1:{relay.port}")
                sender = await ours.send(pair[0], sent)
                receiver = await replace(ours, relay=other).receive(pair[1], await sender.code())
                assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
            results = await relay.results()
    assert set(results) <= {"happy", "redundant", "lonely"}
    assert 2 <= results["happy"] <= 4
    assert 4 <= results.total() <= 6


@flags(*SLOW)
@pytest.mark.parametrize(
    ("survivor", "role", "error"),
    [
        (CURRENT, "receiver", "ERROR:"),
        (CURRENT, "sender", "ERROR: Consumer asked us to stop producing"),
        (OURS, "receiver", "the connection to the other side was closed after receiving "),
        (OURS, "sender", "the connection to the other side was closed after sending "),
    ],
    ids=str,
)
async def test_a_client_ends_if_the_other_one_is_killed(
    deployment: Deployment, relay: RestanteRelay, tmp_path: Path, survivor: Shipped, role: str, error: str
) -> None:
    before = relay.sockets()
    pair = (survivor, OURS) if role == "sender" else (OURS, survivor)
    sender, receiver = await started(deployment, pair, write_sparse(tmp_path, LONG))
    killed, other = (receiver, sender) if role == "sender" else (sender, receiver)
    killed.kill()
    assert await other.ended() == 1
    assert error in other.said["stderr"]
    await until("the relay closes its sockets", lambda: relay.sockets() == before)
    assert await relay.results() == {"happy": 1}


@thorough
@flags(*SLOW)
@between(*PAIRS)
async def test_clients_end_if_the_relay_is_killed(
    deployment: Deployment, relay: RestanteRelay, tmp_path: Path, pair: Pair
) -> None:
    clients = await started(deployment, pair, write_sparse(tmp_path, LONG))
    relay.kill()
    assert [await client.ended() for client in clients] == [1, 1]
    await relay.restart()
    assert await relay.results() == {}


@flags("--limit", "pair_rate=4000000")
@between((OURS, CURRENT))
async def test_a_relay_that_is_stopped_lets_a_transfer_end(
    deployment: Deployment, relay: RestanteRelay, tmp_path: Path, pair: Pair
) -> None:
    sender, receiver = await started(deployment, pair, sent := write_sparse(tmp_path, 6 * MIB))
    await relay.stop()
    assert (await receiver.ended(), await sender.ended()) == (0, 0)
    assert filecmp.cmp(sent, receiver.folder / sent.name, shallow=False)
    assert await relay.results() == {"happy": 1}


@flags("--limit", "pairs=1")
async def test_both_clients_end_at_once_if_the_relay_refuses(
    deployment: Deployment, relay: RestanteRelay, tmp_path: Path
) -> None:
    request, where = b"please relay " + 64 * b"0" + b"\n", ("127.0.0.1", relay.port)
    with socket.create_connection(where) as one, socket.create_connection(where) as other:
        for end in (one, other):
            end.sendall(request)
        assert await asyncio.to_thread(one.recv, len(OK)) == OK
        sender = await deployment.send(CURRENT, write_sparse(tmp_path, 1000))
        receiver = await deployment.receive(OURS, await sender.code())
        assert (await receiver.ended(), await sender.ended()) == (1, 1)
    assert f"(127.0.0.1:{relay.port}: the relay refused the connection)" in receiver.said["stderr"]
    assert r"ERROR: got b'bad handshake\n' want b'ok\n'" in sender.said["stderr"]
    assert await relay.results() == {"happy": 1, "errory": 2}
