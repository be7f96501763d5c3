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
from restante.timing.model.timeline import ROLES, Role, Timeline, TimelineClient, TimelineCommand
from restante.timing.rank_test import Draws, Interval, p_value, required_runs, shift_interval, smallest_p, superiority

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


class MeasureChange(msgspec.Struct, frozen=True):
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
    changes: list[MeasureChange]


class RunMeasure(msgspec.Struct, frozen=True):
    """A number of each run that has it."""

    role: Role
    kind: Kind
    name: str
    old: Sequence[float]
    new: Sequence[float]


def compare_runs(old: Sequence[Timeline], new: Sequence[Timeline], dice: Random) -> Comparison:
    """Compare two groups of runs. Each client of a timeline is a run.

    Raises ValueError if a group has more than MAX_RUNS runs of a role, or if no role is in both.
    """
    groups = [Group(role, len(_runs(old, role)), len(_runs(new, role))) for role in ROLES]
    groups = [group for group in groups if group.old or group.new]
    if any(max(group.old, group.new) > MAX_RUNS for group in groups):
        raise ValueError(f"more than {MAX_RUNS} runs of one client are in one group")
    roles = [group.role for group in groups if group.old and group.new]
    if not roles:
        raise ValueError("one group has the sender's logs only, and the other the receiver's")
    measures = [measure for role in roles for measure in run_measures(old, new, role)]
    return Comparison(COMPARISON_VERSION, ALPHA, MARGIN, groups, *_measure_changes(measures, Draws(dice)))


def _runs(timelines: Iterable[Timeline], role: Role) -> list[tuple[Timeline, TimelineClient]]:
    return [(timeline, client) for timeline in timelines for client in timeline.clients if client.role == role]


def run_measures(old: Sequence[Timeline], new: Sequence[Timeline], role: Role) -> list[RunMeasure]:
    """Return what is compared of the runs of a role: only what both groups have, and what is not always 0."""
    groups = [_runs(timelines, role) for timelines in (old, new)]
    runs = [run for group in groups for run in group]
    names = _measure_names([timeline for timeline, _ in runs], [client for _, client in runs])
    times = [[_time_by_name(client, names) for _, client in group] for group in groups]
    causes = list(dict.fromkeys(names[cause] for cause in elapsed.CAUSES))
    measures = [
        RunMeasure(role, "elapsed", TOTAL, *([_own_time(spent) for spent in group] for group in times)),
        *(
            RunMeasure(role, "elapsed", cause, *([spent.get(cause, 0) for spent in group] for group in times))
            for cause in causes
        ),
    ]
    commands = [[[c for c in timeline.commands if c.role == role] for timeline, _ in group] for group in groups]
    for name, duration_of in _COMMAND_PHASES.items():
        if name != phases.ROUND_TRIP and _partly_traced(timeline for timeline, _ in runs):
            continue
        medians = [[m for run in group if (m := _median_us(run, duration_of)) is not None] for group in commands]
        measures.append(RunMeasure(role, "median", name, *medians))
    return [measure for measure in measures if measure.old and measure.new and any((*measure.old, *measure.new))]


def _measure_names(timelines: Sequence[Timeline], clients: Sequence[TimelineClient]) -> Mapping[str, str]:
    """Return what each cause counts as: causes that not all runs tell apart count as one."""
    names = {cause: cause for cause in elapsed.CAUSES}
    names |= dict.fromkeys((phases.NETWORK_OUT, phases.NETWORK_IN), NETWORK)
    causes = {spent.cause for client in clients for spent in client.spent}
    if phases.QUEUE_AND_COMMIT in causes:
        names |= dict.fromkeys((phases.QUEUE, phases.COMMIT), phases.QUEUE_AND_COMMIT)
    in_server = (phases.SERVER, phases.QUEUE, phases.COMMIT, phases.QUEUE_AND_COMMIT, phases.ANSWER)
    without_offset = (client for client in clients if client.offset_us is None)
    if _partly_traced(timelines) or any(
        spent.cause == phases.ROUND_TRIP for client in without_offset for spent in client.spent
    ):
        names |= dict.fromkeys((*in_server, phases.NETWORK_OUT, phases.NETWORK_IN), phases.ROUND_TRIP)
    return names


def _partly_traced(timelines: Iterable[Timeline]) -> bool:
    """Return whether some runs have no trace. Only a trace has when the server received most commands."""
    return len({timeline.traced for timeline in timelines}) > 1


