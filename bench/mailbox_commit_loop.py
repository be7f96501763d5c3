"""Carry out sessions in the commit loop, without sockets, so that a tool can count the instructions that they take.

python bench/mailbox_commit_loop.py FOLDER SESSIONS [--unmeasured]

All is the same in each run but the hashes of objects: the clock goes on by a microsecond whenever it is read, and the
dice are seeded. Sessions go on in step, `mailbox_scenarios.AT_A_TIME` at a time, as they do at saturation: so batches
have that many commands, or twice as many.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mailbox_unmeasured
import words
from mailbox_scenarios import AT_A_TIME
from mailbox_session import ALLOCATOR, LISTER, PHASES
from restante.mailbox.core.connection_state import ConnectionState
from restante.mailbox.core.model import Policy
from restante.mailbox.server.commit_loop import CommitLoop, Retention
from restante.mailbox.store.sqlite import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS_PER_READ = 1e-6


class SteadyClock:
    """A clock that goes on whenever it is read, however long that takes."""

    def __init__(self) -> None:
        self._seconds = 1.0

    def monotonic(self) -> float:
        self._seconds += SECONDS_PER_READ
        return self._seconds

    def wall(self) -> float:
        return 1.7e9 + self._seconds


class SeededDice:
    """Dice that fall alike in each run."""

    def __init__(self) -> None:
        random_numbers = random.Random(1)
        self.draw = random_numbers.randbytes
        self.below = random_numbers.randrange


class Side:
    """One client of a session: its connection, and what it has heard."""

    def __init__(self, commit_loop: CommitLoop, name: str) -> None:
        self._commit_loop = commit_loop
        self.name = name
        self.heard: dict[type[words.Reply], list[Any]] = {}
        self.connection = ConnectionState(self)
        commit_loop.dispatcher.add_connection(self.connection)

    def say(self, type_: str, **keys: object) -> None:
        self._commit_loop.receive(self.connection, words.command(type_, id="0001", **keys).decode())

    def one(self, kind: type[words.Reply]) -> Any:
        """Return the only reply of a kind."""
        (reply,) = self.heard[kind]
        return reply

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        for body in bodies:
            reply = words.parse(body + stamp)
            self.heard.setdefault(type(reply), []).append(reply)

    def hang_up(self, code: int, reason: str) -> None:
        raise AssertionError(f"the connection is closed: {code} {reason}")

    def ignore(self) -> None:
        pass

    pause = resume = large_messages_done = ignore


ROLES = ((ALLOCATOR, "allocate"), (LISTER, "list"))


class Session:
    """Two sides that share a nameplate and a mailbox. They say what mailbox_session.py says, one step at a time."""

    def __init__(self, commit_loop: CommitLoop, number: int) -> None:
        self._commit_loop = commit_loop
        self._number = number
        self._sides: list[Side] = []

    def steps(self) -> list[Callable[[], None]]:
        both = (self._release, 0), (self._release, 1), (self._add_rest, 0), (self._add_rest, 1)
        joining = [(step, nth) for nth in (0, 1) for step in (self._join, self._claim, self._open)]
        return [partial(step, nth) for step, nth in (*joining, *both, (self._close, 0), (self._close, 1))]

    def _join(self, nth: int) -> None:
        side = Side(self._commit_loop, f"{2 * self._number + nth:010x}")
        self._sides.append(side)
        side.say("bind", appid=words.APPID, side=side.name, client_version=["python", "0.24.0"])
        side.say(ROLES[nth][1])

    def _nameplate(self) -> str:
        nameplate: str = self._sides[0].one(words.Allocated).nameplate
        return nameplate

    def _claim(self, nth: int) -> None:
        self._sides[nth].say("claim", nameplate=self._nameplate())

    def _open(self, nth: int) -> None:
        side = self._sides[nth]
        side.say("open", mailbox=side.one(words.Claimed).mailbox)
        self._add(nth, 0, 1)

    def _add(self, nth: int, first: int, last: int) -> None:
        for phase, body in list(zip(PHASES, ROLES[nth][0].bodies, strict=True))[first:last]:
            self._sides[nth].say("add", phase=phase, body=body)

    def _release(self, nth: int) -> None:
        self._sides[nth].say("release", nameplate=self._nameplate())
        self._add(nth, 1, 2)

    def _add_rest(self, nth: int) -> None:
        self._add(nth, 2, 4)

    def _close(self, nth: int) -> None:
        side = self._sides[nth]
        side.say("close", mailbox=side.one(words.Claimed).mailbox, mood="happy")

    def leave(self) -> None:
        """End both connections. Raises AssertionError unless each side has heard everything."""
        for side in self._sides:
            assert side.one(words.Closed)
            assert len(side.heard[words.Message]) == 2 * len(PHASES)
            self._commit_loop.lose(side.connection)


async def run(folder: Path, sessions: int) -> None:
    """Carry out `sessions` sessions on a new store in a folder."""
    store = open_store(folder)
    commit_loop = await CommitLoop.open(store, SteadyClock(), SeededDice(), Policy(), Retention())
    running = asyncio.create_task(commit_loop.run())
    for first in range(0, sessions, AT_A_TIME):
        numbers = range(first, min(first + AT_A_TIME, sessions))
        together = [Session(commit_loop, number) for number in numbers]
        for at_once in (*zip(*(session.steps() for session in together), strict=True), [s.leave for s in together]):
            for step in at_once:
                step()
            await commit_loop.idle.wait()
    commit_loop.stop()
    await running
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the store is created")
    parser.add_argument("sessions", type=int)
    parser.add_argument("--unmeasured", action="store_true", help="without what the metrics do")
    options = parser.parse_args()
    if options.unmeasured:
        mailbox_unmeasured.measure_nothing()
    asyncio.run(run(options.folder, options.sessions))


if __name__ == "__main__":
    main()
