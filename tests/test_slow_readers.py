"""Who does not read, and who sends frames that cost nothing, on the socket itself."""

from __future__ import annotations

import asyncio
import json
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from restante.mailbox.core.dispatcher import MAX_SUBSCRIBERS
from restante.mailbox.core.limits import MIB, UNLIMITED, Limits
from restante.mailbox.server import connection
from restante.mailbox.server.connection import CLOSE_TIMEOUT, Socket
from restante.mailbox.server.newcomer import PENDING_BYTES
from restante.mailbox.server.read_pauses import MAX_FRAMES_PER_SECOND
from restante.mailbox.server.receive_buffer import MAX_READ_BYTES, ReceiveBuffer
from restante.mailbox.server.refusals import NO_ROOM_FOR_LARGE, NO_ROOM_FOR_REQUESTS, NOT_READ
from restante.mailbox.server.send_budget import MAX_BYTES_PER_TURN, SendBudget
from support.bounds import bounded
from support.mailbox.live import LiveServer, open_live
from support.mailbox.raw_socket import CLOSE, CONTINUATION, PING, PONG, TEXT, RawSocket, frame

LIMITS = replace(UNLIMITED, message_bytes=MIB, mailbox_bytes=8 * MIB)
COUNTING_FRAMES = replace(LIMITS, commands=1e6, commands_at_once=1_000_000)


@asynccontextmanager
async def opened(data: Path, limits: Limits = LIMITS) -> AsyncIterator[LiveServer]:
    """Serve. In the end all clients go, and nothing is left of them."""
    async with open_live(data, limits=limits) as live:
        server = live.server
        server.cleanup_seconds = 0.05
        yield live
        for client in live.clients:
            client.cut()
        # Whoever waits is left unread, and a cut is noticed when it is read.
        server.commit_loop.queue.hurry = True
        server.commit_loop.start_pruning()
        while server.sockets() or not server.commit_loop.idle.is_set():
            server.tick()
            await asyncio.sleep(0.005)
        assert (server.held, server.owing, len(server.memory_holders)) == (0, 0, 0)
        assert server.commit_loop.dispatcher.connections == set()


def refusals(live: LiveServer) -> Counter[tuple[str, str | None]]:
    """Why connections were closed, and of which addresses."""
    return live.server.commit_loop.dispatcher.quotas.refused


async def until(condition: Callable[[], object]) -> None:
    async with bounded("what the kernel brings"):
        while not condition():  # noqa: ASYNC110 - it is the kernel that is waited for
            await asyncio.sleep(0.005)


def buffered(live: LiveServer) -> int:
    """Return the bytes in the write buffers of all connections that are not closed."""
    transports = [each._transport.underlying_transport for each in live.server.sockets() if each._transport]
    return sum(each.get_write_buffer_size() for each in transports)


async def until_full(unread: Socket) -> None:
    """Wait until the kernel takes no more for it; its buffers grow for a while."""
    before = -1

    def unchanged() -> bool:
        nonlocal before
        before, last = unread._owing, before
        return unread._stuck and before == last

    for _ in range(10):
        await until(unchanged)


@asynccontextmanager
async def seconds_passing(live: LiveServer) -> AsyncIterator[None]:
    """Let a second pass whenever the latest connection is left unread."""

    async def pass_by() -> None:
        while True:
            await until(lambda: live.latest.read_pauses.reasons)
            live.server.tick()

    passing = asyncio.create_task(pass_by())
    try:
        yield
    finally:
        passing.cancel()


async def fill(live: LiveServer, mailbox: str, count: int, size: int) -> None:
    socket = await live.member("a", mailbox)
    for number in range(count):
        socket.say(type="add", phase=str(number), body="0" * size)
        for _ in range(2 + (2 if number == 0 else 0)):
            await socket.hear()
    await socket.hang_up()


