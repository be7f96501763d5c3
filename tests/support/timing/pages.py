"""Timelines made by hand: a transfer whose sender waits for its peer, and ones that lack something."""

from __future__ import annotations

import msgspec

from restante.timing.model.timeline import Client, Command, Delay, Elapsed, Frame, Role, Span, Spent, Timeline

MS = 1_000


def command(
    role: Role, kind: str, sent: int, phase: str | None = None, *, out: int = 20, queue: int = 1, commit: int = 4
) -> Command:
    """Return a command with known delays, in milliseconds; the way back takes as long as the way out."""
    rx = sent + out
    done = rx + queue + commit
    times = (sent, rx, rx + queue, done, done, done + out)
    return Command(role, kind, phase, *(time * MS for time in times))


def delivery(of: Command, at: int, receiver: Role, *, sent: int | None = None, back: int = 30) -> Frame:
    """Return the frame that brings a message to a client: at once, or when it was sent."""
    assert of.commit_us is not None
    left = of.commit_us if sent is None else sent * MS
    return Frame(receiver, "message", of.phase, of.role, at, left, left + back * MS)


def response(role: Role, kind: str, sent: int) -> Frame:
    return Frame(role, kind, None, "server", None, sent * MS, (sent + 20) * MS)


def waited() -> Timeline:
    """Return a transfer of 3.4 s whose sender waits 2.4 s until the receiver starts."""
    commands = [
        command("sender", "bind", 60),
        command("sender", "allocate", 110),
        command("sender", "claim", 160),
        command("sender", "add", 240, "pake"),
        command("receiver", "bind", 2660, out=30),
        command("receiver", "claim", 2800, out=30),
        command("receiver", "add", 2880, "pake", out=30),
        command("sender", "add", 2960, "version"),
        command("receiver", "add", 3000, "version", out=30, commit=60),
        command("sender", "add", 3140, "0"),
        command("receiver", "add", 3240, "0", out=30),
        command("sender", "close", 3330),
    ]
    frames = [
        response("sender", "welcome", 30),
        response("sender", "allocated", 135),
        response("sender", "claimed", 185),
        response("receiver", "welcome", 2640),
        delivery(commands[3], 3, "receiver", sent=2850),
        delivery(commands[6], 6, "sender", back=20),
        delivery(commands[7], 7, "receiver"),
        delivery(commands[8], 8, "sender", back=20),
        delivery(commands[9], 9, "receiver"),
        delivery(commands[10], 10, "sender", back=20),
    ]
    spans = [
        Span("sender", "import", None, 0, 25 * MS),
        Span("sender", "exit", None, 3395 * MS, None),
        Span("sender", "pake2", "crypto", 2940 * MS, 2958 * MS),
        Span("receiver", "input code", "human", 2700 * MS, 2790 * MS),
        Span("receiver", "rx file", "transfer", 3280 * MS, 3360 * MS),
    ]
    elapsed = [
        Elapsed("sender", "program", 0, 60 * MS),
        Elapsed("sender", "network out", 60 * MS, 80 * MS),
        Elapsed("sender", "commit", 80 * MS, 85 * MS),
        Elapsed("sender", "network in", 85 * MS, 105 * MS),
        Elapsed("sender", "program", 105 * MS, 285 * MS),
        Elapsed("sender", "peer", 285 * MS, 2940 * MS),
        Elapsed("sender", "crypto", 2940 * MS, 2958 * MS),
        Elapsed("sender", "network out", 2958 * MS, 3395 * MS),
        Elapsed("receiver", "program", 2600 * MS, 2700 * MS),
        Elapsed("receiver", "human", 2700 * MS, 2790 * MS),
        Elapsed("receiver", "network out", 2790 * MS, 3280 * MS),
        Elapsed("receiver", "transfer", 3280 * MS, 3360 * MS),
        Elapsed("receiver", "program", 3360 * MS, 3400 * MS),
    ]
    peer = {"not running": 2315 * MS, "human": 90 * MS, "program": 100 * MS, "network out": 150 * MS}
    sender = [
        Spent("peer", 2655 * MS, peer),
        Spent("crypto", 18 * MS),
        Spent("network out", 457 * MS),
        Spent("commit", 5 * MS),
        Spent("network in", 20 * MS),
        Spent("program", 240 * MS),
    ]
    receiver = [
        Spent("human", 90 * MS),
        Spent("transfer", 80 * MS),
        Spent("network out", 490 * MS),
        Spent("program", 140 * MS),
    ]
    delays = [
        Delay("sender", "network out", 7, 0, 140 * MS, 20 * MS, 20 * MS, 500),
        Delay("sender", "commit", 7, 0, 28 * MS, 4 * MS, 4 * MS, None),
        Delay("sender", "round trip", 7, 0, 315 * MS, 45 * MS, 45 * MS, None),
        Delay("receiver", "network out", 5, 0, 150 * MS, 30 * MS, 30 * MS, 2 * MS),
        Delay("receiver", "transfer", 1, 1, 80 * MS, 80 * MS, 80 * MS, None),
    ]
    return Timeline(
        version=1,
        began=1_795_000_000.0,
        duration_us=3400 * MS,
        traced=True,
        clients=[
            Client("sender", 30, 0, 3395 * MS, 1_250_000, 500, 0, False, sender),
            Client("receiver", 24, 2600 * MS, 3400 * MS, -70_000, 2 * MS, 0, False, receiver),
        ],
        commands=commands,
        frames=frames,
        spans=spans,
        elapsed=elapsed,
        delays=delays,
    )


