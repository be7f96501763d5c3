"""A peer that gives up is heard at once, and is told nothing of this computer."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from client.files.archives import zip_of
from client.transfer.hostile import DIRECT, Script, heard, names, pair, play, say, stored, until_closed
from restante.client import Wormhole
from restante.client.errors import ArchiveError, TransferError, UnsendableFileError
from restante.client.files.unpacking import _Target
from restante.client.transfer.messages import reasons_sent
from restante.client.transfer.receiving import OfferedFile, OfferedText, receive
from restante.client.transfer.sending import send_directory, send_file
from restante.client.transit.connecting import TransitOptions
from restante.client.transit.pipe import RecordPipe
from restante.client.transit.records import Role
from restante.common.errors import Misuse, StoreError
from support.mailbox.days import ServerOfDays

CONTENT = b"0123456789"
OFFER = {"file": {"filename": "parcel", "filesize": len(CONTENT)}}
LARGE = 64 << 20
"""More than the buffers of a connection hold (tcp_wmem, tcp_rmem of Linux)."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, LARGE)
    return path


def held(begin: Callable[[RecordPipe], object]) -> tuple[Script, asyncio.Event, threading.Event]:
    """Return a script that begins, then keeps the connection open until it is told, and the two events."""
    loop, begun, over = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def script(pipe: RecordPipe) -> None:
        begin(pipe)
        loop.call_soon_threadsafe(begun.set)
        over.wait()

    return script, begun, over


# ── the peer's words end a transfer ──────────────────────────────────────────────────────────────


async def test_a_sender_that_gives_up_in_the_middle_is_heard_at_once(server: ServerOfDays, folder: Path) -> None:
    script, begun, over = held(lambda pipe: pipe.send(CONTENT[:5]))
    received = asyncio.Event()
    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(play(theirs, Role.SENDER, script, OFFER))
        receiving = asyncio.create_task(stored(ours, folder, lambda _: received.set()))
        await begun.wait()
        await received.wait()
        await say(theirs, error="no paper")
        try:
            with pytest.raises(TransferError, match=r"^the other side gave up: no paper ") as ended:
                await receiving
        finally:
            over.set()
        await sending
    assert ended.value.outcome == "after receiving 5 of 10 bytes: nothing was kept"
    assert str(ended.value).endswith(f" ({ended.value.outcome})")
    assert names(folder) == []


async def test_a_receiver_that_gives_up_in_the_middle_is_heard_at_once(server: ServerOfDays, large: Path) -> None:
    script, begun, over = held(lambda pipe: pipe.receive())
    async with pair(server) as (ours, theirs):
        receiving = asyncio.create_task(play(theirs, Role.RECEIVER, script))
        sending = asyncio.create_task(send_file(ours, large, transit=DIRECT))
        await begun.wait()
        await say(theirs, error="no room")
        try:
            with pytest.raises(
                TransferError, match=r"^the other side gave up: no room \(after sending [\d,]+ of [\d,]+ bytes"
            ) as ended:
                await sending
        finally:
            over.set()
        await receiving
    assert ended.value.outcome.endswith(": the receiver does not have everything")


async def test_a_sender_that_gives_up_instead_of_connecting_is_heard_at_once(
    server: ServerOfDays, folder: Path
) -> None:
    async with pair(server) as (ours, theirs):
        receiving = asyncio.create_task(stored(ours, folder))
        await say(theirs, offer=OFFER)
        await heard(theirs, "answer")
        await say(theirs, error="no way")
        with pytest.raises(TransferError, match=r"^the other side gave up: no way$"):
            await receiving
    assert names(folder) == []


async def test_a_receiver_that_gives_up_instead_of_connecting_is_heard_at_once(
    server: ServerOfDays, large: Path
) -> None:
    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(send_file(ours, large, transit=DIRECT))
        await heard(theirs, "offer")
        await say(theirs, answer={"file_ack": "ok"})
        await say(theirs, error="no way")
        with pytest.raises(TransferError, match=r"^the other side gave up: no way$"):
            await sending


@pytest.mark.parametrize("message", [b"\xff", b"{}", b'{"transit":{}}', b'{"answer":{"file_ack":"no"}}'])
async def test_what_else_the_peer_says_in_the_middle_changes_nothing(
    server: ServerOfDays, folder: Path, message: bytes
) -> None:
    script, begun, over = held(lambda pipe: pipe.send(CONTENT[:5]))

    def finishes(pipe: RecordPipe) -> None:
        script(pipe)
        pipe.send(CONTENT[5:])
        pipe.receive()

    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(play(theirs, Role.SENDER, finishes, OFFER))
        receiving = asyncio.create_task(stored(ours, folder))
        await begun.wait()
        await (await theirs.send(message)).stored()
        over.set()
        path = await receiving
        await sending
    assert path.read_bytes() == CONTENT


