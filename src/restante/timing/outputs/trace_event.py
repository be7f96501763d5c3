"""A timeline as trace events, which ui.perfetto.dev opens. Pure.

The format is defined in Google's "Trace Event Format"; Perfetto's page "Visualizing external trace formats" says
what it reads of it. The sender, the server and the receiver are processes. What they do are slices (`X`). Slices of
one thread must not overlap, so a process has several threads of a kind if several things happen at once. A flow (`s`,
`t`, `f`) leads from the beginning of one slice to that of the next: from the command at the client through the server
to the client that received the answer or the message.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from restante.common.units import duration
from restante.timing.model import phases
from restante.timing.model.exchanges import US_PER_SECOND
from restante.timing.model.timeline import Author, Timeline, TimelineCommand, TimelineFrame, TimelineSpan
from restante.timing.outputs.wording import message_label

PROCESSES: Final[dict[str, int]] = {"sender": 1, "server": 2, "receiver": 3}
"""Ids of processes. Perfetto shows the processes in this order."""

FIRST_THREAD: Final = 100
"""Id of the first thread. Perfetto takes a thread with the id of its process for the main thread, and some versions
take threads with one id in two processes for one."""

MOMENT_US: Final = 1
"""Duration of a slice that is a moment: flows end in slices, and some versions bind none to an empty one."""

ELAPSED: Final = "where the time went"
SPANS: Final = "spans"
EVENTS: Final = "events"
COMMANDS: Final = "commands"
RECEIVED: Final = "received"
SENT: Final = "sent"
THREADS: Final = (ELAPSED, SPANS, EVENTS, COMMANDS, RECEIVED, SENT)
"""Names of threads, in their order."""


class _Slice(msgspec.Struct):
    """A slice, or an instant event."""

    process: Author
    thread: str
    name: str
    start: int
    stop: int
    args: dict[str, Any]
    parts: list[tuple[str, int, int]] = msgspec.field(default_factory=list)
    """Slices inside it: name, start and stop."""
    instant: bool = False
    tid: int = 0


class _Flow(msgspec.Struct):
    """A connection from slice to slice."""

    name: str
    slices: list[_Slice]


def timeline_trace_events(timeline: Timeline) -> bytes:
    """Return a timeline as a JSON object of trace events. Times are in microseconds from its beginning."""
    slices, flows = _slices_and_flows(timeline)
    shift = -min((slice_.start for slice_ in slices), default=0)
    threads = _assign_threads(slices)
    events = [*_metadata_events(timeline, threads), *_sorted_events(slices, flows, max(shift, 0))]
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "began": timeline.began - max(shift, 0) / US_PER_SECOND,
            "duration_us": timeline.duration_us,
            "traced": timeline.traced,
        },
    }
    return msgspec.json.encode(document) + b"\n"


def _slices_and_flows(timeline: Timeline) -> tuple[list[_Slice], list[_Flow]]:
    """Return the slices and the flows of a timeline."""
    slices = [
        _Slice(elapsed.role, ELAPSED, elapsed.cause, elapsed.start_us, elapsed.stop_us, {})
        for elapsed in timeline.elapsed
        if elapsed.stop_us > elapsed.start_us
    ]
    slices.extend(_span_slice(span) for span in timeline.spans)
    errors = {client.role: client.error_us for client in timeline.clients}
    flows: list[_Flow] = []
    command_slices: list[list[_Slice]] = []
    for command in timeline.commands:
        flow_slices = list(_command_slices(command, errors[command.role]))
        command_slices.append(flow_slices)
        slices.extend(flow_slices)
        if command.answer_received_us is not None:
            args = {"error_us": errors[command.role]}
            label = f"answer to {message_label(command.type, command.phase)}"
            answer = _moment_slice(command.role, RECEIVED, label, command.answer_received_us, args)
            slices.append(answer)
            flows.append(_Flow("answer", [*flow_slices, answer]))
        elif len(flow_slices) > 1:
            flows.append(_Flow("command", flow_slices))
    for frame in timeline.frames:
        if frame.author == frame.role:
            continue
        frame_slices = list(_frame_slices(frame, errors[frame.role]))
        slices.extend(frame_slices)
        flow_slices = [*(command_slices[frame.command] if frame.command is not None else []), *frame_slices]
        if len(flow_slices) > 1:
            flows.append(_Flow("message" if frame.type == "message" else "response", flow_slices))
    return slices, flows


def _span_slice(span: TimelineSpan) -> _Slice:
    args = {} if span.phase is None else {"phase": span.phase}
    if span.stop_us is None:
        return _Slice(span.role, EVENTS, span.name, span.start_us, span.start_us, args, instant=True)
    return _Slice(span.role, SPANS, span.name, span.start_us, max(span.stop_us, span.start_us + MOMENT_US), args)


def _command_slices(command: TimelineCommand, error_us: int | None) -> Iterator[_Slice]:
    """Yield a command at its client and, if it is known when the server received it, at the server."""
    label = message_label(command.type, command.phase)
    stop = _slice_stop(command.sent_us, command.answer_received_us)
    args = {"answered": command.answer_received_us is not None, "error_us": error_us}
    yield _Slice(command.role, COMMANDS, label, command.sent_us, stop, args)
    if command.received_us is None:
        return
    ends = (command.answered_us, command.commit_us, command.received_us)
    last_time = max(end for end in ends if end is not None)
    at_server = _Slice(
        "server",
        COMMANDS,
        label,
        command.received_us,
        _slice_stop(command.received_us, last_time),
        {"from": command.role},
    )
    before = command.received_us
    began = command.commit_began_us
    marks = (
        (phases.QUEUE, began),
        (phases.COMMIT if began is not None else phases.QUEUE_AND_COMMIT, command.commit_us),
        (phases.ANSWER, command.answered_us if command.commit_us is not None else None),
    )
    for name, until in marks:
        if until is not None and until > before:
            at_server.parts.append((name, before, until))
            before = until
    yield at_server


def _frame_slices(frame: TimelineFrame, error_us: int | None) -> Iterator[_Slice]:
    """Yield a frame at the server, if it is known when it was sent, and at its client."""
    label = message_label(frame.type, frame.phase)
    if frame.sent_us is not None:
        yield _moment_slice("server", SENT, label, frame.sent_us, {"to": frame.role})
    yield _moment_slice(frame.role, RECEIVED, label, frame.received_us, {"from": frame.author, "error_us": error_us})


def _moment_slice(process: Author, thread: str, name: str, time_us: int, args: dict[str, Any]) -> _Slice:
    return _Slice(process, thread, name, time_us, time_us + MOMENT_US, args)


def _slice_stop(start: int, stop: int | None) -> int:
    """Return the end of a slice, which has a duration."""
    return start + MOMENT_US if stop is None else max(stop, start + MOMENT_US)


def _assign_threads(slices: Iterable[_Slice]) -> list[tuple[int, int, str]]:
    """Assign each slice to a thread where it overlaps no other. Return the threads: process, id, name."""
    groups: dict[tuple[int, int], list[_Slice]] = {}
    for slice_ in slices:
        groups.setdefault((PROCESSES[slice_.process], THREADS.index(slice_.thread)), []).append(slice_)
    threads: list[tuple[int, int, str]] = []
    for (process, thread), members in sorted(groups.items()):
        first_id, name = FIRST_THREAD + len(threads), THREADS[thread]
        numbers = range(_assign_thread_ids(members, first_id))
        threads.extend((process, first_id + number, f"{name} {number + 1}" if number else name) for number in numbers)
    return threads


def _assign_thread_ids(members: Iterable[_Slice], first_id: int) -> int:
    """Choose for each slice the first thread that is free. Return how many are used."""
    busy_threads: list[tuple[int, int]] = []  # until when, and the thread
    free_threads: list[int] = []
    count = 0
    for slice_ in sorted(members, key=lambda slice_: slice_.start):
        while busy_threads and busy_threads[0][0] <= slice_.start:
            heapq.heappush(free_threads, heapq.heappop(busy_threads)[1])
        if not free_threads:
            heapq.heappush(free_threads, first_id + count)
            count += 1
        slice_.tid = heapq.heappop(free_threads)
        heapq.heappush(busy_threads, (slice_.stop, slice_.tid))
    return count


def _metadata_events(timeline: Timeline, threads: Sequence[tuple[int, int, str]]) -> Iterator[dict[str, Any]]:
    used = {process for process, _, _ in threads}
    for name, pid in PROCESSES.items():
        if pid in used:
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for client in timeline.clients:
        error = "not known" if client.error_us is None else f"at most {duration(client.error_us)}"
        labels = {"labels": f"error of the clock: {error}"}
        yield {"ph": "M", "name": "process_labels", "pid": PROCESSES[client.role], "args": labels}
    for pid, tid, name in threads:
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def _sorted_events(slices: Iterable[_Slice], flows: Sequence[_Flow], shift: int) -> list[dict[str, Any]]:
    """Return the events by time. Of one time, slices come first, then the flows that bind to them, then parts."""
    keyed_events: list[tuple[int, int, dict[str, Any]]] = []
    kind: dict[str, Any]
    for slice_ in slices:
        thread = {"pid": PROCESSES[slice_.process], "tid": slice_.tid}
        fields = {
            "name": slice_.name,
            "cat": slice_.thread,
            "ts": slice_.start + shift,
            **thread,
            "args": slice_.args,
        }
        kind = {"ph": "i", "s": "t"} if slice_.instant else {"ph": "X", "dur": slice_.stop - slice_.start}
        keyed_events.append((slice_.start, 0, kind | fields))
        for name, start, stop in slice_.parts:
            part = {"ph": "X", "name": name, "cat": "server", "ts": start + shift, "dur": stop - start, **thread}
            keyed_events.append((start, 2, part))
    for flow_id, flow in enumerate(flows, 1):
        # A clock that was set, or a wrong --skew, may have a message received before it was sent.
        slices_of_flow = sorted(flow.slices, key=lambda slice_: slice_.start)
        for number, slice_ in enumerate(slices_of_flow):
            kind = {"ph": "s" if number == 0 else "t"}
            if number == len(slices_of_flow) - 1:
                kind = {"ph": "f", "bp": "e"}  # binds to the slice that it is in, instead of to the next
            thread = {"pid": PROCESSES[slice_.process], "tid": slice_.tid}
            fields = {"name": flow.name, "cat": "flow", "id": flow_id, "ts": slice_.start + shift, **thread}
            keyed_events.append((slice_.start, 1, kind | fields))
    keyed_events.sort(key=lambda item: item[:2])
    return [event for _, _, event in keyed_events]
