"""What the admin port of the mailbox server shows: whether it is ready, metrics, and JSON pages.

docs/monitoring.md documents the fields.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast, get_args

from restante import __version__
from restante.common.admin_dashboard import Dashboard
from restante.common.admin_http import AdminPages, Query, page_of
from restante.common.disk_probe import DiskProbe
from restante.common.errors import Misuse, StoreError
from restante.common.metrics import CounterMetric, Family, GaugeMetric, HistogramMetric, Metric, families, page, total
from restante.common.refusal_pages import RefusalsLastHour, limits_page, most_refused
from restante.common.refusals import times_by_reason
from restante.common.usage_records import MEANINGS, MailboxUsage, NameplateUsage, Result
from restante.common.worker import Worker
from restante.mailbox.core.model import OUTCOMES
from restante.mailbox.protocol.hashcash import Mode
from restante.mailbox.protocol.refusals import KINDS
from restante.mailbox.server.commit_loop import COMMAND_TYPES
from restante.mailbox.server.connection import Socket
from restante.mailbox.server.running_settings import MailboxSettings
from restante.mailbox.server.server import Server
from restante.mailbox.server.user_address import best
from restante.mailbox.store import status
from restante.mailbox.store.interface import Role, Store

# ── Metrics: counts that the server keeps in any case ─────────────────────────────────────────────


class RoleParts:
    """What the metrics of a server that stands by are read from."""

    def __init__(self, role: Role, *, ready: bool = False) -> None:
        self.role = role
        self.ready = ready
        """What /readyz says."""


class Parts(RoleParts):
    """The parts of a server that metrics are read from."""

    def __init__(self, server: Server, role: Role, *, ready: bool = False) -> None:
        super().__init__(role, ready=ready)
        self.server = server
        self.admission = server.admission
        self.measured = server.commit_loop.measurements
        self.queue = server.commit_loop.queue
        self.dispatcher = server.commit_loop.dispatcher
        self.state = self.dispatcher.state


ENDED: Final[Mapping[str, type]] = {"nameplate": NameplateUsage, "mailbox": MailboxUsage}

ROLE_METRICS: Final[Mapping[str, Metric[RoleParts]]] = {
    "restante_build_info": GaugeMetric("1, with the version", lambda _: {__version__: 1}, labels=("version",)),
    "restante_ready": GaugeMetric("1 if /readyz is 200, 0 if it is 503", lambda its: its.ready),
    "restante_role": GaugeMetric(
        "1 for the role of the server, of engine and standby: an engine serves, a standby waits to take over",
        lambda its: {"engine": its.role.serving, "standby": not its.role.serving},
        labels=("role",),
    ),
    "restante_term": GaugeMetric(
        "Term of the lease that the server has, or had last; 0: none, as without --database",
        lambda its: its.role.term,
    ),
    "restante_take_overs": CounterMetric("Terms that the server has begun", lambda its: its.role.take_overs),
}
"""Metrics that a server has also while it stands by."""

METRICS: Final[Mapping[str, Metric[Parts]]] = {
    **cast("Mapping[str, Metric[Parts]]", ROLE_METRICS),
    "restante_connections": GaugeMetric(
        "Admitted open connections", lambda its: len(its.server.admitted), "connections.open"
    ),
    "restante_connections_opened": CounterMetric(
        "WebSockets opened, also refused ones", lambda its: its.dispatcher.connections_seen, "connections.opened"
    ),
    "restante_tls_handshakes_failed": CounterMetric(
        "Connections whose TLS handshake failed", lambda its: its.server.failed_handshakes, "tls.handshakes_failed"
    ),
    "restante_tls_certificate_expires_seconds": GaugeMetric(
        "When the certificate in use expires, in seconds since 1970; NaN if there is none",
        lambda its: its.server.certificate.expires if its.server.certificate else math.nan,
        "tls.certificate_expires",
    ),
    "restante_commands": CounterMetric(
        "Commands handled, by type of message and outcome",
        lambda its: {
            name: {outcome: its.measured.commands(kind, outcome) for outcome in OUTCOMES}
            for kind, name in COMMAND_TYPES.items()
        },
        "commands",
        ("type", "outcome"),
    ),
    "restante_batch_commands": HistogramMetric(
        "Commands of a batch, which is one transaction", lambda its: its.measured.batch_commands
    ),
    "restante_commit_seconds": HistogramMetric(
        "Seconds from a batch's first statement until it was on disk",
        lambda its: its.measured.commit_seconds,
        "commits.seconds",
    ),
    "restante_slow_commits": CounterMetric(
        "Commits that took at least 0.25 s", lambda its: its.measured.slow_commits, "commits.slow"
    ),
    "restante_batches_not_stored": CounterMetric(
        "Batches that the disk did not take", lambda its: its.measured.batches_not_stored, "commits.not_stored"
    ),
    "restante_disk_has_room": GaugeMetric(
        "0 if less than the limit free_disk is free, else 1", lambda its: its.state.room, "disk.has_room"
    ),
    "restante_disk_free_bytes": GaugeMetric(
        "Bytes that can still be written to the data directory; NaN if the disk does not say",
        lambda its: its.measured.disk_free,
        "disk.free_bytes",
    ),
    "restante_wal_bytes": GaugeMetric(
        "Bytes of the write-ahead log (`restante.sqlite-wal`); NaN if there is none",
        lambda its: its.measured.wal_bytes,
        "disk.wal_bytes",
    ),
    "restante_delivery_seconds": HistogramMetric(
        "Seconds from the receipt of an add until it was on disk",
        lambda its: its.measured.delivery_seconds,
    ),
    "restante_results": CounterMetric(
        "Nameplates and mailboxes that ended, by result",
        lambda its: {
            name: {result: its.measured.results[kind, result] for result in get_args(Result)}
            for name, kind in ENDED.items()
        },
        "results",
        ("kind", "result"),
    ),
    "restante_nameplates": GaugeMetric("Live nameplates", lambda its: its.state.nameplate_count, "live.nameplates"),
    "restante_mailboxes": GaugeMetric("Live mailboxes", lambda its: its.state.mailbox_count, "live.mailboxes"),
    "restante_messages": GaugeMetric(
        "Messages of live mailboxes", lambda its: its.state.message_count, "live.messages"
    ),
    "restante_applications": GaugeMetric(
        "Applications with live data or connections", lambda its: len(its.state.apps), "live.applications"
    ),
    "restante_stored_bytes": GaugeMetric(
        "Memory of the live data, which stored_bytes limits", lambda its: its.state.stored, "live.bytes"
    ),
    "restante_owed_bytes": GaugeMetric(
        "Bytes sent to clients that they have not read", lambda its: its.server.owed_bytes, "queue.owed_bytes"
    ),
    "restante_held_bytes": GaugeMetric(
        "Memory that connections hold, which held_bytes limits", lambda its: its.server.held_bytes, "queue.held_bytes"
    ),
    "restante_queue_commands": GaugeMetric("Commands in the queue", lambda its: len(its.queue), "queue.commands"),
    "restante_queue_bytes": GaugeMetric(
        "Memory of commands that are not handled yet", lambda its: its.queue.held_bytes, "queue.bytes"
    ),
    "restante_refusals": CounterMetric(
        "Refusals for lack of permission or room, by reason",
        lambda its: times_by_reason(KINDS, its.dispatcher.quotas.refusal_counts.since_start),
        "refusals",
        ("reason",),
    ),
    "restante_permission_mode": GaugeMetric(
        "1 for the mode in effect, of none, hashcash and adaptive",
        lambda its: {mode: its.admission.terms.mode == mode for mode in get_args(Mode)},
        labels=("mode",),
    ),
    "restante_permission_difficulty": GaugeMetric(
        "Bits of proof of work that all clients must show; 0: none",
        lambda its: its.admission.difficulty,
        "permission.difficulty",
    ),
    "restante_permission_demands": CounterMetric(
        "Connections that had to show a proof of work", lambda its: its.admission.demanded, "permission.demands"
    ),
    "restante_permission_solved": CounterMetric(
        "Proofs of work that were accepted", lambda its: its.measured.solved, "permission.solved"
    ),
    "restante_permission_changes": CounterMetric(
        "Changes of the difficulty, for all clients or for an address",
        lambda its: its.admission.load_level.changes + its.admission.changes,
    ),
    "restante_prunes": CounterMetric("Prunes that ended", lambda its: its.measured.prunes, "pruning.prunes"),
    "restante_last_prune_seconds": GaugeMetric(
        "How long the last prune took", lambda its: its.measured.prune_seconds, "pruning.last_seconds"
    ),
    "restante_mailboxes_pruned": CounterMetric(
        "Idle mailboxes that were pruned", lambda its: its.measured.pruned, "pruning.mailboxes"
    ),
}
"""Labels have the values of tables in this code, never texts of clients."""


# ── What the dashboard of the mailbox server shows and changes ────────────────────────────────────


SERIES: Final = {
    "connections": "restante_connections",
    "mailboxes": "restante_mailboxes",
    "commands": "restante_commands",
    "refusals": "restante_refusals",
    "commits": "restante_commit_seconds_count",
    "commit_seconds": "restante_commit_seconds_sum",
    "deliveries": "restante_delivery_seconds_count",
    "delivery_seconds": "restante_delivery_seconds_sum",
}
"""The metric whose history is kept under a name, over all labels."""

RECENT_SECONDS: Final = 10.0
"""Seconds for which what usage records say is shown, at least."""

RECENT_SHARE: Final = 0.01
"""Share of the time in which usage records are read, at most. To count a week of 1.5 million records takes 0.5 to
0.7 s, so then they are read once a minute."""


MAX_OVERDUE_SECONDS: Final = 30.0
"""Seconds after which results that should have been read again are not shown any more: nobody has looked, or the disk
hangs."""


class DashboardPages:
    """The dashboard of one server."""

    def __init__(
        self,
        pages: StatusPages,
        server: Server,
        where: status.Where,
        settings: MailboxSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pages = pages
        self._server = server
        self._where = where
        self._settings = settings
        self._clock = clock
        self._refusals = RefusalsLastHour(KINDS, server.commit_loop.dispatcher.quotas.refusal_counts, clock)
        self._recent: dict[str, Any] = {"reading": True}
        self._recent_until = float("-inf")
        """When the usage records are read again, by the clock."""
        self._reading = False
        self._worker: Worker | None = None

    async def sample(self) -> dict[str, float]:
        """Return the values whose history is kept: counts since the start, and gauges."""
        self._refusals.remember()
        parts = self._pages.parts()
        return {name: total(METRICS, parts, metric) for name, metric in SERIES.items()}

    async def details(self) -> dict[str, Any]:
        """Return all that the page shows."""
        counts = await self._pages.varz({})
        return {
            **counts,
            "limits": (await self._pages.limitz({}))["limits"],
            "refusals_by_reason": self._refusals.rows(self._server.limits),
            "refusals_since_start": sum(counts["refusals"].values()),
            "settings": self._settings.changeable(),
            "reports_url": self._settings.settings.reports_url,
            "recent": self._recent_results(),
            "meanings": MEANINGS,
            "users": self._users(),
            "certificate": self._certificate(),
        }

    async def change(self, values: dict[str, Any]) -> dict[str, Any]:
        """Change settings. Raises Misuse."""
        return self._settings.change(values)

    def _certificate(self) -> dict[str, float] | None:
        """Return when the certificate expires, and in how many seconds; None without one."""
        if self._server.certificate is None:
            return None
        expires = self._server.certificate.expires
        return {"expires": expires, "left_seconds": max(0.0, expires - self._server.clock.wall())}

    def _users(self) -> dict[str, str]:
        """Return the URL that the operator gives to users, and what there is to know about it."""
        address = best(self._server.user_addresses)
        if self._server.admission.terms.trusted:
            return {"url": "that of your proxy", "note": f"the server itself is {address.url}" if address else ""}
        if address is None:
            return {"url": "none", "note": "the server has no TCP port"}
        if not address.reachable:
            return {"url": address.url, "note": "on this machine only"}
        return {"url": address.url, "note": "without TLS" if address.url.startswith("ws://") else ""}

    def _recent_results(self) -> dict[str, Any]:
        """Return what usage records said last, and let a thread read them again after some seconds.

        Nobody waits for the thread: a week of many records takes seconds, and a disk that hangs for longer. If they
        are in PostgreSQL, the thread reads them with a connection of its own.
        """
        if self._clock() >= self._recent_until + MAX_OVERDUE_SECONDS:
            self._recent = {"reading": True}
        if not self._reading and self._clock() >= self._recent_until:
            self._reading = True
            self._worker = self._worker or Worker("recent usage")
            now = self._server.clock.wall()
            self._worker.later(lambda: self._read_recent(now))
        return self._recent

    def _read_recent(self, now: float) -> None:
        began = self._clock()
        try:
            self._recent = status.recent_usage(self._where, now)
        except (StoreError, Misuse) as error:
            self._recent = {"problem": str(error)}
        except Exception:
            self._recent = {"problem": "an error of the server, which its log has"}
            raise
        finally:
            end = self._clock()
            self._recent_until = end + max(RECENT_SECONDS, (end - began) / RECENT_SHARE)
            self._reading = False


# ── status pages ──────────────────────────────────────────────────────────────────────────────────


def of(
    server: Server, store: Store, where: status.Where, settings: MailboxSettings, role: Role | None = None
) -> AdminPages:
    """Return the pages of a server, whose data is in a data directory, or in the database of a URL."""
    pages = StatusPages(server, role)
    dashboard_pages = DashboardPages(pages, server, where, settings)
    return AdminPages(
        unready=pages.unready,
        metrics=pages.metrics,
        flushing=lambda: store.flushing,
        disk=DiskProbe(where) if isinstance(where, Path) else None,
        not_answering="the disk hangs" if isinstance(where, Path) else "the database does not answer",
        json={"/varz": pages.varz, "/connz": pages.connz, "/limitz": pages.limitz},
        dashboard=Dashboard(
            title="Restante mailbox server",
            sections=(Path(__file__).with_name("web") / "sections.html").read_text("utf-8"),
            sample=dashboard_pages.sample,
            details=dashboard_pages.details,
            change=dashboard_pages.change,
        ),
    )


def of_standby(role: Role, unready: Callable[[], str]) -> AdminPages:
    """Return the pages of a server that stands by. `unready` returns why it does."""

    async def metrics(ready: bool) -> Iterable[Family]:
        return list(families(ROLE_METRICS, RoleParts(role, ready=ready)))

    return AdminPages(unready=unready, metrics=metrics, flushing=lambda: None)


class StatusPages:
    """The pages of one server."""

    def __init__(self, server: Server, role: Role | None = None) -> None:
        self._server = server
        self._role = role or Role()
        self._loop = server.commit_loop
        self._started = self._loop.now()

    def unready(self) -> str:
        """Return why no traffic should be sent to the server, "" if there is no reason."""
        if self._server.draining:
            return "draining"
        if not self._server.listens:
            return "the server does not listen yet"
        if not self._loop.dispatcher.state.room:
            return "the disk is nearly full"
        if problem := self._loop.measurements.store_problem(self._loop.now().service):
            return f"the last batch could not be stored: {problem}"
        return ""

    def parts(self, *, ready: bool = False) -> Parts:
        """Return what metrics are read from."""
        return Parts(self._server, self._role, ready=ready)

    async def metrics(self, ready: bool) -> Iterable[Family]:
        """Return all metrics."""
        return list(families(METRICS, self.parts(ready=ready)))

    async def varz(self, _query: Query) -> dict[str, Any]:
        """Return counts and settings of the server."""
        now, measured, terms = self._loop.now(), self._loop.measurements, self._server.admission.terms
        other_fields = {
            "version": __version__,
            "time": now.wall,
            "started": self._started.wall,
            "uptime_seconds": now.service - self._started.service,
            "refused_addresses": most_refused(self._loop.dispatcher.quotas.refusal_counts),
            "commits.count": measured.commit_seconds.count,
            "commits.latest_slow": [commit._asdict() for commit in measured.latest_slow_commits],
            "permission.mode": terms.mode,
            "permission.bits": terms.bits,
        }
        return page(METRICS, self.parts(), other_fields)

    async def connz(self, query: Query) -> dict[str, Any]:
        """Return the open connections, oldest first. Raises Misuse for wrong arguments."""
        sockets = sorted(self._server.sockets(), key=lambda socket: socket.connection.number)
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
            "held_bytes": socket.held_bytes,
        }

    async def limitz(self, _query: Query) -> dict[str, Any]:
        """Return each limit, how much of it is used if it is one of the whole server, and its refusals."""
        server, state = self._server, self._loop.dispatcher.state
        used = {
            "connections": len(server.admitted),
            "stored_bytes": state.stored,
            "held_bytes": server.held_bytes,
        }
        return limits_page(KINDS, server.limits, used, self._loop.dispatcher.quotas.refusal_counts)
