"""What the admin port of the Waku node shows: whether it is ready, metrics, and JSON pages.

docs/monitoring.md documents the fields.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, UntypedMetricFamily

from restante import __version__
from restante.common.admin_dashboard import Dashboard
from restante.common.admin_http import AdminPages, Query, page_of
from restante.common.disk_probe import DiskProbe, DiskSpace
from restante.common.last_hour import LastHour
from restante.common.prometheus import counter, gauge, gauges, histogram, histograms
from restante.waku.archive.records import Counts
from restante.waku.connection.peer_connection import PeerConnection
from restante.waku.node.admission import EVICTED, FROM_ADDRESS, FULL, HALF_OPEN
from restante.waku.node.history_requests import FILTERS, REFUSALS
from restante.waku.node.node import REJECTION_LABELS, Node

DATABASE_LABEL: Final = "sqlite"

REFUSAL_LABELS: Final = {
    "future": "in_future",
    "old": "very_old",
    "expired": "expired",
    "ttl": "long_ttl",
    "size": "oversized",
    "pow": "low_pow",
}
"""Why envelopes are refused (acceptance.py), by the names of status-go's metrics (waku/waku.go, addAndBridge).
status-go does not limit the ttl, so that name is ours."""

CONNECTION_LABELS: Final = {
    FROM_ADDRESS: "address",
    HALF_OPEN: "handshake",
    FULL: "full",
    EVICTED: "gave_way",
}
"""Why connections are closed for want of room, by what admission.py counts them as."""

NODE_ID_BYTES: Final = 8
"""Bytes of a peer's id that are shown: enough to tell peers apart."""


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
            sections=(Path(__file__).with_name("web") / "sections.html").read_text(),
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

    async def metrics(self, ready: bool) -> Iterable[Metric]:
        """Return all metrics. Raises StoreError if the archive cannot be read."""
        archive, disk_free = await self._node.archive.counts(), await self._space.free()
        return list(_Metrics(self._node, archive, disk_free, ready=ready).collect())

    async def varz(self, _query: Query) -> dict[str, Any]:
        """Return counts of the node. Raises StoreError if the archive cannot be read."""
        node = self._node
        mailserver, requests, archive = node.mailserver, node.history_requests, await node.archive.counts()
        counts = mailserver.counts
        return {
            "version": __version__,
            "time": node.clock.wall(),
            "started": self._started,
            "uptime_seconds": node.clock.wall() - self._started,
            "archive": msgspec.structs.asdict(archive),
            "connections": {"open": len(node.connections), "peers": len(node.relay.interests)},
            "envelopes": {
                "new": counts["new"],
                "known": counts["known"],
                "archived": counts["archived"],
                "not_archived": counts["not archived"],
                "relayed": node.relay.counts["relayed"],
                "refused": self._envelope_refusals(),
                "known_hashes": len(mailserver.pool.known_hashes),
                "cached_bytes": mailserver.pool.size,
            },
            "requests": {
                "received": requests.counts["requests"],
                "answered": requests.counts["requests answered"],
                "refused": self._request_refusals(),
                "envelopes_sent": requests.counts["envelopes handed over"],
                "queries": {name: requests.queries[name] for name in FILTERS},
                "seconds": requests.delays.total,
            },
        }

    def _envelope_refusals(self) -> dict[str, int]:
        counts = self._node.mailserver.counts
        return {label: counts[refusal] for refusal, label in REFUSAL_LABELS.items()}

    def _request_refusals(self) -> dict[str, int]:
        return {reason: self._node.history_requests.refusals[reason] for reason in REFUSALS}

    async def sample(self) -> dict[str, float]:
        """Return the values whose history the dashboard shows: counts since the start, and gauges."""
        node, counts, requests = self._node, self._node.mailserver.counts, self._node.history_requests
        self._refused_envelopes.remember(self._envelope_refusals())
        self._refused_requests.remember(self._request_refusals())
        return {
            "peers": len(node.relay.interests),
            "envelopes": counts["new"],
            "requests": requests.counts["requests"],
            "answers": requests.delays.count,
            "request_seconds": requests.delays.total,
            "refused": sum(counts[refusal] for refusal in REFUSAL_LABELS) + requests.counts["requests refused"],
        }

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


