"""A pair on live sockets: what comes on one side leaves on the other."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import itertools
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from relay.pairs import KINDS, Running, World, opened
from restante.relay.core.limits import SLOW_BYTES_PER_SECOND
from restante.relay.core.pacing import BURST_SECONDS, MIN_QUANTUM_BYTES, SHARED_QUANTUM_BYTES, Pacer, Rates
from restante.relay.server import pair
from restante.relay.server.pair import (
    COPY_BYTES,
    MAX_BYTES_PER_TURN,
    STALL_CHECK_SECONDS,
    STALLED_SECONDS,
    Direction,
)
from restante.relay.server.pipes import FIRST_PIPE_BYTES, MAX_PIPE_BYTES, RETRY_AFTER, PipePool
from restante.relay.server.streams import END_SECONDS, MAX_READ_BYTES, MIN_READ_BYTES, WebSocketStream
from support.loops import meanwhile, move_clock, on_loop, on_uvloop, slow_clock, until
from support.mailbox.raw_socket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, frame

on_asyncio = on_loop(asyncio.SelectorEventLoop)

DATA = random.Random(40).randbytes(3 << 20)

TO_EACH = [(kind, "tcp") for kind in KINDS] + [("tcp", kind) for kind in KINDS[1:]]


def direction(running: Running, index: int = 0) -> Direction:
    return running.pair._directions[index]


def unwritten_bytes(running: Running, index: int = 0) -> int:
    """Return the bytes that a direction has read and not written."""
    one = direction(running, index)
    return one._piped + len(one._unsent) + len(one._arrived)


async def turns(number: int) -> None:
    """Let the loop look at everything so many times."""
    for _ in range(number):
        await asyncio.sleep(0)


async def idle(running: Running) -> None:
    """Wait until nothing is due."""
    pairs = running.world.pairs

    def settled() -> bool:
        return not pairs._due and not any(unwritten_bytes(running, index) for index in (0, 1))

    await until("silence", settled)
    await turns(3)
    assert settled()


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────


async def exchange(running: Running) -> None:
    """Send from each side, one after the other, and end."""

    async def send() -> None:
        for at in range(0, len(DATA), 300_000):
            await running.first.send(DATA[at : at + 300_000])
        running.first.end()

    await running.second.send(b"first")
    assert await running.first.read(5) == b"first"
    async with meanwhile(send()):
        assert await running.second.rest() == DATA
    assert running.counted == 5 + len(DATA)
    running.second.end()
    await running.ended()


@pytest.mark.parametrize(("first", "second"), [*TO_EACH, ("websocket", "websocket"), ("tls", "wss")])
@on_uvloop
async def test_each_side_gets_what_the_other_sends(tmp_path: Path, first: str, second: str) -> None:
    async with opened(tmp_path) as world:
        world.tls_limit = 2 * len(DATA)
        await exchange(await world.pair(first, second))


@on_asyncio
async def test_a_socket_can_be_taken_out_of_a_transport_of_asyncio_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await exchange(await world.pair("tcp", "unix"))


@pytest.mark.parametrize("kind", KINDS)
@on_uvloop
async def test_the_first_gets_what_came_behind_the_line_of_the_second_before_anything_else(
    tmp_path: Path, kind: str
) -> None:
    async with opened(tmp_path) as world:
        running = await world.pair(kind, "tcp", b"behind the line,")
        await running.second.send(b" then more")
        assert await running.first.read(26) == b"behind the line, then more"
        assert running.counted == 26


@on_uvloop
async def test_both_directions_are_full_at_the_same_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        running = await world.pair()
        async with meanwhile(running.first.send(DATA)), meanwhile(running.second.send(DATA)):
            assert await running.first.read(len(DATA)) == DATA
            assert await running.second.read(len(DATA)) == DATA
        await idle(running)


# ── a reader that does not read ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("first", "second"), [*TO_EACH, ("websocket", "websocket")])
@on_uvloop
async def test_a_sender_waits_for_a_reader_that_does_not_read(tmp_path: Path, first: str, second: str) -> None:
    async with opened(tmp_path) as world:
        running = await world.pair(first, second)
        data = DATA * 8  # more than all buffers between the two
        sending = asyncio.create_task(running.first.send(data))
        await until("a full sink", lambda: direction(running)._sink.is_stuck)
        await turns(50)
        assert unwritten_bytes(running) <= MAX_PIPE_BYTES + COPY_BYTES + MAX_READ_BYTES
        assert running.counted < len(data)
        assert await running.second.read(len(data)) == data
        await sending
        await idle(running)


@on_uvloop
async def test_a_direction_has_a_pipe_only_while_bytes_are_in_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        running, pipes = await world.pair(receive_buffer=4096), world.pairs.pipes
        sending = asyncio.create_task(running.first.send(DATA * 4))
        await until("bytes in a pipe", lambda: direction(running)._piped)
        assert direction(running)._pipe_size > FIRST_PIPE_BYTES
        assert pipes.pipes - pipes.free_pipes == 1
        assert await running.second.read(4 * len(DATA)) == DATA * 4
        await sending
        await idle(running)
        assert pipes.pipes == pipes.free_pipes


@on_uvloop
async def test_segments_of_a_byte_for_a_reader_that_does_not_read_take_one_page_of_a_pipe(tmp_path: Path) -> None:
    """What comes while bytes wait in the pipe stays in the socket, where TCP joins it."""
    async with opened(tmp_path) as world:
        running = await world.pair(receive_buffer=4096)
        running.first.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        filling = asyncio.create_task(running.first.send(DATA * 2))
        await until("a full sink", lambda: direction(running)._sink.is_stuck)
        before = unwritten_bytes(running)
        await turns(50)
        assert unwritten_bytes(running) == before
        assert await running.second.read(2 * len(DATA)) == DATA * 2
        await filling
        for _ in range(500):
            await running.first.send(b".")
        assert await running.second.read(500) == b"." * 500


# ── without pipes ─────────────────────────────────────────────────────────────────────────────────


def refuse(number: int) -> Callable[..., object]:
    def call(*_arguments: object) -> object:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@on_uvloop
async def test_bytes_are_copied_if_there_is_no_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async with opened(tmp_path) as world:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pipe2", refuse(number))
            await exchange(await world.pair())
        assert world.pairs.pipes.pipes == 0


@on_uvloop
async def test_bytes_are_copied_if_the_budget_is_spent(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        world.pairs.pipes = PipePool(FIRST_PIPE_BYTES - 1)
        await exchange(await world.pair())
        assert world.pairs.pipes.pipes == 0


@on_uvloop
async def test_pipes_stay_small_if_the_kernel_enlarges_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.fcntl

    def call(descriptor: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETPIPE_SZ:
            raise PermissionError(errno.EPERM, "over the limit")
        return real(descriptor, command, argument)

    async with opened(tmp_path) as world:
        running = await world.pair()
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "fcntl", call)
            await exchange(running)
        assert world.pairs.pipes.size == FIRST_PIPE_BYTES * world.pairs.pipes.pipes > 0


@on_uvloop
async def test_bytes_are_copied_if_the_kernel_gives_small_pipes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit of a user, a new pipe has two pages (man 7 pipe)."""
    real = os.pipe2

    def pipe2(flags: int) -> tuple[int, int]:
        reader, writer = real(flags)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 8192)
        return reader, writer

    async with opened(tmp_path) as world:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pipe2", pipe2)
            await exchange(await world.pair())
        assert world.pairs.pipes.pipes == 0
        pipes = [world.pairs.pipes.take(FIRST_PIPE_BYTES) for _ in range(RETRY_AFTER + 1)]
        assert pipes[-1], "it asks again"
        for pipe in filter(None, pipes):
            world.pairs.pipes.give(pipe)


