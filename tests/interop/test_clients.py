"""The clients that people use, of several languages and versions, with one another and with ours."""

from __future__ import annotations

import asyncio
import filecmp
import itertools
import json
import os
import random
import sys
import tarfile
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from interop.reverse_proxies import FRONTS, NGINX_LIMIT, Fronts, running_fronts
from interop.shipped_clients import (
    CURRENT,
    GO_NEW,
    GO_OLD,
    OURS,
    PYTHON_OLD,
    RUST_NEW,
    SHIPPED,
    Arguments,
    Deployment,
    Shipped,
)
from restante.client.transit.pipe import RECORD_BYTES
from restante.mailbox.server.server import PING_INTERVAL_SECONDS
from support.bounds import BOUND
from support.isolation import ADDRESS, PUBLIC_RELAY, RELAY_PORT, entering, isolated_network, need
from support.mailbox.servers import Restante
from support.ports import held_port, nobodys_port
from support.processes import RESTANTE, Child, Serving, child, run, serving

pytestmark = [
    pytest.mark.timeout(2400),  # seconds; the first test that needs the Rust client compiles it
    pytest.mark.asyncio(loop_scope="module"),
]

thorough = pytest.mark.thorough

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
LARGE: Final = 100 * MIB
"""More than the sockets of two connections and a relay between them hold."""
MEDIUM: Final = 32 * MIB
"""For the Rust client, slow as it is built here: more than the sockets of a connection hold, 6 + 4 MiB (tcp(7))."""

PARCELS: Final = {
    "parcel.bin": 300_000,
    "nothing.bin": 0,
    "-leading dash": 1,
    "Grüße, naïve señor.txt": 16 * KIB - 16,  # what Go sends in a record
    "Καλημέρα κόσμε.pdf": 16 * KIB - 1,
    "مرحبا بالعالم.txt": 16 * KIB,  # what Python and Rust send in a record
    "Доброе утро": 16 * KIB + 1,
    "日本語 한국어 中文.tar.gz": RECORD_BYTES - 1,
    "👩‍🚀📦.bin": RECORD_BYTES,  # what we send in a record
    "e\u0301tude $(id) 'quotes' \"double\" #1 %41 & co.txt": RECORD_BYTES + 1,
    "שלום עולם": 5 * MIB + 7,
    "n" * 200: 2,
    "д" * 100: 5,
    " a b  ": 3,
    ".hidden": 4,
}


def write_parcel(folder: Path, name: str) -> Path:
    path = folder / "parcels" / name
    path.parent.mkdir()
    path.write_bytes(random.Random(name).randbytes(PARCELS[name]))
    return path


def write_sparse(folder: Path, size: int) -> Path:
    """Write a file that takes no room on disk, but for a few bytes at its ends and in its middle."""
    path = folder / "parcels" / "sparse.bin"
    path.parent.mkdir()
    with path.open("wb") as file:
        for offset in (0, size // 2, size - 4):
            file.seek(offset)
            file.write(b"mark")
    return path


TREE: Final[dict[str, bytes | None]] = {
    "read me.txt": b"some words\n",
    "empty file": b"",
    "empty directory": None,
    "one/two/three/deep.bin": random.Random(3).randbytes(70_000),
    "one/run.sh": b"#!/bin/sh\nexit 0\n",
    "Ελληνικά/مرحبا/📦.txt": "é".encode(),
    "one/-dash": b"-",
    ".hidden/x": b"x",
}
"""Files of a directory, by path; None is a directory."""


def read_tree(top: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(top)): path.read_bytes() if path.is_file() else None
        for path in top.rglob("*")
        if path.is_file() or not any(path.iterdir())
    }


PARCEL: Final = "parcel.bin"
TEXT: Final = "held until called for"
TREE_NAME: Final = "Ein Ordner 📁"
SLOW: Final = 900.0

Pair = tuple[Shipped, Shipped]

PAIRS: Final = [*((OURS, client) for client in (*SHIPPED, OURS)), *((client, OURS) for client in SHIPPED)]
QUICK: Final = [(OURS, CURRENT), (CURRENT, OURS), (OURS, OURS)]
WITH_OTHERS: Final = [pair for pair in PAIRS if pair not in QUICK]
WITH_TEXT: Final = [client for client in (*SHIPPED, OURS) if client.language.knows_texts]
BY_NAME: Final = [(WITH_OTHERS[number % len(WITH_OTHERS)], name) for number, name in enumerate(2 * [*PARCELS])]
GO: Final = {GO_OLD, GO_NEW}
"""They make an empty file of an empty directory that they receive (1.0.8, cmd/recv.go:199-230)."""

