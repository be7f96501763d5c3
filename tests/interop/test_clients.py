"""The clients that people use, of several languages and versions, with one another through our server.

Every client is sender and receiver of a file to every other and to itself, and of a text where it has texts.
What this machine lacks is skipped, with what is missing (docs/testing.md).
"""

from pathlib import Path

import pytest

from support.client.parcels import content_of, write_parcel
from support.mailbox.deployment import Deployment
from support.mailbox.shipped import CURRENT, GO_NEW, GO_OLD, OURS, RUST_NEW, SHIPPED, Running, Shipped

PARCEL = "parcel.bin"
TEXT = "held until called for"

WITH_TEXT = [client for client in (*SHIPPED, OURS) if client.language.send_text]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(2400),  # seconds; the first test that needs the Rust client compiles it
    pytest.mark.asyncio(loop_scope="module"),
]


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
