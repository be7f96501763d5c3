"""The clients that people use, of several languages and versions, with one another and with ours, through our server.

What this machine lacks is skipped, with what is missing (docs/testing.md). The `wormhole` of our own environment is
in test_files.py, too, in a quick run.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import tarfile
import zipfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from restante.mailbox.server.server import PING_INTERVAL_SECONDS
from support.client.parcels import (
    FILES,
    GIB,
    LARGE,
    MEDIUM,
    PARCELS,
    TREE,
    content_of,
    is_executable,
    read_tree,
    same_bytes,
    write_parcel,
    write_sparse,
    write_tree,
)
from support.mailbox.deployment import Deployment
from support.mailbox.reverse_proxies import FRONTS, NGINX_LIMIT, Fronts, running_fronts
from support.mailbox.shipped import (
    CURRENT,
    GO_NEW,
    GO_OLD,
    OURS,
    PYTHON_OLD,
    RUST_NEW,
    RUST_TLS,
    SHIPPED,
    Running,
    Shipped,
    Words,
)

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(2400),  # seconds; the first test that needs the Rust client compiles it
    pytest.mark.asyncio(loop_scope="module"),
]

PARCEL: Final = "parcel.bin"
TEXT: Final = "held until called for"
TREE_NAME: Final = "a directory"
SLOW: Final = 900.0
"""Seconds in which a large file must be there."""

WITH_TEXT: Final = [client for client in (*SHIPPED, OURS) if client.language.send_text]
OTHERS: Final = [client for client in SHIPPED if client is not CURRENT]
BY_NAME: Final = [(OTHERS[number % len(OTHERS)], name) for number, name in enumerate(PARCELS)]
"""Each name and size with one client; Python has all of them in test_files.py."""
GO: Final = {GO_OLD, GO_NEW}
"""They send no empty directories, and make an empty file of one that they receive (1.0.8, cmd/recv.go:199-230)."""

WITH_TLS: Final = [RUST_TLS if client is RUST_NEW else client for client in (*SHIPPED, OURS)]
SILENCE: Final = NGINX_LIMIT + 2 * PING_INTERVAL_SECONDS
"""Seconds, more than any default time limit. nginx has 60 s, Debian's HAProxy 50 s. The Python client pings after
30 s, and waits 60 s for the answer (_rendezvous.py:87). The others have no limit."""

either_role = pytest.mark.parametrize("role", ["we send", "they send"])


def pair(other: Shipped, role: str) -> tuple[Shipped, Shipped]:
    """Return the sender and the receiver."""
    return (OURS, other) if role == "we send" else (other, OURS)


async def assert_ended(sender: Running, receiver: Running) -> None:
    assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)


@pytest.mark.parametrize("receiver", SHIPPED, ids=str)
@pytest.mark.parametrize("sender", SHIPPED, ids=str)
async def test_a_file_arrives(deployment: Deployment, tmp_path: Path, sender: Shipped, receiver: Shipped) -> None:
    arrived = await deployment.carry(sender, receiver, write_parcel(tmp_path / "parcels", PARCEL))
    assert (arrived / PARCEL).read_bytes() == content_of(PARCEL)


@pytest.mark.parametrize("receiver", WITH_TEXT, ids=str)
@pytest.mark.parametrize("sender", WITH_TEXT, ids=str)
async def test_a_text_arrives(deployment: Deployment, sender: Shipped, receiver: Shipped) -> None:
    async def transfer() -> tuple[Running, Running]:
        sending = await deployment.send_text(sender, TEXT)
        return sending, await deployment.receive(receiver, await sending.code())

    sending, receiving = await deployment.pair(transfer)
    await assert_ended(sending, receiving)
    assert receiving.said["stdout"] == f"{TEXT}\n"


# ── between ours and others ──────────────────────────────────────────────────────────────────────


@either_role
@pytest.mark.parametrize(("other", "name"), BY_NAME, ids=str)
async def test_a_file_of_any_name_arrives(
    deployment: Deployment, tmp_path: Path, other: Shipped, name: str, role: str
) -> None:
    arrived = await deployment.carry(*pair(other, role), write_parcel(tmp_path / "parcels", name))
    assert (arrived / name).read_bytes() == content_of(name)


@either_role
@pytest.mark.parametrize("other", [client for client in OTHERS if client is not RUST_NEW], ids=str)
async def test_a_directory_arrives(deployment: Deployment, tmp_path: Path, other: Shipped, role: str) -> None:
    arrived = (await deployment.carry(*pair(other, role), write_tree(tmp_path, TREE_NAME))) / TREE_NAME
    expected: Mapping[str, bytes | None] = TREE
    if role == "we send" and other in GO:
        expected = TREE | {"empty directory": b""}
    elif role == "they send" and other in {PYTHON_OLD, *GO}:
        expected = FILES
    assert read_tree(arrived) == expected
    assert is_executable(arrived)


async def test_the_rust_client_stores_our_directory_as_a_zip_file(deployment: Deployment, tmp_path: Path) -> None:
    arrived = await deployment.carry(OURS, RUST_NEW, write_tree(tmp_path, TREE_NAME))
    with zipfile.ZipFile(arrived / f"{TREE_NAME}.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
    assert read_tree(tmp_path / "unpacked") == TREE


@pytest.mark.parametrize("unpack", [False, True])
async def test_the_rust_client_sends_a_directory_as_a_tar_file(
    deployment: Deployment, tmp_path: Path, *, unpack: bool
) -> None:
    """It gives all files the same mode (transfer/v1.rs:768)."""
    language = OURS.language
    receiver = replace(OURS, language=replace(language, receive=(*language.receive, *["--unpack"] * unpack)))
    arrived = await deployment.carry(RUST_NEW, receiver, write_tree(tmp_path, TREE_NAME))
    if not unpack:
        with tarfile.open(arrived / f"{TREE_NAME}.tar") as archive:
            archive.extractall(arrived, filter="data")
    assert read_tree(arrived / TREE_NAME) == TREE


@pytest.mark.xdist_group("large files")
@either_role
@pytest.mark.parametrize("other", OTHERS, ids=str)
async def test_a_large_file_arrives(deployment: Deployment, tmp_path: Path, other: Shipped, role: str) -> None:
    """1 GiB is 65,536 records of Go or Python: one version of each has it (Python in test_files.py).

    The Rust client is built without optimization: 1 GiB takes it five minutes.
    """
    size = GIB if other is GO_OLD else MEDIUM if other is RUST_NEW else LARGE
    sent = write_sparse(tmp_path / "parcels", size)
    arrived = (await deployment.carry(*pair(other, role), sent, SLOW)) / sent.name
    assert same_bytes(sent, arrived)
    arrived.unlink()  # pytest keeps folders


# ── a server that is killed ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sender", "receiver"),
    [
        *((CURRENT, receiver) for receiver in (GO_OLD, GO_NEW, RUST_NEW, OURS)),
        *((sender, CURRENT) for sender in SHIPPED if sender.language is CURRENT.language),
        *((OURS, receiver) for receiver in (CURRENT, GO_NEW, OURS)),
    ],
    ids=str,
)
async def test_a_code_from_before_a_kill_works(
    own_deployment: Deployment, tmp_path: Path, sender: Shipped, receiver: Shipped
) -> None:
    """Python's clients and ours reconnect."""
    parcel = write_parcel(tmp_path / "parcels", PARCEL)

    async def transfer() -> tuple[Running, Running]:
        sending = await own_deployment.send(sender, parcel)
        code = await sending.code()
        await own_deployment.kill_and_restart_server()
        return sending, await own_deployment.receive(receiver, code)

    sending, receiving = await own_deployment.pair(transfer)
    await assert_ended(sending, receiving)
    assert (receiving.folder / PARCEL).read_bytes() == content_of(PARCEL)