def _time_by_name(client: TimelineClient, names: Mapping[str, str]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for spent in client.spent:
        name = names[spent.cause]
        sums[name] = sums.get(name, 0) + spent.us
    return sums


def _own_time(spent: Mapping[str, int]) -> int:
    return sum(us for cause, us in spent.items() if cause not in {phases.HUMAN, elapsed.PEER})


def _network_us(command: TimelineCommand) -> int | None:
    """Return how long a command and its answer were on their way. The offset cancels out."""
    server = phases.difference(command.answered_us, command.received_us)
    return phases.difference(phases.difference(command.answer_received_us, command.sent_us), server)


_COMMAND_PHASES: Final[Mapping[str, Callable[[TimelineCommand], int | None]]] = {
    phases.ROUND_TRIP: lambda command: phases.difference(command.answer_received_us, command.sent_us),
    NETWORK: _network_us,
    phases.SERVER: lambda command: phases.difference(command.answered_us, command.received_us),
    phases.QUEUE: lambda command: phases.difference(command.commit_began_us, command.received_us),
    phases.COMMIT: lambda command: phases.difference(command.commit_us, command.commit_began_us),
    phases.ANSWER: lambda command: phases.difference(command.answered_us, command.commit_us),
}
"""The phases of commands whose medians are compared. Spans are compared by their elapsed time alone."""


def _median_us(
    commands: Iterable[TimelineCommand], duration_of: Callable[[TimelineCommand], int | None]
) -> float | None:
    durations = [us for command in commands if (us := duration_of(command)) is not None]
    return statistics.median(durations) if durations else None


def _measure_changes(measures: Sequence[RunMeasure], draws: Draws) -> tuple[int, list[MeasureChange]]:
    """Return how many runs each group needs, and the changes."""
    alpha = ALPHA / max(len(measures), 1)
    corrected = holm_correction([p_value(measure.old, measure.new, draws) for measure in measures])
    return required_runs(alpha), [
        _measure_change(measure, p, alpha) for measure, p in zip(measures, corrected, strict=True)
    ]


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for their number (Holm 1979).

    If those of at most alpha are rejected, the probability that a true hypothesis is among them is at most alpha.
    """
    corrected = [1.0] * len(p_values)
    worst = 0.0
    for number, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        worst = max(worst, min(p_values[index] * (len(p_values) - number), 1.0))
        corrected[index] = worst
    return corrected


def _measure_change(measure: RunMeasure, p: float, alpha: float) -> MeasureChange:
    """Return a measure with its verdict. The intervals are true together with a probability of 1 - ALPHA."""
    old, new = measure.old, measure.new
    difference = shift_interval(old, new, alpha)
    ratio = None
    if min(*old, *new) > 0:
        logarithms = shift_interval([math.log(number) for number in old], [math.log(number) for number in new], alpha)
        if logarithms is not None:
            ratio = Interval(*(math.exp(logarithm) for logarithm in msgspec.structs.astuple(logarithms)))
    verdict: Verdict = "cannot tell"
    effect = superiority(old, new)
    if p <= ALPHA:
        verdict = "slower" if effect > 0 else "faster"
        # Holm's test may show a difference where the interval, which is for all tests at once, just does not.
        difference, ratio = _cut_at_no_change(difference, effect, 0.0), _cut_at_no_change(ratio, effect, 1.0)
    elif ratio is not None and ratio.low >= 1 / (1 + MARGIN) and ratio.high <= 1 + MARGIN:
        verdict = "same"
    medians = (statistics.median(old), statistics.median(new))
    return MeasureChange(
        measure.role, measure.kind, measure.name, len(old), len(new), *medians, difference, ratio, p, verdict
    )


def _cut_at_no_change(interval: Interval | None, effect: float, unchanged: float) -> Interval | None:
    """Return an interval without the side on which the change would be the opposite."""
    if interval is None:
        return None
    if effect > 0:
        return Interval(interval.estimate, max(interval.low, unchanged), interval.high)
    return Interval(interval.estimate, interval.low, min(interval.high, unchanged))


def too_few(change: MeasureChange, comparison: Comparison) -> bool:
    """Return whether no difference of this measure could be shown, however large it is."""
    return smallest_p(change.old, change.new) * len(comparison.changes) > comparison.alpha
