"""A run of bench/waku.py: its size, its servers, what it measured, and the table of that beside the targets."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from restante.waku.devp2p import enode
from restante.waku.devp2p.enode import Enode
from servers import Bench, Server


@dataclass(frozen=True)
class Figure:
    """A line of the table: what status-go 0.x took on another machine, once; and what we must take at most.

    If higher is better, the bounds are what we must reach.
    """

    title: str
    status_go: str = ""
    at_least: float | None = None
    aim: float | None = None
    higher_is_better: bool = False


def _pages(name: str, headed: Figure, p99: Figure | None = None, *, by: str = "p50") -> dict[str, Figure]:
    """Return the lines of a kind of page: the one that its target is of, and what explains it."""
    below = {
        "p50": Figure("  p50 at the client, ms"),
        "p99": p99 or Figure("  p99, ms"),
        "cpu": Figure("  server CPU, ms"),
        "envelopes": Figure("  envelopes a page"),
        "busy": Figure("  generator's share of its cpu"),
    }
    del below[by]
    return {f"{name}_{part}": figure for part, figure in {by: headed, **below}.items()}


RATE_TARGET = {(4, 10): 12_000.0}
"""Envelopes a second that `ingest_rate` must reach, by window and packet. Others have no target."""

FIGURES = {
    "ingest": Figure("ingest of {n}, CPU µs an envelope, confirmed after fsync", "42 (without fsync)", 40, 28),
    "ingest_rate": Figure("  envelopes/s, {window} packets of {packet} unconfirmed", higher_is_better=True),
    "ingest_ack_p50": Figure("  confirmation p50, ms"),
    "ingest_ack_p99": Figure("  confirmation p99, ms"),
    "ingest_flushes": Figure("  envelopes a flush"),
    "ingest_peak": Figure("  peak resident, MiB"),
    "ingest_disk": Figure("  disk, bytes an envelope"),
    "crowd": Figure("200 envelopes/s with {idle} idle peers, CPU ms an envelope", "13.7, saturated", 0.5, 0.2),
    "crowd_ack_p50": Figure("  confirmation p50, ms"),
    "crowd_ack_p99": Figure("  confirmation p99, ms"),
    "idle_kib": Figure("idle peer, resident KiB", "60", 35, 25),
    "handshake": Figure("handshake, CPU µs", "450-490", 600, 450),
    "handshake_rate": Figure("  handshakes/s"),
    **_pages(
        "page_three",
        Figure("{n}, {topics} topics: 1-3 of them, p50, ms", "427", 5, 2),
        Figure("  p99, ms", "482", 15, 5),
    ),
    **_pages(
        "page_crowd", Figure("  the same, 8 clients at once, p50, ms", "3,350", 40, 20), Figure("  p99, ms", "3,855")
    ),
    **_pages("page_day", Figure("  the same, the newest day, p50, ms", "11.8"), Figure("  p99, ms", "23")),
    **_pages("page_bloom", Figure("bloom of 1-3 topics, p50, ms", "483", 10, 4), Figure("  p99, ms", "618")),
    **_pages("page_ten", Figure("10 topics, page of 1,000, CPU ms", "176", 12, 6), by="cpu"),
    **_pages("page_many", Figure("500 topics, page of 1,000, CPU ms", "6.5", 12, 6), by="cpu"),
    **_pages("page_half", Figure("bloom half full, page of 1,000, CPU ms", "6.5", 12, 6), by="cpu"),
    "page_all": Figure("everything, page after page, CPU µs an envelope", "1.8", 4, 2.7),
    "page_peak": Figure("  peak resident, MiB"),
    **_pages("page_million", Figure("{n} different topics: 1-3 of them, p50, ms", "", 10, 4)),
    **_pages("page_million_bloom", Figure("  bloom of 1-3, p50, ms")),
}


@dataclass
class Run:
    bench: Bench
    rounds: int
    envelopes: int
    idle: int
    handshakes: int
    seconds: float
    topics: int
    pages: int
    window: int
    packet: int
    values: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, figure: str, value: float) -> None:
        self.values.setdefault(figure, []).append(value)
        print(f"  {figure} {value:.4g}", file=sys.stderr)

    async def start(self, *flags: str, data: Path | None = None) -> tuple[Server, Enode]:
        """Start a server on an empty folder, or on what was made for it; `flags` come last, and so decide."""
        wide = ("--max-peers", "20000", "--max-peers-per-address", "20000", "--min-pow", "0", "--max-ttl", "4000000")
        limits = [part for name in ("bytes", "envelopes", "connects") for part in ("--limit", f"address_{name}=0")]
        server = await self.bench.start(
            "waku", data or self.bench.folder(), *wide, *limits, "--retention", "60", *flags
        )
        lines = server.log.read_text().splitlines()
        return server, enode.parse(next(line for line in lines if line.startswith("enode:")))

    def figure(self, name: str) -> Figure:
        """Return a figure with the targets that it has in this run."""
        if name == "ingest_rate":
            return replace(FIGURES[name], at_least=RATE_TARGET.get((self.window, self.packet)))
        return FIGURES[name]

    def table(self) -> str:
        head = ("figure", "restante", "status-go, elsewhere", "at least", "aim", "verdict")
        rows = [head, tuple("-" * len(word) for word in head)]
        for name in FIGURES:
            if name not in self.values:
                continue
            figure = self.figure(name)
            value = statistics.median(self.values[name])
            title = figure.title.format(
                n=f"{self.envelopes:,}",
                topics=f"{self.topics:,}",
                idle=f"{self.idle:,}",
                window=self.window,
                packet=self.packet,
            )
            bounds = ["" if bound is None else f"{bound:,g}" for bound in (figure.at_least, figure.aim)]
            rows.append(
                (
                    title,
                    f"{value:.3g}" if value < 1000 else f"{value:,.0f}",
                    figure.status_go,
                    *bounds,
                    verdict(figure, value),
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )


def verdict(figure: Figure, value: float) -> str:
    if figure.at_least is None:
        return ""
    sign = -1 if figure.higher_is_better else 1
    if figure.aim is not None and sign * value <= sign * figure.aim:
        return "aim"
    return "enough" if sign * value <= sign * figure.at_least else "MISSED"