async def test_a_replay_is_sent_as_fast_as_it_is_read_and_no_faster(tmp_path: Path) -> None:
    async with opened(tmp_path) as live:
        await fill(live, "m", 70, 100_000)
        slow = await live.member("b")
        await until(lambda: live.latest._owing > 0)
        under = live.latest._transport.underlying_transport  # type: ignore[union-attr]
        assert under.get_write_buffer_size() < 2 * MIB, "the rest is not copied, it is in the mailbox anyway"
        quick = await live.member("b")  # nobody waits for who does not read
        quick.say(type="ping", ping=1)
        heard = [await quick.hear() for _ in range(74)]
        assert heard[-1]["pong"] == 1
        for number in range(70, 75):  # deliveries wait behind the replay
            quick.say(type="add", phase=str(number), body="00")
            assert [(await quick.hear())["type"] for _ in range(2)] == ["ack", "message"]
        heard = [await slow.hear() for _ in range(77)]
        assert [each["phase"] for each in heard[2:]] == [str(number) for number in range(75)]
        await slow.is_served()


async def test_a_replay_is_written_a_slice_in_each_turn_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    renew = SendBudget._renew

    def counted(send_budget: SendBudget) -> None:
        written.append(send_budget._written)
        renew(send_budget)

    async with opened(tmp_path) as live:
        await fill(live, "m", 8, MIB - 10_000)
        monkeypatch.setattr(SendBudget, "_renew", counted)
        readers = [await live.member("b") for _ in range(4)]
        for reader in readers:
            heard = [await reader.hear() for _ in range(10)]
            assert [each["phase"] for each in heard[2:]] == [str(number) for number in range(8)]
        assert sum(written) > 4 * 7 * MIB
        assert max(written) < MAX_BYTES_PER_TURN + MIB, "what is written last may go beyond the slice"


async def test_unread_large_replies_count_in_full_and_those_of_closed_connections_are_freed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not read never receives the close, and would keep its large reply in memory until then."""
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", 600.0)  # seconds: nothing here is freed by a timer
    limits = replace(LIMITS, message_bytes=8 * MIB, held_bytes=40 * MIB)
    async with opened(tmp_path, limits) as live:
        await fill(live, "m", 1, 7 * MIB)
        refused = refusals(live)
        idle: list[RawSocket] = []
        while refused.total() < 8:
            assert len(idle) < MAX_SUBSCRIBERS
            idle.append(await live.member("b"))
            latest = live.latest
            await until(lambda: latest._held or latest.ignores_input)  # noqa: B023 - awaited at once
            await until(lambda: buffered(live) <= limits.held_bytes)
            await asyncio.sleep(0)  # what was counted while the transport wrote is checked in the next turn
            assert live.server.owing <= limits.held_bytes
        assert len(idle) > 10
        assert {words for words, _ in refused} == {NOT_READ}
        other = await live.enter()
        await other.is_served()


@pytest.mark.parametrize(("fragments", "times"), [(False, 2), (True, 3)])
async def test_receive_buffers_have_a_common_limit_and_the_oldest_is_closed(
    tmp_path: Path, fragments: bool, times: int
) -> None:
    """picows' buffer has twice what it gathers; the first fragment is also kept by itself, and so is a whole text."""
    whole = frame(TEXT, b'{"type": "ping", "ping": "' + b"0" * (MIB - 1000) + b'"}', fin=not fragments)
    begun, rest = (whole, frame(CONTINUATION)) if fragments else (whole[:-1], whole[-1:])
    limits = replace(LIMITS, held_bytes=3 * times * MIB + MIB)
    async with opened(tmp_path, limits) as live:
        server, senders, order = live.server, [], []
        for _ in range(5):
            senders.append(await live.enter())
            order.append(live.latest)
            senders[-1].write(begun)
            await until(lambda: order[-1].reading > times * (MIB - 2000))
            assert server.reading == sum(each.reading for each in order) <= limits.held_bytes
        await until(lambda: set(server.sockets()) == set(order[2:]))
        assert refusals(live) == {(NO_ROOM_FOR_LARGE, each.connection.session.address_id): 2 for each in order}
        senders[-1].write(rest)  # whoever is in time is served
        assert [(await senders[-1].hear())["type"] for _ in range(2)] == ["ack", "pong"]
        assert order[-1].reading > 2 * (MIB - 2000), "picows keeps the buffer"