class _Metrics:
    """Metrics for Prometheus: counts that the node has in any case, read at each scrape.

    Names are status-go's where it has them (mailserver/metrics.go, waku/common/metrics.go), so that its dashboards
    and alerts work here. Each metric counts what its name says, even where status-go's does not.
    """

    def __init__(self, node: Node, archive: Counts, disk_free: float, *, ready: bool) -> None:
        self._node = node
        self._archive = archive
        self._disk_free = disk_free
        self._ready = ready

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield gauges("waku_build_info", "The version of the node", ("version",), {(__version__,): 1})
        yield gauge(
            "waku_ready",
            "1 if the node can archive what peers send; 0 if not, or while it stops",
            self._ready,
        )
        yield gauge("waku_disk_free_bytes", "Bytes that the node can still write on its disk", self._disk_free)
        yield from self._envelopes()
        yield from self._requests()
        yield gauge("waku_peers", "Peers that have sent a Status", len(self._node.relay.interests))
        yield gauge(
            "waku_connections", "Connections, also those that have not sent a Status", len(self._node.connections)
        )
        closed = CounterMetricFamily(
            "waku_connections_refused", "Connections that were closed for want of room, by why", labels=["type"]
        )
        for name, label in CONNECTION_LABELS.items():
            closed.add_metric([label], self._node.counts[name])
        yield closed
        pool = self._node.mailserver.pool
        yield gauge("waku_envelopes_known", "Known envelope hashes", len(pool.known_hashes))
        yield gauge("waku_envelopes_cached_bytes", "Bytes of memory for live envelopes", pool.size)

    def _envelopes(self) -> Iterator[Metric]:
        counts, node = self._node.mailserver.counts, self._node
        received = counts["new"] + counts["known"] + sum(counts[refusal] for refusal in REFUSAL_LABELS)
        yield counter("waku_envelopes_received", "Envelopes received from peers", received)
        yield counter("waku_envelopes_validated", "Envelopes that were new and taken", counts["new"])
        refused = CounterMetricFamily(
            "waku_envelopes_cache_failures", "Envelopes not accepted, by reason", labels=["type"]
        )
        for refusal, name in REFUSAL_LABELS.items():
            refused.add_metric([name], counts[refusal])
        yield refused
        rejected = CounterMetricFamily("waku_envelopes_rejected", "Packets that could not be read", labels=["reason"])
        for reason in sorted({*REJECTION_LABELS.values()}):
            rejected.add_metric([reason], node.rejected[reason])
        yield rejected
        cached = CounterMetricFamily(
            "waku_envelopes_cached", "Envelopes received: hit if already known, miss if new", labels=["cache"]
        )
        cached.add_metric(["hit"], counts["known"])
        cached.add_metric(["miss"], counts["new"])
        yield cached
        yield histogram("waku_envelopes_size_bytes", "Envelopes that were new and taken", node.mailserver.sizes)
        yield counter(
            "waku_envelopes_relayed", "Envelopes relayed, counted for each peer", node.relay.counts["relayed"]
        )
        # status-go's name. It ends like a counter's, but it falls when envelopes are pruned. So it has no type.
        archived = UntypedMetricFamily(
            "mailserver_archived_envelopes_total", "Envelopes in the archive", labels=["db"]
        )
        archived.add_metric([DATABASE_LABEL], self._archive.envelopes)
        yield archived
        yield histogram(
            "mailserver_archived_envelope_size_bytes",
            "Envelopes that were archived",
            node.mailserver.archived_sizes,
            db=DATABASE_LABEL,
        )
        yield gauge("mailserver_archived_bytes", "Bytes of the envelopes in the archive", self._archive.bytes)
        failed = CounterMetricFamily(
            "mailserver_archived_envelopes_failures", "Envelopes that could not be archived", labels=["db"]
        )
        failed.add_metric([DATABASE_LABEL], counts["not archived"])
        yield failed

    def _requests(self) -> Iterator[Metric]:
        requests = self._node.history_requests
        counts = requests.counts
        yield counter("mailserver_requests", "Requests for history", counts["requests"])
        yield counter("mailserver_requests_refused", "Requests answered with an error", counts["requests refused"])
        failed = CounterMetricFamily(
            "mailserver_delivery_failures", "Requests answered with an error, by its reason", labels=["type"]
        )
        for reason in REFUSALS:
            failed.add_metric([reason], requests.refusals[reason])
        yield failed
        yield histogram(
            "mailserver_delivery_duration_seconds",
            "Seconds from reading a request to sending its answer",
            requests.delays,
        )
        yield histograms(
            "waku_history_duration_seconds",
            "The same as mailserver_delivery_duration_seconds, by what was asked for",
            "filter",
            requests.delays_by_filter,
        )
        yield histogram(
            "mailserver_requests_bundle_process_duration_seconds",
            "Seconds to find a page of history",
            requests.searches,
        )
        yield histogram(
            "mailserver_sent_envelope_batch_size_bytes", "Bytes of envelopes in a packet of history", requests.packets
        )
        yield counter(
            "mailserver_delivery_attempts", "Valid requests for history, answered or not", counts["attempts"]
        )
        yield counter(
            "mailserver_requests_batched", "Answered requests whose envelopes were sent in batches", counts["batched"]
        )
        queries = CounterMetricFamily(
            "mailserver_envelope_queries", "Searches of the archive, by filter", labels=["filter", "history"]
        )
        for name in FILTERS:
            queries.add_metric([name, "unknown"], requests.queries[name])
        yield queries
        yield counter(
            "mailserver_envelopes", "Envelopes sent in answers to requests", counts["envelopes handed over"]
        )
