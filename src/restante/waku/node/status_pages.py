"""What the admin port of the Waku node shows: whether it is ready, metrics, and JSON pages.

docs/monitoring.md documents the fields.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from restante import __version__
from restante.common.admin_dashboard import Dashboard
from restante.common.admin_http import AdminPages, Query, page_of
from restante.common.disk_probe import DiskProbe, DiskSpace
from restante.common.last_hour import LastHour
from restante.common.metrics import (
    CounterMetric,
    Family,
    GaugeMetric,
    HistogramMetric,
    Metric,
    UntypedMetric,
    families,
    page,
    total,
)
from restante.waku.archive.records import Counts
from restante.waku.connection.peer_connection import PeerConnection
from restante.waku.node.admission import ConnectionCount
from restante.waku.node.history_requests import FILTERS, REFUSALS, RequestCount
from restante.waku.node.mailserver import EnvelopeCount
from restante.waku.node.node import REJECTION_LABELS, Node
from restante.waku.node.relay import RelayCount
from restante.waku.protocol.acceptance import EXPIRED, FUTURE, OLD, TOO_CHEAP, TOO_LARGE, TOO_LONG

REFUSAL_LABELS: Final = {
    FUTURE: "in_future",
    OLD: "very_old",
    EXPIRED: "expired",
    TOO_LONG: "long_ttl",
    TOO_LARGE: "oversized",
    TOO_CHEAP: "low_pow",
}
"""Why envelopes are refused, and the names in status-go's metrics (waku/waku.go, addAndBridge). status-go does not
limit the ttl, so that name is ours."""

CONNECTION_LABELS: Final = {
    "address": (ConnectionCount.TOO_MANY_FROM_ADDRESS, ConnectionCount.TOO_FAST_FROM_ADDRESS),
    "handshake": (ConnectionCount.HALF_OPEN,),
    "full": (ConnectionCount.FULL,),
    "gave_way": (ConnectionCount.EVICTED,),
}
"""Why connections are closed for want of room."""

SERIES: Final = {
    "peers": ("waku_peers",),
    "envelopes": ("waku_envelopes_validated",),
    "requests": ("mailserver_requests",),
    "answers": ("mailserver_delivery_duration_seconds_count",),
    "request_seconds": ("mailserver_delivery_duration_seconds_sum",),
    "refused": ("waku_envelopes_cache_failures", "mailserver_requests_refused"),
}
"""The metrics whose sum over all labels has its history kept under a name."""

NODE_ID_BYTES: Final = 8
"""Bytes of a peer's id that are shown: enough to tell peers apart."""


class Parts:
    """The parts of a node that metrics are read from."""

    def __init__(self, node: Node, archive: Counts, disk_free: float = math.nan, *, ready: bool = False) -> None:
        self.node = node
        self.archive = archive
        self.disk_free = disk_free
        self.ready = ready
        """What /readyz says."""
        self.mailserver = node.mailserver
        self.counts = node.mailserver.counts
        self.requests = node.history_requests


def _refused_envelopes(node: Node) -> dict[str, int]:
    return {label: node.mailserver.refusals[refusal] for refusal, label in REFUSAL_LABELS.items()}


def _refused_requests(node: Node) -> dict[str, int]:
    return {reason: node.history_requests.refusals[reason] for reason in REFUSALS}


ARCHIVE: Final = {"db": "sqlite"}

