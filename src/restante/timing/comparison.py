"""What got slower or faster between two groups of runs.

A run is the log of one client. Runs are compared by role: how long each cause took of a run, and the median of each
phase of a run's commands. A difference is reported if a rank test shows it. If the groups are equal, the probability
that any of the tests reports a difference is 5 % at most (Holm's correction).

The delays of one direction depend on the estimate of the client's offset, which halves the fastest round trip. So
"network" is both directions here. For a command, the offset cancels out; it matters only for messages of the other
side, which have one direction.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Final, Literal

import msgspec

from restante.timing.model import elapsed, phases
from restante.timing.model.timeline import ROLES, Client, Command, Role, Timeline
from restante.timing.rank_test import Draws, Interval, interval, p_value, runs_needed, smallest_p, superiority

COMPARISON_VERSION: Final = 1
"""Version of the JSON. A new key does not change it."""

ALPHA: Final = 0.05
"""Probability with which any measure is reported as different although it is not; likewise as the same."""

MARGIN: Final = 0.10
"""Change that counts as none: a measure is the same if its change is shown to be smaller."""

MAX_RUNS: Final = 200
"""Runs of each group, for each role. Twice as many take four times as long."""

NETWORK: Final = "network"
"""Both directions together."""

TOTAL: Final = "total"
"""A run's elapsed time without the causes `human` and `peer`."""

Kind = Literal["elapsed", "median"]
Verdict = Literal["slower", "faster", "same", "cannot tell"]


class Group(msgspec.Struct, frozen=True):
    """How many runs of a role there are. A role with runs in one group only is not compared."""

    role: Role
    old: int
    new: int


class Change(msgspec.Struct, frozen=True):
    """A measure in both groups. Times are in microseconds."""

    role: Role
    kind: Kind
    """elapsed: the time of a run that has this cause. median: the median of a run's commands."""
    name: str
    """A cause or phase of docs/timing/specification.md, NETWORK or TOTAL."""
    old: int
    """Runs that have it."""
    new: int
    old_median_us: float
    new_median_us: float
    difference_us: Interval | None
    """How much longer it takes in the new runs. None: there are too few runs."""
    ratio: Interval | None
    """New over old, likewise; None also if a value is not positive."""
    p: float
    """The p-value of the test, corrected for the number of tests."""
    verdict: Verdict
    """slower, faster: shown to differ. same: shown to differ by less than MARGIN. cannot tell: neither."""


class Comparison(msgspec.Struct, frozen=True):
    """Two groups of runs."""

    version: int
    alpha: float
    margin: float
    groups: list[Group]
    runs_needed: int
    """Runs that each group needs for a difference to be shown, if it is large. With fewer, each verdict is
    "cannot tell"."""
    changes: list[Change]


class Measure(msgspec.Struct, frozen=True):
    """A number of each run that has it."""

    role: Role
    kind: Kind
    name: str
    old: Sequence[float]
    new: Sequence[float]


def compare(old: Sequence[Timeline], new: Sequence[Timeline], dice: Random) -> Comparison:
    """Compare two groups of runs. Each client of a timeline is a run.

    Raises ValueError if a group has more than MAX_RUNS runs of a role, or if no role is in both.
    """
    groups = [Group(role, len(_clients(old, role)), len(_clients(new, role))) for role in ROLES]
    groups = [group for group in groups if group.old or group.new]
    if any(max(group.old, group.new) > MAX_RUNS for group in groups):
        raise ValueError(f"more than {MAX_RUNS} runs of one client are in one group")
    compared = [group.role for group in groups if group.old and group.new]
    if not compared:
        raise ValueError("one group has the sender's logs only, and the other the receiver's")
    measured = [measure for role in compared for measure in measures(old, new, role)]
    return Comparison(COMPARISON_VERSION, ALPHA, MARGIN, groups, *_changes(measured, Draws(dice)))


def _clients(timelines: Iterable[Timeline], role: Role) -> list[tuple[Timeline, Client]]:
    return [(each, client) for each in timelines for client in each.clients if client.role == role]


def measures(old: Sequence[Timeline], new: Sequence[Timeline], role: Role) -> list[Measure]:
    """Return what is compared of the runs of a role: only what both groups have, and what is not always 0."""
    sides = [_clients(timelines, role) for timelines in (old, new)]
    both = [run for side in sides for run in side]
    names = _names([timeline for timeline, _ in both], [client for _, client in both])
    spent = [[_spent(client, names) for _, client in side] for side in sides]
    causes = list(dict.fromkeys(names[cause] for cause in elapsed.CAUSES))
    found = [
        Measure(role, "elapsed", TOTAL, *([_total(each) for each in side] for side in spent)),
        *(
            Measure(role, "elapsed", cause, *([each.get(cause, 0) for each in side] for side in spent))
            for cause in causes
        ),
    ]
    commands = [[[c for c in timeline.commands if c.role == role] for timeline, _ in side] for side in sides]
    for name, measured in _PHASES.items():
        if name != phases.ROUND_TRIP and _mixed(timeline for timeline, _ in both):
            continue
        medians = [[m for run in side if (m := _median(run, measured)) is not None] for side in commands]
        found.append(Measure(role, "median", name, *medians))
    return [each for each in found if each.old and each.new and any((*each.old, *each.new))]