def of_one(role: Role) -> Timeline:
    """Return the same transfer from the log of one client only, without a trace."""
    whole = waited()
    kept = [at for at, each in enumerate(whole.commands) if each.role == role]
    frames = []
    for frame in whole.frames:
        if frame.role == role:
            at = kept.index(frame.command) if frame.command in kept else None
            author = "peer" if frame.author not in {role, "server"} else frame.author
            frames.append(msgspec.structs.replace(frame, command=at, author=author))
    untraced = [
        msgspec.structs.replace(whole.commands[at], received_us=None, commit_began_us=None, commit_us=None)
        for at in kept
    ]
    client = next(each for each in whole.clients if each.role == role)
    spent = [Spent(each.cause, each.us) for each in client.spent]
    return msgspec.structs.replace(
        whole,
        traced=False,
        clients=[msgspec.structs.replace(client, spent=spent)],
        commands=untraced,
        frames=frames,
        spans=[each for each in whole.spans if each.role == role],
        elapsed=[each for each in whole.elapsed if each.role == role],
        delays=[each for each in whole.delays if each.role == role],
    )


def not_compared() -> Timeline:
    """Return a failed transfer: no offset is known, and most times are missing."""
    whole = of_one("sender")
    clients = [msgspec.structs.replace(each, offset_us=None, error_us=None) for each in whole.clients]
    commands = [
        msgspec.structs.replace(
            each, answered_us=None, answer_received_us=None if at > 1 else each.answer_received_us
        )
        for at, each in enumerate(whole.commands)
    ]
    commands[0] = msgspec.structs.replace(commands[0], type=None)
    commands[1] = msgspec.structs.replace(commands[1], type="")
    frames = [msgspec.structs.replace(each, sent_us=None) for each in whole.frames[:2]]
    spans = [*whole.spans, Span("sender", "transit connect", "transit connect", 3000 * MS, None)]
    delays = [
        Delay("sender", "network out", 0, 7, 0, None, None, None),
        Delay("sender", "round trip", 2, 5, 90 * MS, 45 * MS, 45 * MS, None),
    ]
    return msgspec.structs.replace(
        whole, clients=clients, commands=commands, frames=frames, spans=spans, delays=delays
    )


def without_commands() -> Timeline:
    """Return a transfer whose client never reached the server."""
    whole = not_compared()
    return msgspec.structs.replace(whole, commands=[], frames=[], delays=[])


def of_a_moment() -> Timeline:
    """Return the timeline of a log with one event, which has no duration."""
    client = Client("receiver", 1, 0, 0, None, None, 0, False, [])
    return Timeline(1, 1_795_000_000.0, 0, False, [client], [], [], [Span("receiver", "exit", None, 0, None)], [], [])


def hostile(words: str) -> Timeline:
    """Return a timeline with words where only those of the lists can be."""
    whole = waited()
    commands = [msgspec.structs.replace(each, type=words, phase=words) for each in whole.commands]
    spans = [msgspec.structs.replace(each, name=words) for each in whole.spans]
    return msgspec.structs.replace(whole, commands=commands, spans=spans)


def lasting(durations: list[int]) -> Timeline:
    """Return a timeline with steps that take so long, in microseconds."""
    spans = [Span("sender", "import", None, at, at + each) for at, each in enumerate(durations)]
    end = max(durations) + len(durations)
    client = Client("sender", len(spans), 0, end, 0, 1, 0, False, [Spent("program", end)])
    return Timeline(
        1, 1_795_000_000.0, end, False, [client], [], [], spans, [Elapsed("sender", "program", 0, end)], []
    )
