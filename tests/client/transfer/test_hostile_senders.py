"""A sender that breaks the rules: the receiver stores nothing, says why in a sentence, and tells the sender."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from client.transfer.hostile import DIRECT, Script, heard, names, pair, play, say, stored, until_closed
from restante.client.errors import (
    ArchiveError,
    ConnectionLostError,
    PeerMessageError,
    TransferError,
    UnsafeNameError,
)
from restante.client.transfer.receiving import OfferedFile, receive
from restante.client.transit.pipe import CLOSED, RecordPipe
from restante.client.transit.records import MAX_RECORD_BYTES, RecordSealer, Role
from restante.common.errors import Misuse, RestanteError, StoreError
from support.disk import no_file_beyond
from support.mailbox.days import ServerOfDays

CONTENT = b"0123456789"
OFFER = {"file": {"filename": "parcel", "filesize": len(CONTENT)}}
FILE = {"filename": "x", "filesize": 1}
SIZES: list[Any] = [-1, 1.0, 1e3, "1", True, None, 2**63, 2**64, []]
DIRECTORY = {"mode": "zipfile/deflated", "dirname": "x", "zipsize": 1, "numbytes": 1, "numfiles": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "offer",
    [
        {},
        [],
        "file",
        {"file": None},
        {"file": []},
        {"file": {"filename": "x"}},
        {"file": {"filesize": 1}},
        {"file": {**FILE, "filename": 5}},
        {"file": {**FILE, "filename": None}},
        *({"file": {**FILE, "filesize": size}} for size in SIZES),
        *({"directory": {**DIRECTORY, key: -1}} for key in DIRECTORY),
        {"directory": {**DIRECTORY, "mode": "tarball"}},
        {"directory": {**DIRECTORY, "zipsize": 0.5}},
        {"directory": {**DIRECTORY, "numfiles": 10**40}},
        {"file": FILE, "directory": DIRECTORY},
        {"file": FILE, "message": "text"},
        {"parcel": FILE},
    ],
    ids=repr,
)
async def test_an_offer_that_no_sender_makes_is_refused(server: ServerOfDays, offer: Any) -> None:
    async with pair(server) as (ours, theirs):
        await say(theirs, transit={})
        await say(theirs, offer=offer)
        with pytest.raises(PeerMessageError) as refused:
            await receive(ours, DIRECT)
        assert await heard(theirs, "error")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "message",
    [b"", b"\xff", b"nonsense", b"[" * 100_000, b'{"transit":' + b'{"a":' * 100_000, b'{"error": 5}', b'"error"'],
    ids=lambda message: repr(message[:20]),
)
async def test_what_is_no_message_is_refused(server: ServerOfDays, message: bytes) -> None:
    async with pair(server) as (ours, theirs):
        await theirs.send(message)
        with pytest.raises(PeerMessageError, match="not a message of a transfer"):
            await receive(ours, DIRECT)
        assert await heard(theirs, "error")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/etc/passwd", "../x", "a\\b", "a\x00", "\x1b[2J", "a\n", "nul", 300 * "x"]
)
async def test_an_unsafe_name_is_refused_and_the_sender_is_told(server: ServerOfDays, name: str) -> None:
    async with pair(server) as (ours, theirs):
        await say(theirs, offer={"file": {**FILE, "filename": name}})
        with pytest.raises(UnsafeNameError) as refused:
            await receive(ours, DIRECT)
        words, _ = await heard(theirs, "error")
    assert words == str(refused.value)
    assert words.isprintable()


@pytest.mark.parametrize(
    ("name", "directory_name"),
    [
        ("x.tar", "x"),
        ("x.tar.tar", "x.tar"),
        ("x", None),
        ("x.TAR", None),
        (".tar", None),
        ("..tar", None),
        ("...tar", None),
        ("....tar", "..."),
        (" .tar", None),
        ("\u3164.tar", None),
    ],
)
async def test_a_tar_file_s_name_without_its_suffix_is_checked_again(
    server: ServerOfDays, name: str, directory_name: str | None
) -> None:
    async with pair(server) as (ours, theirs):
        await say(theirs, offer={"file": {**FILE, "filename": name}})
        offered = await receive(ours, DIRECT)
        assert isinstance(offered, OfferedFile)
        assert offered.directory_name == directory_name
        await offered.reject()


@pytest.mark.parametrize("name", [".tar", "..tar", "...tar"])
async def test_a_program_that_cuts_the_suffix_itself_keeps_its_folder(
    server: ServerOfDays, folder: Path, name: str
) -> None:
    (folder / "mine").touch()
    async with pair(server) as (ours, theirs):
        await say(theirs, offer={"file": {**FILE, "filename": name}})
        offered = await receive(ours, DIRECT)
        assert isinstance(offered, OfferedFile)
        with pytest.raises(Misuse, match="call accept"):
            await offered.unpack(folder / name.removesuffix(".tar"), replace=True)
        assert (await heard(theirs, "error"))[0] == f"'{name}' is not named like a directory's tar file"
    assert names(folder) == ["mine"]


@pytest.mark.parametrize("kind", ["accept", "unpack"])
async def test_a_path_without_a_name_is_refused_and_the_sender_is_told(server: ServerOfDays, kind: str) -> None:
    async with pair(server) as (ours, theirs):
        await say(theirs, offer={"file": {**FILE, "filename": "x.tar"}})
        offered = await receive(ours, DIRECT)
        with pytest.raises(Misuse, match="does not end with a name"):
            await getattr(offered, kind)(Path(), replace=True)
        assert (await heard(theirs, "error"))[0] == "its place has no name"


async def test_two_receivers_do_not_wait_for_one_another(server: ServerOfDays) -> None:
    async with pair(server) as (ours, theirs):
        await say(theirs, answer={"file_ack": "ok"})
        with pytest.raises(PeerMessageError, match="the other side receives, too"):
            await receive(ours, DIRECT)


@pytest.mark.parametrize("first", ["transit", "offer"])
async def test_transit_may_be_repeated_or_missing(server: ServerOfDays, folder: Path, first: str) -> None:
    """The receiver listens, too, and the sender dials."""

    def sends(pipe: RecordPipe) -> None:
        pipe.send(CONTENT)
        pipe.receive()

    async with pair(server) as (ours, theirs):
        if first == "transit":
            await say(theirs, transit={"hints-v1": 10_000 * [{"type": "direct-tcp-v1", "hostname": "a", "port": 0}]})
        _, path = await asyncio.gather(play(theirs, Role.SENDER, sends, OFFER), stored(ours, folder))
    assert path.read_bytes() == CONTENT


async def test_the_words_of_a_sender_that_gives_up_stay_in_one_line(server: ServerOfDays) -> None:
    async with pair(server) as (ours, theirs):
        await say(theirs, error="first\nrestante: second" + 100_000 * "!")
        with pytest.raises(TransferError, match=r"^the other side gave up: first restante: second!+…$") as refused:
            await receive(ours, DIRECT)
    assert len(str(refused.value)) < 1000


async def test_what_cannot_be_stored_is_told_before_it_is_accepted(server: ServerOfDays, folder: Path) -> None:
    (folder / "parcel").write_bytes(b"mine")
    async with pair(server) as (ours, theirs):
        await say(theirs, offer=OFFER)
        offered = await receive(ours, DIRECT)
        assert isinstance(offered, OfferedFile)
        with pytest.raises(Misuse, match="exists already"):
            await offered.accept(folder / "parcel")
        assert "exists already" in (await heard(theirs, "error"))[0]
    assert (folder / "parcel").read_bytes() == b"mine"


async def test_more_than_the_disk_has_is_refused_before_it_is_accepted(server: ServerOfDays, folder: Path) -> None:
    async with pair(server) as (ours, theirs):
        await say(theirs, offer={"file": {"filename": "parcel", "filesize": 2**63 - 1}})
        with pytest.raises(StoreError, match="has room for"):
            await stored(ours, folder)
        assert "has room for" in (await heard(theirs, "error"))[0]


# ── records ──────────────────────────────────────────────────────────────────────────────────────


def nothing(pipe: RecordPipe) -> None:
    pass


def fewer(pipe: RecordPipe) -> None:
    pipe.send(CONTENT[:4])


def more(pipe: RecordPipe) -> None:
    pipe.send(CONTENT + b"x")
    until_closed(pipe)


def more_in_a_second_record(pipe: RecordPipe) -> None:
    pipe.send(CONTENT[:9])
    pipe.send(b"xx")
    until_closed(pipe)


def empty_records(pipe: RecordPipe) -> None:
    pipe.send(b"")
    until_closed(pipe)


def raw(sent: bytes) -> Script:
    def script(pipe: RecordPipe) -> None:
        pipe._socket.sendall(sent)
        until_closed(pipe)

    return script


def swapped(pipe: RecordPipe) -> None:
    records = [bytes(pipe._sealer.seal(CONTENT[:5])), bytes(pipe._sealer.seal(CONTENT[5:]))]
    pipe._socket.sendall(records[1] + records[0])
    until_closed(pipe)


def repeated(pipe: RecordPipe) -> None:
    pipe._socket.sendall(2 * bytes(pipe._sealer.seal(CONTENT[:5])))
    until_closed(pipe)


def of_another_key(pipe: RecordPipe) -> None:
    pipe._socket.sendall(RecordSealer(bytes(32)).seal(CONTENT))
    until_closed(pipe)


def sealed_as_the_receiver_does(pipe: RecordPipe) -> None:
    pipe._socket.sendall(RecordSealer(pipe._opener._key).seal(CONTENT))
    until_closed(pipe)


def reset(pipe: RecordPipe) -> None:
    pipe.send(CONTENT[:4])
    pipe._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (nothing, ConnectionLostError, f"^{CLOSED} after receiving 0 of 10 bytes: nothing was kept"),
        (fewer, ConnectionLostError, f"^{CLOSED} after receiving 4 of 10 bytes: nothing was kept"),
        (reset, ConnectionLostError, rf"^{CLOSED} after receiving \d of 10 bytes: nothing was kept"),
        (more, PeerMessageError, "does not send the 10 bytes that it offered"),
        (more_in_a_second_record, PeerMessageError, "does not send the 10 bytes that it offered"),
        (empty_records, PeerMessageError, "does not send the 10 bytes that it offered"),
        (raw(b"\xff\xff\xff\xff"), PeerMessageError, "announces a record of 4,294,967,295 bytes"),
        (raw((MAX_RECORD_BYTES + 1).to_bytes(4, "big")), PeerMessageError, "announces a record of"),
        (raw(bytes(4)), PeerMessageError, "announces a record of 0 bytes"),
        (raw(b"\0\0\0\x30" + 48 * b"x"), PeerMessageError, "is missing, or comes twice"),
        (raw(b"GET / HTTP/1.1\r\n\r\n"), PeerMessageError, "announces a record of"),
        (swapped, PeerMessageError, "is missing, or comes twice"),
        (repeated, PeerMessageError, "is missing, or comes twice"),
        (of_another_key, PeerMessageError, "sealed with another key"),
        (sealed_as_the_receiver_does, PeerMessageError, "sealed with another key"),
    ],
)
async def test_after_records_that_break_the_rules_nothing_is_kept(
    server: ServerOfDays,
    folder: Path,
    script: Script,
    error: type[RestanteError],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("restante.client.transfer.messages.REASON_SECONDS", 0.05)
    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(play(theirs, Role.SENDER, script, OFFER))
        with pytest.raises(error, match=words):
            await stored(ours, folder)
        await asyncio.gather(sending, return_exceptions=True)
        if error is PeerMessageError:
            assert words in (await heard(theirs, "error"))[0]
    assert names(folder) == []


@pytest.mark.parametrize("cut", [0, 3, 4, 20, 27, 28, 40, 53])
async def test_a_connection_that_is_cut_anywhere_in_a_record_leaves_nothing(
    server: ServerOfDays, folder: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("restante.client.transfer.messages.REASON_SECONDS", 0.05)

    def script(pipe: RecordPipe) -> None:
        pipe._socket.sendall(pipe._sealer.seal(CONTENT)[:cut])

    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(play(theirs, Role.SENDER, script, OFFER))
        with pytest.raises(ConnectionLostError, match="after receiving 0 of 10 bytes: nothing was kept"):
            await stored(ours, folder)
        await sending
    assert names(folder) == []


async def test_the_sender_s_reason_is_raised_in_place_of_the_loss(server: ServerOfDays, folder: Path) -> None:
    async with pair(server) as (ours, theirs):

        async def gives_up() -> None:
            await play(theirs, Role.SENDER, fewer, OFFER)
            await say(theirs, error="no paper")

        sending = asyncio.create_task(gives_up())
        words = r"^the other side gave up: no paper \(after receiving \d of 10 bytes: nothing was kept\)$"
        with pytest.raises(TransferError, match=words):
            await stored(ours, folder)
        await sending
    assert names(folder) == []


async def test_a_sender_that_is_gone_when_all_has_arrived_costs_nothing(server: ServerOfDays, folder: Path) -> None:
    def script(pipe: RecordPipe) -> None:
        pipe.send(CONTENT)

    async with pair(server) as (ours, theirs):
        _, path = await asyncio.gather(play(theirs, Role.SENDER, script, OFFER), stored(ours, folder))
    assert path.read_bytes() == CONTENT
    assert names(folder) == [path.name]


async def test_the_acknowledgement_has_the_digest(server: ServerOfDays, folder: Path) -> None:
    said: list[Any] = []

    def script(pipe: RecordPipe) -> None:
        for byte in CONTENT:
            pipe.send(bytes([byte]))
        said.append(json.loads(bytes(pipe.receive())))

    async with pair(server) as (ours, theirs):
        await asyncio.gather(play(theirs, Role.SENDER, script, OFFER), stored(ours, folder))
    assert said == [{"ack": "ok", "sha256": hashlib.sha256(CONTENT).hexdigest()}]


async def test_an_archive_that_is_none_is_refused(server: ServerOfDays, folder: Path) -> None:
    def script(pipe: RecordPipe) -> None:
        pipe.send(CONTENT)
        until_closed(pipe)

    offer = {"directory": {**DIRECTORY, "zipsize": len(CONTENT)}}
    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(play(theirs, Role.SENDER, script, offer))
        with pytest.raises(ArchiveError):
            await stored(ours, folder)
        await sending
        assert "archive" in (await heard(theirs, "error"))[0]
    assert names(folder) == []


# ── the disk ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_disk_that_fills_leaves_nothing_and_the_sender_is_told(server: ServerOfDays, folder: Path) -> None:
    size = 4 << 20

    def script(pipe: RecordPipe) -> None:
        for _ in range(size >> 16):
            pipe.send(bytes(1 << 16))
        until_closed(pipe)

    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(
            play(theirs, Role.SENDER, script, {"file": {"filename": "parcel", "filesize": size}})
        )
        with no_file_beyond(1 << 20), pytest.raises(StoreError, match="File too large"):
            await stored(ours, folder)
        await asyncio.gather(sending, return_exceptions=True)
        assert "File too large" in (await heard(theirs, "error"))[0]
    assert names(folder) == []


async def test_what_takes_the_name_during_the_transfer_is_kept(server: ServerOfDays, folder: Path) -> None:
    began = threading.Event()

    def script(pipe: RecordPipe) -> None:
        pipe.send(CONTENT[:5])
        began.wait()
        (folder / "parcel").write_bytes(b"mine")
        pipe.send(CONTENT[5:])
        until_closed(pipe)

    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(play(theirs, Role.SENDER, script, OFFER))
        offered = await receive(ours, DIRECT)
        assert isinstance(offered, OfferedFile)
        with pytest.raises(Misuse, match="exists already"):
            await offered.accept(folder / "parcel", on_progress=lambda _: began.set())
        await sending
        assert "exists already" in (await heard(theirs, "error"))[0]
    assert names(folder) == ["parcel"]
    assert (folder / "parcel").read_bytes() == b"mine"


# ── cancellation ─────────────────────────────────────────────────────────────────────────────────


async def stops(receiving: asyncio.Task[Path], theirs: Any) -> list[str]:
    """Cancel our receiver. Return the notes of its end."""
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError) as ended:
        async with asyncio.timeout(5):
            await receiving
    assert (await heard(theirs, "error"))[0] == "the receiver stopped"
    return getattr(ended.value, "__notes__", [])


async def test_a_receiver_stops_while_it_waits_for_an_offer(server: ServerOfDays, folder: Path) -> None:
    async with pair(server) as (ours, theirs):
        receiving = asyncio.create_task(stored(ours, folder))
        await asyncio.gather(ours.verifier(), theirs.verifier())
        await stops(receiving, theirs)


async def test_a_receiver_stops_while_it_connects(server: ServerOfDays, folder: Path) -> None:
    async with pair(server) as (ours, theirs):
        receiving = asyncio.create_task(stored(ours, folder))
        await say(theirs, offer=OFFER)
        await heard(theirs, "answer")
        await stops(receiving, theirs)
    assert names(folder) == []


async def test_a_receiver_stops_while_it_waits_for_bytes(server: ServerOfDays, folder: Path) -> None:
    waits = asyncio.Event()

    def script(pipe: RecordPipe) -> None:
        pipe.send(CONTENT[:5])
        until_closed(pipe)

    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(play(theirs, Role.SENDER, script, OFFER))
        receiving = asyncio.create_task(stored(ours, folder, lambda _: waits.set()))
        await waits.wait()
        (note,) = await stops(receiving, theirs)
        await sending
    assert note == "after receiving 5 of 10 bytes: nothing was kept"
    assert names(folder) == []


async def test_a_receiver_that_stops_while_the_disk_flushes_gives_no_name(
    server: ServerOfDays, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    receiving: asyncio.Task[Path]
    stopped = threading.Event()

    def flush(_descriptor: int) -> None:
        loop.call_soon_threadsafe(receiving.cancel)
        loop.call_soon_threadsafe(loop.call_soon, stopped.set)
        stopped.wait()

    monkeypatch.setattr("restante.client.files.draft.os.fsync", flush)

    def script(pipe: RecordPipe) -> None:
        pipe.send(CONTENT)
        until_closed(pipe)

    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(play(theirs, Role.SENDER, script, OFFER))
        receiving = asyncio.create_task(stored(ours, folder))
        with pytest.raises(asyncio.CancelledError) as ended:
            await receiving
        await sending
        assert (await heard(theirs, "error"))[0] == "the receiver stopped"
    assert ended.value.__notes__ == ["after receiving 10 of 10 bytes: nothing was kept"]
    assert names(folder) == []


async def test_a_receiver_that_stops_when_the_file_has_its_name_says_that_it_is_stored(
    server: ServerOfDays, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    receiving: asyncio.Task[Path]
    stopped = threading.Event()

    def flush(_folder: Path) -> None:
        loop.call_soon_threadsafe(receiving.cancel)
        loop.call_soon_threadsafe(loop.call_soon, stopped.set)
        stopped.wait()

    monkeypatch.setattr("restante.client.files.draft.flush", flush)

    def script(pipe: RecordPipe) -> None:
        pipe.send(CONTENT)
        until_closed(pipe)

    async with pair(server) as (ours, theirs):
        sending = asyncio.create_task(play(theirs, Role.SENDER, script, OFFER))
        receiving = asyncio.create_task(stored(ours, folder))
        with pytest.raises(asyncio.CancelledError) as ended:
            await receiving
        await sending
    assert ended.value.__notes__ == ["after everything was stored"]
    assert names(folder) == ["parcel"]
