"""Files and directories between `restante` and the clients that people use, of other versions and languages.

The `wormhole` of our own environment is in test_files.py.
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

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
from support.isolation import RELAY_PORT
from support.mailbox.deployment import Deployment
from support.mailbox.shipped import (
    CURRENT,
    GO_NEW,
    GO_OLD,
    OURS,
    PYTHON,
    PYTHON_OLD,
    RUST_NEW,
    SHIPPED,
    Shipped,
    Words,
)
from support.processes import Child, child

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(2400),  # seconds; the first test that needs the Rust client compiles it
    pytest.mark.asyncio(loop_scope="module"),
]

OTHERS: Final = [client for client in SHIPPED if client is not CURRENT]
_old_pythons: Final = [client for client in OTHERS if client.language is PYTHON]
_not_python: Final = [client for client in OTHERS if client.language is not PYTHON]
BY_NAME: Final = [
    (client, name)
    for at, name in enumerate(PARCELS)
    for client in (_old_pythons[at % len(_old_pythons)], *_not_python)
]
"""Each name and size with each client; but the old versions in Python, which start slowly, take turns. Python has all
names in test_files.py, too."""

SLOW: Final = 900.0
"""Seconds in which a large file must be there."""

TREE_NAME: Final = "a directory"
EMPTY: Final = "empty directory"
GO: Final = {GO_OLD, GO_NEW}
"""They send no empty directories, and make an empty file of one that they receive (1.0.8, cmd/recv.go:199-230)."""

RELAY: Final = 4002
"""The port of a relay. Nobody else is in the network."""
UNREACHABLE: Final = Shipped(
    "restante --no-listen",
    replace(
        OURS.language,
        send_file=("send", "--server", "{url}", "--no-listen", "--transit-relay", f"tcp:127.0.0.1:{RELAY}", "{file}"),
    ),
    OURS.get,
)
UNPACKING: Final = Shipped(
    "restante --unpack",
    replace(OURS.language, receive=(*OURS.language.receive, "--unpack")),
    OURS.get,
)


def at_the_relay(client: Shipped) -> Shipped:
    """Return a client that tells the other side no address of its own, and uses the relay of this module."""
    hidden = "--force-relay" if client is RUST_NEW else "--no-listen"
    scheme = "tcp://" if client is RUST_NEW else "tcp:"
    relays = {"", f"{scheme}127.0.0.1:{RELAY_PORT}"}

    def changed(words: Words, command: str) -> Words:
        told = [f"{scheme}127.0.0.1:{RELAY}" if word in relays else word for word in words]
        told.insert(told.index(command) + 1, hidden)
        return tuple(told)

    its = client.language
    language = replace(its, send_file=changed(its.send_file, "send"), receive=changed(its.receive, "receive"))
    return replace(client, language=language)


@pytest_asyncio.fixture(loop_scope="module")
async def relay(inside: Words) -> AsyncIterator[Child]:
    """The relay that everybody uses, in the network of the clients."""
    twist = str(Path(sys.executable).parent / "twist")
    port = f"--port=tcp:{RELAY}:interface=127.0.0.1"
    async with child(*inside, twist, "--log-format=text", "transitrelay", "--log-fd=1", port) as relay:
        await relay.says(f" starting on {RELAY}")
        yield relay


@pytest.mark.parametrize(("receiver", "name"), BY_NAME, ids=str)
async def test_our_file_arrives(deployment: Deployment, tmp_path: Path, receiver: Shipped, name: str) -> None:
    arrived = await deployment.carry(OURS, receiver, write_parcel(tmp_path / "parcels", name))
    assert (arrived / name).read_bytes() == content_of(name)


@pytest.mark.parametrize(("sender", "name"), BY_NAME, ids=str)
async def test_their_file_arrives(deployment: Deployment, tmp_path: Path, sender: Shipped, name: str) -> None:
    arrived = await deployment.carry(sender, OURS, write_parcel(tmp_path / "parcels", name))
    assert (arrived / name).read_bytes() == content_of(name)


@pytest.mark.parametrize("receiver", [each for each in OTHERS if each is not RUST_NEW], ids=str)
async def test_our_directory_arrives(deployment: Deployment, tmp_path: Path, receiver: Shipped) -> None:
    arrived = (await deployment.carry(OURS, receiver, write_tree(tmp_path, TREE_NAME))) / TREE_NAME
    assert read_tree(arrived) == (TREE if receiver not in GO else TREE | {EMPTY: b""})
    assert is_executable(arrived)


async def test_the_rust_client_stores_our_directory_as_a_zip_file(deployment: Deployment, tmp_path: Path) -> None:
    arrived = await deployment.carry(OURS, RUST_NEW, write_tree(tmp_path, TREE_NAME))
    with zipfile.ZipFile(arrived / f"{TREE_NAME}.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
    assert read_tree(tmp_path / "unpacked") == TREE


@pytest.mark.parametrize("sender", [each for each in OTHERS if each is not RUST_NEW], ids=str)
async def test_their_directory_arrives(deployment: Deployment, tmp_path: Path, sender: Shipped) -> None:
    arrived = (await deployment.carry(sender, OURS, write_tree(tmp_path, TREE_NAME))) / TREE_NAME
    assert read_tree(arrived) == (FILES if sender in {PYTHON_OLD, *GO} else TREE)
    assert is_executable(arrived)


async def test_the_rust_client_sends_a_directory_as_a_tar_file(deployment: Deployment, tmp_path: Path) -> None:
    arrived = await deployment.carry(RUST_NEW, OURS, write_tree(tmp_path, TREE_NAME))
    with tarfile.open(arrived / f"{TREE_NAME}.tar") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert read_tree(tmp_path / "unpacked" / TREE_NAME) == TREE


async def test_a_tar_file_of_the_rust_client_becomes_a_directory(deployment: Deployment, tmp_path: Path) -> None:
    """It gives all files the same mode (transfer/v1.rs:768)."""
    arrived = (await deployment.carry(RUST_NEW, UNPACKING, write_tree(tmp_path, TREE_NAME))) / TREE_NAME
    assert read_tree(arrived) == TREE
    assert not is_executable(arrived)


@pytest.mark.parametrize("receiver", [GO_OLD, GO_NEW], ids=str)
async def test_the_go_client_uses_the_relay_that_our_sender_names(
    deployment: Deployment, relay: Child, tmp_path: Path, receiver: Shipped
) -> None:
    """It listens nowhere, so if our sender listens nowhere, too, there is no other way."""
    name = "parcel.bin"
    arrived = await deployment.carry(UNREACHABLE, receiver, write_parcel(tmp_path / "parcels", name))
    assert (arrived / name).read_bytes() == content_of(name)
    await relay.says('"mood": "happy"')


@pytest.mark.parametrize("other", [PYTHON_OLD, RUST_NEW], ids=str)
@pytest.mark.parametrize("role", ["we send", "they send"])
async def test_other_clients_meet_us_at_the_relay(
    deployment: Deployment, relay: Child, tmp_path: Path, other: Shipped, role: str
) -> None:
    """No side tells the other an address, so there is no other way."""
    name = "parcel.bin"
    ours, theirs = at_the_relay(OURS), at_the_relay(other)
    sender, receiver = (ours, theirs) if role == "we send" else (theirs, ours)
    arrived = await deployment.carry(sender, receiver, write_parcel(tmp_path / "parcels", name))
    assert (arrived / name).read_bytes() == content_of(name)
    await relay.says('"mood": "happy"')


@pytest.mark.xdist_group("large files")
@pytest.mark.parametrize("receiver", OTHERS, ids=str)
async def test_our_large_file_arrives(deployment: Deployment, tmp_path: Path, receiver: Shipped) -> None:
    await assert_large_file_arrives(
        deployment, OURS, receiver, write_sparse(tmp_path / "parcels", large_for(receiver))
    )


@pytest.mark.xdist_group("large files")
@pytest.mark.parametrize("sender", OTHERS, ids=str)
async def test_their_large_file_arrives(deployment: Deployment, tmp_path: Path, sender: Shipped) -> None:
    sent = write_sparse(tmp_path / "parcels", large_for(sender))
    await assert_large_file_arrives(deployment, sender, OURS, sent)


def large_for(client: Shipped) -> int:
    """1 GiB is 65,536 records of Go or Python: one version of each has it (Python in test_files.py).

    The Rust client is built without optimization: 1 GiB takes it five minutes.
    """
    if client is GO_OLD:
        return GIB
    return MEDIUM if client is RUST_NEW else LARGE


async def assert_large_file_arrives(deployment: Deployment, sender: Shipped, receiver: Shipped, sent: Path) -> None:
    arrived = (await deployment.carry(sender, receiver, sent, SLOW)) / sent.name
    assert same_bytes(sent, arrived)
    arrived.unlink()  # pytest keeps folders
