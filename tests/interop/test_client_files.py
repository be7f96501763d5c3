"""Files and directories between `restante` and the clients that people use, of other versions and languages.

The `wormhole` of our own environment is in test_files.py.
"""

from __future__ import annotations

import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

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
)

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

UNPACKING: Final = Shipped(
    "restante --unpack",
    replace(OURS.language, receive=(*OURS.language.receive, "--unpack")),
    OURS.get,
)


def pair(other: Shipped, role: str) -> tuple[Shipped, Shipped]:
    """Return the sender and the receiver."""
    return (OURS, other) if role == "we send" else (other, OURS)


@pytest.mark.parametrize("role", ["we send", "they send"])
@pytest.mark.parametrize(("other", "name"), BY_NAME, ids=str)
async def test_a_file_arrives(deployment: Deployment, tmp_path: Path, other: Shipped, name: str, role: str) -> None:
    arrived = await deployment.carry(*pair(other, role), write_parcel(tmp_path / "parcels", name))
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


@pytest.mark.xdist_group("large files")
@pytest.mark.parametrize("role", ["we send", "they send"])
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