def _names(timelines: Sequence[Timeline], clients: Sequence[Client]) -> Mapping[str, str]:
    """Return what each cause counts as: causes that not all runs tell apart count as one."""
    names = {cause: cause for cause in elapsed.CAUSES}
    names |= dict.fromkeys((phases.NETWORK_OUT, phases.NETWORK_IN), NETWORK)
    found = {spent.cause for client in clients for spent in client.spent}
    if phases.QUEUE_AND_COMMIT in found:
        names |= dict.fromkeys((phases.QUEUE, phases.COMMIT), phases.QUEUE_AND_COMMIT)
    in_server = (phases.SERVER, phases.QUEUE, phases.COMMIT, phases.QUEUE_AND_COMMIT, phases.ANSWER)
    unknown = (client for client in clients if client.offset_us is None)
    if _mixed(timelines) or any(spent.cause == phases.ROUND_TRIP for client in unknown for spent in client.spent):
        names |= dict.fromkeys((*in_server, phases.NETWORK_OUT, phases.NETWORK_IN), phases.ROUND_TRIP)
    return names


def _mixed(timelines: Iterable[Timeline]) -> bool:
    """Return whether some runs have no trace. Only a trace has when the server received most commands."""
    return len({timeline.traced for timeline in timelines}) > 1


def _spent(client: Client, names: Mapping[str, str]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for spent in client.spent:
        name = names[spent.cause]
        sums[name] = sums.get(name, 0) + spent.us
    return sums


def _total(spent: Mapping[str, int]) -> int:
    return sum(us for cause, us in spent.items() if cause not in {phases.HUMAN, elapsed.PEER})


def _less(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _network(command: Command) -> int | None:
    """Return how long a command and its answer were on their way. The offset cancels out."""
    server = _less(command.answered_us, command.received_us)
    return _less(_less(command.answer_received_us, command.sent_us), server)


_PHASES: Final[Mapping[str, Callable[[Command], int | None]]] = {
    phases.ROUND_TRIP: lambda command: _less(command.answer_received_us, command.sent_us),
    NETWORK: _network,
    phases.SERVER: lambda command: _less(command.answered_us, command.received_us),
    phases.QUEUE: lambda command: _less(command.commit_began_us, command.received_us),
    phases.COMMIT: lambda command: _less(command.commit_us, command.commit_began_us),
    phases.ANSWER: lambda command: _less(command.answered_us, command.commit_us),
}
"""The phases of commands whose medians are compared. Spans are compared by their elapsed time alone."""


def _median(commands: Iterable[Command], measured: Callable[[Command], int | None]) -> float | None:
    found = [us for command in commands if (us := measured(command)) is not None]
    return statistics.median(found) if found else None


def _changes(measured: Sequence[Measure], draws: Draws) -> tuple[int, list[Change]]:
    """Return how many runs each group needs, and the changes."""
    alpha = ALPHA / max(len(measured), 1)
    corrected = holm([p_value(each.old, each.new, draws) for each in measured])
    return runs_needed(alpha), [_change(each, p, alpha) for each, p in zip(measured, corrected, strict=True)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for their number (Holm 1979).

    If those of at most alpha are rejected, the probability that a true hypothesis is among them is at most alpha.
    """
    corrected = [1.0] * len(p_values)
    worst = 0.0
    for number, at in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        worst = max(worst, min(p_values[at] * (len(p_values) - number), 1.0))
        corrected[at] = worst
    return corrected


def _change(measure: Measure, p: float, alpha: float) -> Change:
    """Return a measure with its verdict. The intervals are true together with a probability of 1 - ALPHA."""
    old, new = measure.old, measure.new
    difference = interval(old, new, alpha)
    ratio = None
    if min(*old, *new) > 0:
        logarithms = interval([math.log(each) for each in old], [math.log(each) for each in new], alpha)
        if logarithms is not None:
            ratio = Interval(*(math.exp(each) for each in msgspec.structs.astuple(logarithms)))
    verdict: Verdict = "cannot tell"
    larger = superiority(old, new)
    if p <= ALPHA:
        verdict = "slower" if larger > 0 else "faster"
        # Holm's test may show a difference where the interval, which is for all tests at once, just does not.
        difference, ratio = _on_one_side(difference, larger, 0.0), _on_one_side(ratio, larger, 1.0)
    elif ratio is not None and ratio.low >= 1 / (1 + MARGIN) and ratio.high <= 1 + MARGIN:
        verdict = "same"
    medians = (statistics.median(old), statistics.median(new))
    return Change(
        measure.role, measure.kind, measure.name, len(old), len(new), *medians, difference, ratio, p, verdict
    )


def _on_one_side(found: Interval | None, larger: float, none: float) -> Interval | None:
    """Return an interval without the side on which the change would be the opposite."""
    if found is None:
        return None
    if larger > 0:
        return Interval(found.estimate, max(found.low, none), found.high)
    return Interval(found.estimate, found.low, min(found.high, none))


def too_few(change: Change, comparison: Comparison) -> bool:
    """Return whether no difference of this measure could be shown, however large it is."""
    return smallest_p(change.old, change.new) * len(comparison.changes) > comparison.alpha
