"""A peer that breaks the rules: nothing is stored or said to have arrived, and the peer is told why in a sentence."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client.files.test_unpacking import tar_of, zip_of
from client.transfer.hostile import (
    CONTENT,
    DIRECT,
    OFFER,
    Played,
    Script,
    gives_up,
    heard,
    names,
    offered_file,
    pair,
    play,
    receives,
    records,
    say,
    sends,
    sends_it,
    sparse,
    stored,
    until_closed,
)
from restante.client import ConnectionLostError, Wormhole
from restante.client.errors import ArchiveError, PeerMessageError, TransferError, UnsafeNameError, UnsendableFileError
from restante.client.transfer.receiving import receive
from restante.client.transfer.sending import send_directory, send_file
from restante.client.transit.pipe import CLOSED
from restante.client.transit.records import MAX_RECORD_BYTES, RecordSealer, Role
from restante.common.errors import Misuse, RestanteError, StoreError
from support.disk import no_file_beyond

FILE = {"filename": "x", "filesize": 1}
SIZES: list[Any] = [-1, 1.0, 1e3, "1", True, None, 2**63, 2**64, []]
DIRECTORY = {"mode": "zipfile/deflated", "dirname": "x", "zipsize": 1, "numbytes": 1, "numfiles": 1}


@pytest.fixture
def parcel(tmp_path: Path) -> Path:
    path = tmp_path / "parcel"
    path.write_bytes(CONTENT)
    return path


async def sent(wormhole: Wormhole, path: Path) -> None:
    await send_file(wormhole, path, transit=DIRECT)


NO_OFFERS: list[Any] = [
    *({}, [], "file", {"file": None}, {"file": []}, {"file": {"filename": "x"}}, {"file": {"filesize": 1}}),
    *({"file": {**FILE, "filename": name}} for name in (5, None)),
    *({"file": {**FILE, "filesize": size}} for size in SIZES),
    *({"directory": {**DIRECTORY, key: -1}} for key in DIRECTORY),
    *({"directory": {**DIRECTORY, **lie}} for lie in ({"mode": "tarball"}, {"zipsize": 0.5}, {"numfiles": 10**40})),
    {"directory": {**DIRECTORY, "numdirs": -1}},
    *({"file": FILE, "directory": DIRECTORY}, {"file": FILE, "message": "text"}, {"parcel": FILE}),
]
UNSAFE_OFFERS = [{"file": {**FILE, "filename": name}} for name in ("", "../x", "\x1b[2J", "..", 300 * "x")]
NO_MESSAGES = [
    *(b"", b"\xff", b"nonsense", b"[" * 100_000, b'{"transit":' + b'{"a":' * 100_000, b'{"error": 5}', b'"error"')
]
NOT_OF_A_TRANSFER = "not a message of a transfer"


@pytest.mark.parametrize(
    ("message", "error", "reason"),
    [
        *((json.dumps({"offer": offer}).encode(), PeerMessageError, ".") for offer in NO_OFFERS),
        *((json.dumps({"offer": offer}).encode(), UnsafeNameError, ".") for offer in UNSAFE_OFFERS),
        *((message, PeerMessageError, NOT_OF_A_TRANSFER) for message in NO_MESSAGES),
        (b'{"answer": {"file_ack": "ok"}}', PeerMessageError, "the other side receives, too"),
    ],
    ids=lambda value: repr(value[:60]) if isinstance(value, bytes) else None,
)
async def test_what_no_sender_says_is_refused_and_it_is_told(
    message: bytes, error: type[RestanteError], reason: str
) -> None:
    async with pair() as (ours, theirs):
        await say(theirs, transit={})
        await theirs.send(message)
        with pytest.raises(error, match=reason) as refused:
            await receive(ours, DIRECT)
        assert (await heard(theirs, "error"))[0] == str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "directory_name"),
    [
        *(("x.tar", "x"), ("x.tar.tar", "x.tar"), ("....tar", "...")),
        *((name, None) for name in ("x", "x.TAR", ".tar", "..tar", "...tar", " .tar", "\u3164.tar")),
    ],
)
async def test_a_tar_s_name_without_suffix_is_checked(folder: Path, name: str, directory_name: str | None) -> None:
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


async def test_the_words_of_a_sender_that_gives_up_stay_in_one_line() -> None:
    async with pair() as (ours, theirs):
        await say(theirs, error="first\nrestante: \x1b[2Jsecond" + 100_000 * "!")
        assert len(str(await gives_up(receive(ours, DIRECT), r"first restante: \\x1b\[2Jsecond!+…$"))) < 1000


def fewer(pipe: Played) -> None:
    pipe.send(CONTENT[:4])


def resets(pipe: Played) -> None:
    """Reset the connection when it is closed: SO_LINGER with zero seconds (socket(7))."""
    pipe.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def raw(content: bytes) -> Script:
    def script(pipe: Played) -> None:
        pipe.socket.sendall(content)
        until_closed(pipe)

    return script


def in_order(*order: int) -> Script:
    def script(pipe: Played) -> None:
        sealer = RecordSealer(pipe.keys.sealing)
        sealed = [bytes(sealer.seal(CONTENT[:5])), bytes(sealer.seal(CONTENT[5:]))]
        raw(b"".join(sealed[number] for number in order))(pipe)

    return script


def cut(size: int) -> Script:
    return lambda pipe: pipe.socket.sendall(RecordSealer(pipe.keys.sealing).seal(CONTENT)[:size])


LOST = f"^{CLOSED} after receiving %s of 10 bytes: nothing was kept"
OTHER = "does not send the 10 bytes that it offered"
LENGTH = "announces a record of"
OTHER_KEY = "sealed with another key"


@pytest.mark.parametrize(
    ("script", "error", "reason"),
    [
        (fewer, ConnectionLostError, LOST % "4"),
        (lambda pipe: [act(pipe) for act in (fewer, resets)], ConnectionLostError, LOST % r"\d"),
        *((cut(size), ConnectionLostError, LOST % "0") for size in (0, 3, 4, 20, 27, 28, 40, 53)),
        *((records(*sent), PeerMessageError, OTHER) for sent in ((CONTENT + b"x",), (CONTENT[:9], b"xx"), (b"",))),
        (raw(b"\xff\xff\xff\xff"), PeerMessageError, "announces a record of 4,294,967,295 bytes"),
        *((raw(size.to_bytes(4, "big")), PeerMessageError, LENGTH) for size in (39, MAX_RECORD_BYTES + 1)),
        (raw(bytes(4)), PeerMessageError, "announces a record of 0 bytes"),
        (raw(b"\0\0\0\x30" + 48 * b"x"), PeerMessageError, "is missing, or comes twice"),
        (raw(b"GET / HTTP/1.1\r\n\r\n"), PeerMessageError, LENGTH),
        *((in_order(number, 0), PeerMessageError, "is missing, or comes twice") for number in (1, 0)),
        (raw(bytes(RecordSealer(bytes(32)).seal(CONTENT))), PeerMessageError, OTHER_KEY),
        (lambda pipe: raw(bytes(RecordSealer(pipe.keys.opening).seal(CONTENT)))(pipe), PeerMessageError, OTHER_KEY),
        (sends_it, ArchiveError, "archive"),  # in place of an archive
    ],
)
async def test_after_records_that_break_the_rules_nothing_is_kept(
    folder: Path, impatient: None, script: Script, error: type[RestanteError], reason: str
) -> None:
    offer = {"directory": {**DIRECTORY, "zipsize": len(CONTENT)}} if error is ArchiveError else OFFER
    async with pair() as (ours, theirs):
        sending = sends(theirs, script, offer)
        with pytest.raises(error, match=reason):
            await stored(ours, folder)
        await asyncio.gather(sending, return_exceptions=True)
        if error is not ConnectionLostError:
            assert reason in (await heard(theirs, "error"))[0]
    assert names(folder) == []


@pytest.mark.parametrize(
    ("counts", "free", "reason"),
    [
        ({"numdirs": 2}, {}, "more directories than were offered"),
        ({"numfiles": 0}, {}, "more directories than were offered"),
        ({}, {"f_bavail": 4 * 4096}, "room for 16,384 bytes, and 16,385 are offered"),
        (None, {"f_bavail": 4 * 4096 + 10240 - 1}, "room for 26,623 bytes, and 26,624 are offered"),
        ({}, {"f_files": 9}, "room for 3 more files, and 4 are offered"),
        (None, {"f_files": 9}, "room for 3 more files, and 4 are offered"),
    ],
)
async def test_no_more_directories_are_stored_than_were_offered_and_have_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch, counts: Any, free: dict[str, int], reason: str
) -> None:
    """Most have no member of their own. A sender that does not count them, as that of a tar file, may have a few."""
    monkeypatch.setattr("restante.client.transfer.receiving.MAX_UNCOUNTED_DIRECTORIES", 2)
    data = tar_of({"x/a/b/c/d/": b""}) if counts is None else zip_of({"a/b/c/d/": b""})
    offer = {"directory": {**DIRECTORY, "zipsize": len(data), **(counts or {})}}
    if counts is None:
        offer = {"file": {"filename": "x.tar", "filesize": len(data)}}
    disk = {"f_bavail": 1 << 30, "f_frsize": 1, "f_blocks": 1, "f_files": 0, "f_favail": 3}
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(**disk | free))
    async with pair() as (ours, theirs):
        sending = sends(theirs, records(data), offer)
        offered: Any = await receive(ours, DIRECT)
        with pytest.raises((ArchiveError, StoreError), match=reason):
            await (offered.unpack if counts is None else offered.accept)(folder / "x")
        await asyncio.gather(sending, return_exceptions=True)
    assert names(folder) == []


async def test_a_disk_that_fills_leaves_nothing_and_the_sender_is_told(folder: Path) -> None:
    async with pair() as (ours, theirs):
        offer = {"file": {"filename": "parcel", "filesize": 4 << 20}}
        sending = sends(theirs, records(*[bytes(1 << 16)] * 64), offer)
        with no_file_beyond(1 << 20), pytest.raises(StoreError, match=r"cannot write '.*': File too large"):
            await stored(ours, folder)
        await asyncio.gather(sending, return_exceptions=True)
        assert (await heard(theirs, "error"))[0] == "cannot store it: File too large"
    assert names(folder) == []


async def test_the_sender_s_reason_is_raised_in_place_of_the_loss(folder: Path) -> None:
    reason = r"no paper \(after receiving \d of 10 bytes: nothing was kept\)$"
    async with pair() as (ours, theirs):
        receiving = asyncio.create_task(gives_up(stored(ours, folder), reason))
        await play(theirs, Role.SENDER, fewer, OFFER)
        await say(theirs, error="no paper")
        await receiving
    assert names(folder) == []


@pytest.mark.parametrize(
    ("message", "error", "reason"),
    [
        ({"answer": {}}, TransferError, "refused it: it does not say why"),
        ({"answer": {"file_ack": "no"}}, TransferError, "refused it: 'no'"),
        ({"answer": {"file_ack": "a\nb"}}, TransferError, r"refused it: 'a\\nb'"),
        ({"answer": {"file_ack": 100_000 * "x"}}, TransferError, r"refused it: '.{1,1000}$"),
        ({"answer": {"message_ack": "ok"}}, TransferError, "refused it"),
        *(({"answer": answer}, PeerMessageError, NOT_OF_A_TRANSFER) for answer in ({"file_ack": 1}, "ok")),
        ({"offer": {"message": "text"}}, PeerMessageError, "the other side sends, too"),
        ({"error": "transfer rejected"}, TransferError, "^the other side gave up: transfer rejected$"),
        ({"error": ["x"]}, PeerMessageError, NOT_OF_A_TRANSFER),
    ],
    ids=lambda value: repr(value)[:60],
)
async def test_an_answer_that_is_no_consent_ends_the_sender(
    parcel: Path, message: dict[str, Any], error: type[RestanteError], reason: str
) -> None:
    async with pair() as (ours, theirs):
        await say(theirs, transit={"hints-v1": "nonsense"})
        await say(theirs, **message)
        with pytest.raises(error, match=reason):
            await sent(ours, parcel)
        if "error" not in message or error is PeerMessageError:
            assert await heard(theirs, "error")


def behind_the_bytes(script: Script) -> Script:
    return lambda pipe: (pipe.receive(), script(pipe))


NO_ACKNOWLEDGEMENTS = (b"", b"\xff", 100_000 * b"[", b'{"ack":5}', b'{"ack":"ok","sha256":5}')
UNKNOWN = "before the receiver confirmed: it may have everything"


@pytest.mark.parametrize(
    ("script", "error", "reason"),
    [
        (records(b"{}"), TransferError, "refused it"),
        (records(b'{"ack":"no"}'), TransferError, "refused it: 'no'"),
        *((records(record), PeerMessageError, "not an acknowledgement") for record in NO_ACKNOWLEDGEMENTS),
        *((records(b'{"ack":"ok","sha256":"%s"}' % digest), TransferError, "other bytes") for digest in (b"", b"00")),
        *((records(b'{"ack":"ok"%s}' % end), TransferError, "it sent no SHA") for end in (b"", b',"sha256":null')),
        (raw(b"HTTP/1.1 200 OK\r\n\r\n"), PeerMessageError, LENGTH),
        *((script, ConnectionLostError, UNKNOWN) for script in (resets, lambda _: None)),
    ],
)
async def test_without_an_acknowledgement_the_sender_does_not_say_that_it_arrived(
    parcel: Path, impatient: None, script: Script, error: type[RestanteError], reason: str
) -> None:
    async with pair() as (ours, theirs):
        receiving = receives(theirs, behind_the_bytes(script))
        with pytest.raises(error, match=reason):
            await sent(ours, parcel)
        await receiving
        if error is not ConnectionLostError:
            assert await heard(theirs, "error")


async def test_before_the_first_byte_a_folder_is_refused_that_nothing_can_be_written_in() -> None:
    async with pair() as (ours, theirs):
        await say(theirs, transit={}, offer=OFFER)
        with pytest.raises(StoreError, match="cannot write in '/proc': "):
            await (await offered_file(ours)).accept(Path("/proc/parcel"))
        assert set(json.loads(await theirs.receive())) == {"error"}


async def test_an_acknowledgement_may_have_more_and_a_digest_in_capitals(parcel: Path) -> None:
    record = f'{{"ack":"ok","sha256":"{hashlib.sha256(CONTENT).hexdigest().upper()}","more":{{}}}}'.encode()
    async with pair() as (ours, theirs):
        await asyncio.gather(receives(theirs, behind_the_bytes(records(record))), sent(ours, parcel))


async def test_a_connection_that_breaks_in_the_middle_is_incomplete(tmp_path: Path, impatient: None) -> None:
    async with pair() as (ours, theirs):
        receiving = receives(theirs, behind_the_bytes(lambda _: None))
        reason = rf"^{CLOSED} after sending [\d,]+ of 67,108,864 bytes: the receiver does not have everything$"
        with pytest.raises(ConnectionLostError, match=reason):
            await sent(ours, sparse(tmp_path / "large"))
        await receiving


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("file", "'parcel' became longer while it was sent: send it again"),
        ("directory", "cannot send 'inside/parcel': it changed while it was sent"),
    ],
)
async def test_of_a_file_that_changes_the_receiver_is_told_its_name_and_not_where_it_is(
    folder: Path, kind: str, reason: str
) -> None:
    parcel, received = folder / "inside/parcel", list[bytes]()
    parcel.parent.mkdir()
    parcel.write_bytes(CONTENT)

    def script(pipe: Played) -> None:
        with suppress(ConnectionLostError):
            while True:
                received.append(bytes(pipe.receive()))

    async with pair() as (ours, theirs):
        send = sent(ours, parcel) if kind == "file" else send_directory(ours, folder, transit=DIRECT)
        sending = asyncio.create_task(send)
        offer, _ = await heard(theirs, "offer")
        parcel.write_bytes(CONTENT + b"x")
        await play(theirs, Role.RECEIVER, script, offer)
        with pytest.raises(UnsendableFileError, match="while it was sent"):
            await sending
        assert (await heard(theirs, "error"))[0] == reason
    assert len(b"".join(received)) < offer[kind].get("zipsize", len(CONTENT))
