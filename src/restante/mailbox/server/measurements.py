"""What the commit loop measures for the metrics: counts and durations since the start, of a fixed number of kinds."""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Final, NamedTuple, get_args

from restante.common.histogram import Histogram
from restante.common.usage_records import MailboxUsage, NameplateUsage, Result
from restante.mailbox.core.model import OK, OUTCOMES, BatchCounts, Now
from restante.mailbox.protocol.messages import KINDS
from restante.mailbox.protocol.parsing import Malformed

SECONDS_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of durations. A commit on a fast disk takes 0.1 ms, on a disk of a cheap machine 20 ms; a client
gives up after some seconds."""

COMMAND_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
"""Upper bounds of commands in a batch (commit_loop.MAX_BATCH_COMMANDS)."""

SLOW_COMMIT_SECONDS: Final = 0.25
"""Seconds from which on a commit is slow: people notice it."""

STORE_PROBLEM_SECONDS: Final = 10.0
"""Seconds for which a batch that was not stored makes the server unready. Then only a new batch shows whether the
store works again, and none comes while a load balancer waits for the server to be ready."""

MAX_SLOW_COMMITS: Final = 20
"""Slow commits that are remembered one by one, the latest ones."""

COMMAND_TYPES: Final = {
    **{kind: name for name, kind in KINDS.items()},
    Malformed: "malformed",
    type(None): "unreadable",
}
"""Types of commands by their class. `malformed` is a JSON object that is no valid message. `unreadable` is a text
that is no JSON object, or is too expensive to decode."""


class SlowCommit(NamedTuple):
    """A slow commit."""

    at: float
    """Wall time at which it began, in seconds since 1970."""
    seconds: float
    changes: int


class Measurements:
    """Counts since the start of the server. Other threads may read them, since no key is ever added or removed."""

    def __init__(self) -> None:
        self.carried_out = Counter[type](dict.fromkeys(COMMAND_TYPES, 0))
        self.not_carried_out = Counter[tuple[type, str]](
            {(kind, outcome): 0 for kind in COMMAND_TYPES for outcome in OUTCOMES}
        )
        self.results: dict[tuple[type, Result], int] = {
            (kind, result): 0 for kind in (NameplateUsage, MailboxUsage) for result in get_args(Result)
        }
        """Nameplates and mailboxes that ended, by result, also those whose usage record was left out."""
        self.batch_commands = Histogram(COMMAND_BOUNDS)
        """Commands of each batch that had any."""
        self.commit_seconds = Histogram(SECONDS_BOUNDS)
        """Seconds from the first statement of a batch until it was on disk."""
        self.delivery_seconds = Histogram(SECONDS_BOUNDS)
        """Seconds from the receipt of each `add` that was stored until it was on disk. Then its message goes to those
        who have the mailbox open."""
        self.slow_commits = 0
        self.latest_slow_commits: deque[SlowCommit] = deque(maxlen=MAX_SLOW_COMMITS)
        self.disk_free = math.nan
        """Bytes that the server can still write on its disk. NaN: not known."""
        self.wal_bytes = math.nan
        """Bytes of the database's write-ahead log. NaN: not known."""
        self.batches_not_stored = 0
        self._store_problem = ""
        """Why the last batch could not be stored; "" if it was."""
        self._problem_until = 0.0
        """Service time until which that counts."""
        self.solved = 0
        """Connections that have shown the work that was demanded of them."""
        self.pruned = 0
        """Mailboxes that were pruned."""
        self.prunes = 0
        self.prune_seconds = 0.0
        """Seconds that the last prune took, with the commands that were handled meanwhile."""
        self._prune_began: float | None = None

    def committed(self, began: Now, now: float, changes: int, added: list[float]) -> None:
        """Record a commit that ended at a service time. `added` says when its messages were received."""
        seconds = now - began.service
        self.commit_seconds.add(seconds)
        self._store_problem = ""
        if seconds >= SLOW_COMMIT_SECONDS:
            self.slow_commits += 1
            self.latest_slow_commits.append(SlowCommit(began.wall, seconds, changes))
        if added:
            self.delivery_seconds.add_since(added, now)

    def not_stored(self, reason: str, now: float) -> None:
        """Record a batch that the disk did not take at a service time."""
        self.batches_not_stored += 1
        self._store_problem, self._problem_until = reason, now + STORE_PROBLEM_SECONDS

    def store_problem(self, now: float) -> str:
        """Return why the last batch could not be stored, or "" if it was or that is long ago. Any thread may ask."""
        return self._store_problem if now < self._problem_until else ""

    def answered(self, batch: BatchCounts) -> None:
        """Record the commands of a batch that is on disk, and what ended in it."""
        if number := len(batch.carried_out) + len(batch.others):
            self.batch_commands.add(number)
        self.carried_out.update(batch.carried_out)
        self.not_carried_out.update(batch.others)
        self.pruned += batch.pruned
        self.solved += batch.solved
        for record in batch.ended:
            self.results[type(record), record.result] += 1

    def commands(self, kind: type, outcome: str) -> int:
        """Return the number of commands of a type (COMMAND_TYPES) with an outcome."""
        return self.carried_out[kind] if outcome is OK else self.not_carried_out[kind, outcome]

    def prune_given_up(self) -> None:
        """Record that maintenance was given up, because a batch was undone or the server stops."""
        self._prune_began = None

    def prune_began(self, now: float) -> None:
        """Record that a prune began."""
        self._prune_began = now

    def prune_ended(self, now: float) -> None:
        """Record that maintenance ended. It was a prune if one began."""
        if self._prune_began is not None:
            self.prunes += 1
            self.prune_seconds, self._prune_began = now - self._prune_began, None
