"""Logs that real clients write, at this server and at the reference server: they are read whole, and all fits."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from client import commands
from restante.timing.model.timeline import Timeline
from restante.timing.transfers import read_transfer
from support.bounds import bounded
from support.documents import Document
from support.mailbox.raw_socket import RawSocket
from support.mailbox.scene import BEFORE, RECEIVER, SENDER, Scene, to_client
from support.mailbox.servers import Reference, Restante, Server
from support.processes import called

TEXT = "held until called for"
PARCEL = b"x" * 300_000
CODE = "7-crossover-clockwork"


class Traced(Restante):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "--trace", "trace.jsonl")


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
        known_times = [time for time in times if time is not None]
        assert known_times == sorted(known_times)
        if timeline.traced and command.answered_us is not None:
            assert command.received_us is not None, f"{command} is not in the trace"
    received = {frame.command for frame in timeline.frames if frame.author not in {frame.role, "server"}}
    assert {delivery.command for delivery in timeline.deliveries} == received
    for delivery in timeline.deliveries:
        assert delivery.end_to_end_us is not None
        assert delivery.error_us is not None
        assert delivery.end_to_end_us >= -delivery.error_us
    return timeline


def causes(timeline: Timeline) -> list[set[str]]:
    return [{spent.cause for spent in client.spent} for client in timeline.clients]


FILE_CAUSES = {"transfer", "transit connect"}


@pytest.mark.parametrize("what", ["text", pytest.param("file", marks=pytest.mark.thorough)])
async def test_the_python_client_s_logs(scene: Scene, tmp_path: Path, what: str) -> None:
    (tmp_path / "parcel").write_bytes(PARCEL)
    sent = ("--text", TEXT) if what == "text" else (str(tmp_path / "parcel"),)

    def options(log: str) -> tuple[str, ...]:
        return ("--dump-timing", str(tmp_path / log), "--transit-helper", "")

    sender = await scene.start("sender", *options("send.json"), "send", *sent)
    code = await sender.code()
    receiver = await scene.start("receiver", *options("receive.json"), "receive", "--accept-file", code)
    for client in (sender, receiver):
        assert (await client.leaves()).exit_code == 0
    timeline = await read(scene, tmp_path)
    assert all(command.answer_received_us is not None for command in timeline.commands)
    assert all(frame.command is not None for frame in timeline.frames if frame.type == "message")
    assert timeline.traced == isinstance(scene.server, Traced)
    if what == "file":
        assert all(of >= FILE_CAUSES for of in causes(timeline))


async def our_transfer(scene: Scene, folder: Path, receives: str = CODE) -> None:
    output, of_both = str(folder / "received"), ("--server", scene.url)
    sending = ("send", f"--text={TEXT}", "--code", CODE, "--dump-timing", str(folder / "send.json"))
    receiving = ("receive", receives, "--accept", "--output", output, "--dump-timing", str(folder / "receive.json"))
    async with commands.command(folder, *sending, *of_both) as sender:
        await sender.says("code is")
        async with commands.command(folder, *receiving, *of_both) as receiver, bounded("the end of both"):
            await receiver.ended()
            await sender.ended()


@pytest.mark.thorough
async def test_our_client_s_log_over_a_killed_server(tmp_path: Path) -> None:
    async with Scene(tmp_path, Traced(tmp_path / "server")) as scene:
        killed = scene.kill_at(to_client(SENDER, "message", phase="pake", author=RECEIVER), BEFORE)
        sending = asyncio.create_task(our_transfer(scene, tmp_path))
        await killed.reached()
        await scene.server.restart()
        await sending
        timeline = await read(scene, tmp_path)
        welcomes = [frame for frame in timeline.frames if (frame.role, frame.type) == ("sender", "welcome")]
        assert len(welcomes) == 2


async def test_our_client_s_wrong_code(scene: Scene, tmp_path: Path) -> None:
    await our_transfer(scene, tmp_path, receives="7-wrong-code")
    assert "transfer" not in causes(await read(scene, tmp_path))[0]
    sent, received = tmp_path / "send.json", tmp_path / "receive.json"
    remarks: list[str] = []
    for logs, roles in (([sent], ["sender"]), ([received], ["receiver"]), ([received, sent], ["receiver", "sender"])):
        assert [client.role for client in read_transfer(logs, None, {}, remarks.append).clients] == roles
    assert remarks == [f"{received} is the receiver's log, and {sent} the sender's"]


GUIDE = Document("docs/timing/guide.md")


def started(folder: Path, block: str, url: str, code: str = "") -> AbstractAsyncContextManager[commands.Command]:
    arguments = shlex.split(GUIDE.blocks[block].replace("7-your-code", code))[1:]
    return commands.command(folder, *arguments, typed=b"yes\n", RESTANTE_CLIENT_SERVER=url)


async def test_logs_are_made_and_rendered_as_the_guide_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photo.jpg").write_bytes(PARCEL)
    async with Scene(tmp_path, Traced(tmp_path / "server")) as scene, bounded("the transfer"):
        async with started(tmp_path, "send", scene.url) as sender:
            code = (await sender.says(r"code is: (\S+)")).group(1)
            (tmp_path / "downloads").mkdir()
            async with started(tmp_path / "downloads", "receive", scene.url, code) as receiver:
                assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
        (tmp_path / "downloads" / "receive.json").rename(tmp_path / "receive.json")
        timeline = await read(scene, tmp_path)
        (tmp_path / "server" / "trace.jsonl").rename(tmp_path / "trace.jsonl")
    assert all(of >= FILE_CAUSES for of in causes(timeline))
    assert timeline.traced
    assert all(command.answered_us is not None for command in timeline.commands)
    monkeypatch.chdir(tmp_path)
    done = called(*shlex.split(GUIDE.blocks["render"])[1:])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "transfer.html").read_text().startswith("<!DOCTYPE html>")
