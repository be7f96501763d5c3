"""What the admin port of the relay shows: whether it is ready, metrics, JSON pages, and the dashboard.

docs/monitoring.md documents the fields.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from restante import __version__
from restante.common.admin_dashboard import Dashboard
from restante.common.admin_http import AdminPages, Query, page_of
from restante.common.metrics import CounterMetric, Family, GaugeMetric, Metric, families, page, total
from restante.common.refusal_pages import RefusalsLastHour, limits_page, most_refused
from restante.common.refusals import times_by_reason
from restante.common.transfer_records import MEANINGS
from restante.relay.core.relay import Pair, Side
from restante.relay.protocol.refusals import KINDS
from restante.relay.server.recording import Recording
from restante.relay.server.running_settings import RelaySettings
from restante.relay.server.server import Server

MAX_TOP_ADDRESSES: Final = 10
"""Addresses with the most bytes of this day that are shown."""

TOP_SECONDS: Final = 10.0
"""Seconds for which they are shown. To find them among 100,000 takes 0.1 s, in which the relay does nothing else."""


class Parts:
    """The parts of a relay that metrics are read from."""

    def __init__(self, server: Server, recording: Recording, *, ready: bool = False) -> None:
        self.server = server
        self.recording = recording
        self.ready = ready
        """What /readyz says."""
        self.relay = server.relay
        self.traffic = server.relay.traffic


METRICS: Final[Mapping[str, Metric[Parts]]] = {
    "restante_build_info": GaugeMetric("1, with the version", lambda _: {__version__: 1}, labels=("version",)),
    "restante_ready": GaugeMetric("1 if /readyz is 200, 0 if it is 503", lambda its: its.ready),
    "restante_relay_pairs": GaugeMetric("Pairs that run", lambda its: its.relay.pairs, "pairs.running"),
    "restante_relay_waiting": GaugeMetric(
        "Connections that wait for another side", lambda its: its.relay.waiting, "connections.waiting"
    ),
    "restante_relay_new": GaugeMetric(
        "Connections that have not sent their request yet", lambda its: its.relay.new, "connections.new"
    ),
    "restante_relay_connections_opened": CounterMetric(
        "Connections made, also those of HTTP, and refused ones", lambda its: its.server.opened, "connections.opened"
    ),
    "restante_relay_bytes": CounterMetric(
        "Bytes passed on, in both directions", lambda its: its.traffic.bytes, "bytes.since_start"
    ),
    "restante_relay_day_bytes": GaugeMetric(
        "Bytes passed on since 00:00 UTC", lambda its: its.traffic.day_bytes, "bytes.day"
    ),
    "restante_relay_month_bytes": GaugeMetric(
        "Bytes passed on in this month (UTC), which month_bytes limits",
        lambda its: its.traffic.month_bytes,
        "bytes.month",
    ),
    "restante_relay_month_limit_bytes": GaugeMetric(
        "The limit month_bytes; NaN if it is off",
        lambda its: its.relay.limits.month_bytes or math.nan,
        "bytes.month_limit",
    ),
    "restante_relay_slowed_pairs": GaugeMetric(
        "Pairs that are slowed because a total is reached",
        lambda its: sum(its.relay.slow_rate(pair) is not None for pair in its.server.running),
        "pairs.slowed",
    ),
    "restante_relay_results": CounterMetric(
        "Pairs and connections that ended, by result",
        lambda its: {str(result): times for result, times in its.relay.results.items()},
        "results",
        ("result",),
    ),
    "restante_relay_refusals": CounterMetric(
        "Refusals because of limits, by reason",
        lambda its: times_by_reason(KINDS, its.relay.refusal_counts.since_start),
        "refusals",
        ("reason",),
    ),
    "restante_relay_records_lost": CounterMetric(
        "Usage records that the disk did not take", lambda its: its.recording.lost_records, "records.lost"
    ),
    "restante_relay_recording": GaugeMetric(
        "1 if usage records are written, 0 if the last try failed",
        lambda its: not its.recording.problem,
        "records.written",
    ),
    "restante_relay_tls_handshakes_failed": CounterMetric(
        "Connections whose TLS handshake failed", lambda its: its.server.failed_handshakes, "tls.handshakes_failed"
    ),
    "restante_relay_tls_certificate_expires_seconds": GaugeMetric(
        "When the certificate in use expires, in seconds since 1970; NaN if there is none",
        lambda its: its.server.certificate.expires if its.server.certificate else math.nan,
        "tls.certificate_expires",
    ),
}
"""Labels have the values of tables in this code, never texts of clients."""

SERIES: Final = {
    "pairs": "restante_relay_pairs",
    "waiting": "restante_relay_waiting",
    "bytes": "restante_relay_bytes",
    "refusals": "restante_relay_refusals",
}
"""The metric whose history is kept under a name, over all labels."""


def of(server: Server, recording: Recording, settings: RelaySettings) -> AdminPages:
    """Return the pages of a relay."""
    pages = StatusPages(server, recording, settings)
    return AdminPages(
        unready=pages.unready,
        metrics=pages.metrics,
        flushing=lambda: None,  # the relay does not wait for the disk
        json={"/varz": pages.varz, "/connz": pages.connz, "/limitz": pages.limitz},
        dashboard=Dashboard(
            title="Restante transit relay",
            sections=(Path(__file__).with_name("web") / "sections.html").read_text("utf-8"),
            sample=pages.sample,
            details=pages.details,
        ),
    )


class StatusPages:
    """The pages of one relay."""

    def __init__(
        self,
        server: Server,
        recording: Recording,
        settings: RelaySettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._relay = server.relay
        self._recording = recording
        self._settings = settings
        self._started = server.now()
        self._refusals = RefusalsLastHour(KINDS, server.relay.refusal_counts, clock)
        self._clock = clock
        self._top: list[tuple[str, int]] = []
        self._top_expires = -math.inf

    def unready(self) -> str:
        """Return why no traffic should be sent to the relay, "" if there is no reason."""
        limit = self._relay.limits.month_bytes
        if self._server.draining:
            return "draining"
        if limit and self._relay.traffic.month_bytes >= limit:
            return "the bytes of this month are used up"
        return ""

    async def metrics(self, ready: bool) -> Iterable[Family]:
        """Return all metrics."""
        return list(families(METRICS, Parts(self._server, self._recording, ready=ready)))

    async def varz(self, _query: Query) -> dict[str, Any]:
        """Return counts of the relay."""
        now = self._server.now()
        other_fields = {
            "version": __version__,
            "time": now.wall,
            "started": self._started.wall,
            "uptime_seconds": now.service - self._started.service,
            "refused_addresses": most_refused(self._relay.refusal_counts),
            "top_addresses": [
                {"address_id": address_id, "bytes": size} for address_id, size in self._top_addresses()
            ],
            "records.problem": self._recording.problem,
            "bytes.running": sum(pair.bytes for pair in self._server.running),
        }
        return page(METRICS, Parts(self._server, self._recording), other_fields)

    def _top_addresses(self) -> list[tuple[str, int]]:
        now = self._clock()
        if now >= self._top_expires:
            self._top, self._top_expires = self._relay.traffic.top(MAX_TOP_ADDRESSES), now + TOP_SECONDS
        return self._top

    async def connz(self, query: Query) -> dict[str, Any]:
        """Return the connections that wait, then those of pairs, oldest first. Raises Misuse for wrong arguments."""
        sides: list[tuple[Side, Pair | None]] = [(side, None) for side in self._relay.waiting_sides()]
        sides += [(side, pair) for pair in self._server.running for side in (pair.first, pair.second)]
        return page_of(sides, query, self._connection)

    def _connection(self, row: tuple[Side, Pair | None]) -> dict[str, Any]:
        side, pair = row
        return {
            "address_id": side.address_id,
            "age_seconds": self._server.now().service - side.started.service,
            "paired": pair is not None,
            "pair_bytes": 0 if pair is None else pair.bytes,
        }

    async def limitz(self, _query: Query) -> dict[str, Any]:
        """Return each limit, how much of it is used if it is one of the whole relay, and its refusals."""
        relay = self._relay
        used = {
            "waiting": relay.new + relay.waiting,
            "pairs": relay.pairs,
            "month_bytes": relay.traffic.month_bytes,
        }
        return limits_page(KINDS, relay.limits, used, relay.refusal_counts)

    async def sample(self) -> dict[str, float]:
        """Return the values whose history is kept: counts since the start, and gauges."""
        self._refusals.remember()
        parts = Parts(self._server, self._recording)
        return {name: total(METRICS, parts, metric) for name, metric in SERIES.items()}

    async def details(self) -> dict[str, Any]:
        """Return all that the dashboard shows."""
        counts = await self.varz({})
        certificate = self._server.certificate
        left = None if certificate is None else max(0.0, certificate.expires - self._server.clock.wall())
        return {
            **counts,
            "limits": (await self.limitz({}))["limits"],
            "results_by_time": {"since_start": counts["results"]},
            "meanings": MEANINGS,
            "refusals_by_reason": self._refusals.rows(self._relay.limits),
            "refusals_since_start": sum(counts["refusals"].values()),
            "reports_url": self._settings.settings.reports_url,
            "certificate": None if certificate is None else {"expires": certificate.expires, "left_seconds": left},
        }