def test_half_of_the_budget_is_for_first_pipes() -> None:
    pool = PipePool(4 * MAX_PIPE_BYTES)
    pipes = [pool.take(MAX_PIPE_BYTES) for _ in range(5)]
    assert [pipe.size if pipe else 0 for pipe in pipes] == [MAX_PIPE_BYTES] * 2 + [FIRST_PIPE_BYTES] * 3
    more = list(iter(lambda: pool.take(FIRST_PIPE_BYTES), None))
    assert pool.size == 4 * MAX_PIPE_BYTES
    for pipe in (*pipes, *more):
        assert pipe
        pool.give(pipe)
    assert pool.pipes == pool.free_pipes <= 16
    pool.close()
    assert (pool.pipes, pool.size) == (0, 0)


# ── the end ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("first", "second"), TO_EACH)
@on_uvloop
async def test_what_came_is_passed_on_before_the_end_also_to_a_slow_reader(
    tmp_path: Path, first: str, second: str
) -> None:
    async with opened(tmp_path) as world:
        world.tls_limit = len(DATA)
        running = await world.pair(first, second)
        await running.first.send(DATA[:1_000_000])
        running.first.end()
        await turns(20)
        assert await running.second.rest() == DATA[:1_000_000]
        running.second.end()
        await running.ended()


