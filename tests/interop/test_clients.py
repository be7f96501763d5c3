"""The clients that people use, of several languages and versions, with one another through our server.

Every client is sender and receiver of a file to every other and to itself, and of a text where it has texts.
What this machine lacks is skipped, with what is missing (docs/testing.md).
"""

from pathlib import Path

import pytest

from restante.timing.transfers.transfer import read_transfer
from support.client.parcels import content_of, write_parcel
from support.mailbox.deployment import Deployment
from support.mailbox.shipped import CURRENT, GO_NEW, GO_OLD, OURS, RUST_NEW, SHIPPED, TIMING_LOG, Running, Shipped

PARCEL = "parcel.bin"
TEXT = "held until called for"

RECONNECT = {CURRENT.language, OURS.language}
WITH_TEXT = [client for client in (*SHIPPED, OURS) if client.language.send_text]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(2400),  # seconds; the first test that needs the Rust client compiles it
    pytest.mark.asyncio(loop_scope="module"),
]


TIMED = {CURRENT.language, OURS.language}
"""The clients that write timing logs."""


def assert_timeline(logs: dict[str, Path]) -> None:
    """Check that logs are read whole, and that each command has its answer, on one machine and so one clock."""
    remarks: list[str] = []
    found = read_transfer(list(logs.values()), None, {}, remarks.append)
    assert remarks == []
    assert [client.role for client in found.clients] == list(logs)
    assert all(command.answer_received_us is not None for command in found.commands if command.type != "close")
    for client in found.clients:
        assert client.offset_us is not None
        assert client.error_us is not None
        assert abs(client.offset_us) <= client.error_us
    if len(logs) == 2:
        peers = [frame for frame in found.frames if frame.type == "message"]
        assert all(frame.command is not None for frame in peers), "each message is in the log of its author"


async def assert_file_arrived(sender: Running, receiver: Running) -> None:
    for client in (receiver, sender):
        assert await client.ended() == 0, (receiver.said, sender.said)
    assert (receiver.folder / PARCEL).read_bytes() == content_of(PARCEL)


@pytest.fixture
def parcel(tmp_path: Path) -> Path:
    return write_parcel(tmp_path / "parcels", PARCEL)


@pytest.mark.parametrize("receiver", SHIPPED, ids=str)
@pytest.mark.parametrize("sender", SHIPPED, ids=str)
async def test_a_file_arrives(deployment: Deployment, parcel: Path, sender: Shipped, receiver: Shipped) -> None:
    arrived = await deployment.carry(sender, receiver, parcel)
    assert (arrived / PARCEL).read_bytes() == content_of(PARCEL)


@pytest.mark.parametrize("receiver", WITH_TEXT, ids=str)
@pytest.mark.parametrize("sender", WITH_TEXT, ids=str)
async def test_a_text_arrives(deployment: Deployment, sender: Shipped, receiver: Shipped) -> None:
    async def transfer() -> tuple[Running, Running]:
        sending = await deployment.send_text(sender, TEXT)
        return sending, await deployment.receive(receiver, await sending.code())

    sending, receiving = await deployment.pair(transfer)
    for client in (receiving, sending):
        assert await client.ended() == 0, (receiving.said, sending.said)
    assert receiving.said["stdout"] == f"{TEXT}\n"
    logs = {role: client.folder / TIMING_LOG for role, client in (("sender", sending), ("receiver", receiving))}
    written = {role: log for role, log in logs.items() if log.exists()}
    assert len(written) == sum(each.language in TIMED for each in (sender, receiver))
    if written:
        assert_timeline(written)


@pytest.mark.parametrize("receiver", [GO_OLD, GO_NEW], ids=str)
async def test_a_transfer_with_another_key_is_tried_again(
    deployment: Deployment, parcel: Path, receiver: Shipped
) -> None:
    """A code with another word has the effect of the Go client's fault (`Deployment.pair`): the keys differ."""
    codes: list[str] = []

    async def transfer() -> tuple[Running, Running]:
        sending = await deployment.send(CURRENT, parcel)
        codes.append(await sending.code() + ("" if codes else "-wrong"))
        return sending, await deployment.receive(receiver, codes[-1])

    await assert_file_arrived(*await deployment.pair(transfer))
    assert len(codes) > 1, "with a wrong word the keys differ; the fault may strike again after it"


@pytest.mark.parametrize("receiver", [GO_OLD, GO_NEW, RUST_NEW, OURS], ids=str)
async def test_a_code_from_before_a_kill_works_for_every_receiver(
    own_deployment: Deployment, parcel: Path, receiver: Shipped
) -> None:
    async def transfer() -> tuple[Running, Running]:
        sending = await own_deployment.send(CURRENT, parcel)
        code = await sending.code()
        await own_deployment.kill_and_restart_server()
        return sending, await own_deployment.receive(receiver, code)

    await assert_file_arrived(*await own_deployment.pair(transfer))


@pytest.mark.parametrize("receiver", [CURRENT, GO_NEW, OURS], ids=str)
async def test_our_sender_of_a_text_reconnects_after_a_kill(own_deployment: Deployment, receiver: Shipped) -> None:
    async def transfer() -> tuple[Running, Running]:
        sending = await own_deployment.send_text(OURS, TEXT)
        code = await sending.code()
        await own_deployment.kill_and_restart_server()
        return sending, await own_deployment.receive(receiver, code)

    sending, receiving = await own_deployment.pair(transfer)
    assert (await receiving.ended(), await sending.ended()) == (0, 0), (receiving.said, sending.said)
    assert receiving.said["stdout"] == f"{TEXT}\n"


@pytest.mark.parametrize("sender", [each for each in SHIPPED if each.language is CURRENT.language], ids=str)
async def test_a_python_sender_reconnects_after_a_kill(
    own_deployment: Deployment, parcel: Path, sender: Shipped
) -> None:
    sending = await own_deployment.send(sender, parcel)
    code = await sending.code()
    await own_deployment.kill_and_restart_server()
    await assert_file_arrived(sending, await own_deployment.receive(CURRENT, code))


async def test_the_rust_client_ends_when_the_server_is_killed(own_deployment: Deployment, parcel: Path) -> None:
    sending = await own_deployment.send(RUST_NEW, parcel)
    await sending.code()
    await own_deployment.kill_and_restart_server()
    assert await sending.ended() == 1
    assert "rendezvous server" in sending.said["stderr"]


@pytest.mark.parametrize("sender", [GO_OLD, GO_NEW], ids=str)
async def test_the_go_client_does_not_reconnect_when_the_server_is_killed(
    own_deployment: Deployment, parcel: Path, sender: Shipped
) -> None:
    """What reads its socket notes the error and ends, and wakes nobody (rendezvous/client.go:117, :632).

    So it waits without end, unless it was about to write.
    """
    sending = await own_deployment.send(sender, parcel)
    code = await sending.code()
    before = sockets(sending.pid)
    assert len(before) == 1
    await own_deployment.kill_and_restart_server()
    # The server still knows the code, so a receiver waits: for the first message, or for the second if the kill came
    # after the first.
    receiving = await own_deployment.receive(CURRENT, code)
    await receiving.says(r"Waiting for sender\.\.\.|Key established, waiting for confirmation\.\.\.")
    # Two others come, are served, and go.
    other = await own_deployment.send_text(CURRENT, TEXT)
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
