"""Logs that real clients write, at this server and at the reference server: they are read whole, and all fits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from restante.timing.model.timeline import Timeline
from restante.timing.transfers.transfer import read_transfer
from support.bounds import bounded
from support.mailbox.raw_socket import RawSocket
from support.mailbox.scene import BEFORE, RECEIVER, SENDER, Scene, to_client
from support.mailbox.servers import Reference, Restante, Server, TransitRelay
from support.processes import RESTANTE, child

TEXT = "held until called for"
PARCEL = b"x" * 300_000


class Traced(Restante):
    """Our server, with a trace."""

    flags = ("--trace", "trace.jsonl")


@pytest.fixture(params=[Traced, pytest.param(Reference, marks=pytest.mark.thorough)])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    server: Server = request.param(tmp_path / "server")
    async with Scene(tmp_path, server) as scene:
        yield scene


async def read(scene: Scene, folder: Path) -> Timeline:
    """Return the timeline of both clients, and check what holds for every transfer on one machine."""
    # The server writes the trace of a batch after its replies, and answers this after both.
    guest = await RawSocket.dial(scene.server.port)
    await guest.hear()
    guest.cut()
    remarks: list[str] = []
    traced = scene.server.folder / "trace.jsonl"
    logs = [folder / "send.json", folder / "receive.json"]
    timeline = read_transfer(logs, traced if traced.exists() else None, {}, remarks.append)
    assert remarks == []
    assert [client.role for client in timeline.clients] == ["sender", "receiver"]
    for client in timeline.clients:
        assert client.offset_us is not None
        assert client.error_us is not None
        assert abs(client.offset_us) <= client.error_us, "there is one clock"
        assert sum(spent.us for spent in client.spent) == client.stop_us - client.start_us
    for command in timeline.commands:
        times = (command.received_us, command.commit_began_us, command.commit_us, command.answered_us)
        known = [time for time in times if time is not None]
        assert known == sorted(known)
        if timeline.traced and command.answered_us is not None:
            assert command.received_us is not None, f"{command} is not in the trace"
    received = {frame.command for frame in timeline.frames if frame.author not in {frame.role, "server"}}
    assert {delivery.command for delivery in timeline.deliveries} == received
    for delivery in timeline.deliveries:
        assert delivery.end_to_end_us is not None
        assert delivery.error_us is not None
        assert delivery.end_to_end_us >= -delivery.error_us
    return timeline


def causes(timeline: Timeline, role: str) -> set[str]:
    (client,) = [client for client in timeline.clients if client.role == role]
    return {spent.cause for spent in client.spent}


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[TransitRelay]:
    async with TransitRelay(tmp_path / "relay").running() as relay:
        yield relay


@pytest.mark.parametrize("what", ["text", pytest.param("file", marks=pytest.mark.thorough)])
async def test_the_python_client_s_logs(scene: Scene, tmp_path: Path, what: str) -> None:
    (tmp_path / "parcel").write_bytes(PARCEL)
    sent = ("--text", TEXT) if what == "text" else (str(tmp_path / "parcel"),)

    def words(log: str, *words: str) -> tuple[str, ...]:
        return ("--dump-timing", str(tmp_path / log), "--transit-helper", "", *words)

    sender = await scene.start("sender", *words("send.json", "send", *sent))
    code = await sender.code()
    receiver = await scene.start("receiver", *words("receive.json", "receive", "--accept-file", code))
    for client in (sender, receiver):
        assert (await client.leaves()).exit_code == 0
    timeline = await read(scene, tmp_path)
    assert all(command.answer_received_us is not None for command in timeline.commands)
    assert all(frame.command is not None for frame in timeline.frames if frame.type == "message")
    assert timeline.traced == isinstance(scene.server, Traced)
    if what == "file":
        assert {"transfer", "transit connect"} <= causes(timeline, "sender") & causes(timeline, "receiver")


# ── ours ─────────────────────────────────────────────────────────────────────────────────────────


async def our_transfer(scene: Scene, folder: Path, code: str, *sent: str) -> None:
    """Send and receive with our commands, over the proxy."""

    def command(*words: str, log: str) -> tuple[str, ...]:
        return (*RESTANTE, *words, "--server", scene.url, "--dump-timing", str(folder / log))

    sending = command("send", *sent, "--code", "7-crossover-clockwork", log="send.json")
    options = sent[1:] if sent[0] != "--text" else ()
    output = str(folder / "received")
    receiving = command("receive", code, "--accept", "--output", output, *options, log="receive.json")
    async with child(*sending) as sender:
        await sender.says("code is")
        async with child(*receiving) as receiver, bounded("the end of both"):
            await receiver.ended()
            await sender.ended()


async def our_file(scene: Scene, folder: Path, *options: str) -> Timeline:
    """Send a file and return its timeline."""
    (folder / "parcel").write_bytes(PARCEL)
    await our_transfer(scene, folder, "7-crossover-clockwork", str(folder / "parcel"), *options)
    assert (folder / "received").read_bytes() == PARCEL
    timeline = await read(scene, folder)
    assert {"transfer", "transit connect"} <= causes(timeline, "sender") & causes(timeline, "receiver")
    assert timeline.traced == isinstance(scene.server, Traced)
    return timeline


@pytest.mark.thorough
async def test_our_client_s_file_by_a_relay(scene: Scene, relay: TransitRelay, tmp_path: Path) -> None:
    await our_file(scene, tmp_path, "--transit-relay", f"tcp:127.0.0.1:{relay.port}", "--no-listen")
    assert await relay.carried() > len(PARCEL)


async def test_our_client_s_file(scene: Scene, tmp_path: Path) -> None:
    timeline = await our_file(scene, tmp_path, "--transit-relay", "")
    assert all(command.answered_us is not None for command in timeline.commands) or not timeline.traced


@pytest.mark.thorough
async def test_our_client_s_log_over_a_killed_server(tmp_path: Path) -> None:
    async with Scene(tmp_path, Traced(tmp_path / "server")) as scene:
        killed = scene.kill_at(to_client(SENDER, "message", phase="pake", author=RECEIVER), BEFORE)
        sending = asyncio.create_task(our_transfer(scene, tmp_path, "7-crossover-clockwork", "--text", TEXT))
        await killed.reached()
        await scene.server.restart()
        await sending
        timeline = await read(scene, tmp_path)
        welcomes = [frame for frame in timeline.frames if (frame.role, frame.type) == ("sender", "welcome")]
        assert len(welcomes) == 2


async def test_our_client_s_wrong_code(scene: Scene, tmp_path: Path) -> None:
    await our_transfer(scene, tmp_path, "7-wrong-code", "--text", TEXT)
    assert "transfer" not in causes(await read(scene, tmp_path), "sender")
    sent, received = tmp_path / "send.json", tmp_path / "receive.json"
    remarks: list[str] = []
    for logs, roles in (([sent], ["sender"]), ([received], ["receiver"]), ([received, sent], ["receiver", "sender"])):
        assert [client.role for client in read_transfer(logs, None, {}, remarks.append).clients] == roles
    assert remarks == [f"{received} is the receiver's log, and {sent} the sender's"]