METRICS: Final[Mapping[str, Metric[Parts]]] = {
    "waku_build_info": GaugeMetric("1, with the version", lambda _: {__version__: 1}, labels=("version",)),
    "waku_ready": GaugeMetric("1 if /readyz is 200, 0 if it is 503", lambda its: its.ready),
    "waku_disk_free_bytes": GaugeMetric(
        "Bytes that can still be written to the data directory; NaN if the disk does not say",
        lambda its: its.disk_free,
    ),
    "waku_envelopes_received": CounterMetric(
        "Envelopes that peers sent",
        lambda its: (
            its.counts[EnvelopeCount.NEW]
            + its.counts[EnvelopeCount.KNOWN]
            + sum(_refused_envelopes(its.node).values())
        ),
    ),
    "waku_envelopes_validated": CounterMetric(
        "Envelopes that were new and accepted", lambda its: its.counts[EnvelopeCount.NEW], "envelopes.new"
    ),
    "waku_envelopes_cache_failures": CounterMetric(
        "Envelopes that were refused, by reason",
        lambda its: _refused_envelopes(its.node),
        "envelopes.refused",
        ("type",),
    ),
    "waku_envelopes_rejected": CounterMetric(
        "Packets that could not be read",
        lambda its: {reason: its.node.rejected[reason] for reason in sorted({*REJECTION_LABELS.values()})},
        labels=("reason",),
    ),
    "waku_envelopes_cached": CounterMetric(
        "Accepted envelopes: hit if already known, miss if new",
        lambda its: {"hit": its.counts[EnvelopeCount.KNOWN], "miss": its.counts[EnvelopeCount.NEW]},
        labels=("cache",),
    ),
    "waku_envelopes_size_bytes": HistogramMetric(
        "Sizes of new envelopes that were accepted", lambda its: its.mailserver.sizes
    ),
    "waku_envelopes_relayed": CounterMetric(
        "Envelopes relayed, counted for each peer",
        lambda its: its.node.relay.counts[RelayCount.RELAYED],
        "envelopes.relayed",
    ),
    "waku_envelopes_known": GaugeMetric(
        "Live envelopes whose hashes are known",
        lambda its: len(its.mailserver.pool.known_hashes),
        "envelopes.known_hashes",
    ),
    "waku_envelopes_cached_bytes": GaugeMetric(
        "Bytes of live envelopes in memory", lambda its: its.mailserver.pool.size, "envelopes.cached_bytes"
    ),
    "waku_peers": GaugeMetric(
        "Peers that have sent a Status", lambda its: len(its.node.relay.interests), "connections.peers"
    ),
    "waku_connections": GaugeMetric(
        "Connections, also those in their handshake", lambda its: len(its.node.connections), "connections.open"
    ),
    "waku_connections_refused": CounterMetric(
        "Connections closed for want of places, by reason",
        lambda its: {
            label: sum(its.node.counts[name] for name in names) for label, names in CONNECTION_LABELS.items()
        },
        labels=("type",),
    ),
    # status-go's name. It ends like a counter's, but it falls when envelopes are pruned. So it has no type.
    "mailserver_archived_envelopes_total": UntypedMetric(
        "Envelopes in the archive", lambda its: its.archive.envelopes, "archive.envelopes", constant_labels=ARCHIVE
    ),
    "mailserver_archived_bytes": GaugeMetric(
        "Bytes of the envelopes in the archive", lambda its: its.archive.bytes, "archive.bytes"
    ),
    "mailserver_archived_envelopes_failures": CounterMetric(
        "Envelopes that could not be archived",
        lambda its: its.counts[EnvelopeCount.NOT_ARCHIVED],
        "envelopes.not_archived",
        constant_labels=ARCHIVE,
    ),
    "mailserver_archived_envelope_size_bytes": HistogramMetric(
        "Sizes of archived envelopes", lambda its: its.mailserver.archived_sizes, constant_labels=ARCHIVE
    ),
    "mailserver_requests": CounterMetric(
        "History requests", lambda its: its.requests.counts[RequestCount.RECEIVED], "requests.received"
    ),
    "mailserver_requests_refused": CounterMetric(
        "Requests answered with an error, also unreadable ones", lambda its: its.requests.counts[RequestCount.REFUSED]
    ),
    "mailserver_delivery_attempts": CounterMetric(
        "Requests that could be read", lambda its: its.requests.counts[RequestCount.READ]
    ),
    "mailserver_delivery_failures": CounterMetric(
        "Refused requests, by reason", lambda its: _refused_requests(its.node), "requests.refused", ("type",)
    ),
    "mailserver_delivery_duration_seconds": HistogramMetric(
        "Seconds from reading a request to sending its answer", lambda its: its.requests.delays, "requests.seconds"
    ),
    "waku_history_duration_seconds": HistogramMetric(
        "mailserver_delivery_duration_seconds, by what was asked for",
        lambda its: its.requests.delays_by_filter,
        labels=("filter",),
    ),
    "mailserver_requests_bundle_process_duration_seconds": HistogramMetric(
        "Seconds that the search for a page took", lambda its: its.requests.searches
    ),
    "mailserver_requests_batched": CounterMetric(
        "Answered requests that allowed batches", lambda its: its.requests.counts[RequestCount.BATCHED]
    ),
    "mailserver_envelope_queries": CounterMetric(
        "Searches of the archive, by filter",
        lambda its: {name: its.requests.queries[name] for name in FILTERS},
        "requests.queries",
        ("filter",),
        {"history": "unknown"},
    ),
    "mailserver_sent_envelope_batch_size_bytes": HistogramMetric(
        "Bytes of envelopes in a packet", lambda its: its.requests.packets
    ),
    "mailserver_envelopes": CounterMetric(
        "Envelopes sent to requesters; status-go counts requests under this name",
        lambda its: its.requests.counts[RequestCount.ENVELOPES_SENT],
        "requests.envelopes_sent",
    ),
}
"""Names are status-go's where it has them (mailserver/metrics.go, waku/common/metrics.go), so that its dashboards and
alerts work here. Each metric counts what its name says, even where status-go's does not."""