@pytest.mark.parametrize("begun", [b"", b"GET /v1 HTTP/1.1\r\nX: " + b"x" * 8000], ids=["nothing", "8,000 bytes"])
async def test_unfinished_requests_count_towards_the_same_limit(tmp_path: Path, begun: bytes) -> None:
    """A thousand addresses of a hundred connections each could send 8 KiB of a request on each, uncounted."""
    limits = replace(LIMITS, held_bytes=MIB)
    each_holds = PENDING_BYTES + len(begun)
    async with opened(tmp_path, limits) as live:
        server = live.server
        crowd = []
        for number in range(1, 41):
            crowd.append(await live.connect())
            crowd[-1].write(begun)
            await until(lambda: server.held == number * each_holds)  # noqa: B023 - awaited at once
        while len(crowd) < 2 * MIB // each_holds:
            crowd.append(await live.connect())
            crowd[-1].write(begun)
        assert await crowd[0].rest() == b""
        assert server.held <= limits.held_bytes
        assert {words for words, _ in refusals(live)} == {NO_ROOM_FOR_REQUESTS}
        other = await live.enter()
        await other.is_served()


async def test_waiting_texts_count_towards_the_same_limit(tmp_path: Path) -> None:
    """One character beyond ASCII makes each of them take four bytes for a character."""
    text = json.dumps({"type": "ping", "ping": "0" * 200_000 + "\U0001f4ec"}, ensure_ascii=False).encode()
    limits = replace(LIMITS, held_bytes=5_000_000, bytes=1000.0, bytes_at_once=1000)
    async with opened(tmp_path, limits) as live:
        server, senders, backlogs = live.server, [], []
        for _ in range(8):
            senders.append(await live.enter())
            backlogs.append(live.latest.connection.backlog)
            await senders[-1].is_served("0" * 2000)  # so that it must wait with what it says next
            senders[-1].write(frame(TEXT, text))
            await until(lambda: backlogs[-1].held > 4 * 200_000)
            assert server.held <= limits.held_bytes
        assert server.commit_loop.queue.held == sum(each.held for each in backlogs)
        assert [bool(each.held) for each in backlogs[-2:]] == [True, True], "the first to hold goes first"
        assert sum(bool(each.held) for each in backlogs) < 5


async def test_a_client_with_more_unread_than_one_replay_is_closed_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as live:
        await fill(live, "m", 80, 100_000)
        other = await live.member("c", "n")
        idle = await live.member("b")
        unread = live.latest
        await until(lambda: unread._owing > 2 * MIB)
        assert not unread.ignores_input, "one replay it may owe"
        idle.say(type="close", mood="happy")
        idle.say(type="open", mailbox="m")
        await until(lambda: unread.ignores_input)
        assert unread._owing == 0
        assert sum(refusals(live).values()) == 1
        heard = []
        while (got := await idle.read())[0] == TEXT:
            heard.append(json.loads(got[1]))
        assert struct.unpack(">H", got[1][:2]) == (1008,)
        assert len(heard) < 80
        other.say(type="ping", ping=1)
        assert [(await other.hear())["type"] for _ in range(4)] == ["ack", "ack", "ack", "pong"]
        back = await live.member("b")  # nothing is lost
        heard = [await back.hear() for _ in range(82)]
        assert [each["phase"] for each in heard[2:]] == [str(number) for number in range(80)]


async def test_a_client_that_closes_and_does_not_read_is_dropped(tmp_path: Path) -> None:
    async with opened(tmp_path) as live:
        await fill(live, "m", 80, 100_000)
        idle = await live.member("b")
        unread = live.latest
        await until_full(unread)
        assert unread._transport is not None
        idle.write(frame(CLOSE, struct.pack(">H", 1000)))
        await until(unread._transport.underlying_transport.is_closing)
        timer = unread._timer
        assert timer is not None
        assert timer.when() - asyncio.get_running_loop().time() <= CLOSE_TIMEOUT
        timer._run()
        await until(lambda: unread not in live.server.sockets())
        assert timer.cancelled()


