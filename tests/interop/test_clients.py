"""The clients that people use, of several languages and versions, with one another through our server.

Every client is sender and receiver of a file to every other and to itself, and of a text where it has texts.
What this machine lacks is skipped, with what is missing (docs/testing.md).
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from support.isolation import isolated_network, unavailable
from support.mailbox.shipped import CURRENT, GO_NEW, GO_OLD, OURS, RUST_NEW, SHIPPED, Running, Shipped, Words, running
from support.processes import RESTANTE, Serving, serving

FILE = random.Random(10).randbytes(300_000)
TEXT = "held until called for"

KEYS_DIFFER = "decrypt message failed"
"""What the Go client says if the peer's key is another (wormhole/wormhole.go:113)."""
TRANSFERS = 3
"""How often `Deployment.pair` tries a transfer at most: that it fails so often is 1 in 16 million."""

WITH_TEXT = [client for client in (*SHIPPED, OURS) if client.language.send_text]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(2400),  # seconds; the first test that needs the Rust client compiles it
    pytest.mark.asyncio(loop_scope="module"),
]


@dataclass
class Deployment:
    """A server and its clients, in a network of their own."""

    inside: Words
    """What puts a command into the network."""
    server: Serving
    folder: Path
    ends: AsyncExitStack

    async def pair(self, transfer: Callable[[], Awaitable[tuple[Running, Running]]]) -> tuple[Running, Running]:
        """Start a sender and a receiver, and wait until both have ended; again if a Go client's key was another.

        gospake2 leaves out the last byte of the shared point where it is zero (ed25519group/affine.go, Compress: the
        bytes of a big.Int have no leading zero), so in 1 of 256 transfers a Go client and another have other keys.
        """
        folder = self.folder
        for number in range(TRANSFERS):
            self.folder = folder / str(number)
            self.folder.mkdir()
            sender, receiver = await transfer()
            await receiver.ended()
            await sender.ended()
            if not any(KEYS_DIFFER in client.said["stderr"] for client in (sender, receiver)):
                break
        return sender, receiver

    async def send_file(self, client: Shipped) -> Running:
        folder = self.folder / "sender"
        folder.mkdir()
        (folder / "parcel.bin").write_bytes(FILE)
        words = client.language.send_file
        assert words is not None
        return await self._start(client, folder, words, file="parcel.bin")

    async def send_text(self, client: Shipped) -> Running:
        words = client.language.send_text
        assert words is not None
        return await self._start(client, self.folder / "sender", words, text=TEXT)

    async def receive(self, client: Shipped, code: str, name: str = "receiver") -> Running:
        return await self._start(client, self.folder / name, client.language.receive, code=code)

    async def kill_and_restart_server(self) -> None:
        """SIGKILL, and a new process on the same data and port."""
        port, data = self.server.port, self.server.data
        self.server.kill()
        await self.server.ended()
        options = ("--listen", f"127.0.0.1:{port}")
        self.server = await self.ends.enter_async_context(serving(data, (*self.inside, *RESTANTE), options))

    async def _start(self, client: Shipped, folder: Path, words: Words, **values: str) -> Running:
        started = running(client, self.inside, folder, words, url=self.server.url, **values)
        return await self.ends.enter_async_context(started)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def inside(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Words]:
    """A network of its own for all tests of this module."""
    if reason := unavailable():
        pytest.skip(f"networks of their own: {reason}")
    async with isolated_network(tmp_path_factory.mktemp("network")) as inside:
        yield inside


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(inside: Words, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    """A server for all transfers that nobody disturbs."""
    async with serving(tmp_path_factory.mktemp("shared") / "data", (*inside, *RESTANTE)) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def deployment(inside: Words, shared: Serving, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with AsyncExitStack() as ends:
        yield Deployment(inside, shared, tmp_path, ends)


@pytest_asyncio.fixture(loop_scope="module")
async def own_deployment(inside: Words, tmp_path: Path) -> AsyncIterator[Deployment]:
    """A deployment with a server of its own, which the test kills."""
    async with AsyncExitStack() as ends:
        server = await ends.enter_async_context(serving(tmp_path / "data", (*inside, *RESTANTE)))
        yield Deployment(inside, server, tmp_path, ends)


async def assert_file_arrived(sender: Running, receiver: Running) -> None:
    for client in (receiver, sender):
        assert await client.ended() == 0, (receiver.said, sender.said)
    assert (receiver.folder / "parcel.bin").read_bytes() == FILE


@pytest.mark.parametrize("receiver", SHIPPED, ids=str)
@pytest.mark.parametrize("sender", SHIPPED, ids=str)
async def test_a_file_arrives(deployment: Deployment, sender: Shipped, receiver: Shipped) -> None:
    async def transfer() -> tuple[Running, Running]:
        sending = await deployment.send_file(sender)
        return sending, await deployment.receive(receiver, await sending.code())

    await assert_file_arrived(*await deployment.pair(transfer))


@pytest.mark.parametrize("receiver", WITH_TEXT, ids=str)
@pytest.mark.parametrize("sender", WITH_TEXT, ids=str)
async def test_a_text_arrives(deployment: Deployment, sender: Shipped, receiver: Shipped) -> None:
    async def transfer() -> tuple[Running, Running]:
        sending = await deployment.send_text(sender)
        return sending, await deployment.receive(receiver, await sending.code())

    sending, receiving = await deployment.pair(transfer)
    for client in (receiving, sending):
        assert await client.ended() == 0, (receiving.said, sending.said)
    assert receiving.said["stdout"] == f"{TEXT}\n"


@pytest.mark.parametrize("receiver", [GO_OLD, GO_NEW], ids=str)
async def test_a_transfer_with_another_key_is_tried_again(deployment: Deployment, receiver: Shipped) -> None:
    """A code with another word has the effect of the Go client's fault (`Deployment.pair`): the keys differ."""
    words = ["-wrong", ""]

    async def transfer() -> tuple[Running, Running]:
        sending = await deployment.send_file(CURRENT)
        return sending, await deployment.receive(receiver, await sending.code() + words.pop(0))

    await assert_file_arrived(*await deployment.pair(transfer))
    assert not words


@pytest.mark.parametrize("receiver", [GO_OLD, GO_NEW, RUST_NEW], ids=str)
async def test_a_code_from_before_a_kill_works_for_every_receiver(
    own_deployment: Deployment, receiver: Shipped
) -> None:
    async def transfer() -> tuple[Running, Running]:
        sending = await own_deployment.send_file(CURRENT)
        code = await sending.code()
        await own_deployment.kill_and_restart_server()
        return sending, await own_deployment.receive(receiver, code)

    await assert_file_arrived(*await own_deployment.pair(transfer))


@pytest.mark.parametrize("receiver", [CURRENT, GO_NEW, OURS], ids=str)
async def test_our_sender_of_a_text_reconnects_after_a_kill(own_deployment: Deployment, receiver: Shipped) -> None:
    async def transfer() -> tuple[Running, Running]:
        sending = await own_deployment.send_text(OURS)
        code = await sending.code()
        await own_deployment.kill_and_restart_server()
        return sending, await own_deployment.receive(receiver, code)

    sending, receiving = await own_deployment.pair(transfer)
    assert (await receiving.ended(), await sending.ended()) == (0, 0), (receiving.said, sending.said)
    assert receiving.said["stdout"] == f"{TEXT}\n"


@pytest.mark.parametrize("sender", [each for each in SHIPPED if each.language is CURRENT.language], ids=str)
async def test_a_python_sender_reconnects_after_a_kill(own_deployment: Deployment, sender: Shipped) -> None:
    sending = await own_deployment.send_file(sender)
    code = await sending.code()
    await own_deployment.kill_and_restart_server()
    await assert_file_arrived(sending, await own_deployment.receive(CURRENT, code))


async def test_the_rust_client_ends_when_the_server_is_killed(own_deployment: Deployment) -> None:
    sending = await own_deployment.send_file(RUST_NEW)
    await sending.code()
    await own_deployment.kill_and_restart_server()
    assert await sending.ended() == 1
    assert "rendezvous server" in sending.said["stderr"]


@pytest.mark.parametrize("sender", [GO_OLD, GO_NEW], ids=str)
async def test_the_go_client_does_not_reconnect_when_the_server_is_killed(
    own_deployment: Deployment, sender: Shipped
) -> None:
    """What reads its socket notes the error and ends, and wakes nobody (rendezvous/client.go:117, :632).

    So it waits without end, unless it was about to write.
    """
    sending = await own_deployment.send_file(sender)
    code = await sending.code()
    before = sockets(sending.pid)
    assert len(before) == 1
    await own_deployment.kill_and_restart_server()
    # The server still knows the code, so a receiver waits: for the first message, or for the second if the kill came
    # after the first.
    receiving = await own_deployment.receive(CURRENT, code)
    await receiving.says(r"Waiting for sender\.\.\.|Key established, waiting for confirmation\.\.\.")
    # Two others come, are served, and go.
    other = await own_deployment.send_text(CURRENT)
    assert await (await own_deployment.receive(CURRENT, await other.code(), "other receiver")).ended() == 0
    assert sockets(sending.pid) <= before
    if not sending.running:
        assert await sending.ended() != 0
    assert receiving.running


def sockets(pid: int) -> set[str]:
    """Return the names of a process's sockets; a new connection has a new one. A process that has ended has none."""
    files = Path(f"/proc/{pid}/fd")
    try:
        return {name for each in files.iterdir() if (name := str(each.readlink())).startswith("socket:")}
    except FileNotFoundError:
        return set()
