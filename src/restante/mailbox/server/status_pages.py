"""What the admin port of the mailbox server shows: whether it is ready, metrics, and JSON pages.

docs/monitoring.md documents the fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
from prometheus_client import Metric

from restante import __version__
from restante.common.admin_http import AdminPages, Query, page_of
from restante.common.admin_live import Dashboard
from restante.common.disk_probe import DiskProbe
from restante.common.usage_records import MailboxUsage, NameplateUsage, Result
from restante.mailbox.core.model import OUTCOMES
from restante.mailbox.server import metrics, refusals
from restante.mailbox.server.connection import Socket
from restante.mailbox.server.dashboard import DashboardPages
from restante.mailbox.server.measurements import COMMAND_TYPES
from restante.mailbox.server.running_settings import RunningSettings
from restante.mailbox.server.server import Server
from restante.mailbox.store.sqlite import Store

MAX_REFUSED_ADDRESSES: Final = 10
"""Addresses with the most refusals that are shown."""


def of(server: Server, store: Store, data: Path, settings: RunningSettings) -> AdminPages:
    """Return the pages of a server."""
    pages = StatusPages(server)
    shown = DashboardPages(pages, server, data, settings)
    return AdminPages(
        unready=pages.unready,
        metrics=pages.metrics,
        flushing=lambda: store.flushing,
        disk=DiskProbe(data),
        json={"/varz": pages.varz, "/connz": pages.connz, "/limitz": pages.limitz},
        dashboard=Dashboard(
            title="Restante mailbox server",
            sections=(Path(__file__).with_name("web") / "sections.html").read_text(),
            sample=shown.sample,
            details=shown.details,
            change=shown.change,
        ),
    )


class StatusPages:
    """The pages of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = server.commit_loop
        self._started = self._loop.now()

    def unready(self) -> str:
        """Return why no traffic should be sent to the server, "" if there is no reason."""
        if self._server.draining:
            return "draining"
        if not self._loop.dispatcher.state.room:
            return "the disk is nearly full"
        if problem := self._loop.measurements.store_problem(self._loop.now().service):
            return f"the last batch could not be stored: {problem}"
        return ""

    async def metrics(self, ready: bool) -> Iterable[Metric]:
        """Return all metrics."""
        return list(metrics.collect(self._server, ready=ready))

    async def varz(self, _query: Query) -> dict[str, Any]:
        """Return counts and settings of the server."""
        now, server, measured = self._loop.now(), self._server, self._loop.measurements
        dispatcher = self._loop.dispatcher
        state, quotas = dispatcher.state, dispatcher.quotas
        return {
            "version": __version__,
            "time": now.wall,
            "started": self._started.wall,
            "uptime_seconds": now.service - self._started.service,
            "connections": {"open": len(server.admitted), "opened": dispatcher.connections_seen},
            "tls": {
                "handshakes_failed": server.failed_handshakes,
                "certificate_expires": server.certificate and server.certificate.expires,
            },
            "live": {
                "applications": len(state.apps),
                "nameplates": state.nameplate_count,
                "mailboxes": state.mailbox_count,
                "messages": state.message_count,
                "bytes": state.stored,
            },
            "commands": {
                name: {outcome: measured.commands(kind, outcome) for outcome in OUTCOMES}
                for kind, name in COMMAND_TYPES.items()
            },
            "results": {
                name: {result: measured.results[kind, result] for result in get_args(Result)}
                for name, kind in (("nameplate", NameplateUsage), ("mailbox", MailboxUsage))
            },
            "refusals": refusals.by_reason(quotas.refusals),
            "refused_addresses": _most_refused(quotas.lately_refused),
            "queue": {
                "commands": len(self._loop.queue),
                "bytes": self._loop.queue.held,
                "owed_bytes": server.owing,
                "held_bytes": server.held,
            },
            "commits": {
                "count": measured.commit_seconds.count,
                "seconds": measured.commit_seconds.total,
                "slow": measured.slow_commits,
                "latest_slow": [each._asdict() for each in measured.latest_slow_commits],
                "not_stored": measured.batches_not_stored,
            },
            "disk": {"has_room": state.room, "free_bytes": measured.disk_free, "wal_bytes": measured.wal_bytes},
            "pruning": {
                "prunes": measured.prunes,
                "last_seconds": measured.prune_seconds,
                "mailboxes": measured.pruned,
            },
            "permission": {
                "mode": server.admission.terms.mode,
                "bits": server.admission.terms.bits,
                "difficulty": server.admission.difficulty,
                "demands": server.admission.demanded,
                "solved": measured.solved,
            },
        }

    async def connz(self, query: Query) -> dict[str, Any]:
        """Return the open connections, oldest first. Raises Misuse for wrong arguments."""
        sockets = sorted(self._server.sockets(), key=lambda each: each.connection.number)
        return page_of(sockets, query, self._connection)

    def _connection(self, socket: Socket) -> dict[str, Any]:
        connection = socket.connection
        session, backlog = connection.session, connection.backlog
        return {
            "number": connection.number,
            "address_id": session.address_id,
            "age_seconds": self._server.second - socket.bucket,
            "silent_seconds": self._server.second - socket.last_frame_second,
            "admitted": socket in self._server.admitted,
            "application": session.app_id,
            "mailbox_open": session.subscribed is not None,
            "demanded_bits": session.demand.bits if session.demand is not None else 0,
            "waiting_commands": backlog.queued + len(backlog.waiting),
            "held_bytes": socket.holding,
        }

    async def limitz(self, _query: Query) -> dict[str, Any]:
        """Return each limit, how much of it is used if it is one of the whole server, and its refusals."""
        server, state = self._server, self._loop.dispatcher.state
        used = {
            "connections": len(server.admitted),
            "stored_bytes": state.stored,
            "held_bytes": server.held,
        }
        times = refusals.by_reason(self._loop.dispatcher.quotas.refusals)
        reasons: dict[str, list[str]] = {}
        for reason, names in refusals.LIMITS.items():
            for name in names:
                reasons.setdefault(name, []).append(reason)
        return {
            "limits": {
                name: {
                    "value": value,
                    "used": used.get(name),
                    "refusals": {reason: times[reason] for reason in reasons.get(name, ())},
                }
                for name, value in msgspec.structs.asdict(server.limits).items()
            },
        }


def _most_refused(refused: Counter[tuple[str, str | None]]) -> list[dict[str, Any]]:
    return [
        {"address_id": address_id, "reason": refusals.REASONS.get(words, refusals.OTHER), "times": times}
        for (words, address_id), times in refused.most_common(MAX_REFUSED_ADDRESSES)
    ]
