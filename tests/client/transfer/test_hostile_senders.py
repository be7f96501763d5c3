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

from client.transfer.hostile import (
    CONTENT,
    DIRECT,
    OFFER,
    Script,
    gives_up,
    heard,
    names,
    offered_file,
    pair,
    play,
    say,
    sends,
    sends_half,
    sends_it,
    stops,
    stored,
    until_closed,
)
from restante.client.errors import ArchiveError, ConnectionLostError, PeerMessageError, UnsafeNameError
from restante.client.transfer.receiving import receive
from restante.client.transit.pipe import CLOSED, RecordPipe
from restante.client.transit.records import MAX_RECORD_BYTES, RecordSealer, Role
from restante.common.errors import Misuse, RestanteError, StoreError
from support.disk import no_file_beyond

FILE = {"filename": "x", "filesize": 1}
SIZES: list[Any] = [-1, 1.0, 1e3, "1", True, None, 2**63, 2**64, []]
DIRECTORY = {"mode": "zipfile/deflated", "dirname": "x", "zipsize": 1, "numbytes": 1, "numfiles": 1}


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


NO_OFFERS: list[Any] = [
    *({}, [], "file", {"file": None}, {"file": []}, {"file": {"filename": "x"}}, {"file": {"filesize": 1}}),
    *({"file": {**FILE, "filename": name}} for name in (5, None)),
    *({"file": {**FILE, "filesize": size}} for size in SIZES),
    *({"directory": {**DIRECTORY, key: -1}} for key in DIRECTORY),
    {"directory": {**DIRECTORY, "mode": "tarball"}},
    {"directory": {**DIRECTORY, "zipsize": 0.5}},
    {"directory": {**DIRECTORY, "numfiles": 10**40}},
    {"file": FILE, "directory": DIRECTORY},
    {"file": FILE, "message": "text"},
    {"parcel": FILE},
]
NO_MESSAGES = [
    *(b"", b"\xff", b"nonsense", b"[" * 100_000, b'{"transit":' + b'{"a":' * 100_000, b'{"error": 5}', b'"error"')
]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        *((json.dumps({"offer": offer}).encode(), ".") for offer in NO_OFFERS),
        *((message, "not a message of a transfer") for message in NO_MESSAGES),
        (b'{"answer": {"file_ack": "ok"}}', "the other side receives, too"),
    ],
    ids=lambda value: repr(value[:60]),
)
async def test_what_no_sender_says_is_refused_and_it_is_told(message: bytes, words: str) -> None:
    async with pair() as (ours, theirs):
        await say(theirs, transit={})
        await theirs.send(message)
        with pytest.raises(PeerMessageError, match=words) as refused:
            await receive(ours, DIRECT)
        assert await heard(theirs, "error")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["", "../x", "\x1b[2J", "nul", 300 * "x"])
async def test_an_unsafe_name_is_refused_and_the_sender_is_told(name: str) -> None:
    async with pair() as (ours, theirs):
        await say(theirs, offer={"file": {**FILE, "filename": name}})
        with pytest.raises(UnsafeNameError) as refused:
            await receive(ours, DIRECT)
        assert (await heard(theirs, "error"))[0] == str(refused.value)


@pytest.mark.parametrize(
    ("name", "directory_name"),
    [
        *(("x.tar", "x"), ("x.tar.tar", "x.tar"), ("....tar", "...")),
        *((name, None) for name in ("x", "x.TAR", ".tar", "..tar", "...tar", " .tar", "\u3164.tar")),
    ],
)
async def test_a_tar_file_s_name_without_suffix_is_checked(
    folder: Path, name: str, directory_name: str | None
) -> None:
    """A program that cuts the suffix itself would replace the folder that it stores things in."""
    (folder / "mine").touch()
    async with pair() as (ours, theirs):
        await say(theirs, offer={"file": {**FILE, "filename": name}})
        offered = await offered_file(ours)
        assert offered.directory_name == directory_name
        if directory_name is None:
            with pytest.raises(Misuse, match="call accept"):
                await offered.unpack(folder / name.removesuffix(".tar"), replace=True)
            assert (await heard(theirs, "error"))[0] == f"'{name}' is not named like a directory's tar file"
    assert names(folder) == ["mine"]


@pytest.mark.parametrize("kind", ["accept", "unpack"])
async def test_a_path_without_a_name_is_refused_and_the_sender_is_told(kind: str) -> None:
    async with pair() as (ours, theirs):
        await say(theirs, offer={"file": {**FILE, "filename": "x.tar"}})
        with pytest.raises(Misuse, match="does not end with a name"):
            await getattr(await offered_file(ours), kind)(Path(), replace=True)
        assert (await heard(theirs, "error"))[0] == "its place has no name"