@on_uvloop
async def test_a_side_whose_partner_has_ended_can_still_send_and_is_not_reset(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        slow_clock(asyncio.get_running_loop())
        running = await world.pair()
        running.first.end()  # it does not send any more, but reads
        assert await running.second.rest() == b""
        await running.second.send(DATA)
        running.second.end()
        assert await running.first.rest() == DATA
        await running.ended()


@on_uvloop
async def test_what_nobody_takes_any_more_is_read_before_the_close(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        slow_clock(asyncio.get_running_loop())
        running = await world.pair()
        await running.first.send(b"the last acknowledgement")
        running.first.reset()
        sending = asyncio.create_task(running.second.send(DATA * 4))
        assert await running.second.rest() == b"the last acknowledgement"
        await sending  # also the bytes for which there is no reader
        running.second.end()
        await running.ended()


@pytest.mark.parametrize("kind", KINDS)
@on_asyncio
async def test_a_side_that_does_not_end_is_closed_after_two_seconds(tmp_path: Path, kind: str) -> None:
    async with opened(tmp_path) as world:
        running = await world.pair("tcp", kind)
        running.first.end()
        await until("the end of a direction", lambda: direction(running).is_over)
        if kind not in {"tls", "wss", "websocket"}:  # these clients answer by themselves
            await turns(20)
            assert not running.has_ended
        move_clock(asyncio.get_running_loop(), END_SECONDS)
        await running.ended()
        assert await running.second.rest() == b""


@pytest.mark.parametrize(("kind", "index", "is_reading"), list(itertools.product(KINDS, (0, 1), (False, True))))
@on_uvloop
async def test_a_reset_ends_the_pair_at_any_moment(tmp_path: Path, kind: str, index: int, is_reading: bool) -> None:
    async with opened(tmp_path) as world:
        running = await world.pair(*(("tcp", kind) if index else (kind, "tcp")))
        ends = running.first, running.second
        sending = [asyncio.create_task(end.send(DATA * 4)) for end in ends]
        if is_reading:
            await ends[1 - index].read(100_000)
        else:
            await until(
                "a full sink", lambda: direction(running)._sink.is_stuck and direction(running, 1)._sink.is_stuck
            )
        ends[index].reset()
        await asyncio.gather(sending[index], return_exceptions=True)
        with contextlib.suppress(OSError):
            await ends[1 - index].rest()
        ends[1 - index].reset()
        await asyncio.gather(*sending, return_exceptions=True)
        await running.ended()
        assert world.pairs.pipes.pipes == world.pairs.pipes.free_pipes


@pytest.mark.parametrize("kind", KINDS)
@on_uvloop
async def test_a_pair_that_has_had_its_bytes_ends_at_once(tmp_path: Path, kind: str) -> None:
    async with opened(tmp_path, pair_bytes=1000) as world:
        running = await world.pair(kind, "tcp")
        running.first.write(bytes(2000))
        await running.ended()
        assert len(await running.second.rest()) <= 2000


@on_asyncio
async def test_nothing_is_left_of_a_pair_that_has_had_its_bytes_while_its_reader_took_no_more(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    stopped = loop.time()
    async with opened(tmp_path, pair_rate=6_000_000, pair_bytes=400_000) as world:
        loop.time = lambda: stopped  # type: ignore[method-assign]
        running = await world.pair("websocket", "unix")
        running.first.raw.write(frame(BINARY, DATA[:1_000_000]))
        await until("bytes of which the rest must wait", lambda: direction(running)._arrived)
        counted = running.counted
        await running.second.read(counted)
        stopped += 1
        await running.ended()
        assert running.counted > counted
        assert not world.pairs._stuck


@on_uvloop
async def test_a_silent_pair_has_no_timer_and_nothing_due(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        running = await world.pair()
        await idle(running)
        assert running.pair._timer is None
        assert world.pairs._timer is None


@on_uvloop
async def test_urgent_data_does_not_keep_the_loop_busy(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        running = await world.pair()
        with socket.socket(fileno=os.dup(running.first.socket.fileno())) as connection:
            connection.send(b"!", socket.MSG_OOB)
        await until("an event", lambda: not world.pairs._due)
        steps = 0
        real = Direction.step

        def step(self: Direction) -> int:
            nonlocal steps
            steps += 1
            return real(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Direction, "step", step)
            await turns(100)
        assert steps < 10
        running.first.end()
        running.second.end()
        await running.second.raw.rest()
        running.first.reset()


@on_uvloop
async def test_a_fault_ends_its_pair_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as world:
        faulty, other = await world.pair(), await world.pair()
        real = Direction.step

        def step(self: Direction) -> int:
            if self._pair is faulty.pair:
                raise ZeroDivisionError
            return real(self)

        monkeypatch.setattr(Direction, "step", step)
        with capture_logs() as lines:
            await faulty.first.send(b"what is not passed on")
            await other.first.send(b"what is")
            assert await other.second.read(7) == b"what is"
            await faulty.ended()
        assert [line["fault"].split()[0] for line in lines] == ["ZeroDivisionError"]


async def minutes(number: int) -> None:
    """Let minutes pass."""
    for _ in range(number):
        move_clock(asyncio.get_running_loop(), STALL_CHECK_SECONDS)
        await turns(5)


async def stalled(world: World, first: str, second: str) -> Running:
    """Begin a pair of which the second side takes nothing. The first has sent more than fits between them."""
    running = await world.pair(first, second)
    running.first.write(DATA * 8)
    await until("a full sink", lambda: direction(running)._sink.is_stuck)
    await turns(50)
    return running


@pytest.mark.parametrize(("first", "second"), TO_EACH)
@on_asyncio
async def test_a_pair_ends_whose_sender_has_gone_and_whose_reader_takes_nothing(
    tmp_path: Path, first: str, second: str
) -> None:
    async with opened(tmp_path) as world:
        running = await stalled(world, first, second)
        await minutes(20)
        assert not running.has_ended, "the sender is there"
        running.first.reset()
        await minutes(int(STALLED_SECONDS / STALL_CHECK_SECONDS) - 1)
        assert not running.has_ended
        await minutes(3)
        await running.ended()
        assert not world.pairs._stuck


@on_asyncio
async def test_a_pair_ends_without_a_fault_if_both_sides_have_gone_and_neither_takes_anything(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        running = await world.pair("unix", "unix")
        for index, end in enumerate((running.first, running.second)):
            with socket.socket(fileno=os.dup(end.socket.fileno())) as connection:
                connection.setblocking(False)
                while not direction(running, index)._sink.is_stuck:
                    with contextlib.suppress(BlockingIOError):
                        connection.send(DATA)
                    await turns(1)
                connection.shutdown(socket.SHUT_WR)
        with capture_logs() as lines:
            await minutes(int(STALLED_SECONDS / STALL_CHECK_SECONDS) + 2)
        assert (running.has_ended, lines, world.pairs._stuck) == (True, [], {})


@on_asyncio
async def test_a_fault_in_a_look_at_stalled_pairs_ends_its_pair_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as world:
        faulty, other = await stalled(world, "tcp", "tcp"), await stalled(world, "tcp", "tcp")
        real = Direction.untaken_bytes

        def untaken_bytes(self: Direction) -> int | None:
            if self._pair is faulty.pair:
                raise ZeroDivisionError
            return real(self)

        monkeypatch.setattr(Direction, "untaken_bytes", untaken_bytes)
        other.first.reset()
        with capture_logs() as lines:
            await minutes(int(STALLED_SECONDS / STALL_CHECK_SECONDS) + 2)
        assert (faulty.has_ended, other.has_ended) == (True, True)
        assert [line["fault"].split()[0] for line in lines] == ["ZeroDivisionError"]


@pytest.mark.parametrize(("first", "second"), [("tcp", "tcp"), ("tcp", "unix"), ("websocket", "websocket")])
@on_asyncio
async def test_a_slow_reader_gets_everything_after_the_sender_has_gone(
    tmp_path: Path, first: str, second: str
) -> None:
    async with opened(tmp_path) as world:
        running = await world.pair(first, second)
        sending = asyncio.create_task(running.first.send(DATA * 3))
        await until("a full sink", lambda: direction(running)._sink.is_stuck)
        size = 0
        while size < 3 * len(DATA):
            size += len(await running.second.read(1_000_000))
            await minutes(3)
            if sending.done():
                running.first.end()
        assert size == 3 * len(DATA)
        running.second.end()
        await running.ended()


@pytest.mark.parametrize(
    ("first", "second"), [*((kind, "tcp") for kind in KINDS), ("tcp", "websocket"), ("tcp", "tls"), ("wss", "wss")]
)
@on_asyncio
async def test_what_a_sender_has_sent_arrives_if_it_has_gone_while_its_reader_writes(
    tmp_path: Path, first: str, second: str
) -> None:
    """It is in the kernel, because the rate lets the relay read a little only."""
    loop, rate = asyncio.get_running_loop(), 15_000
    stopped = loop.time()
    async with opened(tmp_path, pair_rate=rate) as world:
        loop.time = lambda: stopped  # type: ignore[method-assign]
        running = await world.pair(first, second)
        for at in range(0, 100_000, 10_000):
            await running.first.send(DATA[at : at + 10_000])
        running.first.raw.writer.close()
        received = asyncio.create_task(running.second.rest())
        for _ in range(12):
            running.second.write(b"to nobody" * 2000)
            stopped += MIN_QUANTUM_BYTES / rate
            await turns(20)
        while not received.done() and world.pairs.running:
            stopped += MIN_QUANTUM_BYTES / rate
            await turns(20)
        assert await received == DATA[:100_000]


@on_uvloop
async def test_a_turn_of_the_pacer_may_be_due_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a pause of the process: then uvloop's `call_at` returns a handle that does not know its time."""
    monkeypatch.setattr(pair, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(Pacer, "next_turn", 0.0)
    async with opened(tmp_path) as world:
        world.pairs._set_timer()
        world.pairs._set_timer()
        monkeypatch.undo()
        await exchange(await world.pair("tls", "tcp"))


@on_uvloop
async def test_a_pair_is_over_also_if_a_fault_of_ours_hinders_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as world:
        running = await world.pair()
        monkeypatch.setattr(world.pairs, "_set_timer", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            running.pair.abort()
        await turns(2)
        assert running.has_ended


# ── WebSocket ─────────────────────────────────────────────────────────────────────────────────────


@on_uvloop
async def test_fragments_pings_and_empty_messages_come_between_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        running = await world.pair("websocket", "tcp")
        raw = running.first.raw
        raw.write(
            frame(BINARY, b"one ", fin=False), frame(PING, b"now"), frame(CONTINUATION, b"message"), frame(BINARY)
        )
        raw.write(frame(BINARY, b", two"), *(frame(BINARY, b".") for _ in range(1000)))
        assert await running.second.read(1016) == b"one message, two" + b"." * 1000
        assert await raw.read() == (PONG, b"now")
        stream = direction(running)._source
        assert isinstance(stream, WebSocketStream)
        stream.ping()
        assert await raw.read() == (PING, b"")
        assert running.counted == 1016


@on_uvloop
async def test_of_a_websocket_that_sends_tiny_frames_little_is_read_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        running = await world.pair("websocket", "tcp")
        stream = direction(running)._source
        assert isinstance(stream, WebSocketStream)
        reader = stream._reader
        assert reader is not None
        running.first.raw.write(frame(BINARY, b".") * 50_000)
        assert await running.second.read(50_000) == b"." * 50_000
        assert reader.max_bytes == MIN_READ_BYTES
        async with meanwhile(running.first.send(DATA)):
            assert await running.second.read(len(DATA)) == DATA
        assert reader.max_bytes == MAX_READ_BYTES


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([frame(TEXT, b"text")], 1003),
        ([frame(BINARY, b"bits", reserved=4)], 1002),
        ([frame(CONTINUATION, b"of nothing")], 1002),
        ([frame(BINARY, b"half", fin=False), frame(BINARY, b"another")], 1002),
        ([frame(BINARY, bytes((1 << 20) + 1))], 1009),
    ],
)
@on_uvloop
async def test_a_wrong_frame_ends_the_pair_after_what_came_before(
    tmp_path: Path, frames: list[bytes], code: int
) -> None:
    async with opened(tmp_path) as world:
        running = await world.pair("websocket", "tcp")
        await running.first.send(b"before ")
        assert await running.second.read(7) == b"before "
        running.first.raw.write(*frames)
        assert await running.first.rest() == b""
        assert running.first.close_code == code
        running.first.raw.bid_farewell()
        assert await running.second.rest() in {b"", b"half"}
        running.second.end()
        await running.ended()


# ── rates ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("first", "second"), [("tcp", "tcp"), ("websocket", "tcp"), ("tls", "tcp")])
@on_asyncio
async def test_a_pair_passes_on_what_its_rate_allows(tmp_path: Path, first: str, second: str) -> None:
    loop = asyncio.get_running_loop()
    stopped = loop.time()
    async with opened(tmp_path, pair_rate=100_000) as world:
        loop.time = lambda: stopped  # type: ignore[method-assign]
        running = await world.pair(first, second)
        at_once = int(100_000 * BURST_SECONDS) + MIN_QUANTUM_BYTES
        slack = MIN_QUANTUM_BYTES
        for at in range(0, 400_000, 10_000):
            running.first.write(DATA[at : at + 10_000])
        await running.second.read(at_once - MIN_QUANTUM_BYTES)
        await turns(50)
        counted = running.counted
        assert counted <= at_once + slack
        loop.time = lambda: stopped + 2  # type: ignore[method-assign]
        await until("more", lambda: running.counted > counted)
        await turns(50)
        assert running.counted <= 200_000 + at_once + slack
        world.pairs.set_rates(Rates())
        loop.time = lambda: stopped + 3  # type: ignore[method-assign]
        await running.second.read(400_000 - (at_once - MIN_QUANTUM_BYTES))


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
@on_asyncio
async def test_what_nobody_takes_any_more_is_read_as_its_rate_allows(tmp_path: Path, kind: str) -> None:
    loop = asyncio.get_running_loop()
    stopped = loop.time()
    async with opened(tmp_path, pair_rate=100_000) as world:
        loop.time = lambda: stopped  # type: ignore[method-assign]
        running = await world.pair(kind, "tcp")
        running.second.reset()
        await until("an end", lambda: direction(running, 1).is_over)
        running.first.write(b"to nobody")
        await until("the end of the other direction", lambda: direction(running).is_over)
        running.first.write(8 * DATA)
        await turns(500)
        unsent = running.first.raw.writer.transport.get_write_buffer_size()
        assert unsent > 4 * len(DATA)  # sockets hold up to 10 MiB (tcp(7))


@pytest.mark.parametrize("kind", KINDS)
@on_asyncio
async def test_pairs_that_send_a_little_leave_the_rest_of_a_rate_to_others_and_save_nothing_up(
    tmp_path: Path, kind: str
) -> None:
    loop = asyncio.get_running_loop()
    stopped = loop.time()
    async with opened(tmp_path, rate=1_000_000) as world:
        loop.time = lambda: stopped  # type: ignore[method-assign]
        pairs = [await world.pair(kind, kind) for _ in range(10)]
        for running in pairs:
            for sender, reader in ((running.first, running.second), (running.second, running.first)):
                await sender.send(b"x" * 90)
                assert await reader.read(90) == b"x" * 90
                await idle(running)
                stopped += 2 * BURST_SECONDS
                await turns(20)
        for running in pairs:
            running.first.write(DATA[:50_000])
            running.second.write(DATA[:50_000])
        await turns(100)
        at_once = 1_000_000 * BURST_SECONDS + SHARED_QUANTUM_BYTES
        assert sum(running.counted for running in pairs) <= at_once + MAX_READ_BYTES


@pytest.mark.parametrize(("kind", "has_pipes"), [("tcp", True), ("tcp", False), ("websocket", True)])
@on_asyncio
async def test_a_rate_counts_what_was_read_for_readers_that_are_gone(
    tmp_path: Path, kind: str, has_pipes: bool
) -> None:
    loop = asyncio.get_running_loop()
    stopped = loop.time()
    async with opened(tmp_path, rate=1_000_000) as world:
        loop.time = lambda: stopped  # type: ignore[method-assign]
        if not has_pipes:
            world.pairs.pipes = PipePool(0)
        pairs = [await world.pair(kind) for _ in range(10)]
        for running in pairs:
            running.second.reset()
            await turns(20)
            running.first.write(DATA[:50_000])
            await turns(100)
        at_once = 1_000_000 * BURST_SECONDS + SHARED_QUANTUM_BYTES
        assert 50_000 <= sum(running.counted for running in pairs) <= at_once


async def flow(running: Running) -> None:
    """Send and read as fast as the relay lets."""

    async def send() -> None:
        while True:
            await running.first.send(DATA)

    async with meanwhile(send()):
        while True:
            await running.second.read(1 << 16)


@pytest.mark.parametrize("kind", KINDS)
@on_asyncio
async def test_pairs_that_send_a_little_take_nothing_else_from_a_transfer(tmp_path: Path, kind: str) -> None:
    loop = asyncio.get_running_loop()
    stopped = loop.time()
    async with opened(tmp_path, rate=1_000_000) as world:
        loop.time = lambda: stopped  # type: ignore[method-assign]
        small, transfer = [await world.pair(kind, kind) for _ in range(20)], await world.pair()
        async with meanwhile(flow(transfer)):
            for _ in range(100):
                for running in small:
                    running.first.write(b"x" * 90)
                stopped += 0.02
                await turns(20)
        assert transfer.counted > 0.95 * (2_000_000 - 100 * 20 * 90)

        def all_arrived() -> bool:
            nonlocal stopped
            stopped += 0.001
            return all(running.counted == 100 * 90 for running in small)

        await until("the small messages", all_arrived)


@on_asyncio
async def test_pairs_of_all_kinds_have_the_same_share(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    kinds = ["tcp tcp", "tcp websocket", "tcp tls", "unix tcp", "websocket tcp", "tls tcp"]
    stopped = loop.time()
    async with opened(tmp_path, rate=2_000_000) as world, contextlib.AsyncExitStack() as flows:
        loop.time = lambda: stopped  # type: ignore[method-assign]
        pairs = [await world.pair(first, second) for first, second in map(str.split, kinds)]
        for running in pairs:
            await flows.enter_async_context(meanwhile(flow(running)))
        for _ in range(1000):
            stopped += 0.02
            await turns(20)
        counted = [running.counted for running in pairs]
        assert counted == [pytest.approx(40_000_000 / len(kinds), rel=0.05)] * len(kinds)


@pytest.mark.parametrize(("first", "second"), [("websocket", "tcp"), ("websocket", "websocket"), ("tls", "tcp")])
@on_asyncio
async def test_a_reader_of_a_slowed_pair_gets_bytes_every_few_seconds(
    tmp_path: Path, first: str, second: str
) -> None:
    """Also of a frame of 300,000 bytes. Clients give up after a minute without a byte."""
    loop = asyncio.get_running_loop()
    start = stopped = loop.time()
    async with opened(tmp_path) as world:
        loop.time = lambda: stopped  # type: ignore[method-assign]
        running = await world.pair(first, second)
        running.pair.slow_down(SLOW_BYTES_PER_SECOND)
        running.first.write(DATA[:300_000])
        while running.counted < 290_000:
            before = running.counted
            stopped += 2 * MIN_QUANTUM_BYTES / SLOW_BYTES_PER_SECOND
            await turns(20)
            assert before < running.counted <= (stopped - start) * SLOW_BYTES_PER_SECOND + 2 * MIN_QUANTUM_BYTES
        assert await running.second.read(290_000) == DATA[:290_000]


@pytest.mark.parametrize("second", ["tcp", "websocket"])
@on_asyncio
async def test_what_came_before_the_close_of_a_websocket_is_passed_on_however_slow_the_pair_is(
    tmp_path: Path, second: str
) -> None:
    """The last acknowledgement of a receiver and its Close may come in one segment."""
    loop = asyncio.get_running_loop()
    stopped = loop.time()
    async with opened(tmp_path) as world:
        loop.time = lambda: stopped  # type: ignore[method-assign]
        running = await world.pair("websocket", second)
        running.pair.slow_down(SLOW_BYTES_PER_SECOND)
        running.first.raw.write(frame(BINARY, DATA[:100_000]), frame(CLOSE, b"\x03\xe8"))
        received = asyncio.create_task(running.second.rest())
        while not received.done() and len(world.pairs.running):
            stopped += MIN_QUANTUM_BYTES / SLOW_BYTES_PER_SECOND
            await turns(20)
        assert await received == DATA[:100_000]


# ── fairness ──────────────────────────────────────────────────────────────────────────────────────


@on_uvloop
async def test_a_pair_at_line_rate_keeps_another_waiting_for_a_few_turns_only(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        flooded, other = await world.pair(), await world.pair()

        async def flood() -> None:
            while True:
                await flooded.first.send(DATA)

        async def read() -> None:
            while True:
                await flooded.second.read(1 << 16)

        async with meanwhile(flood()), meanwhile(read()):
            for number in range(50):
                before = flooded.counted
                await other.first.send(b"%4d" % number)
                assert await other.second.read(4) == b"%4d" % number
                assert flooded.counted - before <= 5 * MAX_BYTES_PER_TURN
