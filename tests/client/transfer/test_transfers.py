"""Files between two programs: all of it with the same digest, or an end that both hear at once."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import repeat
from pathlib import Path
from random import Random
from typing import Any, BinaryIO
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.live import Network
from client.transfer.hostile import (
    CONTENT,
    DIRECT,
    OFFER,
    Played,
    gives_up,
    heard,
    names,
    offered_file,
    pair,
    receives,
    records,
    say,
    sends,
    sends_half,
    sends_it,
    sparse,
    stopped_halfway,
    stored,
    tcp_pair,
    until_closed,
)
from restante.client import Wormhole
from restante.client.errors import ConnectionLostError, TransferError
from restante.client.files import draft
from restante.client.files.draft import draft_file
from restante.client.files.member import Member
from restante.client.files.zip_stream import plan_directory
from restante.client.transfer.receiving import OfferedDirectory, OfferedText, receive
from restante.client.transfer.sending import send_directory, send_file
from restante.client.transfer.stream import Stream
from restante.client.transit.connecting import TransitOptions
from restante.client.transit.pipe import RECORD_BYTES, RecordPipe
from restante.client.transit.records import LENGTH_BYTES, Role, TransitKeys
from restante.common.errors import Misuse, StoreError
from support.bounds import BOUND, bounded

KEY = bytes(range(32))
SENDER, RECEIVER = TransitKeys.derive(KEY, Role.SENDER), TransitKeys.derive(KEY, Role.RECEIVER)


@pytest.mark.parametrize("size", [0, 1, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 5 * RECORD_BYTES + 7])
async def test_a_file_of_any_size_arrives(tmp_path: Path, size: int) -> None:
    content, progress = Random(size).randbytes(size), (list[int](), list[int]())
    (tmp_path / "π 🎁").write_bytes(content)
    (tmp_path / "to").mkdir()
    async with pair() as (ours, theirs):
        _, path = await asyncio.gather(
            send_file(ours, tmp_path / "π 🎁", transit=DIRECT, on_progress=progress[0].append),
            stored(theirs, tmp_path / "to", progress[1].append),
        )
    assert path.name == "π 🎁"
    assert path.read_bytes() == content
    assert [sizes[-1] for sizes in progress] == [size, size]
    assert all(sizes == sorted(sizes) for sizes in progress)
    assert names(tmp_path / "to") == [path.name]


async def test_a_private_directory_arrives_private_beside_one_of_its_name(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "x/empty").mkdir(parents=True)
    (tmp_path / "x/parcel").write_bytes(CONTENT)
    (tmp_path / "x").chmod(0o700)
    (folder / "x").mkdir()
    unpacked: list[int] = []
    async with pair() as (ours, theirs):
        sending = asyncio.create_task(send_directory(theirs, tmp_path / "x", transit=DIRECT))
        offered = await receive(ours, DIRECT)
        assert isinstance(offered, OfferedDirectory)
        assert (offered.files, offered.directories) == (1, 1)
        path = await offered.accept(folder / "x", rename=True, on_unpack=unpacked.append)
        await sending
    assert path == folder / "x (1)"
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert names(path) == ["empty", "parcel"]
    assert unpacked[-1] == len(CONTENT)


def relayed(source: socket.socket, target: socket.socket, most: int, chunk: int) -> None:
    left = most
    with suppress(OSError):
        while left and (some := source.recv(min(chunk, left))):
            target.sendall(some)
            left -= len(some)
    for end in (source, target) if not left else (target,):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR if not left else socket.SHUT_WR)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 3 * RECORD_BYTES), st.data())
def test_both_sides_know_that_it_arrived_or_nothing_is_stored(
    tmp_path_factory: pytest.TempPathFactory, size: int, data: st.DataObject
) -> None:
    on_the_wire = size + (size + RECORD_BYTES - 1) // RECORD_BYTES * (LENGTH_BYTES + 40)
    forth = data.draw(st.integers(0, on_the_wire) | st.just(1 << 30), label="bytes to the receiver")
    back = data.draw(st.integers(0, 150) | st.just(1 << 30), label="bytes to the sender")
    chunk = data.draw(st.sampled_from([1 << 10, 4097, 1 << 20]), label="chunk")
    content = Random(size).randbytes(size)
    parcel = tmp_path_factory.mktemp("folder") / "parcel"

    async def transfer() -> list[Any]:
        (a, b), (c, d) = tcp_pair(), tcp_pair()
        threads = [
            threading.Thread(target=relayed, args=(b, c, forth, chunk)),
            threading.Thread(target=relayed, args=(c, b, back, chunk)),
        ]
        for thread in threads:
            thread.start()
        wormhole = Mock(timing=None, silence_seconds=BOUND)
        sender = Stream(RecordPipe(a, SENDER), Role.SENDER, size, wormhole)
        receiver = Stream(RecordPipe(d, RECEIVER), Role.RECEIVER, size, wormhole)
        parts = [content[at : at + RECORD_BYTES] for at in range(0, size, RECORD_BYTES)]

        def store() -> None:
            with draft_file(parcel) as draft:
                receiver.receive(draft.write)
            receiver.acknowledge()

        with closing(b), closing(c):
            never = asyncio.get_running_loop().create_future()
            async with bounded("the end of both"):
                ends = await asyncio.gather(
                    sender.run(lambda: sender.send(parts), never), receiver.run(store, never), return_exceptions=True
                )
            for thread in threads:
                thread.join()
        return list(ends)

    sent, received = asyncio.run(transfer())
    assert all(end is None or isinstance(end, ConnectionLostError) for end in (sent, received))
    if received is None:
        assert parcel.read_bytes() == content
        assert sent is None or "it may have everything" in str(sent)
    else:
        assert sent is not None
        assert "nothing was kept" in str(received)
        assert names(parcel.parent) == []


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (BrokenPipeError(), "was closed$"),
        (OSError(errno.EHOSTUNREACH, "x"), r"was lost \(No route to host\)$"),
        (TimeoutError(errno.ETIMEDOUT, "x"), r"was lost \(Connection timed out\)$"),  # which no peer has caused
    ],
)
def test_a_connection_that_fails_is_a_sentence_without_terms_of_the_system(error: OSError, sentence: str) -> None:
    pipe = RecordPipe(Mock(send=Mock(side_effect=error), recv_into=Mock(side_effect=error)), SENDER)
    for act in (lambda: pipe.send(CONTENT), pipe.receive):
        with pytest.raises(ConnectionLostError, match=f"^the connection to the other side {sentence}") as lost:
            act()
        assert type(lost.value) is ConnectionLostError


INCOMPLETE = r"after sending [\d,]+ of [\d,]+ bytes: the receiver does not have everything"


CANCELLED, GIVEN_UP = "it is cancelled", "the peer gives up"
how_it_ends = pytest.mark.parametrize("how", [CANCELLED, GIVEN_UP])


async def ends(
    task: asyncio.Task[Any], theirs: Wormhole, role: Role, how: str, told: Callable[[], None] = lambda: None
) -> list[str]:
    if how == GIVEN_UP:
        told()
        await say(theirs, error="no paper")
        outcome = (await gives_up(task, "no paper( |$)")).outcome
        return [outcome] if outcome else []
    task.cancel()
    assert (await heard(theirs, "error"))[0] == f"the {role} stopped"
    told()
    with pytest.raises(asyncio.CancelledError) as ended:
        await task
    return getattr(ended.value, "__notes__", [])


@pytest.mark.parametrize("message", [None, b"\xff", b"{}", b'{"transit":{}}', b'{"answer":{"file_ack":"no"}}'])
async def test_whatever_else_happens_at_the_server_in_the_middle_changes_nothing(
    network: Network, folder: Path, message: bytes | None
) -> None:
    script, begun, over = stopped_halfway(lambda pipe: pipe.send(CONTENT[:5]))

    def finishes(pipe: Played) -> None:
        script(pipe)
        pipe.send(CONTENT[5:])
        pipe.receive()

    async with pair() as (ours, theirs):
        sending = sends(theirs, finishes)
        receiving = asyncio.create_task(stored(ours, folder))
        await begun.wait()
        if message is None:
            network.go_down()
        else:
            await (await theirs.send(message)).stored()
        over.set()
        path = await receiving
        await sending
        network.up = True
    assert path.read_bytes() == CONTENT


@how_it_ends
@pytest.mark.parametrize("phase", ["waits for an offer", "connects", "waits for bytes"])
async def test_a_receiver_ends_at_once_and_keeps_nothing(folder: Path, phase: str, how: str) -> None:
    waits = asyncio.Event()
    async with pair() as (ours, theirs):
        receiving = asyncio.create_task(stored(ours, folder, lambda _: waits.set()))
        await asyncio.gather(ours.verifier(), theirs.verifier())
        tasks = []
        if phase == "connects":
            await say(theirs, offer=OFFER)
            await heard(theirs, "answer")
        elif phase == "waits for bytes":
            tasks.append(sends(theirs, sends_half))
            await waits.wait()
        notes = await ends(receiving, theirs, Role.RECEIVER, how)
        await asyncio.gather(*tasks)
    assert notes == (["after receiving 5 of 10 bytes: nothing was kept"] if tasks else [])
    assert names(folder) == []


@how_it_ends
async def test_an_end_while_unpacking_is_told_and_then_leaves_nothing(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (tmp_path / "x").mkdir()
    archive = b"".join(plan_directory(tmp_path / "x").chunks())
    directory = {"mode": "zipfile/deflated", "dirname": "x", "zipsize": len(archive), "numbytes": 0, "numfiles": 0}
    loop, unpacking = asyncio.get_running_loop(), asyncio.Event()

    def endless(_: BinaryIO) -> Iterator[Member]:
        loop.call_soon_threadsafe(unpacking.set)
        return repeat(Member("a", True, (), 0o755, 0, lambda: iter(())))

    told, remove = threading.Event(), draft._remove_tree  # held up below, as many files do

    def remove_slowly(path: Path) -> None:
        assert told.wait(BOUND)
        remove(path)

    monkeypatch.setattr("restante.client.files.unpacking.zip_members", endless)
    monkeypatch.setattr(draft, "_remove_tree", remove_slowly)
    async with pair() as (ours, theirs):
        sending = sends(theirs, records(archive), {"directory": directory})
        receiving = asyncio.create_task(stored(ours, folder))
        await unpacking.wait()
        assert len(names(folder)) == 1
        await ends(receiving, theirs, Role.RECEIVER, how, told.set)
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


@how_it_ends
@pytest.mark.parametrize(
    ("phase", "note"),
    [
        ("waits for the answer", None),
        ("connects", None),
        ("sends to nobody who reads", INCOMPLETE),
        ("waits for the acknowledgement", "before the receiver confirmed: it may have everything"),
    ],
)
async def test_a_sender_ends_at_once_and_says_what_the_receiver_has(
    tmp_path: Path, phase: str, note: str | None, how: str
) -> None:
    script, begun, over = stopped_halfway(lambda pipe: pipe.receive())
    path = sparse(tmp_path / "parcel", 10 if phase.endswith("acknowledgement") else 64 << 20)
    async with pair() as (ours, theirs):
        tasks = [receives(theirs, script)] if note else []
        sending = asyncio.create_task(send_file(ours, path, transit=DIRECT))
        if note:
            await begun.wait()
        else:
            await heard(theirs, "offer")
        if phase == "connects":
            await say(theirs, answer={"file_ack": "ok"})
            await ours.flush()
        try:
            notes = await ends(sending, theirs, Role.SENDER, how)
        finally:
            over.set()
        await asyncio.gather(*tasks)
    assert len(notes) == len(tasks)
    if phase.endswith("acknowledgement") and how == GIVEN_UP:
        note = "after sending everything: the receiver has not stored it"
    assert all(re.fullmatch(note or "", last) for last in notes), notes


@pytest.mark.parametrize("error", [ZeroDivisionError, StoreError, Misuse])
async def test_an_error_of_our_program_ends_the_transfer_and_is_told_without_its_words(
    tmp_path: Path, folder: Path, error: type[Exception]
) -> None:
    def fails(_bytes: int) -> None:
        raise error("/secret/x")

    async with pair() as (ours, theirs):
        sending = sends(theirs, sends_half)
        with pytest.raises(error) as ended:
            await stored(ours, folder, fails)
        await sending
        assert (await heard(theirs, "error"))[0] == "the receiver failed"
    assert ended.value.__notes__ == ["after receiving 5 of 10 bytes: nothing was kept"]
    assert names(folder) == []
    async with pair() as (ours, theirs):
        receiving = receives(theirs, until_closed)
        with pytest.raises(error) as ended:
            await send_file(ours, sparse(tmp_path / "large"), transit=DIRECT, on_progress=fails)
        await receiving
        assert (await heard(theirs, "error"))[0] == "the sender failed"
    assert re.fullmatch(INCOMPLETE, ended.value.__notes__[0])


async def test_the_sender_is_told_no_reason_for_an_error_after_all_is_stored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would say that nothing is stored."""

    def fails(_bytes: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Stream, "check", lambda _: None)  # the error comes after the last one
    async with pair() as (ours, theirs):
        sending = sends(theirs, sends_it)
        with pytest.raises(ZeroDivisionError) as ended:
            await stored(ours, folder, fails)
        await asyncio.gather(sending, return_exceptions=True)
        await say(ours, error="the next message")
        assert (await heard(theirs, "error"))[0] == "the next message"
    assert (ended.value.__notes__, names(folder)) == (["after everything was stored"], ["parcel"])


