"""The clients that people use, of several languages and versions, with one another and with ours."""

from __future__ import annotations

import asyncio
import filecmp
import itertools
import json
import os
import random
import signal
import tarfile
import time
import zipfile
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

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
    program,
    write_sparse,
)
from restante.client.transit.pipe import RECORD_BYTES
from restante.mailbox.server.server import PING_INTERVAL_SECONDS
from support.bounds import BOUND, wait_until
from support.isolation import ADDRESS, PUBLIC_RELAY, RELAY_PORT, entering, isolated_network, need
from support.mailbox.servers import Restante
from support.ports import nobodys_port
from support.processes import RESTANTE, Child, Serving, child, run, serving, spawn
from support.relay.servers import saved_results, saved_state
from support.relay.worlds import reference_relay

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


async def test_two_sides_that_both_listen_nowhere_meet_at_the_reference_relay(
    here: Deployment, tmp_path: Path
) -> None:
    name = "שלום עולם"
    async with reference_relay(tmp_path) as (port, read_usage):
        here.relay, here.options = f"127.0.0.1:{port}", ("--no-listen",)
        await arrives(here, (OURS, OURS), write_parcel(tmp_path, name))
        await asyncio.to_thread(wait_until, read_usage)
        [record] = read_usage()
    assert record["result"] == "happy"
    assert record["bytes"] > PARCELS[name]


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
        servers[-1].kill()
        await servers[-1].ended()
        servers.append(await start(servers[-1].port))

    servers = [await start()]
    deployment.url = servers[0].url
    receiver = await deployment.carry(*pair, parcel, meanwhile=kill_and_restart)
    assert filecmp.cmp(parcel, receiver.folder / PARCEL, shallow=False)


@between(
    [
        *((sender, CURRENT) for sender in SHIPPED),
        *((OURS, receiver) for receiver in (CURRENT, GO_NEW, RUST_NEW, OURS)),
        (CURRENT, OURS),
    ]
)
async def test_a_client_that_waits_does_not_notice_that_the_server_replaces_itself(
    deployment: Deployment, tmp_path: Path, parcel: Path, pair: Pair
) -> None:
    async with serving(tmp_path / "data", (*deployment.inside, *RESTANTE)) as replaced:

        async def replace_server() -> None:
            replaced.send(signal.SIGUSR2)
            assert (await replaced.logged("restarted"))["connections"] > 0

        deployment.url = replaced.url
        receiver = await deployment.carry(*pair, parcel, meanwhile=replace_server)
        assert filecmp.cmp(parcel, receiver.folder / PARCEL, shallow=False)


@between([(CURRENT, CURRENT), (OURS, OURS), (GO_NEW, RUST_NEW), (RUST_NEW, GO_NEW)])
async def test_no_client_notices_that_the_server_replaces_itself_again_and_again(
    deployment: Deployment, tmp_path: Path, pair: Pair
) -> None:
    """From the code on, until the file has arrived. The server is slow, so that this takes some restarts."""
    trace, over = tmp_path / "trace", asyncio.Event()
    options = ("--limit", "commands=1", "--limit", "commands_at_once=1", "--trace", str(trace))
    async with serving(tmp_path / "data", (*deployment.inside, *RESTANTE), options) as server:

        async def restart() -> None:
            while not over.is_set():
                await server.restarts()

        async def begin() -> None:
            await server.restarts()
            restarting.append(asyncio.create_task(restart()))

        restarting: list[asyncio.Task[None]] = []
        deployment.url = server.url
        sent = write_sparse(tmp_path, MEDIUM)
        receiver = await deployment.carry(*pair, sent, SLOW, meanwhile=begin)
        over.set()
        await asyncio.gather(*restarting)
        await server.stop()
    assert filecmp.cmp(sent, receiver.folder / sent.name, shallow=False)
    connections = {json.loads(line)["connection"] for line in trace.read_text().splitlines()}
    assert len(connections) == 2 * len(restarting), "one for each side of each try"


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