async def test_connections_beyond_the_limit_are_told_so_and_keep_nobody_out(tmp_path: Path) -> None:
    async with opened(tmp_path, replace(LIMITS, connections=2)) as live:
        first, _second = await live.enter(), await live.enter()
        third = await live.enter()
        refusal = await third.hear()
        assert (refusal["error"], refusal["retry"]) == ("the server has no room for more connections", True)
        assert await third.closed() == 1013
        live.server.cleanup_seconds = 60.0
        for _ in range(3):
            await live.enter()
        await first.hang_up()
        await until(lambda: len(live.server.admitted) == 1)
        fourth = await live.enter()
        await fourth.is_served()


async def test_pings_are_answered_up_to_a_rate(tmp_path: Path) -> None:
    async with opened(tmp_path, COUNTING_FRAMES) as live:
        socket = await live.enter()
        socket.write(frame(PING, b"one"))
        assert await socket.read() == (PONG, b"one")
        socket.write(*(frame(PING, str(number).encode()) for number in range(3 * MAX_FRAMES_PER_SECOND)))
        socket.say(type="ping", ping="after")
        await until(lambda: live.latest.read_pauses.reasons)
        assert live.latest._frames < 2 * MAX_FRAMES_PER_SECOND  # what one read brought
        last = None
        async with seconds_passing(live):
            while (got := await socket.read())[0] == PONG:
                last = got[1]
            assert last == str(3 * MAX_FRAMES_PER_SECOND - 1).encode(), "the last ping of all is answered"
            assert json.loads(got[1])["type"] == "ack"
            assert (await socket.hear())["pong"] == "after"


async def test_a_read_is_bounded_however_large_the_buffer_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer of 2 MiB would take in 250,000 bytes of the shortest frames, and nobody else for 17 ms."""
    reads: list[int] = []
    updated = ReceiveBuffer.buffer_updated

    def note(receive_buffer: ReceiveBuffer, size: int) -> None:
        reads.append(size)
        updated(receive_buffer, size)

    monkeypatch.setattr(ReceiveBuffer, "buffer_updated", note)
    async with opened(tmp_path) as live:
        socket = await live.enter()
        await socket.is_served("0" * (MIB - 1000))
        socket.write(frame(PONG, b"") * 40_000)
        await until(lambda: sum(reads) > MIB + MAX_READ_BYTES // 2)
        assert max(reads) <= MAX_READ_BYTES


@pytest.mark.parametrize(
    ("limits", "opcode"), [(LIMITS, PING), (COUNTING_FRAMES, TEXT)], ids=["no limit of commands", "commands"]
)
async def test_what_is_not_limited_is_read_within_one_second(tmp_path: Path, limits: Limits, opcode: int) -> None:
    """The server's seconds do not pass here."""
    async with opened(tmp_path, limits) as live:
        socket = await live.enter()
        pings = range(3 * MAX_FRAMES_PER_SECOND)
        socket.write(*(frame(opcode, b'{"type":"ping","ping":%d}' % number) for number in pings))
        socket.say(type="ping", ping="after")
        pongs: list[object] = []
        while not pongs or pongs[-1] != "after":
            answer = json.loads((await socket.read())[1])
            if "pong" in answer:
                pongs.append(answer["pong"])
        assert pongs == ([*pings, "after"] if opcode == TEXT else ["after"])


async def test_empty_fragments_are_throttled_too(tmp_path: Path) -> None:
    async with opened(tmp_path, COUNTING_FRAMES) as live:
        socket = await live.enter()
        socket.write(frame(TEXT, b'{"type":"ping",', fin=False))
        socket.write(*(frame(CONTINUATION, b" ", fin=False) for _ in range(2 * MAX_FRAMES_PER_SECOND)))
        socket.write(frame(CONTINUATION, b'"ping":1}'))
        await until(lambda: live.latest.read_pauses.reasons)
        async with seconds_passing(live):
            assert (await socket.hear())["type"] == "ack"
            assert (await socket.hear())["pong"] == 1


async def test_a_flood_after_a_close_is_not_read(tmp_path: Path) -> None:
    async with opened(tmp_path, COUNTING_FRAMES) as live:
        socket = await live.enter()
        socket.write(frame(TEXT, b"no JSON"), *(frame(TEXT, b"{}") for _ in range(5000)))
        assert (await socket.hear())["type"] == "error"
        assert await socket.closed() == 1007
        await until(lambda: live.latest.read_pauses.reasons)
