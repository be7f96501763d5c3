"""What is measured, what it should be, and the table that says so. Targets: docs/design.md, "Speed"."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servers import Kind


@dataclass(frozen=True)
class Target:
    """Two bounds on our own figure or on how many times better than the reference's it is."""

    of: Literal["ours", "ratio"]
    at_least: float
    aim: float


@dataclass(frozen=True)
class Figure:
    """A line of the table."""

    title: str
    higher_is_better: bool = False
    target: Target | None = None
    compared: bool = True


def times(at_least: float, aim: float) -> Target:
    """Bound how many times better ours is."""
    return Target("ratio", at_least, aim)


def own(at_least: float, aim: float) -> Target:
    """Bound our own figure."""
    return Target("ours", at_least, aim)


OPERATIONS = ("allocate", "claim", "open", "add", "release", "close")
FIGURES: dict[str, Figure] = {
    "sessions_per_cpu_second": Figure("sessions per CPU-second", True, times(12, 18)),
    "sessions_per_second": Figure("sessions/s, 50 at a time", True, times(20, 40)),
    "fsync_sessions_per_second": Figure("the same, fsync fixed at 2 ms", True, times(100, 200)),
    "flushes_saturated": Figure("device flushes a session, saturated", target=own(1.5, 0.7)),
    "flushes_light": Figure("device flushes a session, light load", target=own(10, 9)),
    "delivery_p50": Figure("add to delivery, light load, p50, ms", target=own(0.6, 0.35)),
    "delivery_p99": Figure("add to delivery, light load, p99, ms", target=own(3, 1)),
    "idle_kib": Figure("idle subscribed connection, KiB", target=own(14, 11)),
    "idle_tls_kib": Figure("  the same over TLS, KiB", target=own(40, 35)),
    "growth_worst": Figure("slowest growth of these six, {n} over empty, times", target=own(2, 1.2)),
    **{f"growth_{op}": Figure(f"  {op}, {{n}} over empty, times") for op in OPERATIONS},
    "list_cpu": Figure("list of {n}, CPU ms a repeat", target=own(1, 0.3)),
    "restart": Figure("start with {n} mailboxes, s", target=own(0.5, 0.2)),
    "restart_empty": Figure("  start with none, s"),
    "prune_stall": Figure("longest stall, {n} pruned, ms", target=own(10, 5)),
    "prune_floor": Figure("  longest stall, nothing to prune, ms"),
    "flood_p99": Figure("add to delivery while another floods, p99, ms", target=own(100, 10)),
    "flood_p50": Figure("  the same, p50, ms"),
    "costly_p99": Figure("add to delivery beside 20 who send costly texts, p99, ms", target=own(100, 20)),
    "costly_p50": Figure("  the same, p50, ms"),
    "costly_hold": Figure("longest wait behind one costly text of 2 MiB, ms", target=own(10, 5)),
    "cpu_per_session": Figure("  server CPU a session, ms"),
    "tls_cpu_per_session": Figure("  server CPU a session, over TLS, ms"),
    "tls_cpu_times": Figure("  sessions per CPU-second without TLS over those with it, times"),
    "saturated_delivery_p50": Figure("  add to delivery, saturated, p50, ms"),
    "light_cpu_per_session": Figure("  server CPU a session, light load, ms"),
    **{f"full_{op}": Figure(f"  {op} with {{n}} live, p50, ms") for op in OPERATIONS},
    "list_wall": Figure("  list of {n}, p50, ms"),
    "connects_per_second": Figure("  connect, bind, open a second", True),
    "generator_busy": Figure("  generator's share of its cpu, saturated", compared=False),
}


@dataclass
class Results:
    """Values of each figure by server or client, one a round, and what went wrong."""

    filled: int
    """What a title means by {n}."""
    figures: Mapping[str, Figure] = field(default_factory=lambda: FIGURES)
    values: dict[str, dict[Kind, list[float]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, figure: str, kind: Kind, value: float) -> None:
        self.values.setdefault(figure, {}).setdefault(kind, []).append(value)

    def median(self, figure: str, kind: Kind) -> float | None:
        values = self.values[figure].get(kind)
        return statistics.median(values) if values else None

    def ratio(self, figure: str) -> float | None:
        """How many times better ours is: the median of the rounds' own ratios."""
        if not self.figures[figure].compared:
            return None
        both = self.values[figure]
        pairs = zip(both.get("restante", ()), both.get("reference", ()), strict=False)
        better = self.figures[figure].higher_is_better
        ratios = [a / b if better else b / a for a, b in pairs if a > 0 and b > 0]
        return statistics.median(ratios) if ratios else None

    def verdict(self, figure: str) -> str:
        target = self.figures[figure].target
        if target is None:
            return ""
        value = self.ratio(figure) if target.of == "ratio" else self.median(figure, "restante")
        if value is None:
            return "-"
        sign = 1 if target.of == "ratio" or self.figures[figure].higher_is_better else -1
        if sign * value >= sign * target.aim:
            return "aim"
        return "enough" if sign * value >= sign * target.at_least else "MISSED"

    def _title(self, figure: str) -> str:
        return self.figures[figure].title.format(n=f"{self.filled:,}")

    def table(self) -> str:
        head = ("figure", "restante", "reference", "times better", "at least", "aim", "verdict")
        rows = [head, tuple("-" * len(word) for word in head)]
        rows += [self._row(name) for name in self.figures if name in self.values]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )

    def _row(self, name: str) -> tuple[str, ...]:
        target = self.figures[name].target
        suffix = "x" if target is not None and target.of == "ratio" else ""
        return (
            self._title(name),
            _number(self.median(name, "restante")),
            _number(self.median(name, "reference")),
            _number(self.ratio(name), "x"),
            _number(target.at_least, suffix) if target else "",
            _number(target.aim, suffix) if target else "",
            self.verdict(name),
        )

    def as_json(self) -> dict[str, Any]:
        return {
            name: {
                "title": self._title(name),
                "rounds": self.values[name],
                "restante": self.median(name, "restante"),
                "reference": self.median(name, "reference"),
                "ratio": self.ratio(name),
                "target": self.figures[name].target,
                "verdict": self.verdict(name),
            }
            for name in self.figures
            if name in self.values
        }


def _number(value: float | None, suffix: str = "") -> str:
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}{suffix}"
    return f"{value:.3g}{suffix}"