SILENCE: Final = NGINX_LIMIT + 2 * PING_INTERVAL_SECONDS
"""Seconds, more than any default time limit. nginx has 60 s, Debian's HAProxy 50 s. The Python client pings after
30 s, and waits 60 s for the answer (_rendezvous.py:87). The others have no limit."""


def between(pairs: list[Pair], marks: tuple[pytest.MarkDecorator, ...] = (thorough,)) -> pytest.MarkDecorator:
    params = [pytest.param(pair, marks=marks, id=f"{pair[0]} to {pair[1]}") for pair in pairs]
    return pytest.mark.parametrize("pair", params)


async def arrives(deployment: Deployment, pair: Pair, sent: Path, within: float = BOUND) -> None:
    [arrived] = (await deployment.carry(*pair, sent, within)).folder.iterdir()
    assert arrived.name == sent.name
    assert filecmp.cmp(sent, arrived, shallow=False)
    arrived.unlink()  # pytest keeps folders


@pytest.fixture
def parcel(tmp_path: Path) -> Path:
    return write_parcel(tmp_path, PARCEL)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "parcels" / TREE_NAME
    for path, content in TREE.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            (top / path).mkdir()
        else:
            (top / path).write_bytes(content)
    (top / "one/run.sh").chmod(0o755)
    return top


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Restante]:
    async with Restante(tmp_path_factory.mktemp("server") / "mailbox").running() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def here(server: Restante, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with AsyncExitStack() as ends:
        url = f"ws://127.0.0.1:{server.port}/v1"
        yield Deployment(url, tmp_path, ends, relay=f"127.0.0.1:{nobodys_port()}")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[thorough] * ("$(id)" not in name)) for name in PARCELS])
@between(QUICK[:2], marks=())
async def test_a_file_arrives_byte_for_byte(here: Deployment, tmp_path: Path, pair: Pair, name: str) -> None:
    await arrives(here, pair, write_parcel(tmp_path, name))


@between(QUICK[:2], marks=())
async def test_a_directory_arrives_as_it_was(here: Deployment, tree: Path, pair: Pair) -> None:
    arrived = (await here.carry(*pair, tree)).folder / TREE_NAME
    assert read_tree(arrived) == TREE
    assert os.access(arrived / "one/run.sh", os.X_OK)


@between(QUICK[:2], marks=())
async def test_a_text_is_printed(here: Deployment, pair: Pair) -> None:
    assert (await here.carry(*pair, TEXT)).said["stdout"] == f"{TEXT}\n"


@asynccontextmanager
async def transit_relay(port: int, address: str = "127.0.0.1", network: Arguments = ()) -> AsyncIterator[Child]:
    twist = str(Path(sys.executable).parent / "twist")
    interface = address.replace(":", r"\:")
    command = (twist, "--log-format=text", "transitrelay", "--log-fd=1", f"--port=tcp:{port}:interface={interface}")
    async with child(*network, *command) as relay:
        await relay.says(f" starting on {port}")
        yield relay