def admin_pages(node: Node, data: Path, reports_url: str | None = None) -> AdminPages:
    """Return the pages of a node with this data directory. The dashboard has a link to `reports_url`."""
    pages = StatusPages(node, data, reports_url)
    return AdminPages(
        unready=node.ready,
        metrics=pages.metrics,
        flushing=lambda: None,
        disk=DiskProbe(data),
        json={"/varz": pages.varz, "/connz": pages.connz, "/limitz": pages.limitz},
        dashboard=Dashboard(
            title="Restante Waku node",
            sections=(Path(__file__).with_name("web") / "sections.html").read_text("utf-8"),
            sample=pages.sample,
            details=pages.details,
        ),
    )


class StatusPages:
    """The pages of one node."""

    def __init__(
        self,
        node: Node,
        data: Path,
        reports_url: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._space = DiskSpace(data)
        self._reports_url = reports_url
        self._started = node.clock.wall()
        self._refused_envelopes = LastHour(clock)
        self._refused_requests = LastHour(clock)

    async def metrics(self, ready: bool) -> Iterable[Family]:
        """Return all metrics. Raises StoreError if the archive cannot be read."""
        archive, disk_free = await self._node.archive.counts(), await self._space.free()
        return list(families(METRICS, Parts(self._node, archive, disk_free, ready=ready)))

    async def varz(self, _query: Query) -> dict[str, Any]:
        """Return counts of the node. Raises StoreError if the archive cannot be read."""
        now, archive = self._node.clock.wall(), await self._node.archive.counts()
        counts, requests = self._node.mailserver.counts, self._node.history_requests.counts
        others = {
            "version": __version__,
            "time": now,
            "started": self._started,
            "uptime_seconds": now - self._started,
            "archive": msgspec.structs.asdict(archive),
            "envelopes.known": counts[EnvelopeCount.KNOWN],
            "envelopes.archived": counts[EnvelopeCount.ARCHIVED],
            "requests.answered": requests[RequestCount.ANSWERED],
        }
        return page(METRICS, Parts(self._node, archive), others)

    async def sample(self) -> dict[str, float]:
        """Return the values whose history the dashboard shows: counts since the start, and gauges."""
        self._refused_envelopes.remember(_refused_envelopes(self._node))
        self._refused_requests.remember(_refused_requests(self._node))
        parts = Parts(self._node, Counts())  # no series is of the archive, which may be slow
        return {name: sum(total(METRICS, parts, metric) for metric in metrics) for name, metrics in SERIES.items()}

    async def details(self) -> dict[str, Any]:
        """Return all that the dashboard shows. Raises StoreError if the archive cannot be read."""
        fields = {**await self.varz({}), "reports_url": self._reports_url}
        for name, part, hour in (
            ("refused_envelopes", "envelopes", self._refused_envelopes),
            ("refused_requests", "requests", self._refused_requests),
        ):
            since_start = fields[part]["refused"]
            fields[name] = [
                {"reason": reason, "last_hour": count, "since_start": since_start[reason]}
                for reason, count in hour.growth(since_start).items()
                if count
            ]
        return fields

    async def connz(self, query: Query) -> dict[str, Any]:
        """Return the connections, those with the largest incomplete packets first. Raises Misuse."""
        connections = sorted(self._node.connections, key=lambda peer: (-peer.incomplete_bytes, peer.node_id))
        return page_of(connections, query, self._connection)

    def _connection(self, connection: PeerConnection) -> dict[str, Any]:
        return {
            "node_id": connection.node_id[:NODE_ID_BYTES].hex() or None,
            "dialled": connection.dialled,
            "identified": self._node.peers.get(connection.node_id) is connection,
            "held_bytes": connection.incomplete_bytes,
            "missed_envelopes": connection in self._node.relay.missed,
        }

    async def limitz(self, _query: Query) -> dict[str, Any]:
        """Return each limit, and how much of it is used if it is one of the whole node."""
        node = self._node
        used = {
            "pool_bytes": node.mailserver.pool.size,
            "unfinished_bytes": node.incomplete_bytes,
            "max_peers": len(node.peers),
        }
        limits = {
            **msgspec.structs.asdict(node.limits),
            "max_peers": node.peer_limits.max_peers,
            "max_peers_per_address": node.peer_limits.max_peers_per_address,
        }
        return {
            "limits": {name: {"value": value, "used": used.get(name)} for name, value in limits.items()},
        }
