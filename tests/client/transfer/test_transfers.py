"""Files and directories between two programs: all of it with the same digest, or an error on both sides."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import socket
import threading
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.liar import listening
from client.transfer.hostile import DIRECT, names, pair, stored
from restante.client.errors import ConnectionLostError
from restante.client.files.draft import draft_file
from restante.client.transfer.sending import send_file
from restante.client.transfer.stream import Stream
from restante.client.transit.connecting import TransitOptions
from restante.client.transit.pipe import RECORD_BYTES, RecordPipe
from restante.client.transit.records import LENGTH_BYTES, Role, TransitKeys
from support.bounds import bounded

KEY = bytes(range(32))
SENDER, RECEIVER = TransitKeys.of(KEY, Role.SENDER), TransitKeys.of(KEY, Role.RECEIVER)


@pytest.mark.parametrize("size", [0, 1, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 5 * RECORD_BYTES + 7])
async def test_a_file_of_any_size_arrives(tmp_path: Path, size: int) -> None:
    content, told = Random(size).randbytes(size), (list[int](), list[int]())
    (tmp_path / "π 🎁").write_bytes(content)
    (tmp_path / "to").mkdir()
    async with pair() as (ours, theirs):
        _, path = await asyncio.gather(
            send_file(ours, tmp_path / "π 🎁", transit=DIRECT, on_progress=told[0].append),
            stored(theirs, tmp_path / "to", told[1].append),
        )
    assert path.name == "π 🎁"
    assert path.read_bytes() == content
    assert [each[-1] for each in told] == [size, size]
    assert all(each == sorted(each) for each in told)
    assert names(tmp_path / "to") == [path.name]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


def relayed(source: socket.socket, target: socket.socket, most: int, chunk: int) -> None:
    """Pass at most so many bytes on, in chunks of this size, then cut the connection in both directions."""
    left = most
    with suppress(OSError):
        while left and (some := source.recv(min(chunk, left))):
            target.sendall(some)
            left -= len(some)
    for each in (source, target) if not left else (target,):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR if not left else socket.SHUT_WR)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 3 * RECORD_BYTES), st.data())
def test_both_sides_know_that_it_arrived_or_nothing_is_stored(
    tmp_path_factory: pytest.TempPathFactory, size: int, data: st.DataObject
) -> None:
    """The bytes pass in chunks, and are cut anywhere in either direction."""
    on_the_wire = size + (size + RECORD_BYTES - 1) // RECORD_BYTES * (LENGTH_BYTES + 40)
    there = data.draw(st.integers(0, on_the_wire) | st.just(1 << 30), label="bytes to the receiver")
    back = data.draw(st.integers(0, 150) | st.just(1 << 30), label="bytes to the sender")
    chunk = data.draw(st.sampled_from([1 << 10, 4097, 1 << 20]), label="chunk")
    content = Random(size).randbytes(size)
    place = tmp_path_factory.mktemp("folder") / "parcel"

    async def transfer() -> list[Any]:
        (a, b), (c, d) = tcp_pair(), tcp_pair()
        threads = [
            threading.Thread(target=relayed, args=(b, c, there, chunk)),
            threading.Thread(target=relayed, args=(c, b, back, chunk)),
        ]
        for each in threads:
            each.start()
        sender = Stream(RecordPipe(a, SENDER), Role.SENDER, size)
        receiver = Stream(RecordPipe(d, RECEIVER), Role.RECEIVER, size)
        parts = [content[at : at + RECORD_BYTES] for at in range(0, size, RECORD_BYTES)]

        def store() -> None:
            with draft_file(place) as draft:
                receiver.receive(draft)
            receiver.acknowledge()

        with closing(b), closing(c):
            never = asyncio.get_running_loop().create_future()
            async with bounded("the end of both"):
                ends = await asyncio.gather(
                    sender.run(lambda: sender.send(parts), never), receiver.run(store, never), return_exceptions=True
                )
            for each in threads:
                each.join()
        return list(ends)

    sent, received = asyncio.run(transfer())
    assert all(each is None or isinstance(each, ConnectionLostError) for each in (sent, received))
    if received is None:
        assert hashlib.sha256(place.read_bytes()).digest() == hashlib.sha256(content).digest()
        assert sent is None or "it may have everything" in str(sent)
    else:
        assert sent is not None
        assert "nothing was kept" in str(received)
        assert names(place.parent) == []


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EPIPE, "the connection to the other side was closed"),
        (errno.ECONNRESET, "the connection to the other side was closed"),
        (errno.ETIMEDOUT, "the connection to the other side was lost (Connection timed out)"),
        (errno.EHOSTUNREACH, "the connection to the other side was lost (No route to host)"),
    ],
)
def test_a_connection_that_fails_is_a_sentence_without_terms_of_the_system(number: int, words: str) -> None:
    one, other = tcp_pair()
    pipe = RecordPipe(one, SENDER)
    error = OSError(number, os.strerror(number))
    with closing(other), closing(one), closing(pipe._reader):
        pipe._socket = pipe._reader = Mock(sendall=Mock(side_effect=error), readinto=Mock(side_effect=error))
        for call in (lambda: pipe.send(b"some"), pipe.receive):
            with pytest.raises(ConnectionLostError) as lost:
                call()
            assert str(lost.value) == words


async def test_two_sides_that_both_cannot_listen_meet_at_a_relay(tmp_path: Path) -> None:
    waiting: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while some := await reader.read(1 << 16):
            writer.write(some)
            await writer.drain()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\n")
        waiting.append((reader, writer))
        if len(waiting) == 2:
            (one, to_one), (other, to_other) = waiting
            for target in (to_one, to_other):
                target.write(b"ok\n")
            await asyncio.gather(carry(one, to_other), carry(other, to_one))
        else:
            await asyncio.Event().wait()

    (tmp_path / "parcel").write_bytes(b"content")
    (tmp_path / "to").mkdir()
    async with listening(relay) as port, pair() as (ours, theirs):
        transit = TransitOptions((f"tcp:127.0.0.1:{port}",), listen=False)
        sending = send_file(ours, tmp_path / "parcel", transit=transit)
        _, path = await asyncio.gather(sending, stored(theirs, tmp_path / "to", transit=transit))
    assert path.read_bytes() == b"content"