@pytest.mark.parametrize("first", ["transit", "offer"])
async def test_transit_may_be_repeated_or_missing(folder: Path, first: str) -> None:
    """The receiver listens, too, and the sender dials."""
    async with pair() as (ours, theirs):
        if first == "transit":
            await say(theirs, transit={"hints-v1": 10_000 * [{"type": "direct-tcp-v1", "hostname": "a", "port": 0}]})
        _, path = await asyncio.gather(play(theirs, Role.SENDER, sends_it, OFFER), stored(ours, folder))
    assert path.read_bytes() == CONTENT


async def test_the_words_of_a_sender_that_gives_up_stay_in_one_line() -> None:
    async with pair() as (ours, theirs):
        await say(theirs, error="first\nrestante: second" + 100_000 * "!")
        assert len(str(await gives_up(receive(ours, DIRECT), r"first restante: second!+…$"))) < 1000


# ── records ──────────────────────────────────────────────────────────────────────────────────────


def nothing(pipe: RecordPipe) -> None:
    pass


def fewer(pipe: RecordPipe) -> None:
    pipe.send(CONTENT[:4])


def reset(pipe: RecordPipe) -> None:
    pipe.send(CONTENT[:4])
    pipe._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def records(*contents: bytes) -> Script:
    def script(pipe: RecordPipe) -> None:
        for content in contents:
            pipe.send(content)
        until_closed(pipe)

    return script


def raw(sent: bytes) -> Script:
    def script(pipe: RecordPipe) -> None:
        pipe._socket.sendall(sent)
        until_closed(pipe)

    return script


def in_order(*order: int) -> Script:
    def script(pipe: RecordPipe) -> None:
        sealed = [bytes(pipe._sealer.seal(CONTENT[:5])), bytes(pipe._sealer.seal(CONTENT[5:]))]
        raw(b"".join(sealed[number] for number in order))(pipe)

    return script


def sealed_as_the_receiver_does(pipe: RecordPipe) -> None:
    raw(bytes(RecordSealer(pipe._opener._key).seal(CONTENT)))(pipe)


def cut(size: int) -> Script:
    return lambda pipe: pipe._socket.sendall(pipe._sealer.seal(CONTENT)[:size])


LOST = f"^{CLOSED} after receiving %s of 10 bytes: nothing was kept"
OTHER = "does not send the 10 bytes that it offered"


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (nothing, ConnectionLostError, LOST % "0"),
        (fewer, ConnectionLostError, LOST % "4"),
        (reset, ConnectionLostError, LOST % r"\d"),
        *((cut(size), ConnectionLostError, LOST % "0") for size in (0, 3, 4, 20, 27, 28, 40, 53)),
        (records(CONTENT + b"x"), PeerMessageError, OTHER),
        (records(CONTENT[:9], b"xx"), PeerMessageError, OTHER),
        (records(b""), PeerMessageError, OTHER),
        (raw(b"\xff\xff\xff\xff"), PeerMessageError, "announces a record of 4,294,967,295 bytes"),
        (raw((MAX_RECORD_BYTES + 1).to_bytes(4, "big")), PeerMessageError, "announces a record of"),
        (raw(bytes(4)), PeerMessageError, "announces a record of 0 bytes"),
        (raw(b"\0\0\0\x30" + 48 * b"x"), PeerMessageError, "is missing, or comes twice"),
        (raw(b"GET / HTTP/1.1\r\n\r\n"), PeerMessageError, "announces a record of"),
        (in_order(1, 0), PeerMessageError, "is missing, or comes twice"),
        (in_order(0, 0), PeerMessageError, "is missing, or comes twice"),
        (raw(bytes(RecordSealer(bytes(32)).seal(CONTENT))), PeerMessageError, "sealed with another key"),
        (sealed_as_the_receiver_does, PeerMessageError, "sealed with another key"),
    ],
)
async def test_after_records_that_break_the_rules_nothing_is_kept(
    folder: Path, impatient: None, script: Script, error: type[RestanteError], words: str
) -> None:
    async with pair() as (ours, theirs):
        sending = sends(theirs, script)
        with pytest.raises(error, match=words):
            await stored(ours, folder)
        await asyncio.gather(sending, return_exceptions=True)
        if error is PeerMessageError:
            assert words in (await heard(theirs, "error"))[0]
    assert names(folder) == []


async def test_the_sender_s_reason_is_raised_in_place_of_the_loss(folder: Path) -> None:
    async with pair() as (ours, theirs):

        async def gives_up_then() -> None:
            await play(theirs, Role.SENDER, fewer, OFFER)
            await say(theirs, error="no paper")

        sending = asyncio.create_task(gives_up_then())
        await gives_up(stored(ours, folder), r"no paper \(after receiving \d of 10 bytes: nothing was kept\)$")
        await sending
    assert names(folder) == []