@pytest.mark.parametrize(
    ("path", "size", "sentence"),
    [
        ("secret file", 10, "a file or directory of this name exists already"),
        ("secret folder", 10, "its place is a directory, and a file does not replace it"),
        ("missing/secret", 10, "there is no directory to store it in"),
        ("secret/..", 10, "its place has no name"),
        ("secret", 2**63 - 1, "the disk has room for"),
    ],
)
async def test_an_unusable_place_is_told_without_its_path(folder: Path, path: str, size: int, sentence: str) -> None:
    (folder / "secret folder").mkdir()
    (folder / "secret file").write_bytes(b"mine")
    async with pair() as (ours, theirs):
        await say(theirs, offer={"file": {"filename": "parcel", "filesize": size}})
        offered = await offered_file(ours)
        with pytest.raises((Misuse, StoreError), match=str(folder)):
            await offered.accept(folder / path, replace=path != "secret file")
        reason, _ = await heard(theirs, "error")
    assert sentence in reason
    assert str(folder) not in reason
    assert "secret" not in reason
    assert (folder / "secret file").read_bytes() == b"mine"


@pytest.mark.parametrize("send", [send_file, send_directory])
async def test_a_peer_that_waits_is_told_that_there_is_nothing_to_send(folder: Path, send: Any) -> None:
    async with pair() as (ours, theirs):
        await ours.verifier()
        with pytest.raises(Misuse, match=str(folder / "missing")):
            await send(ours, folder / "missing")
        assert (await heard(theirs, "error"))[0] == "the sender failed"


