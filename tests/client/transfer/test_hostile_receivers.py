"""A receiver that breaks the rules: the sender says why in a sentence, tells the receiver, and ends at once."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from client.transfer.hostile import (
    CONTENT,
    DIRECT,
    Script,
    heard,
    pair,
    play,
    receives,
    say,
    sparse,
    stops,
    until_closed,
)
from restante.client import Wormhole
from restante.client.errors import ConnectionLostError, PeerMessageError, TransferError, UnsendableFileError
from restante.client.transfer.sending import outgoing_file, send_directory, send_file
from restante.client.transit.pipe import CLOSED, RecordPipe
from restante.client.transit.records import Role
from restante.common.errors import Misuse, RestanteError


@pytest.fixture
def parcel(tmp_path: Path) -> Path:
    path = tmp_path / "parcel"
    path.write_bytes(CONTENT)
    return path


async def sent(wormhole: Wormhole, path: Path) -> None:
    await send_file(wormhole, path, transit=DIRECT)


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("message", "error", "words"),
    [
        ({"answer": {}}, TransferError, "refused it: it does not say why"),
        ({"answer": {"file_ack": "no"}}, TransferError, "refused it: 'no'"),
        ({"answer": {"file_ack": "a\nb"}}, TransferError, r"refused it: 'a\\nb'"),
        ({"answer": {"file_ack": 100_000 * "x"}}, TransferError, r"refused it: '.{1,1000}$"),
        ({"answer": {"message_ack": "ok"}}, TransferError, "refused it"),
        ({"answer": {"file_ack": 1}}, PeerMessageError, "not a message of a transfer"),
        ({"answer": "ok"}, PeerMessageError, "not a message of a transfer"),
        ({"offer": {"message": "text"}}, PeerMessageError, "the other side sends, too"),
        ({"error": "transfer rejected"}, TransferError, "^the other side gave up: transfer rejected$"),
        ({"error": ["x"]}, PeerMessageError, "not a message of a transfer"),
    ],
    ids=lambda value: repr(value)[:60],
)
async def test_an_answer_that_is_no_consent_ends_the_sender(
    parcel: Path, message: dict[str, Any], error: type[RestanteError], words: str
) -> None:
    async with pair() as (ours, theirs):
        await say(theirs, transit={"hints-v1": "nonsense"})
        await say(theirs, **message)
        with pytest.raises(error, match=words):
            await sent(ours, parcel)
        if "error" not in message or error is PeerMessageError:
            assert await heard(theirs, "error")


async def test_a_connection_that_is_not_made_is_told(parcel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restante.client.transit.connecting.TRANSIT_SECONDS", 0.1)
    async with pair() as (ours, theirs):
        await say(theirs, answer={"file_ack": "ok"})
        with pytest.raises(TransferError, match="no connection to the other side"):
            await sent(ours, parcel)
        assert "no connection to the other side" in (await heard(theirs, "error"))[0]


# ── the last record ──────────────────────────────────────────────────────────────────────────────


def answers(*records: bytes) -> Script:
    def script(pipe: RecordPipe) -> None:
        pipe.receive()
        for record in records:
            pipe.send(record)
        until_closed(pipe)

    return script


def closes_at_once(pipe: RecordPipe) -> None:
    pass


def closes_behind_the_bytes(pipe: RecordPipe) -> None:
    pipe.receive()


def resets(pipe: RecordPipe) -> None:
    pipe.receive()
    pipe._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def answers_without_a_record(pipe: RecordPipe) -> None:
    pipe.receive()
    pipe._socket.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    until_closed(pipe)


NO_ACKNOWLEDGEMENTS = (b"", b"\xff", 100_000 * b"[", b'{"ack":5}', b'{"ack":"ok","sha256":5}')


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (answers(b"{}"), TransferError, "refused it"),
        (answers(b'{"ack":"no"}'), TransferError, "refused it: 'no'"),
        *((answers(record), PeerMessageError, "not an acknowledgement") for record in NO_ACKNOWLEDGEMENTS),
        (answers(b'{"ack":"ok","sha256":"00"}'), TransferError, "other bytes than were sent"),
        (answers(b'{"ack":"ok","sha256":""}'), TransferError, "other bytes than were sent"),
        (answers(b'{"ack":"ok"}'), TransferError, "it sent no SHA-256"),
        (answers(b'{"ack":"ok","sha256":null}'), TransferError, "it sent no SHA-256"),
        (answers_without_a_record, PeerMessageError, "announces a record of"),
        (closes_at_once, ConnectionLostError, "it may have everything|the receiver does not have everything"),
        (closes_behind_the_bytes, ConnectionLostError, "before the receiver confirmed: it may have everything"),
        (resets, ConnectionLostError, "before the receiver confirmed: it may have everything"),
    ],
)
async def test_without_an_acknowledgement_the_sender_does_not_say_that_it_arrived(
    parcel: Path, impatient: None, script: Script, error: type[RestanteError], words: str
) -> None:
    async with pair() as (ours, theirs):
        receiving = receives(theirs, script)
        with pytest.raises(error, match=words):
            await sent(ours, parcel)
        await receiving
        if error is not ConnectionLostError:
            assert await heard(theirs, "error")


async def test_an_acknowledgement_may_have_more_and_a_digest_in_capitals(parcel: Path) -> None:
    record = f'{{"ack":"ok","sha256":"{hashlib.sha256(CONTENT).hexdigest().upper()}","more":{{}}}}'.encode()
    async with pair() as (ours, theirs):
        await asyncio.gather(receives(theirs, answers(record)), sent(ours, parcel))


async def test_a_connection_that_breaks_in_the_middle_is_incomplete(tmp_path: Path, impatient: None) -> None:
    async with pair() as (ours, theirs):
        receiving = receives(theirs, closes_behind_the_bytes)
        words = rf"^{CLOSED} after sending [\d,]+ of 67,108,864 bytes: the receiver does not have everything$"
        with pytest.raises(ConnectionLostError, match=words):
            await sent(ours, sparse(tmp_path / "large"))
        await receiving


# ── cancellation ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", ["waits for the answer", "connects"])
async def test_a_sender_stops_before_there_is_a_connection(parcel: Path, phase: str) -> None:
    async with pair() as (ours, theirs):
        sending = asyncio.create_task(sent(ours, parcel))
        await heard(theirs, "offer")
        if phase == "connects":
            await say(theirs, answer={"file_ack": "ok"})
            await ours.flush()
        await stops(sending, theirs, Role.SENDER)


async def test_a_sender_stops_though_the_receiver_reads_nothing(tmp_path: Path) -> None:
    loop, connected, over = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def reads_nothing(pipe: RecordPipe) -> None:
        pipe.receive()
        loop.call_soon_threadsafe(connected.set)
        over.wait()

    async with pair() as (ours, theirs):
        receiving = receives(theirs, reads_nothing)
        sending = asyncio.create_task(sent(ours, sparse(tmp_path / "large")))
        await connected.wait()
        (note,) = await stops(sending, theirs, Role.SENDER)
        over.set()
        await receiving
    assert re.fullmatch(r"after sending [\d,]+ of [\d,]+ bytes: the receiver does not have everything", note)


async def test_a_sender_stops_while_it_waits_for_the_acknowledgement(parcel: Path) -> None:
    loop, all_there = asyncio.get_running_loop(), asyncio.Event()

    def says_nothing(pipe: RecordPipe) -> None:
        pipe.receive()
        loop.call_soon_threadsafe(all_there.set)
        until_closed(pipe)

    async with pair() as (ours, theirs):
        receiving = receives(theirs, says_nothing)
        sending = asyncio.create_task(sent(ours, parcel))
        await all_there.wait()
        note = "before the receiver confirmed: it may have everything"
        assert await stops(sending, theirs, Role.SENDER) == [note]
        await receiving


# ── files that change, and what is none ──────────────────────────────────────────────────────────


def shrink(path: Path) -> None:
    os.truncate(path, 5)


def grow(path: Path) -> None:
    path.write_bytes(CONTENT + b"x")


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (shrink, "'parcel' became shorter while it was sent"),
        (grow, "'parcel' became longer while it was sent"),
        (Path.unlink, "cannot read 'parcel': No such file"),
        (become_a_pipe, "'parcel' became shorter while it was sent"),
    ],
)
async def test_a_file_that_changes_is_not_sent(parcel: Path, change: Callable[[Path], None], words: str) -> None:
    received: list[bytes] = []

    def script(pipe: RecordPipe) -> None:
        with suppress(ConnectionLostError):
            while True:
                received.append(bytes(pipe.receive()))

    async with pair() as (ours, theirs):
        sending = asyncio.create_task(sent(ours, parcel))
        offer, _ = await heard(theirs, "offer")
        change(parcel)
        await play(theirs, Role.RECEIVER, script, offer)
        with pytest.raises(UnsendableFileError, match=words):
            await sending
        reason, _ = await heard(theirs, "error")
    assert words in reason
    assert str(parcel.parent) not in reason
    assert len(b"".join(received)) < len(CONTENT)


@pytest.mark.parametrize(("change", "words"), [(grow, "it changed while it was sent"), (Path.unlink, "No such file")])
async def test_a_directory_that_changes_is_not_sent(folder: Path, change: Callable[[Path], None], words: str) -> None:
    """The receiver is told which file it was, and not where the directory is on this computer."""
    (folder / "inside").mkdir()
    (folder / "inside/parcel").write_bytes(CONTENT)
    async with pair() as (ours, theirs):
        sending = asyncio.create_task(send_directory(ours, folder, transit=DIRECT))
        offer, _ = await heard(theirs, "offer")
        assert offer["directory"]["numbytes"] == len(CONTENT)
        change(folder / "inside/parcel")
        await play(theirs, Role.RECEIVER, until_closed, offer)
        with pytest.raises(UnsendableFileError, match=f"{folder}.*{words}"):
            await sending
        reason, _ = await heard(theirs, "error")
    assert reason.startswith("cannot send 'inside/parcel': ")


def test_a_file_that_is_overwritten_while_it_is_read_is_not_sent_to_its_end(tmp_path: Path) -> None:
    """The receiver would have the beginning of one content and the end of another."""
    parcel = sparse(tmp_path / "parcel", 8 << 20)
    os.utime(parcel, ns=(0, 0))
    pieces = iter(outgoing_file(parcel).chunks())
    assert next(pieces)
    with parcel.open("r+b") as file:
        file.write(b"x")
    sizes: list[int] = []
    with pytest.raises(UnsendableFileError, match=r"'parcel' changed while it was sent"):
        sizes += map(len, pieces)
    assert sum(sizes) < 8 << 20


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "nothing", "long", "socket"])
def test_what_is_no_file_is_misuse_at_once(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is at most 108 bytes long
    path = Path("x" * 300 if kind == "long" else "/dev/full" if kind == "device" else "it")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    with pytest.raises(Misuse):
        outgoing_file(path)


@pytest.mark.parametrize("name", [b"\xff", b"a\nb", b"\x1b[2J", "\u202eexe".encode()])
def test_a_name_that_no_receiver_stores_is_not_offered(tmp_path: Path, name: bytes) -> None:
    path = tmp_path / os.fsdecode(name)
    path.write_bytes(CONTENT)
    with pytest.raises(UnsendableFileError, match=r"cannot send '.*': its name ") as refused:
        outgoing_file(path)
    assert str(refused.value).isprintable()
    assert outgoing_file(path, "parcel").name == "parcel"
