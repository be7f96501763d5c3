"""Carry out sessions in the commit loop, without sockets, so that valgrind can count the instructions that they take.

python bench/mailbox_commit_loop.py FOLDER SESSIONS

With two numbers of sessions it prints the millions of instructions of a session: those of the second number less
those of the first one.

All is the same in each run but the hashes of objects: the clock advances by a microsecond at each read, and the dice
are seeded. Sessions advance in step, as many as `mailbox` runs at a time, as at saturation. So batches have that
many commands, or twice as many.
"""

from __future__ import annotations

import asyncio
import random
import sys
from mailbox import (
    ALLOCATOR,
    APPID,
    AT_A_TIME,
    LISTER,
    PHASES,
    Allocated,
    Claimed,
    Closed,
    Message,
    Reply,
    Role,
    encode_command,
    parse_reply,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
from restante.mailbox.core.connection_state import ConnectionState
from restante.mailbox.core.model import Policy
from restante.mailbox.server.commit_loop import CommitLoop, Retention
from restante.mailbox.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS_PER_READ = 1e-6


class SteadyClock:
    """A clock that advances whenever it is read, however long that takes."""

    def __init__(self) -> None:
        self._seconds = 1.0

    def monotonic(self) -> float:
        self._seconds += SECONDS_PER_READ
        return self._seconds

    def wall(self) -> float:
        return 1.7e9 + self._seconds


class SeededDice:
    """Dice whose numbers are the same in each run."""

    def __init__(self) -> None:
        random_numbers = random.Random(1)
        self.draw = random_numbers.randbytes
        self.below = random_numbers.randrange


class Side:
    """One client of a session: its connection, and the replies to it."""

    def __init__(self, commit_loop: CommitLoop, role: Role) -> None:
        self._commit_loop = commit_loop
        self._role = role
        self.replies: dict[type[Reply], list[Any]] = {}
        self.connection = ConnectionState(self)
        commit_loop.dispatcher.add_connection(self.connection)

    def send_command(self, type_: str, **keys: object) -> None:
        text = encode_command(type_, id="0001", **keys).decode()
        self._commit_loop.receive(self.connection, text, self._commit_loop.now())

    def add(self, start: int, stop: int) -> None:
        for phase, body in list(zip(PHASES, self._role.bodies, strict=True))[start:stop]:
            self.send_command("add", phase=phase, body=body)

    def only_reply(self, kind: type[Reply]) -> Any:
        """Return the only reply of a kind."""
        (reply,) = self.replies[kind]
        return reply

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        for body in bodies:
            reply = parse_reply(body + stamp)
            self.replies.setdefault(type(reply), []).append(reply)

    def hang_up(self, code: int, reason: str) -> None:
        raise AssertionError(f"the connection is closed: {code} {reason}")

    def ignore(self) -> None:
        pass

    pause = resume = large_messages_done = ignore


ROLES = ((ALLOCATOR, "allocate"), (LISTER, "list"))
CLIENT_VERSION = ("python", "0.24.0")
ENDED = object()


def session_steps(commit_loop: CommitLoop, number: int) -> Iterator[None]:
    """Send what the two sides of `mailbox.Session` send, in steps that wait for the replies.

    Raises AssertionError unless each side receives everything.
    """
    sides: list[Side] = []
    for role, command in ROLES:
        side = Side(commit_loop, role)
        sides.append(side)
        side.send_command("bind", appid=APPID, side=f"{2 * number + len(sides):010x}", client_version=CLIENT_VERSION)
        side.send_command(command)
        yield
        nameplate = sides[0].only_reply(Allocated).nameplate
        side.send_command("claim", nameplate=nameplate)
        yield
        side.send_command("open", mailbox=side.only_reply(Claimed).mailbox)
        side.add(0, 1)
        yield
    for side in sides:
        side.send_command("release", nameplate=nameplate)
        side.add(1, 2)
        yield
    for side in sides:
        side.add(2, 4)
        yield
    for side in sides:
        side.send_command("close", mailbox=side.only_reply(Claimed).mailbox, mood="happy")
        yield
    for side in sides:
        assert side.only_reply(Closed)
        assert len(side.replies[Message]) == 2 * len(PHASES)
        commit_loop.lose(side.connection)


async def run(folder: Path, sessions: int) -> None:
    """Carry out `sessions` sessions on a new store in a folder."""
    store = SqliteStore.open(folder)
    commit_loop = await CommitLoop.open(store, SteadyClock(), SeededDice(), Policy(), Retention(prune_after=660.0))
    running = asyncio.create_task(commit_loop.run())
    for start in range(0, sessions, AT_A_TIME):
        numbers = range(start, min(start + AT_A_TIME, sessions))
        steps = [session_steps(commit_loop, number) for number in numbers]
        while steps:
            steps = [session for session in steps if next(session, ENDED) is not ENDED]
            await commit_loop.idle.wait()
    commit_loop.stop()
    await running
    await store.close()


def millions_of_instructions(folder: str, few: int, many: int) -> float:
    """Return those of a session."""
    counts = [harness.count_instructions(__file__, f"{folder}/{number}", str(number)) for number in (few, many)]
    return (counts[1] - counts[0]) / (many - few) / 1e6


if __name__ == "__main__":
    folder, *numbers = sys.argv[1:]
    if len(numbers) == 1:
        asyncio.run(run(Path(folder), int(numbers[0])))
    else:
        print(millions_of_instructions(folder, *map(int, numbers)))