@pytest.mark.parametrize("first", ["accept", "reject"])
async def test_an_offer_is_answered_once(folder: Path, first: str) -> None:
    async with pair() as (ours, theirs):
        await say(theirs, offer={"message": "text"})
        text = await receive(ours, DIRECT)
        assert isinstance(text, OfferedText)
        await getattr(text, first)()
        await say(theirs, offer=OFFER)
        file = await offered_file(ours)
        with pytest.raises(Misuse, match=r"a path is a pathlib\.Path, not 'parcel'"):
            await file.accept("parcel")  # type: ignore[arg-type]
        await file.reject()  # a path of another type does not use up the offer
        parcel = folder / "parcel"
        for again in (text.accept(), text.reject(), file.accept(parcel), file.unpack(parcel), file.reject()):
            with pytest.raises(Misuse, match="accepted or rejected once"):
                await again


async def test_what_answers_in_this_network_is_not_told(folder: Path) -> None:
    """A sender that names addresses of the receiver's network would learn what is there."""
    hints = [{"type": "direct-tcp-v1", "priority": 0, "hostname": "127.0.0.1", "port": 1}]
    async with pair() as (ours, theirs):
        await say(theirs, transit={"hints-v1": hints})
        await say(theirs, offer=OFFER)
        with pytest.raises(TransferError, match=r"127\.0\.0\.1:1: Connection refused"):
            await stored(ours, folder, transit=TransitOptions(relays=(), listen=False))
        assert (await heard(theirs, "error"))[0] == "no connection to the other side"
