"""A pair after `ok`: what one side sends is passed on to the other, until one ends.

Plain sockets are watched by an epoll of their own, edge-triggered. A socket is registered once, for reading and for
writing, so no system call says for which of them the relay waits. A socket whose bytes may not be read yet does not
wake the loop.

Two plain sockets are spliced: the kernel moves the pages from one to a pipe and from there to the other.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from restante.common.logs import log, trace_text
from restante.relay.core.pacing import MAX_QUANTUM_BYTES, Flow, Pacer, Rates
from restante.relay.protocol.request import OK
from restante.relay.server.pipes import FIRST_PIPE_BYTES, MAX_PIPE_BYTES, Pipe, PipePool, pipe_budget
from restante.relay.server.streams import END_SECONDS, PlainSocket, Stream, has_hung_up, unread_bytes

COPY_BYTES: Final = 64 * 1024
"""Bytes that are read at once from a plain socket that is not spliced. So the relay has at most so many of them in
memory, and a message to a WebSocket from such a socket has at most so many."""

MAX_BYTES_PER_TURN: Final = 2 * MAX_QUANTUM_BYTES
"""Bytes that are passed on before the loop looks at anything else: half a millisecond."""

STEP_BYTES: Final = 16 * 1024
"""Bytes that take as long as a step of a direction, whatever it passes on. So a turn has 128 steps at most."""

MAX_EVENTS: Final = 256
"""Sockets whose events one call of epoll returns."""

FILLED_FRACTION: Final = 4
"""If one read fills this fraction of a pipe (a quarter), the direction gets pipes of twice the size. A page of a pipe
has the bytes of one packet at least, 1,400 of 4,096, so packets fill a pipe with a third of its size."""

STALLED_SECONDS: Final = 300.0
"""Seconds after which a pair ends of which one side has gone and the other takes nothing. Its kernel answers while it
is stopped, so keep-alive does not find it, and the pair would count in `pairs` for ever. Five minutes are enough for
someone who has to confirm something before the rest is read."""

STALL_CHECK_SECONDS: Final = 60.0
"""Seconds between two looks at the pairs of which a side takes nothing: some microseconds each."""

TURN_SECONDS: Final = 0.005
"""Shortest time between two turns of the pacer, in which it lets several pairs go on."""

_EVENTS: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_READABLE: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_WRITABLE: Final = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR
_SPLICE: Final = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE

_ROOM: Final = memoryview(bytearray(COPY_BYTES))
"""The buffer into which all plain sockets are read that are not spliced. What was read is written or copied before
the next read."""


class Direction:
    """What one side of a pair sends, on its way to the other: the `Source` and the `Sink` of their streams.

    What was read and not written is in a pipe, in `_unsent` or in `_arrived`. Until it is written, nothing is read.
    """

    __slots__ = (
        "_arrived",
        "_granted",
        "_is_spliced",
        "_pair",
        "_pairs",
        "_pipe",
        "_pipe_size",
        "_piped",
        "_sink",
        "_source",
        "_unsent",
        "_waits_for_grant",
        "has_ended",
        "is_over",
        "is_queued",
        "is_readable",
    )

    def __init__(self, pair: StreamPair, pairs: StreamPairs, source: Stream, sink: Stream, unsent: bytes) -> None:
        self._pair, self._pairs, self._source, self._sink = pair, pairs, source, sink
        self._is_spliced = isinstance(source, PlainSocket) and isinstance(sink, PlainSocket)
        self._unsent: bytes | bytearray = unsent
        """What the sink has not taken."""
        self._arrived = bytearray()
        """What a stream has brought before it was granted, or while the sink took nothing."""
        self._pipe: Pipe | None = None
        """None: no bytes are in a pipe."""
        self._piped = 0
        """Bytes in the pipe."""
        self._pipe_size = FIRST_PIPE_BYTES
        """Size of the next pipe."""
        self._granted = 0
        """Bytes that it may read, if the pair is paced: no more than had come when they were granted, so nobody saves
        any up. They are read in several steps. What a plain socket does not have is given back; the headers of frames
        and records that another stream does not bring stay granted."""
        self._waits_for_grant = False
        self.is_readable = False
        """Whether a plain socket may have bytes, or another stream is not paused."""
        self.has_ended = False
        """Whether nothing more comes."""
        self.is_over = False
        """Whether nothing more is passed on. What still comes is dropped."""
        self.is_queued = False
        """Whether its next step is due (`StreamPairs`)."""

    def step(self) -> int:
        """Pass on what can be passed on now, about a quantum, and return its bytes."""
        if (self._piped or self._unsent) and not self._sink.is_stuck:
            self._write_on()
        if self._pair.is_closed:
            return 0
        if self._must_write_first():
            self._pairs.note_stuck(self)
            return 0
        if self._arrived:
            return self._pass_on_rest()
        source = self._source
        if self.has_ended:
            self._finish()
        elif not isinstance(source, PlainSocket):
            self._resume()
        elif self.is_readable:
            return self._read(source)
        return 0

    def fail(self, error: Exception) -> None:
        """End the pair because of a fault of ours, which does not stop the other pairs."""
        log.error("a pair is ended because of a fault", fault=trace_text(error))
        self._pair.abort()

    def _must_write_first(self) -> bool:
        """Return whether something must be written before anything is read."""
        return bool(self._piped or self._unsent or (self._sink.is_stuck and not self.is_over))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def _read(self, source: PlainSocket) -> int:
        """Read as much as is granted, and pass it on, or drop it if it is over. Return the bytes."""
        size = self._grant() if self._pair.flow.is_paced else MAX_QUANTUM_BYTES
        if not size:
            return 0
        is_dropped = self.is_over
        if is_dropped:
            size = self._drop(source, size)
        elif self._is_spliced:
            size = self._splice(source, size)
        else:
            size = self._copy(source, size)
        if self.has_ended or not self.is_readable:
            self._give_back()
        if size and not is_dropped:
            self._pair.count(size)
        if self._pair.is_closed:
            return size
        if self._must_write_first():
            self._pairs.note_stuck(self)
        elif self.is_readable or self.has_ended:
            self._pairs.queue(self)
        return size

    def _splice(self, source: PlainSocket, size: int) -> int:
        """Read into a pipe and write from there. Return the bytes that were read."""
        pipes = self._pairs.pipes
        pipe = pipes.take(self._pipe_size)
        if pipe is None:
            return self._copy(source, size)
        try:
            size = os.splice(source.descriptor, pipe.writer, min(size, pipe.size), flags=_SPLICE)
        except BlockingIOError:
            pipes.give(pipe)
            self.is_readable = False
            return 0
        except OSError:
            size = 0
        if not size:
            pipes.give(pipe)
            self.has_ended = True
            return 0
        self._count_read(size)
        self._pipe, self._piped = pipe, size
        if size * FILLED_FRACTION >= pipe.size and self._pipe_size < MAX_PIPE_BYTES:
            self._pipe_size *= 2
        self._write_on()
        return size

    def _copy(self, source: PlainSocket, size: int) -> int:
        """Read and write. Return the bytes that were read."""
        try:
            size = source.readinto(_ROOM, min(size, COPY_BYTES))
        except BlockingIOError:
            self.is_readable = False
            return 0
        except OSError:
            size = 0
        if not size:
            self.has_ended = True
            return 0
        self._count_read(size)
        self._write(_ROOM[:size])
        return size

    def _drop(self, source: PlainSocket, size: int) -> int:
        """Read what nobody takes. Return the bytes."""
        try:
            size = source.readinto(_ROOM, min(size, COPY_BYTES))
        except BlockingIOError:
            self.is_readable = False
            return 0
        except OSError:
            size = 0
        if not size:
            self.has_ended = True
            self._pair.go_on_ending()
        self._count_read(size)
        return size

    def _resume(self) -> None:
        """Let a stream bring more."""
        source = self._source
        assert not isinstance(source, PlainSocket)
        if not self.is_readable:
            self.is_readable = True
            source.resume()

    def arrived(self, data: memoryview | bytes | bytearray) -> None:
        """Pass on what a stream brings, and let it bring nothing more before all of it is passed on."""
        if self._pair.is_closed:
            return
        waits = bool(self._arrived)
        if waits or self._pair.flow.is_paced or not self._pass_on(data):
            self._arrived += data
        if self._arrived and not waits:
            self._pass_on_rest()
        if self._pair.is_closed:
            return
        if self._must_write_first():
            self._pairs.note_stuck(self)
            self._pause()
        elif self._arrived:
            self._pause()

    def _pass_on(self, data: memoryview | bytes | bytearray) -> int:
        """Write what a stream has brought, as far as it is granted and the sink takes it. Return the bytes.

        If it is over, they are dropped as fast.
        """
        if self._must_write_first():
            return 0
        size = min(len(data), self._grant()) if self._pair.flow.is_paced else len(data)
        self._count_read(size)
        if size and not self.is_over:
            self._write(memoryview(data)[:size])
            self._pair.count(size)
        return size

    def _pass_on_rest(self) -> int:
        """Pass on what had arrived before. Return the bytes."""
        size = self._pass_on(self._arrived)
        if self._pair.is_closed:
            return size
        del self._arrived[:size]
        if self._must_write_first():
            self._pairs.note_stuck(self)
        elif not self._waits_for_grant:
            self._pairs.queue(self)
        return size

    def _pause(self) -> None:
        source = self._source
        if self.is_readable and not isinstance(source, PlainSocket):
            self.is_readable = False
            source.pause()

    def source_ended(self) -> None:
        """Note that nothing more comes from a stream."""
        self.has_ended = True
        if self.is_over:
            self._pair.go_on_ending()
        else:
            self._pairs.queue(self)

    # ── what the pacer grants ─────────────────────────────────────────────────────────────────────

    def _grant(self) -> int:
        """Return how many bytes may be read. 0: `granted` is called later."""
        if not self._granted and not self._waits_for_grant:
            self._granted = self._pairs.ask(self._pair.flow, self)
            self._waits_for_grant = not self._granted
        return self._granted

    def available(self) -> int:
        """Return the bytes that have arrived, or that the kernel has. At least 1, because an end is read, too."""
        unread = 0 if self.has_ended else unread_bytes(self._source)
        return max(1, len(self._arrived) + unread)

    def granted(self, size: int) -> None:
        """Read up to `size` bytes from the next step on."""
        self._granted, self._waits_for_grant = size, False
        self._pairs.queue(self)

    def _count_read(self, size: int) -> None:
        """Count bytes of the grant as read, before they are written: a write that fails gives back the rest."""
        self._granted = max(0, self._granted - size)

    def _give_back(self) -> None:
        """Give back what was granted and is not read."""
        if self._granted:
            self._pairs.give_back(self._pair.flow, self._granted)
            self._granted = 0

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def _write_on(self) -> None:
        """Write what the sink had not taken, and what is in the pipe, as far as the sink takes it."""
        if self._unsent:
            unsent, self._unsent = self._unsent, b""
            self._write(unsent)
        if self._pipe is not None and not self._unsent:
            self._empty(self._pipe)

    def _write(self, data: memoryview | bytes | bytearray) -> None:
        """Write bytes, and keep what the sink does not take."""
        try:
            size = self._sink.write(data)
        except OSError:
            self.sink_gone()
        else:
            if size < len(data):
                self._unsent = bytes(data[size:])

    def _empty(self, pipe: Pipe) -> None:
        """Write what is in the pipe, as far as the sink takes it."""
        sink, piped = self._sink, self._piped
        assert isinstance(sink, PlainSocket)
        try:
            while piped:
                piped -= os.splice(pipe.reader, sink.descriptor, piped, flags=_SPLICE)
        except BlockingIOError:
            sink.is_stuck = True
            self._piped = piped
        except OSError:
            self._piped = piped
            self.sink_gone()
        else:
            self._piped, self._pipe = 0, None
            self._pairs.pipes.give(pipe)

    def unstuck(self) -> None:
        """Write what is left, and read again."""
        self._pairs.note_moving(self)
        self._pairs.queue(self)

    def note_readable(self) -> None:
        """Note that a plain socket has bytes, or its end."""
        self.is_readable = True
        self._pairs.queue(self)

    def note_writable(self) -> None:
        """Note that a plain socket takes bytes, or is gone."""
        if self._sink.is_stuck:
            self._sink.is_stuck = False
            self._pairs.note_moving(self)
            self._pairs.queue(self)

    def _sends_no_more(self) -> bool:
        """Return whether the source has ended, also if there is something to read before its end."""
        return self.has_ended or has_hung_up(self._source)

    def has_rest(self) -> bool:
        """Return whether the source has ended, and not everything is passed on."""
        return not self.is_over and self._sends_no_more()

    def untaken_bytes(self) -> int | None:
        """Return the bytes that the reader has not taken. None: the sender is still there."""
        if not self._sends_no_more():
            return None
        return self._piped + len(self._unsent) + self._sink.untaken_bytes()

    def give_up(self) -> None:
        """End the pair, because the sender has gone and the reader takes nothing."""
        self._pair.abort()

    def sink_gone(self) -> None:
        """Drop what was not written, and what still comes."""
        self.release()
        if not self.is_over:
            self.is_over = True
            self._pair.go_on_ending()
            self._pairs.queue(self)

    def _finish(self) -> None:
        """Say that nothing follows, because the source has ended and everything is written."""
        if not self.is_over:
            self.is_over = True
            self._sink.end_writing()
            self._pair.go_on_ending()

    def release(self) -> None:
        """Free what was read and not written, and give back what was granted. Nothing is written any more."""
        self._pairs.note_moving(self)
        self._unsent, self._arrived = b"", bytearray()
        if self._pipe is not None:
            self._pairs.pipes.discard(self._pipe)
            self._pipe, self._piped = None, 0
        self._give_back()


class StreamPair:
    """Two streams, of which each gets what the other sends: a pair of the relay after `ok`."""

    __slots__ = ("_directions", "_on_bytes", "_on_end", "_pairs", "_streams", "_timer", "flow", "is_closed")

    def __init__(
        self,
        pairs: StreamPairs,
        streams: tuple[Stream, Stream],
        flow: Flow,
        on_bytes: Callable[[int], bool],
        on_end: Callable[[], None],
    ) -> None:
        self._pairs, self._streams = pairs, streams
        self.flow = flow
        """What the pacer knows of it."""
        self._on_bytes, self._on_end = on_bytes, on_end
        self._directions: tuple[Direction, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        """When both sides are closed, because one has ended. None: neither has."""
        self.is_closed = False

    def begin(self, leftover: bytes) -> None:
        """Send `ok` to both sides and `leftover` to the first."""
        first, second = self._streams
        unsent = [_answer(stream) for stream in self._streams]
        outgoing = Direction(self, self._pairs, first, second, unsent[1])
        incoming = Direction(self, self._pairs, second, first, unsent[0] + leftover)
        self._directions = (outgoing, incoming)
        for stream, source, sink in ((first, outgoing, incoming), (second, incoming, outgoing)):
            if isinstance(stream, PlainSocket):
                self._pairs.watch(stream, source, sink)
            else:
                stream.source, stream.sink = source, sink
        if leftover:
            self.count(len(leftover))
        if not self.is_closed:
            for direction in self._directions:
                self._pairs.queue(direction)

    def count(self, size: int) -> None:
        """Report bytes that came, and close both sides if there may be no more."""
        if not self._on_bytes(size):
            self.abort()

    def slow_down(self, rate: float) -> None:
        """Pass on at most so many bytes a second in both directions together. 0: as fast as the rates allow."""
        if rate != self.flow.slow_rate:
            self._pairs.slow_down(self.flow, rate)

    def go_on_ending(self) -> None:
        """Close both sides when both have ended, or END_SECONDS after nothing more is passed on in one direction.

        If the other direction has ended, what came of it is passed on before, however long that takes.
        """
        if self.is_closed or self._has_rest():
            return
        if all(direction.is_over and direction.has_ended for direction in self._directions):
            self.abort()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(END_SECONDS, self._end)

    def _has_rest(self) -> bool:
        """Return whether something of a side that has ended must still be passed on, also if it is not read yet."""
        return any(direction.has_rest() for direction in self._directions)

    def _end(self) -> None:
        """Close both sides, END_SECONDS after one has ended, unless the other has ended, too, with something left."""
        self._timer = None
        if not self._has_rest():
            self.abort()

    def abort(self) -> None:
        """Close both sides at once. `on_end` is called in the next turn of the loop."""
        if self.is_closed:
            return
        self.is_closed = True
        asyncio.get_running_loop().call_soon(self._on_end)
        if self._timer is not None:
            self._timer.cancel()
        for direction in self._directions:
            direction.release()
        for stream in self._streams:
            if isinstance(stream, PlainSocket):
                self._pairs.unwatch(stream)
            stream.close()
        self._pairs.ended(self)


def _answer(stream: Stream) -> bytes:
    """Send `ok`, and return what the stream has not taken of it."""
    try:
        return OK[stream.write(OK) :]
    except OSError:  # it is gone, as reading it will show
        return b""


class StreamPairs:
    """What all pairs of a server share: the pipes, the epoll, the pacer, and whose step is next."""

    def __init__(self, rates: Rates) -> None:
        """Prepare pipes within the limits of this process. A loop is running."""
        self._loop = asyncio.get_running_loop()
        self.pipes = PipePool(pipe_budget())
        self._pacer = Pacer(rates)
        self._timer: asyncio.TimerHandle | None = None
        """The pacer's next turn."""
        self._turn = 0.0
        """When that is, by the loop's clock. A handle of uvloop that is due at once does not say it."""
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[Direction, Direction]] = {}
        """The directions that read a descriptor, and write to it."""
        self._due: deque[Direction] = deque()
        """Directions of which a step is due."""
        self._has_turn = False
        """Whether the loop has been told to take their steps."""
        self._stuck: dict[Direction, tuple[int | None, float]] = {}
        """Directions whose readers take nothing: the bytes that the reader has not taken, and since when so many."""
        self._stall_timer: asyncio.TimerHandle | None = None
        """The next look at these. None: there are none."""
        self.running: set[StreamPair] = set()
        self._loop.add_reader(self._epoll.fileno(), self._take_events)

    def begin(
        self,
        first: Stream,
        second: Stream,
        leftover: bytes,
        addresses: Iterable[Hashable],
        on_bytes: Callable[[int], bool],
        on_end: Callable[[], None],
    ) -> StreamPair:
        """Send `ok` to both sides and `leftover` to the first, and relay from then on.

        `leftover`: what came behind the line of the second side. `addresses`: what the rate of an address counts,
        of both sides. `on_bytes(n)` is called with the bytes that were passed on since its last call; if it returns
        False, the pair ends at once. `on_end()` is called once, when both sides are closed, and never from here.

        Raises:
            OSError: no more sockets of this user may be watched (epoll(7), max_user_watches). Both sides are closed.

        """
        pair = StreamPair(self, (first, second), self._pacer.add(addresses), on_bytes, on_end)
        self.running.add(pair)
        try:
            pair.begin(leftover)
        except OSError as error:
            log.error("a pair cannot be watched; it is closed", reason=error.strerror)
            pair.abort()
            raise
        return pair

    def ended(self, pair: StreamPair) -> None:
        """Forget a pair."""
        self.running.discard(pair)
        self._pacer.remove(pair.flow, self._loop.time())
        self._set_timer()

    def close(self) -> None:
        """End all pairs, and close the pipes."""
        for pair in list(self.running):
            pair.abort()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self.pipes.close()
        for timer in (self._timer, self._stall_timer):
            if timer is not None:
                timer.cancel()

    # ── events and steps ──────────────────────────────────────────────────────────────────────────

    def watch(self, stream: PlainSocket, source: Direction, sink: Direction) -> None:
        """Let steps be taken when a socket has bytes, or takes some."""
        self._epoll.register(stream.descriptor, _EVENTS)
        self._watched[stream.descriptor] = (source, sink)

    def unwatch(self, stream: PlainSocket) -> None:
        """Forget a socket, which is about to be closed."""
        if self._watched.pop(stream.descriptor, None) is not None:
            self._epoll.unregister(stream.descriptor)

    def _take_events(self) -> None:
        """Note what has happened to the sockets, and take steps unless the loop will do so anyway."""
        at_once, self._has_turn = not self._has_turn, True
        for descriptor, events in self._epoll.poll(0, MAX_EVENTS):
            source, sink = self._watched[descriptor]
            if events & _READABLE:
                source.note_readable()
            if events & _WRITABLE:
                sink.note_writable()
        if at_once:
            self._take_steps()

    def queue(self, direction: Direction) -> None:
        """Let a direction take a step, in this turn of the loop or a later one."""
        if not direction.is_queued:
            direction.is_queued = True
            self._due.append(direction)
            if not self._has_turn:
                self._has_turn = True
                self._loop.call_soon(self._take_steps)

    def _take_steps(self) -> None:
        """Let directions take steps, one after the other, until there were enough for this turn of the loop."""
        due, left = self._due, MAX_BYTES_PER_TURN
        try:
            while due and left > 0:
                direction = due.popleft()
                direction.is_queued = False
                try:
                    left -= STEP_BYTES + direction.step()
                except Exception as error:  # noqa: BLE001 - it must not stop the other pairs
                    direction.fail(error)
        finally:
            self._has_turn = bool(due)
            if due:
                self._loop.call_soon(self._take_steps)

    # ── readers that take nothing ─────────────────────────────────────────────────────────────────

    def note_stuck(self, direction: Direction) -> None:
        """Look at a direction from time to time, because its reader takes nothing for now."""
        self._stuck.setdefault(direction, (None, 0.0))
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(STALL_CHECK_SECONDS, self._end_stalled)

    def note_moving(self, direction: Direction) -> None:
        """Note that the reader of a direction has taken something, or that nothing more is written."""
        self._stuck.pop(direction, None)

    def _end_stalled(self) -> None:
        """End the pairs whose senders have gone and whose readers take nothing."""
        self._stall_timer = self._loop.call_later(STALL_CHECK_SECONDS, self._end_stalled) if self._stuck else None
        now = self._loop.time()
        for direction, (before, since) in list(self._stuck.items()):
            if direction not in self._stuck:  # its pair has been ended for the other direction
                continue
            try:
                size = direction.untaken_bytes()
                if size is None or size != before:
                    self._stuck[direction] = (size, now)
                elif now - since >= STALLED_SECONDS:
                    direction.give_up()
            except Exception as error:  # noqa: BLE001 - it must not stop the look at the other pairs
                self.note_moving(direction)
                direction.fail(error)

    # ── rates ────────────────────────────────────────────────────────────────────────────────────

    def set_rates(self, rates: Rates) -> None:
        """Apply other rates, also to the pairs that run."""
        self._pacer.set_rates(rates, self._loop.time())
        self._set_timer()

    def slow_down(self, flow: Flow, rate: float) -> None:
        """Apply a rate to one pair in addition to those of all. 0: none."""
        self._pacer.slow_down(flow, rate, self._loop.time())
        self._set_timer()

    def ask(self, flow: Flow, direction: Direction) -> int:
        """Return how many bytes a direction may read now. 0: it is granted some later."""
        size = self._pacer.ask(flow, direction, self._loop.time())
        if not size:
            self._set_timer()
        return size

    def give_back(self, flow: Flow, size: int) -> None:
        """Give back bytes that a direction was granted and has not read."""
        self._pacer.give_back(flow, size, self._loop.time())
        self._set_timer()

    def _set_timer(self) -> None:
        turn = self._pacer.next_turn
        if turn is None:
            return
        turn = max(turn, self._loop.time() + TURN_SECONDS)
        if self._timer is not None:
            if self._turn <= turn:
                return
            self._timer.cancel()
        self._turn = turn
        self._timer = self._loop.call_at(turn, self._take_grants)

    def _take_grants(self) -> None:
        """Let the directions read to which the pacer grants bytes now."""
        self._timer = None
        for direction, size in self._pacer.turn(self._loop.time()):
            direction.granted(size)
        self._set_timer()
