"""Files and directories between people in two networks: by a relay where neither reaches the other, and by IPv6."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from support.client.parcels import (
    FILES,
    LARGE,
    MEDIUM,
    content_of,
    read_tree,
    same_bytes,
    write_parcel,
    write_sparse,
    write_tree,
)
from support.isolation import PUBLIC_RELAY, RELAY_PORT, Apart, networks_apart, unconnectable
from support.mailbox.deployment import Deployment
from support.mailbox.shipped import GO_NEW, GO_OLD, OURS, RUST_NEW, SHIPPED, Shipped, Words
from support.processes import RESTANTE, Child, Serving, child, serving

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(2400),  # seconds; the first test that needs the Rust client compiles it
    pytest.mark.asyncio(loop_scope="module"),
]

NAME: Final = "parcel.bin"
TREE_NAME: Final = "a directory"
SLOW: Final = 600.0
"""Seconds in which a large file must be there."""
HAPPY: Final = '"mood": "happy"'
"""What the relay says of two sides that it has connected."""

Pair = tuple[Shipped, Shipped]
"""The sender and the receiver."""
PAIRS: Final = [*((OURS, each) for each in (*SHIPPED, OURS)), *((each, OURS) for each in SHIPPED)]


def named(pair: Pair) -> str:
    return f"{pair[0]} to {pair[1]}"


class Networks:
    """Two private networks, with a server and a relay at the public address between them."""

    def __init__(self, network: Apart, server: Serving, relay: Child) -> None:
        self.network, self.server, self.relay = network, server, relay

    @property
    def connected_by_relay(self) -> int:
        """How many pairs the relay has connected."""
        return self.relay.said["stdout"].count(HAPPY)

    async def carry(self, pair: Pair, path: Path, folder: Path, *, by_relay: bool) -> Path:
        """Transfer what is at this path, from one network to the other. Return the folder where it has arrived."""
        before = self.connected_by_relay
        async with AsyncExitStack() as ends:
            network = self.network
            deployment = Deployment(network.one, self.server, folder, ends, network.other)
            sender, receiver = map(self._with_the_relay, pair)
            arrived = await deployment.carry(sender, receiver, path, SLOW)
        if by_relay:
            await self.relay.until(
                "the relay says that it has connected them", lambda: self.connected_by_relay > before
            )
        else:
            assert self.connected_by_relay == before
        return arrived

    @staticmethod
    def _with_the_relay(client: Shipped) -> Shipped:
        """Return a client that uses the relay, by the name that Go's client always uses: it has no option for it."""
        where = f"{PUBLIC_RELAY}:{RELAY_PORT}"
        relays = {f"{scheme}127.0.0.1:{RELAY_PORT}": f"{scheme}{where}" for scheme in ("tcp:", "tcp://")}
        relays[""] = f"tcp:{where}"

        def changed(words: Words) -> Words:
            return tuple(relays.get(word, word) for word in words)

        its = client.language
        language = replace(its, send_file=changed(its.send_file), receive=changed(its.receive))
        return replace(client, language=language)


@asynccontextmanager
async def networks(folder: Path, *, ipv6: bool) -> AsyncIterator[Networks]:
    if reason := unconnectable():
        pytest.skip(f"networks that are connected: {reason}")
    twist = str(Path(sys.executable).parent / "twist")
    async with networks_apart(folder, ipv6=ipv6) as network:
        interface = network.address.replace(":", r"\:")
        port = f"--port=tcp:{RELAY_PORT}:interface={interface}"
        relaying = child(*network.public, twist, "--log-format=text", "transitrelay", "--log-fd=1", port)
        listen = ("--listen", f"{network.host}:0")
        async with relaying as relay, serving(folder / "data", (*network.public, *RESTANTE), listen) as server:
            await relay.says(f" starting on {RELAY_PORT}")
            yield Networks(network, server, relay)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nat(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Networks]:
    """Neither side reaches the other, though each tells its address."""
    async with networks(tmp_path_factory.mktemp("nat"), ipv6=False) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ipv6(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Networks]:
    """Both sides reach one another, by IPv6 alone."""
    async with networks(tmp_path_factory.mktemp("ipv6"), ipv6=True) as made:
        yield made


# ── by a relay ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pair", PAIRS, ids=named)
async def test_a_file_arrives_by_the_relay(nat: Networks, tmp_path: Path, pair: Pair) -> None:
    arrived = await nat.carry(pair, write_parcel(tmp_path / "parcels", NAME), tmp_path, by_relay=True)
    assert (arrived / NAME).read_bytes() == content_of(NAME)


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if RUST_NEW not in pair], ids=named)
async def test_a_directory_arrives_by_the_relay(nat: Networks, tmp_path: Path, pair: Pair) -> None:
    """The Rust client knows none: it sends a tar file, and stores a zip file (test_clients.py)."""
    arrived = (await nat.carry(pair, write_tree(tmp_path, TREE_NAME), tmp_path, by_relay=True)) / TREE_NAME
    assert {path: content for path, content in read_tree(arrived).items() if path in FILES} == FILES


@pytest.mark.xdist_group("large files")
@pytest.mark.parametrize("pair", PAIRS, ids=named)
async def test_a_large_file_arrives_by_the_relay(nat: Networks, tmp_path: Path, pair: Pair) -> None:
    sent = write_sparse(tmp_path / "parcels", MEDIUM if RUST_NEW in pair else LARGE)
    arrived = (await nat.carry(pair, sent, tmp_path, by_relay=True)) / sent.name
    assert same_bytes(sent, arrived)
    arrived.unlink()  # pytest keeps folders


# ── by IPv6 ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pair", PAIRS, ids=named)
async def test_a_file_arrives_by_ipv6(ipv6: Networks, tmp_path: Path, pair: Pair) -> None:
    """Go's sender tells no IPv6 address and dials nobody (1.0.8, file_transport.go:627), so the relay is the way."""
    arrived = await ipv6.carry(
        pair, write_parcel(tmp_path / "parcels", NAME), tmp_path, by_relay=pair[0] in (GO_OLD, GO_NEW)
    )
    assert (arrived / NAME).read_bytes() == content_of(NAME)
