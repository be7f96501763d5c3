"""Files and directories between `restante` and `wormhole`, directly and by the relay that everybody uses.

Clients of other versions and languages are in test_clients.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from support.bounds import BOUND
from support.client.parcels import (
    GIB,
    PARCELS,
    TREE,
    is_executable,
    read_tree,
    same_bytes,
    write_parcel,
    write_sparse,
    write_tree,
)
from support.mailbox.servers import Restante, TransitRelay
from support.mailbox.shipped import CURRENT, OURS, Deployment, Shipped
from support.ports import nobodys_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

Pair = tuple[Shipped, Shipped]
"""The sender and the receiver."""
PAIRS: Final = [(OURS, CURRENT), (CURRENT, OURS), (OURS, OURS)]

SLOW: Final = 600.0
"""Seconds in which a GiB must be there."""

HARD_NAME: Final = "e\u0301tude $(id) 'quotes' \"double\" #1 %41 & co.txt"

thorough = pytest.mark.thorough


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Restante]:
    async with Restante(tmp_path_factory.mktemp("server") / "mailbox").running() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def deployment(server: Restante, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with AsyncExitStack() as ends:
        url = f"ws://127.0.0.1:{server.port}/v1"
        yield Deployment(url, tmp_path, ends, relay=f"127.0.0.1:{nobodys_port()}")


def named(pair: Pair) -> str:
    return f"{pair[0]} to {pair[1]}"


async def arrives(deployment: Deployment, pair: Pair, sent: Path, within: float = BOUND) -> None:
    """Transfer a file; exactly that is in the receiver's folder then."""
    [arrived] = (await deployment.carry(*pair, sent, within)).folder.iterdir()
    assert arrived.name == sent.name
    assert same_bytes(sent, arrived)
    arrived.unlink()  # pytest keeps folders


@pytest.mark.parametrize(
    "name", [HARD_NAME, *(pytest.param(name, marks=thorough) for name in PARCELS if name != HARD_NAME)]
)
@pytest.mark.parametrize("pair", PAIRS[:2], ids=named)
async def test_a_file_arrives_byte_for_byte(deployment: Deployment, tmp_path: Path, pair: Pair, name: str) -> None:
    await arrives(deployment, pair, write_parcel(tmp_path / "parcels", name))


@pytest.mark.parametrize("pair", PAIRS[:2], ids=named)
async def test_a_directory_arrives(deployment: Deployment, tmp_path: Path, pair: Pair) -> None:
    sent = write_tree(tmp_path / "parcels", "Ein Ordner 📁")
    arrived = (await deployment.carry(*pair, sent)).folder / sent.name
    assert read_tree(arrived) == TREE
    assert is_executable(arrived)


@pytest.mark.parametrize("pair", [*(pytest.param(pair, marks=thorough) for pair in PAIRS[:2]), PAIRS[2]], ids=named)
async def test_two_sides_that_both_listen_nowhere_meet_at_a_relay(
    deployment: Deployment, tmp_path: Path, pair: Pair
) -> None:
    async with TransitRelay(tmp_path / "relay").running() as relay:
        deployment.relay, deployment.options = f"127.0.0.1:{relay.port}", ("--no-listen",)
        name = "שלום עולם"
        await arrives(deployment, pair, write_parcel(tmp_path / "parcels", name))
        assert await relay.carried() > PARCELS[name]


@thorough
@pytest.mark.parametrize("pair", PAIRS, ids=named)
async def test_a_large_file_arrives(deployment: Deployment, tmp_path: Path, pair: Pair) -> None:
    await arrives(deployment, pair, write_sparse(tmp_path / "parcels", GIB), SLOW)