async def test_two_sides_that_both_listen_nowhere_meet_at_a_relay(here: Deployment, tmp_path: Path) -> None:
    name = "שלום עולם"
    with held_port() as port:
        async with transit_relay(port) as relay:
            here.relay, here.options = f"127.0.0.1:{port}", ("--no-listen",)
            await arrives(here, (OURS, OURS), write_parcel(tmp_path, name))
            carried = await relay.says(r'"total_bytes": (\d+), "mood": "happy"')
    assert int(carried[1]) > PARCELS[name]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def inside(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Arguments]:
    async with isolated_network(tmp_path_factory.mktemp("network")) as inside:
        yield inside


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(inside: Arguments, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    async with serving(tmp_path_factory.mktemp("shared") / "data", (*inside, *RESTANTE)) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def deployment(inside: Arguments, shared: Serving, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with AsyncExitStack() as ends:
        yield Deployment(shared.url, tmp_path, ends, inside)


@between(list(itertools.product(SHIPPED, SHIPPED)))
async def test_a_file_arrives(deployment: Deployment, parcel: Path, pair: Pair) -> None:
    await arrives(deployment, pair, parcel)


@between(list(itertools.product(WITH_TEXT, WITH_TEXT)))
async def test_a_text_arrives(deployment: Deployment, pair: Pair) -> None:
    assert (await deployment.carry(*pair, TEXT)).said["stdout"] == f"{TEXT}\n"


@thorough
@pytest.mark.parametrize(("pair", "name"), BY_NAME)
async def test_a_file_of_any_name_arrives(deployment: Deployment, tmp_path: Path, pair: Pair, name: str) -> None:
    await arrives(deployment, pair, write_parcel(tmp_path, name))


@between([pair for pair in WITH_OTHERS if RUST_NEW not in pair])
async def test_a_directory_arrives(deployment: Deployment, tree: Path, pair: Pair) -> None:
    arrived = (await deployment.carry(*pair, tree)).folder / TREE_NAME
    sender, receiver = pair
    expected: Mapping[str, bytes | None] = TREE
    if receiver in GO:
        expected = TREE | {"empty directory": b""}
    elif sender in {PYTHON_OLD, *GO}:  # they send no empty directories
        expected = {path: content for path, content in TREE.items() if content is not None}
    assert read_tree(arrived) == expected
    assert os.access(arrived / "one/run.sh", os.X_OK)


@thorough
async def test_rust_stores_our_directory_as_a_zip_file(deployment: Deployment, tmp_path: Path, tree: Path) -> None:
    arrived = (await deployment.carry(OURS, RUST_NEW, tree)).folder
    with zipfile.ZipFile(arrived / f"{TREE_NAME}.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
    assert read_tree(tmp_path / "unpacked") == TREE


@thorough
@pytest.mark.parametrize("unpack", [False, True])
async def test_the_rust_client_sends_directories_as_tar(deployment: Deployment, tree: Path, *, unpack: bool) -> None:
    """It gives all files the same mode (transfer/v1.rs:768)."""
    arguments = (*OURS.language.receive, *["--unpack"] * unpack)
    receiver = replace(OURS, language=replace(OURS.language, receive=arguments))
    arrived = (await deployment.carry(RUST_NEW, receiver, tree)).folder
    if not unpack:
        with tarfile.open(arrived / f"{TREE_NAME}.tar") as archive:
            archive.extractall(arrived, filter="data")
    assert read_tree(arrived / TREE_NAME) == TREE


@pytest.mark.xdist_group("large files")
@between(PAIRS)
async def test_a_large_file_arrives(deployment: Deployment, tmp_path: Path, pair: Pair) -> None:
    """1 GiB is 65,536 records of Go or Python. It takes the Rust client, built without optimization, five minutes."""
    size = GIB if GO_OLD in pair or pair in QUICK else MEDIUM if RUST_NEW in pair else LARGE
    await arrives(deployment, pair, write_sparse(tmp_path, size), SLOW)


@between(
    [
        *((CURRENT, receiver) for receiver in (GO_OLD, GO_NEW, RUST_NEW, OURS)),
        *((sender, CURRENT) for sender in SHIPPED if sender.language is CURRENT.language),
        *((OURS, receiver) for receiver in (CURRENT, GO_NEW, OURS)),
    ]
)
async def test_a_code_works_after_a_kill(deployment: Deployment, tmp_path: Path, parcel: Path, pair: Pair) -> None:
    async def start(port: int = 0) -> Serving:
        program = (*deployment.inside, *RESTANTE)
        server = serving(tmp_path / "data", program, ("--listen", f"127.0.0.1:{port}"))
        return await deployment.ends.enter_async_context(server)

    async def kill_and_restart() -> None:
        first.kill()
        await first.ended()
        await start(first.port)

    first = await start()
    deployment.url = first.url
    receiver = await deployment.carry(*pair, parcel, meanwhile=kill_and_restart)
    assert filecmp.cmp(parcel, receiver.folder / PARCEL, shallow=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fronts(inside: Arguments, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fronts]:
    async with running_fronts(tmp_path_factory.mktemp("fronts"), FRONTS, inside) as fronts:
        yield fronts


@thorough
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("client", [*SHIPPED, OURS], ids=str)
async def test_each_client_sends_and_receives_over_tls(
    deployment: Deployment, fronts: Fronts, parcel: Path, client: Shipped, front: str
) -> None:
    deployment.url, deployment.variables = fronts.url(front), fronts.certificate.trust
    await arrives(deployment, (client, client), parcel)


@thorough
@pytest.mark.parametrize("clients", [(CURRENT, RUST_NEW, OURS), (GO_NEW,)], ids=["python, rust and ours", "go"])
async def test_clients_that_are_idle_beyond_all_time_limits_stay_connected(
    deployment: Deployment, fronts: Fronts, tmp_path: Path, parcel: Path, clients: tuple[Shipped, ...]
) -> None:

    def connections() -> set[int]:
        return {json.loads(line)["connection"] for line in fronts.trace.read_text().splitlines()}

    before = connections()
    waiting = []
    for client, front in itertools.product(clients, FRONTS):
        folder = tmp_path / f"{client} {front}"
        folder.mkdir()
        behind = replace(deployment, folder=folder, url=fronts.url(front), variables=fronts.certificate.trust)
        sender = await behind.send(client, parcel)
        waiting.append((client, behind, sender, await sender.code()))
    await asyncio.sleep(SILENCE)
    for client, behind, sender, code in waiting:
        receiver = await behind.receive(client, code)
        assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
    assert len(connections() - before) == 2 * len(waiting)


@asynccontextmanager
async def networks_apart(folder: Path, *, ipv6: bool) -> AsyncIterator[tuple[Arguments, Arguments, Arguments, str]]:
    """Make a public network and two private ones; with IPv4 these lose what is sent to the other, as behind NAT."""
    need("ip", "link", "add", "probe", "type", "veth", "peer", "name", "other")
    address = "2001:db8::1" if ipv6 else ADDRESS
    async with AsyncExitStack() as ends:
        public = await ends.enter_async_context(isolated_network(folder, address))

        def inside(network: Arguments, line: str) -> None:
            done = run(*network, "sh", "-c", line)
            assert done.returncode == 0, (line, done.stderr)

        if ipv6:
            inside(public, f"ip address add {address}/128 dev lo nodad")
            inside(public, "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")
        else:
            inside(public, "echo 0 > /proc/sys/net/ipv4/ip_forward")
        private = []
        for number in (1, 2):
            wait = ("unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity")
            holder = await ends.enter_async_context(child(*public, *wait))
            await holder.says("ready")
            network = entering(holder.pid)
            prefix, bits, flag = (f"fd00:{number}::", 64, " nodad") if ipv6 else (f"10.{number}.0.", 24, "")
            inside(public, f"ip link add to-{number} type veth peer name eth0 netns {holder.pid}")
            inside(public, f"ip address add {prefix}1/{bits} dev to-{number}{flag}")
            inside(public, f"ip link set to-{number} up")
            inside(network, "ip link set lo up")
            inside(network, f"ip address add {prefix}2/{bits} dev eth0{flag}")
            inside(network, "ip link set eth0 up")
            inside(network, f"ip route add default via {prefix}1")
            private.append(network)
        one, other = private
        yield public, one, other, address


Apart = tuple[Deployment, Child, bool]
"""Transfers from one private network to another, the relay at the public address, and whether there is IPv6 alone."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[False, True], ids=["nat", "ipv6"])
async def apart(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Apart]:
    folder, ipv6 = tmp_path_factory.mktemp("apart"), request.param
    async with networks_apart(folder, ipv6=ipv6) as (public, one, other, address):
        listen = ("--listen", f"[{address}]:0" if ipv6 else f"{address}:0")
        async with (
            transit_relay(RELAY_PORT, address, public) as relay,
            serving(folder / "data", (*public, *RESTANTE), listen) as server,
            AsyncExitStack() as ends,
        ):
            # By the name that Go's client always uses: it has no option for it.
            where = f"{PUBLIC_RELAY}:{RELAY_PORT}"
            yield Deployment(server.url, folder, ends, one, other, where), relay, ipv6


@pytest.mark.xdist_group("large files")
@between(PAIRS)
async def test_a_file_arrives_in_another_network(apart: Apart, tmp_path: Path, pair: Pair) -> None:
    """Go's sender tells no IPv6 address and dials nobody (1.0.8, file_transport.go:627): it needs the relay."""
    deployment, relay, ipv6 = apart
    size = MEDIUM if RUST_NEW in pair else LARGE
    sent = write_parcel(tmp_path, PARCEL) if ipv6 else write_sparse(tmp_path, size)

    def relayed() -> int:
        return relay.said["stdout"].count('"mood": "happy"')

    before = relayed()
    async with AsyncExitStack() as ends:
        await arrives(replace(deployment, folder=tmp_path, ends=ends), pair, sent, SLOW)
    if ipv6 and pair[0] not in GO:
        assert relayed() == before
    else:
        await relay.until("the relay says that it has connected them", lambda: relayed() > before)