async def test_a_sender_that_is_gone_when_all_has_arrived_costs_nothing(folder: Path) -> None:
    async with pair() as (ours, theirs):
        sending = sends(theirs, lambda pipe: pipe.send(CONTENT))
        path = await stored(ours, folder)
        await sending
    assert path.read_bytes() == CONTENT
    assert names(folder) == [path.name]


async def test_the_acknowledgement_has_the_digest(folder: Path) -> None:
    acknowledgements: list[Any] = []

    def script(pipe: RecordPipe) -> None:
        for byte in CONTENT:
            pipe.send(bytes([byte]))
        acknowledgements.append(json.loads(bytes(pipe.receive())))

    async with pair() as (ours, theirs):
        await asyncio.gather(play(theirs, Role.SENDER, script, OFFER), stored(ours, folder))
    assert acknowledgements == [{"ack": "ok", "sha256": hashlib.sha256(CONTENT).hexdigest()}]


async def test_an_archive_that_is_none_is_refused(folder: Path) -> None:
    async with pair() as (ours, theirs):
        sending = sends(theirs, sends_it, {"directory": {**DIRECTORY, "zipsize": len(CONTENT)}})
        with pytest.raises(ArchiveError):
            await stored(ours, folder)
        await sending
        assert "archive" in (await heard(theirs, "error"))[0]
    assert names(folder) == []


# ── the disk ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_disk_that_fills_leaves_nothing_and_the_sender_is_told(folder: Path) -> None:
    script = records(*[bytes(1 << 16)] * 64)
    async with pair() as (ours, theirs):
        sending = sends(theirs, script, {"file": {"filename": "parcel", "filesize": 4 << 20}})
        with no_file_beyond(1 << 20), pytest.raises(StoreError, match="File too large"):
            await stored(ours, folder)
        await asyncio.gather(sending, return_exceptions=True)
        assert "File too large" in (await heard(theirs, "error"))[0]
    assert names(folder) == []


async def test_what_takes_the_name_during_the_transfer_is_kept(folder: Path) -> None:
    began = threading.Event()

    def script(pipe: RecordPipe) -> None:
        pipe.send(CONTENT[:5])
        began.wait()
        (folder / "parcel").write_bytes(b"mine")
        pipe.send(CONTENT[5:])
        until_closed(pipe)

    async with pair() as (ours, theirs):
        sending = sends(theirs, script)
        with pytest.raises(Misuse, match="exists already"):
            await stored(ours, folder, lambda _: began.set())
        await sending
        assert "exists already" in (await heard(theirs, "error"))[0]
    assert names(folder) == ["parcel"]
    assert (folder / "parcel").read_bytes() == b"mine"


# ── cancellation ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", ["waits for an offer", "connects"])
async def test_a_receiver_stops_before_there_is_a_connection(folder: Path, phase: str) -> None:
    async with pair() as (ours, theirs):
        receiving = asyncio.create_task(stored(ours, folder))
        await asyncio.gather(ours.verifier(), theirs.verifier())
        if phase == "connects":
            await say(theirs, offer=OFFER)
            await heard(theirs, "answer")
        await stops(receiving, theirs, Role.RECEIVER)
    assert names(folder) == []


async def test_a_receiver_stops_while_it_waits_for_bytes(folder: Path) -> None:
    waits = asyncio.Event()
    async with pair() as (ours, theirs):
        sending = sends(theirs, sends_half)
        receiving = asyncio.create_task(stored(ours, folder, lambda _: waits.set()))
        await waits.wait()
        assert await stops(receiving, theirs, Role.RECEIVER) == ["after receiving 5 of 10 bytes: nothing was kept"]
        await sending
    assert names(folder) == []


@pytest.mark.parametrize(
    ("moment", "note", "left"),
    [
        ("os.fsync", "after receiving 10 of 10 bytes: nothing was kept", []),
        ("flush", "after everything was stored", ["parcel"]),
    ],
    ids=["before the file has its name", "when it has its name"],
)
async def test_a_receiver_that_stops_at_the_end_says_whether_the_file_is_stored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str, note: str, left: list[str]
) -> None:
    loop = asyncio.get_running_loop()
    receiving: asyncio.Task[Path]
    stopped = threading.Event()

    def flush(_: object) -> None:
        loop.call_soon_threadsafe(receiving.cancel)
        loop.call_soon_threadsafe(loop.call_soon, stopped.set)
        stopped.wait()

    monkeypatch.setattr(f"restante.client.files.draft.{moment}", flush)
    async with pair() as (ours, theirs):
        sending = sends(theirs, sends_it)
        receiving = asyncio.create_task(stored(ours, folder))
        with pytest.raises(asyncio.CancelledError) as ended:
            await receiving
        await sending
        if not left:
            assert (await heard(theirs, "error"))[0] == "the receiver stopped"
    assert ended.value.__notes__ == [note]
    assert names(folder) == left
