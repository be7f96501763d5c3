"""Files and directories between `restante` and `wormhole`, directly and by the relay that everybody uses.

Clients of other versions and languages are in test_clients.py.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from support.bounds import BOUND
from support.client.parcels import (
    GIB,
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
from support.forks import Forked
from support.mailbox.servers import Restante, TransitRelay
from support.mailbox.wormhole import HOMES
from support.ports import held_port, nobodys_port
from support.processes import Child, environment

pytestmark = pytest.mark.asyncio(loop_scope="module")

Words = tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """A program that transfers files. Its words have {url}, {relay}, {path} and {code}."""

    name: str
    main: str
    send: Words
    receive: Words

    def __str__(self) -> str:
        return self.name


_OURS: Final = ("--server", "{url}", "--transit-relay", "{relay}")
_THEIRS: Final = ("wormhole", "--relay-url", "{url}", "--transit-helper", "{relay}")
OURS: Final = Program(
    "restante",
    "restante.cli.main:main",
    send=("restante", "send", *_OURS, "--code", "{code}", "{path}"),
    receive=("restante", "receive", *_OURS, "--accept", "{code}"),
)
THEIRS: Final = Program(
    "wormhole",
    "support.mailbox.wormhole:main",
    send=(*_THEIRS, "send", "--hide-progress", "--no-qr", "--code", "{code}", "{path}"),
    receive=(*_THEIRS, "receive", "--hide-progress", "--accept-file", "{code}"),
)

Pair = tuple[Program, Program]
"""The sender and the receiver."""
PAIRS: Final = [(OURS, THEIRS), (THEIRS, OURS), (OURS, OURS)]

SLOW: Final = 600.0
"""Seconds in which a GiB must be there."""


class Post:
    """A mailbox server, and transfers of one file or directory each."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.relay = f"tcp:127.0.0.1:{nobodys_port()}"
        self.options: Words = ()
        """What both sides are told beyond that."""

    async def carry(self, pair: Pair, path: Path, within: float = BOUND) -> Path:
        """Transfer what is at this path; return where it has arrived."""
        sender, receiver = pair
        code = f"{next(_numbers)}-own-words"
        arrived = self.folder / "receiver"
        arrived.mkdir(exist_ok=True)
        async with AsyncExitStack() as ends:
            sending = await self._start(ends, sender.main, path.parent, sender.send, code=code, path=str(path))
            receiving = await self._start(ends, receiver.main, arrived, receiver.receive, code=code)
            ended = [await each.ended(within) for each in (receiving, sending)]
            assert ended == [0, 0], (receiving.said, sending.said)
        assert [each.name for each in arrived.iterdir()] == [path.name]
        return arrived / path.name

    async def _start(self, ends: AsyncExitStack, main: str, folder: Path, words: Words, **values: str) -> Child:
        given = {"url": self.url, "relay": self.relay, **values}
        command = [*(word.format(**given) for word in words[:-1]), *self.options, words[-1].format(**given)]
        homes = dict.fromkeys(HOMES, str(folder))
        process = await Forked.start(main, *command, cwd=folder, variables=environment(**homes))
        child = Child(process, "stdout", "stderr")
        ends.push_async_callback(child.end)
        return child


_numbers: Final = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    server = Restante(tmp_path_factory.mktemp("server") / "mailbox")
    with held_port() as server.port:
        try:
            await server.start()
            yield f"ws://127.0.0.1:{server.port}/v1"
            await server.stop()
        finally:
            await server.end()


@pytest_asyncio.fixture(loop_scope="module")
async def post(url: str, tmp_path: Path) -> Post:
    return Post(url, tmp_path)


@pytest_asyncio.fixture(loop_scope="module")
async def relay(tmp_path: Path) -> AsyncIterator[TransitRelay]:
    relay = TransitRelay(tmp_path / "relay")
    with held_port() as relay.port:
        try:
            await relay.start()
            yield relay
            await relay.stop()
        finally:
            await relay.end()


HARD_NAME: Final = "e\u0301tude $(id) 'quotes' \"double\" #1 %41 & co.txt"


def named(pair: Pair) -> str:
    return f"{pair[0]} to {pair[1]}"


@pytest.mark.parametrize(
    "name", [HARD_NAME, *(pytest.param(name, marks=pytest.mark.thorough) for name in PARCELS if name != HARD_NAME)]
)
@pytest.mark.parametrize("pair", PAIRS[:2], ids=named)
async def test_a_file_arrives_byte_for_byte(post: Post, pair: Pair, name: str) -> None:
    arrived = await post.carry(pair, write_parcel(post.folder / "sender", name))
    assert arrived.read_bytes() == content_of(name)


@pytest.mark.parametrize("pair", PAIRS[:2], ids=named)
async def test_a_directory_arrives(post: Post, pair: Pair) -> None:
    arrived = await post.carry(pair, write_tree(post.folder / "sender", "Ein Ordner 📁"))
    assert read_tree(arrived) == TREE
    assert is_executable(arrived)


@pytest.mark.parametrize(
    "pair", [*(pytest.param(pair, marks=pytest.mark.thorough) for pair in PAIRS[:2]), PAIRS[2]], ids=named
)
async def test_two_sides_that_both_listen_nowhere_meet_at_a_relay(
    post: Post, relay: TransitRelay, pair: Pair
) -> None:
    post.relay, post.options = f"tcp:127.0.0.1:{relay.port}", ("--no-listen",)
    name = "שלום עולם"
    arrived = await post.carry(pair, write_parcel(post.folder / "sender", name))
    assert arrived.read_bytes() == content_of(name)
    assert await relay.carried() > PARCELS[name]


@pytest.mark.thorough
@pytest.mark.parametrize("pair", PAIRS, ids=named)
async def test_a_large_file_arrives(post: Post, pair: Pair) -> None:
    sent = write_sparse(post.folder / "sender", GIB)
    arrived = await post.carry(pair, sent, SLOW)
    assert same_bytes(sent, arrived)
    arrived.unlink()
