"""A peer that answers no more: the user is told once in each phase, and what cannot go on ends with an error."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final, NoReturn
from unittest.mock import Mock

import pytest

from client.live import CODE, Heard, Network, simulated, wormhole
from client.transfer.hostile import (
    CONTENT,
    DIRECT,
    heard,
    names,
    pair,
    receives,
    say,
    sends,
    sparse,
    stopped_halfway,
    stored,
    tcp_pair,
)
from restante.client.errors import PeerStalledError, TransferError
from restante.client.events import Closed, Event, KeyAgreed, PeerSilent
from restante.client.transfer.sending import send_file
from restante.client.transfer.stream import Stream
from restante.client.transfer.text import receive_text, send_text
from restante.client.transit.connecting import TRANSIT_SECONDS, TransitOptions
from restante.client.transit.pipe import MIN_BYTES_PER_SECOND, RECEIVER_STALLS, RECORD_BYTES, RecordPipe
from restante.client.transit.records import RecordSealer, Role, TransitKeys
from restante.client.wormhole import SILENCE_SECONDS, Wormhole
from restante.common.errors import Misuse
from support.bounds import BOUND

HOUR: Final = 3600.0


@asynccontextmanager
async def met(events: Heard) -> AsyncIterator[tuple[Wormhole, Wormhole]]:
    async with wormhole(on_event=events) as ours, wormhole() as theirs:
        await asyncio.gather(ours.set_code(CODE), theirs.set_code(CODE))
        await asyncio.gather(ours.verifier(), theirs.verifier())
        yield ours, theirs


@pytest.mark.parametrize("seconds", [SILENCE_SECONDS - 1, 9 * HOUR])
@pytest.mark.parametrize(
    ("transfer", "awaited", "message"),
    [
        (lambda ours: send_text(ours, "text"), "answer", {"answer": {"message_ack": "ok"}}),
        (lambda ours: receive_text(ours, print), "offer", {"offer": {"message": "text"}}),
    ],
)
@simulated
async def test_a_user_who_decides_after_hours_is_waited_for_and_a_long_silence_is_told_once(
    network: Network, transfer: Callable[[Wormhole], Any], awaited: Any, message: dict[str, Any], seconds: float
) -> None:
    events = Heard()
    async with met(events) as (ours, theirs):
        transferring = asyncio.create_task(transfer(ours))
        await asyncio.sleep(seconds)
        await say(theirs, **message)
        await transferring
        await asyncio.sleep(HOUR)
    assert events.of(PeerSilent) == [PeerSilent(SILENCE_SECONDS, awaited)] * (seconds > SILENCE_SECONDS)


def mute(network: Network) -> None:
    """Let the first connection say nothing more. Its client connects again when the server owes it an answer."""
    network.lines[0].send = lambda text: None  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("seconds", "silences"), [(SILENCE_SECONDS - 1, []), (HOUR, [PeerSilent(SILENCE_SECONDS, "key")])]
)
@simulated
async def test_a_peer_that_is_silent_behind_its_first_message_is_told_until_the_wormhole_is_closed(
    network: Network, seconds: float, silences: list[PeerSilent]
) -> None:
    events = Heard()
    async with wormhole() as theirs:
        await theirs.set_code(CODE)
        await asyncio.sleep(1)
        mute(network)
        async with wormhole(on_event=events) as ours:
            await ours.set_code(CODE)
            await asyncio.sleep(seconds)
            await (ours.verifier() if silences else ours.close(abandon=True))
        await asyncio.sleep(HOUR)
    assert events.of(PeerSilent) == silences


@simulated
async def test_behind_the_last_event_no_silence_is_told(network: Network) -> None:
    events = Heard()

    def refuse(event: Event) -> None:
        events(event)
        if event == KeyAgreed():
            raise AssertionError("refused")

    async with wormhole() as theirs:
        await theirs.set_code(CODE)
        await asyncio.sleep(1)
        mute(network)
        ours = wormhole(on_event=refuse)
        await ours.__aenter__()
        await ours.set_code(CODE)
        await asyncio.sleep(HOUR)
        with pytest.raises(AssertionError, match=r"^refused$"):
            await ours.close()
    assert isinstance(events.events[-1], Closed)


@simulated
async def test_a_transfer_that_outlives_its_wormhole_tells_no_silence(network: Network, tmp_path: Path) -> None:
    (tmp_path / "parcel").write_bytes(CONTENT)
    events = Heard()
    async with met(events) as (ours, theirs):
        sending = asyncio.create_task(send_file(ours, tmp_path / "parcel", transit=DIRECT))
        await say(theirs, answer={"file_ack": "ok"})
        await asyncio.sleep(1)
        await ours.close()
        with pytest.raises(TransferError):
            await sending
    assert isinstance(events.events[-1], Closed)


@simulated
async def test_sides_that_do_not_connect_are_told_then_both_end(network: Network, tmp_path: Path) -> None:
    (tmp_path / "parcel").write_bytes(CONTENT)
    events, loop = Heard(), asyncio.get_running_loop()
    async with met(events) as (ours, theirs):
        sending = asyncio.create_task(send_file(ours, tmp_path / "parcel", transit=DIRECT))
        await say(theirs, answer={"file_ack": "ok"})
        began = loop.time()
        with pytest.raises(TransferError, match=r"^no connection to the other side within 120 s$"):
            await sending
        ended = loop.time()
        assert (await heard(theirs, "error"))[0] == "no connection to the other side within 120 s"
    assert events.of(PeerSilent) == [PeerSilent(SILENCE_SECONDS, "connection", TRANSIT_SECONDS)]
    assert ended - began == pytest.approx(TRANSIT_SECONDS, abs=1)


IMPATIENT: Final = TransitOptions(relays=(), stall_seconds=0.2)
NOTHING_KEPT: Final = r"\(after receiving \d of 10 bytes: nothing was kept\)"
INCOMPLETE: Final = r"\(after sending [\d,]+ of [\d,]+ bytes: the receiver does not have everything\)"
UNCONFIRMED: Final = r"\(before the receiver confirmed: it may have everything\)"


@pytest.mark.parametrize(
    ("role", "size", "awaited", "outcome"),
    [
        (Role.RECEIVER, len(CONTENT), "bytes", NOTHING_KEPT),
        (Role.SENDER, 64 << 20, "bytes", INCOMPLETE),
        (Role.SENDER, 10, "confirmation", UNCONFIRMED),
    ],
    ids=["a sender that stops", "a receiver that does not read", "a receiver that does not confirm"],
)
async def test_a_peer_that_stalls_is_told_then_the_transfer_ends_and_the_peer_hears_why(
    tmp_path: Path, folder: Path, role: Role, size: int, awaited: str, outcome: str
) -> None:
    script, begun, over = stopped_halfway(lambda pipe: pipe.send(CONTENT[:5]) if role is Role.RECEIVER else None)
    events = Heard()
    async with pair(silence_seconds=0.1, on_event=events) as (ours, theirs):
        if role is Role.RECEIVER:
            peer = sends(theirs, script)
            transferring: Any = stored(ours, folder, transit=IMPATIENT)
        else:
            peer = receives(theirs, script)
            transferring = send_file(ours, sparse(tmp_path / "parcel", size), transit=IMPATIENT)
        with pytest.raises(
            PeerStalledError, match=rf"^the other side has not answered for \d+ s {outcome}$"
        ) as ended:
            await transferring
        await begun.wait()
        over.set()
        await peer
        assert (await heard(theirs, "error"))[0].startswith("no answer for ")
    assert ended.value.outcome in str(ended.value)
    silences = [silence for silence in events.of(PeerSilent) if silence.awaited == awaited]
    limit = 0.2 if role is Role.RECEIVER else RECEIVER_STALLS * 0.2
    limit += size / MIN_BYTES_PER_SECOND if awaited == "confirmation" else 0
    assert silences == [PeerSilent(0.1, awaited, limit)]  # type: ignore[arg-type]
    assert names(folder) == []


KEYS: Final = TransitKeys.derive(bytes(32), Role.RECEIVER)
RECORD: Final = bytes(RecordSealer(KEYS.opening).seal(CONTENT))


class Scripted:
    """A socket whose calls take as many seconds as a list says, or as long as is allowed."""

    def __init__(self, seconds: Iterable[float], takes: int = 1, answers_until: float = 1e9) -> None:
        self._seconds, self._takes, self._answers_until = iter(seconds), takes, answers_until
        self._read, self._timeout, self._left, self.waited = RECORD, 0.0, 0.0, 0.0

    def settimeout(self, seconds: float) -> None:
        self._timeout = seconds

    setsockopt = close = staticmethod(lambda *_: None)

    def getsockopt(self, *_: int) -> bytes:
        return bytes(56) + struct.pack("=I", round(1000 * max(self.waited - self._answers_until, 0)))

    def _wait(self) -> None:
        self._left = self._left or next(self._seconds)
        if self._left > self._timeout:
            self._left -= self._timeout
            self.waited += self._timeout
            raise TimeoutError("timed out")
        self.waited += self._left
        self._left = 0.0

    def recv_into(self, into: Any) -> int:
        self._wait()
        some, self._read = self._read[:1], self._read[1:]
        into[: len(some)] = some
        return len(some)

    def send(self, buffer: memoryview) -> int:
        self._wait()
        return min(self._takes, len(buffer))


def scripted(*seconds: float, **how: Any) -> tuple[RecordPipe, Scripted, list[tuple[float, float]]]:
    connected, silences = Scripted(seconds, **how), list[tuple[float, float]]()
    pipe = RecordPipe(connected, KEYS, clock=lambda: connected.waited)  # type: ignore[arg-type]
    pipe.warn_after(60.0, lambda waited, limit: silences.append((waited, limit)))
    return pipe, connected, silences


def test_a_receiver_whose_buffers_drain_at_10_kb_a_second_is_waited_for() -> None:
    """Linux tells the sender of room when some 2 MB of the buffers are read, here or in a relay."""
    pipe, connected, silences = scripted(*[210.0, *[0.0] * 15] * 100, takes=2 * RECORD_BYTES)
    for _ in range(1600):
        pipe.send(bytes(RECORD_BYTES))
    assert connected.waited == 210.0 * 100
    assert set(silences) == {(60.0, 600.0), (120.0, 600.0)}  # of which a transfer reports one


ACTS: Final[list[Callable[[RecordPipe], object]]] = [lambda pipe: pipe.send(CONTENT), lambda pipe: pipe.receive()]


@pytest.mark.parametrize("act", ACTS)
def test_a_byte_now_and_then_is_enough_for_ten_minutes(act: Callable[[RecordPipe], object]) -> None:
    act(scripted(*[11.0] * len(RECORD))[0])
    pipe, connected, silences = scripted(*[59.0] * len(RECORD))
    with pytest.raises(PeerStalledError, match=r"^the other side sends or takes less than 1,000 bytes a second$"):
        act(pipe)
    assert (connected.waited, silences) == (59.0 * 11, [])


@pytest.mark.parametrize(
    ("act", "warning", "limit", "answers_until"),
    [
        (ACTS[0], 60, 600, 1e9),
        (ACTS[0], 60, 120, 30),  # then its system is gone
        (ACTS[0], 60, 120, 0),
        (ACTS[1], 60, 120, 1e9),
        (lambda pipe: pipe.receive(stall_seconds=500_000.0), 60, 500_000, 1e9),
        (lambda pipe: pipe.receive(stall_seconds=1000.0), 300, 1000, 1e9),  # a warning after the usual limit
    ],
)
def test_after_so_many_seconds_without_a_byte_it_ends(
    act: Callable[[RecordPipe], object], warning: float, limit: float, answers_until: float
) -> None:
    pipe, connected, silences = scripted(1.0, 1e9, answers_until=answers_until)
    pipe.warn_after(warning, lambda waited, limit: silences.append((waited, limit)))
    with pytest.raises(PeerStalledError, match=rf"^the other side has not answered for {limit} s$"):
        act(pipe)
    assert connected.waited == 1.0 + limit
    assert silences[0] == (warning, 600 if answers_until == 30 else limit)


@pytest.mark.parametrize(("size", "directories", "limit"), [(10_000, 100, 620), (10**15, 0, 600 + 24 * HOUR)])
async def test_for_the_confirmation_of_many_bytes_a_sender_waits_at_most_a_day_longer(
    size: int, directories: int, limit: float
) -> None:
    pipe = Mock(stall_seconds=120.0, receive=Mock(side_effect=PeerStalledError))
    with pytest.raises(PeerStalledError):
        Stream(pipe, Role.SENDER, size, Mock(timing=None), directories=directories).send([])
    pipe.receive.assert_called_once_with(limit)


def fill(pipe: RecordPipe) -> NoReturn:
    while True:
        pipe.send(bytes(1 << 16))


def test_the_system_does_not_end_a_connection_before_a_longer_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver whose disk is busy reads nothing for a while: it has not taken what is on its way."""
    monkeypatch.setattr("restante.client.transit.pipe.GONE_SECONDS", 0)
    ours, theirs = tcp_pair()
    with closing(theirs), closing(RecordPipe(ours, KEYS, stall_seconds=0.1)) as pipe:
        with pytest.raises(PeerStalledError):
            fill(pipe)
        answer = threading.Timer(3.0, theirs.sendall, [RECORD])
        answer.start()
        assert bytes(pipe.receive(stall_seconds=BOUND)) == CONTENT
        answer.join()


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), True, "60", None])
def test_a_time_is_a_number_of_seconds(seconds: Any) -> None:
    for option in ("connect_seconds", "stall_seconds"):
        with pytest.raises(Misuse, match=f"`{option}` is a number of seconds above 0"):
            TransitOptions(**{option: seconds})
    with pytest.raises(Misuse, match="`silence_seconds` is a number"):
        Wormhole.create("example.com/test", silence_seconds=seconds)


async def test_without_end_is_a_time_too(tmp_path: Path, folder: Path) -> None:
    forever = TransitOptions(relays=(), connect_seconds=float("inf"), stall_seconds=float("inf"))
    (tmp_path / "parcel").write_bytes(CONTENT)
    async with pair(silence_seconds=float("inf")) as (ours, theirs):
        await asyncio.gather(
            send_file(ours, tmp_path / "parcel", transit=forever), stored(theirs, folder, transit=forever)
        )
    assert names(folder) == ["parcel"]