async def test_the_rust_client_ends_when_the_server_is_killed(own_deployment: Deployment, tmp_path: Path) -> None:
    sending = await own_deployment.send(RUST_NEW, write_parcel(tmp_path / "parcels", PARCEL))
    await sending.code()
    await own_deployment.kill_and_restart_server()
    assert await sending.ended() == 1
    assert "rendezvous server" in sending.said["stderr"]


# ── over TLS: our own, and that of nginx, HAProxy and Caddy ──────────────────────────────────────


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fronts(inside: Words, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fronts]:
    async with running_fronts(tmp_path_factory.mktemp("fronts"), FRONTS, inside) as fronts:
        yield fronts


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("client", WITH_TLS, ids=str)
async def test_each_client_sends_and_receives_over_tls(
    deployment: Deployment, fronts: Fronts, tmp_path: Path, client: Shipped, front: str
) -> None:
    deployment = replace(deployment, url=fronts.url(front), variables=fronts.certificate.trust)
    arrived = await deployment.carry(client, client, write_parcel(tmp_path / "parcels", PARCEL))
    assert (arrived / PARCEL).read_bytes() == content_of(PARCEL)


async def test_clients_that_are_idle_beyond_all_time_limits_stay_connected(
    deployment: Deployment, fronts: Fronts, tmp_path: Path
) -> None:
    """A client that had been disconnected would have used another connection to send."""

    def connections() -> set[int]:
        return {json.loads(line)["connection"] for line in fronts.trace.read_text().splitlines()}

    before = connections()
    waiting = []
    for client, front in itertools.product((CURRENT, GO_NEW, RUST_TLS, OURS), FRONTS):
        folder = tmp_path / f"{client} {front}"
        folder.mkdir()
        its = replace(deployment, folder=folder, url=fronts.url(front), variables=fronts.certificate.trust)
        sender = await its.send(client, write_parcel(folder / "parcels", PARCEL))
        waiting.append((client, its, sender, await sender.code()))
    await asyncio.sleep(SILENCE)
    for client, its, sender, code in waiting:
        await assert_ended(sender, await its.receive(client, code))
    assert len(connections() - before) == 2 * len(waiting)
