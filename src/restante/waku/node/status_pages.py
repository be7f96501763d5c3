"""What the admin port of the Waku node shows: whether it is ready, metrics, and JSON pages.

docs/monitoring.md documents the fields.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client import Metric

from restante import __version__
from restante.common.admin_http import AdminPages, Query, page_of
from restante.common.admin_live import Dashboard
from restante.common.disk_probe import DiskProbe, DiskSpace
from restante.common.last_hour import LastHour
from restante.waku.connection.peer_connection import PeerConnection
from restante.waku.node import metrics
from restante.waku.node.history_requests import FILTERS, REFUSALS
from restante.waku.node.metrics import REFUSAL_LABELS
from restante.waku.node.node import Node

NODE_ID_BYTES: Final = 8
"""Bytes of a peer's id that are shown: enough to tell peers apart."""


def of(node: Node, data: Path, reports_url: str | None = None) -> AdminPages:
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
        return await metrics.of(self._node, await self._space.free(), ready=ready)

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
                "known_hashes": len(mailserver.pool.known),
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
        return {why: self._node.history_requests.refusals[why] for why in REFUSALS}

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
        shown = {**await self.varz({}), "reports_url": self._reports_url}
        for name, part, hour in (
            ("refused_envelopes", "envelopes", self._refused_envelopes),
            ("refused_requests", "requests", self._refused_requests),
        ):
            since_start = shown[part]["refused"]
            shown[name] = [
                {"reason": reason, "last_hour": times, "since_start": since_start[reason]}
                for reason, times in hour.growth(since_start).items()
                if times
            ]
        return shown

    async def connz(self, query: Query) -> dict[str, Any]:
        """Return the connections, those with the largest incomplete packets first. Raises Misuse."""
        found = sorted(self._node.connections, key=lambda each: (-each.held, each.node_id))
        return page_of(found, query, self._connection)

    def _connection(self, connection: PeerConnection) -> dict[str, Any]:
        return {
            "node_id": connection.node_id[:NODE_ID_BYTES].hex() or None,
            "dialled": connection.dialled,
            "identified": self._node.peers.get(connection.node_id) is connection,
            "held_bytes": connection.held,
            "missed_envelopes": connection.missed is not None,
        }

    async def limitz(self, _query: Query) -> dict[str, Any]:
        """Return each limit, and how much of it is used if it is one of the whole node."""
        node = self._node
        used = {
            "pool_bytes": node.mailserver.pool.size,
            "unfinished_bytes": node.unfinished,
            "max_peers": len(node.peers),
        }
        limits = {
            **msgspec.structs.asdict(node.limits),
            "max_peers": node.housekeeping.max_peers,
            "max_peers_per_address": node.housekeeping.max_peers_per_address,
        }
        return {
            "limits": {name: {"value": value, "used": used.get(name)} for name, value in limits.items()},
        }