async def test_a_transfer_goes_on_without_the_mailbox_server(server: ServerOfDays, folder: Path) -> None:
    script, begun, over = held(lambda pipe: pipe.send(CONTENT[:5]))

    def finishes(pipe: RecordPipe) -> None:
        script(pipe)
        pipe.send(CONTENT[5:])
        pipe.receive()

    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(play(theirs, Role.SENDER, finishes, OFFER))
        receiving = asyncio.create_task(stored(ours, folder))
        await begun.wait()
        await server.stop()
        over.set()
        path = await receiving
        await sending
        await server.start()
    assert path.read_bytes() == CONTENT


async def test_what_is_stored_when_the_peer_gives_up_is_stored(
    server: ServerOfDays, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer's words come while the file gets its name."""
    loop, flushing, over = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def flush(_folder: Path) -> None:
        loop.call_soon_threadsafe(flushing.set)
        over.wait()

    monkeypatch.setattr("restante.client.files.draft.flush", flush)
    ended = asyncio.Event()
    end = RecordPipe.end

    def ends(pipe: RecordPipe) -> None:
        end(pipe)
        ended.set()

    monkeypatch.setattr(RecordPipe, "end", ends)

    def script(pipe: RecordPipe) -> None:
        pipe.send(CONTENT)
        until_closed(pipe)

    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(play(theirs, Role.SENDER, script, OFFER))
        receiving = asyncio.create_task(stored(ours, folder))
        await flushing.wait()
        await say(theirs, error="no paper")
        try:
            await ended.wait()
        finally:
            over.set()
        path = await receiving
        await sending
    assert path.read_bytes() == CONTENT


# ── a cancellation while an archive is unpacked ──────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["cancelled", "the peer gave up"])
async def test_an_end_while_an_archive_is_unpacked_leaves_nothing(
    server: ServerOfDays, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    archive = zip_of({"a": b"1" * 1000, "b": b"2" * 1000})
    directory = {"mode": "zipfile/deflated", "dirname": "x", "zipsize": len(archive), "numbytes": 2000, "numfiles": 2}
    loop, unpacking, ended = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    add, end, closed = _Target.add, RecordPipe.end, threading.Event()

    def adds(target: _Target, member: object) -> None:
        loop.call_soon_threadsafe(unpacking.set)
        ended.wait()
        add(target, member)  # type: ignore[arg-type]

    def ends(pipe: RecordPipe) -> None:
        end(pipe)
        ended.set()

    monkeypatch.setattr(_Target, "add", adds)
    monkeypatch.setattr(RecordPipe, "end", ends)

    def script(pipe: RecordPipe) -> None:
        pipe.send(archive)
        until_closed(pipe)
        closed.set()

    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(play(theirs, Role.SENDER, script, {"directory": directory}))
        receiving = asyncio.create_task(stored(ours, folder))
        await unpacking.wait()
        assert len(names(folder)) == 1
        try:
            if how == "cancelled":
                receiving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await receiving
                assert (await heard(theirs, "error"))[0] == "the receiver stopped"
            else:
                await say(theirs, error="no paper")
                with pytest.raises(TransferError, match="no paper"):
                    await receiving
        finally:
            ended.set()
        await sending
    assert closed.is_set()
    assert names(folder) == []


# ── an error of the program's own function for progress ──────────────────────────────────────────


class ProgressError(Exception):
    """What a program raises."""


def fails(_bytes: int) -> None:
    raise ProgressError


async def test_a_receiver_s_error_about_progress_ends_the_transfer(server: ServerOfDays, folder: Path) -> None:
    def script(pipe: RecordPipe) -> None:
        pipe.send(CONTENT[:5])
        until_closed(pipe)

    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(play(theirs, Role.SENDER, script, OFFER))
        offered = await receive(ours, DIRECT)
        assert isinstance(offered, OfferedFile)
        with pytest.raises(ProgressError) as ended:
            await offered.accept(folder / "parcel", on_progress=fails)
        await sending
        assert (await heard(theirs, "error"))[0] == "the receiver failed"
    assert ended.value.__notes__ == ["after receiving 5 of 10 bytes: nothing was kept"]
    assert names(folder) == []


async def test_a_sender_s_error_about_progress_ends_the_transfer(server: ServerOfDays, large: Path) -> None:
    async with pair(server) as (ours, theirs):
        receiving = asyncio.create_task(play(theirs, Role.RECEIVER, until_closed))
        with pytest.raises(ProgressError) as ended:
            await send_file(ours, large, transit=DIRECT, on_progress=fails)
        await receiving
        assert (await heard(theirs, "error"))[0] == "the sender failed"
    assert str(ended.value.__notes__).endswith("bytes: the receiver does not have everything']")


# ── what the peer is told ────────────────────────────────────────────────────────────────────────


async def told(ours: Wormhole, theirs: Wormhole, error: Exception) -> str:
    with pytest.raises(type(error)):
        async with reasons_sent(ours, Role.RECEIVER):
            raise error
    return str((await heard(theirs, "error"))[0])


@pytest.mark.parametrize("error", [StoreError("cannot write '/home/alice/x'"), Misuse("'/home/alice/x' is there")])
async def test_an_error_of_this_computer_is_not_told_in_its_own_words(server: ServerOfDays, error: Exception) -> None:
    async with pair(server) as (ours, theirs):
        assert await told(ours, theirs, error) == "the receiver failed"


async def test_an_error_of_the_peer_is_told(server: ServerOfDays) -> None:
    async with pair(server) as (ours, theirs):
        assert await told(ours, theirs, ArchiveError("the archive has 'x' twice")) == "the archive has 'x' twice"


@pytest.mark.parametrize(
    ("there", "size", "words"),
    [
        ("file", 10, "a file or directory of this name exists already"),
        ("directory", 10, "its place is a directory, and a file does not replace it"),
        ("no folder", 10, "there is no directory to store it in"),
        ("no room", 2**63 - 1, "the disk has room for"),
    ],
)
async def test_a_place_that_cannot_be_used_is_told_without_its_path(
    server: ServerOfDays, folder: Path, there: str, size: int, words: str
) -> None:
    place = folder / "parcel"
    if there == "no folder":
        place = folder / "missing" / "parcel"
    elif there == "directory":
        place.mkdir()
    elif there == "file":
        place.touch()
    async with pair(server) as (ours, theirs):
        await say(theirs, offer={"file": {"filename": "parcel", "filesize": size}})
        offered = await receive(ours, DIRECT)
        assert isinstance(offered, OfferedFile)
        with pytest.raises((Misuse, StoreError), match=str(folder)):
            await offered.accept(place, replace=there == "directory")
        said, _ = await heard(theirs, "error")
    assert words in said
    assert str(folder) not in said


async def test_the_name_under_which_a_file_is_stored_is_not_told(server: ServerOfDays, folder: Path) -> None:
    (folder / "secret").touch()
    async with pair(server) as (ours, theirs):
        await say(theirs, offer=OFFER)
        offered = await receive(ours, DIRECT)
        assert isinstance(offered, OfferedFile)
        with pytest.raises(Misuse, match="secret"):
            await offered.accept(folder / "secret")
        assert "secret" not in (await heard(theirs, "error"))[0]


@pytest.mark.parametrize("first", ["accept", "reject"])
@pytest.mark.parametrize("second", ["accept", "reject"])
async def test_an_offer_is_answered_once(server: ServerOfDays, folder: Path, first: str, second: str) -> None:
    async with pair(server) as (ours, theirs):
        await say(theirs, offer={"message": "text"})
        offered = await receive(ours, DIRECT)
        assert isinstance(offered, OfferedText)
        await getattr(offered, first)()
        with pytest.raises(Misuse, match="accepted or rejected once"):
            await getattr(offered, second)()
        await say(theirs, offer=OFFER)
        file = await receive(ours, DIRECT)
        assert isinstance(file, OfferedFile)
        with pytest.raises(Misuse, match=r"a path is a pathlib\.Path, not 'parcel'"):
            await file.accept("parcel")  # type: ignore[arg-type]
        await file.reject()  # a path of another type does not use up the offer
        for again in (file.accept(folder / "parcel"), file.unpack(folder / "parcel"), file.reject()):
            with pytest.raises(Misuse, match="accepted or rejected once"):
                await again


async def test_what_answers_in_this_network_is_not_told(server: ServerOfDays, folder: Path) -> None:
    """A sender that names addresses of the receiver's network would learn what is there."""
    hints = [{"type": "direct-tcp-v1", "priority": 0, "hostname": "127.0.0.1", "port": 1}]
    async with pair(server) as (ours, theirs):
        await say(theirs, transit={"hints-v1": hints})
        await say(theirs, offer=OFFER)
        offered = await receive(ours, TransitOptions(relays=(), listen=False))
        assert isinstance(offered, OfferedFile)
        with pytest.raises(TransferError, match=r"127\.0\.0\.1:1: Connection refused"):
            await offered.accept(folder / "parcel")
        assert (await heard(theirs, "error"))[0] == "no connection to the other side"


@pytest.mark.parametrize("change", ["grown", "gone"])
async def test_a_file_of_a_directory_that_changes_is_told_without_its_path(
    server: ServerOfDays, folder: Path, change: str
) -> None:
    (folder / "inside").mkdir()
    (folder / "inside/parcel").write_bytes(CONTENT)
    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(send_directory(ours, folder, transit=DIRECT))
        offer, _ = await heard(theirs, "offer")
        if change == "grown":
            (folder / "inside/parcel").write_bytes(CONTENT + b"x")
        else:
            (folder / "inside/parcel").unlink()
        await play(theirs, Role.RECEIVER, until_closed, offer)
        with pytest.raises(UnsendableFileError, match=str(folder)):
            await sending
        said, _ = await heard(theirs, "error")
    assert said.startswith("cannot send 'inside/parcel': ")