class Apart(NamedTuple):
    """Transfers from one private network to another."""

    deployment: Deployment
    relay: Path
    """The data directory of the relay, which is at the public address."""
    ipv6: bool
    """Whether there is IPv6 alone."""

    async def results(self) -> Counter[str]:
        """Return the relay's usage records by result, also of what has ended just now."""
        now = time.time()
        await asyncio.to_thread(wait_until, lambda: saved_state(self.relay)[0] > now)
        return saved_results(self.relay)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[False, True], ids=["nat", "ipv6"])
async def apart(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Apart]:
    folder, ipv6 = tmp_path_factory.mktemp("apart"), request.param
    async with networks_apart(folder, ipv6=ipv6) as (public, one, other, address):
        host = f"[{address}]" if ipv6 else address
        at_relay = ("--listen", f"{host}:{RELAY_PORT}")
        async with (
            serving(folder / "relay", (*public, *RESTANTE, "relay"), at_relay) as relay,
            serving(folder / "data", (*public, *RESTANTE), ("--listen", f"{host}:0")) as server,
            AsyncExitStack() as ends,
        ):
            # By the name that Go's client always uses: it has no option for it.
            where = f"{PUBLIC_RELAY}:{RELAY_PORT}"
            yield Apart(Deployment(server.url, folder, ends, one, other, where), relay.data, ipv6)


@pytest.mark.xdist_group("large files")
@between(PAIRS)
async def test_a_file_arrives_in_another_network(apart: Apart, tmp_path: Path, pair: Pair) -> None:
    """Go's sender tells no IPv6 address and dials nobody (1.0.8, file_transport.go:627): it needs the relay."""
    size = MEDIUM if RUST_NEW in pair else LARGE
    sent = write_parcel(tmp_path, PARCEL) if apart.ipv6 else write_sparse(tmp_path, size)
    before = await apart.results()
    async with AsyncExitStack() as ends:
        await arrives(replace(apart.deployment, folder=tmp_path, ends=ends), pair, sent, SLOW)
    relayed = await apart.results() - before
    assert relayed["happy"] == (not apart.ipv6 or pair[0] in GO)


behind_nat = pytest.mark.parametrize("apart", [False], ids=["nat"], indirect=True)


@behind_nat
@between(list(itertools.product(SHIPPED, SHIPPED)))
async def test_a_file_arrives_through_the_relay(apart: Apart, tmp_path: Path, parcel: Path, pair: Pair) -> None:
    async with AsyncExitStack() as ends:
        await arrives(replace(apart.deployment, folder=tmp_path, ends=ends), pair, parcel)


@thorough
@behind_nat
@pytest.mark.parametrize("go", [GO_OLD, GO_NEW], ids=str)
@pytest.mark.parametrize(("is_killed", "result"), [(False, "happy"), (True, "lonely")], ids=["accepted", "killed"])
async def test_a_go_sender_waits_at_the_relay_until_the_receiver_accepts(
    apart: Apart, tmp_path: Path, parcel: Path, go: Shipped, is_killed: bool, result: str
) -> None:
    """It dials the relay before it offers the file (1.0.8, send.go:307), and the receiver's user is asked then."""
    before = await apart.results()
    async with AsyncExitStack() as ends:
        ours = replace(apart.deployment, folder=tmp_path, ends=ends)
        sender = await ours.send(go, parcel)
        receive = (program(go), *(word.format(url=ours.url) for word in go.language.receive), await sender.code())
        process = await spawn(*ours.other, "env", f"--chdir={tmp_path}", *receive, stdin=PIPE)
        async with Child(process, "stdout", "stderr") as receiver:
            await receiver.says("Receiving file")
            await asyncio.to_thread(wait_until, lambda: saved_state(apart.relay)[1] == 1)
            if is_killed:
                sender.kill()
                await sender.ended()
            else:
                assert process.stdin is not None
                process.stdin.write(b"y\n")
                assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
                assert filecmp.cmp(parcel, tmp_path / PARCEL, shallow=False)
            assert await apart.results() - before == {result: 1}
