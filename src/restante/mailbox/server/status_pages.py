"""What the admin port of the mailbox server shows: whether it is ready, metrics, and JSON pages.

docs/monitoring.md documents the fields.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, get_args

import msgspec
from prometheus_client import Metric

from restante import __version__
from restante.common.admin_dashboard import Dashboard
from restante.common.admin_http import AdminPages, Query, page_of
from restante.common.disk_probe import DiskProbe
from restante.common.errors import Misuse, StoreError
from restante.common.last_hour import LastHour
from restante.common.prometheus import counter, counters, gauge, gauges, histogram
from restante.common.usage_records import MEANINGS, MailboxUsage, NameplateUsage, Result
from restante.common.worker import Worker
from restante.mailbox.core.model import OUTCOMES
from restante.mailbox.protocol.hashcash import Mode
from restante.mailbox.protocol.refusals import KINDS, times_by_reason
from restante.mailbox.server.commit_loop import COMMAND_TYPES
from restante.mailbox.server.connection import Socket
from restante.mailbox.server.running_settings import RunningSettings
from restante.mailbox.server.server import Server
from restante.mailbox.server.user_address import best
from restante.mailbox.store import status
from restante.mailbox.store.sqlite import Store

# ──────────
# Metrics of the mailbox server for Prometheus: counts that the server keeps in any case, read at each scrape.
#
# Labels have the values of tables in this code, never texts of clients.


ENDED: Final[Mapping[type, str]] = {NameplateUsage: "nameplate", MailboxUsage: "mailbox"}


def collect(server: Server, *, ready: bool) -> Iterator[Metric]:
    """Yield all metrics. Call this in the server's event loop. `ready`: what /readyz says."""
    yield gauges("restante_build_info", "The version of the server", ("version",), {(__version__,): 1})
    yield gauge("restante_ready", "1 if the server can store what clients send; 0 if not, or while it stops", ready)
    yield from _connections(server)
    yield from _commands(server)
    yield from _commits(server)
    yield from _live(server)
    yield from _permission(server)


def _connections(server: Server) -> Iterator[Metric]:
    dispatcher = server.commit_loop.dispatcher
    yield gauge("restante_connections", "Open connections that were admitted", len(server.admitted))
    yield counter(
        "restante_connections_opened",
        "WebSockets opened since the start, also refused ones",
        dispatcher.connections_seen,
    )
    yield counters(
        "restante_refusals",
        "Connections, commands and usage records refused for lack of permission or room, by reason",
        ("reason",),
        {(reason,): times for reason, times in times_by_reason(dispatcher.quotas.refusals).items()},
    )
    yield counter(
        "restante_tls_handshakes_failed", "Connections whose TLS handshake failed", server.failed_handshakes
    )
    yield gauge(
        "restante_tls_certificate_expires_seconds",
        "When the certificate expires, in seconds since 1970; NaN without one",
        server.certificate.expires if server.certificate else math.nan,
    )
    yield gauge("restante_owed_bytes", "Bytes sent to clients that they have not read", server.owing)
    yield gauge("restante_held_bytes", "Bytes of memory of all connections, limited by held_bytes", server.held_bytes)
    yield gauge("restante_queue_commands", "Commands in the queue", len(server.commit_loop.queue))
    yield gauge(
        "restante_queue_bytes",
        "Bytes of memory of commands that are not handled yet",
        server.commit_loop.queue.held_bytes,
    )


def _commands(server: Server) -> Iterator[Metric]:
    measured = server.commit_loop.measurements
    yield counters(
        "restante_commands",
        "Commands handled, by type of message and outcome",
        ("type", "outcome"),
        {
            (name, outcome): measured.commands(kind, outcome)
            for kind, name in COMMAND_TYPES.items()
            for outcome in OUTCOMES
        },
    )
    yield histogram(
        "restante_delivery_seconds",
        "Seconds from the receipt of an add until it was on disk, and its message goes to the subscribers",
        measured.delivery_seconds,
    )
    yield counters(
        "restante_results",
        "Nameplates and mailboxes that ended, by result",
        ("kind", "result"),
        {(ENDED[kind], result): times for (kind, result), times in measured.results.items()},
    )


def _commits(server: Server) -> Iterator[Metric]:
    measured = server.commit_loop.measurements
    yield histogram("restante_batch_commands", "Commands of a batch that had any", measured.batch_commands)
    yield histogram(
        "restante_commit_seconds",
        "Seconds from a batch's first statement until it was on disk",
        measured.commit_seconds,
    )
    yield counter("restante_slow_commits", "Commits that took at least 0.25 s", measured.slow_commits)
    yield counter(
        "restante_batches_not_stored",
        "Batches that the disk did not take, and were undone",
        measured.batches_not_stored,
    )
    yield gauge(
        "restante_disk_has_room",
        "1 if the disk has as much room as the limit free_disk",
        server.commit_loop.dispatcher.state.room,
    )
    yield gauge("restante_disk_free_bytes", "Bytes that the server can still write on its disk", measured.disk_free)
    yield gauge("restante_wal_bytes", "Bytes of the write-ahead log (-wal) of the database", measured.wal_bytes)
    yield counter("restante_prunes", "Prunes that ended", measured.prunes)
    yield gauge("restante_last_prune_seconds", "Seconds that the last prune took", measured.prune_seconds)
    yield counter("restante_mailboxes_pruned", "Idle mailboxes that were pruned", measured.pruned)


def _live(server: Server) -> Iterator[Metric]:
    state = server.commit_loop.dispatcher.state
    yield gauge("restante_nameplates", "Live nameplates", state.nameplate_count)
    yield gauge("restante_mailboxes", "Live mailboxes", state.mailbox_count)
    yield gauge("restante_messages", "Messages of live mailboxes", state.message_count)
    yield gauge("restante_stored_bytes", "Bytes of memory of live data, limited by stored_bytes", state.stored)
    yield gauge("restante_applications", "Applications with live data or connections", len(state.apps))


def _permission(server: Server) -> Iterator[Metric]:
    terms, load_level = server.admission.terms, server.admission.load_level
    yield gauges(
        "restante_permission_mode",
        "1 for the permission mode in effect",
        ("mode",),
        {(mode,): terms.mode == mode for mode in get_args(Mode)},
    )
    yield counter(
        "restante_permission_demands", "Connections of which proof of work was demanded", server.admission.demanded
    )
    yield counter("restante_permission_solved", "Proofs of work accepted", server.commit_loop.measurements.solved)
    yield gauge(
        "restante_permission_difficulty",
        "Bits of proof of work that are demanded of all clients; 0: none",
        server.admission.difficulty,
    )
    yield counter(
        "restante_permission_changes",
        "How often the difficulty for all clients or for an address has changed",
        load_level.changes + server.admission.changes,
    )


# ── What the dashboard of the mailbox server shows and changes ────────────────────────────────────


RECENT_SECONDS: Final = 10.0
"""Seconds for which what usage records say is shown, at least."""

RECENT_SHARE: Final = 0.01
"""Share of the time in which usage records are read, at most. To count a week of 1.5 million records takes 0.5 to
0.7 s, so then they are read once a minute."""


MAX_OVERDUE_SECONDS: Final = 30.0
"""Seconds after which results that should have been read again are not shown any more: nobody has looked, or the disk
hangs."""


class Pages(Protocol):
    """The JSON pages that the dashboard shows parts of."""

    async def varz(self, query: Query, /) -> dict[str, Any]:
        """Return counts and settings of the server."""

    async def limitz(self, query: Query, /) -> dict[str, Any]:
        """Return each limit."""


class DashboardPages:
    """The dashboard of one server."""

    def __init__(
        self,
        pages: Pages,
        server: Server,
        data: Path,
        settings: RunningSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pages = pages
        self._server = server
        self._data = data
        self._settings = settings
        self._clock = clock
        self._refusals = LastHour(clock)
        self._recent: dict[str, Any] = {"reading": True}
        self._recent_until = float("-inf")
        """When the usage records are read again, by the clock."""
        self._reading = False
        self._worker: Worker | None = None

    async def sample(self) -> dict[str, float]:
        """Return the values whose history is kept: counts since the start, and gauges."""
        loop, server = self._server.commit_loop, self._server
        measured, state = loop.measurements, loop.dispatcher.state
        self._refusals.remember(loop.dispatcher.quotas.refusals)
        return {
            "connections": len(server.admitted),
            "mailboxes": state.mailbox_count,
            "commands": sum(measured.carried_out.values()) + sum(measured.not_carried_out.values()),
            "refusals": sum(loop.dispatcher.quotas.refusals.values()),
            "commits": measured.commit_seconds.count,
            "commit_seconds": measured.commit_seconds.total,
            "deliveries": measured.delivery_seconds.count,
            "delivery_seconds": measured.delivery_seconds.total,
        }

    async def details(self) -> dict[str, Any]:
        """Return all that the page shows."""
        counts = await self._pages.varz({})
        return {
            **counts,
            "limits": (await self._pages.limitz({}))["limits"],
            "refusals_by_reason": self._refused_last_hour(counts["refusals"]),
            "refusals_since_start": sum(counts["refusals"].values()),
            "settings": self._settings.changeable(),
            "reports_url": self._settings.reports_url,
            "recent": self._recent_results(),
            "meanings": MEANINGS,
            "users": self._users(),
            "certificate": self._certificate(),
        }

    def _refused_last_hour(self, since_start: dict[str, int]) -> list[dict[str, Any]]:
        """Return the reasons of refusals in the last hour, the most frequent first."""
        last_hour = self._refusals.growth(dict(self._server.commit_loop.dispatcher.quotas.refusals))
        rows = [
            {
                "reason": reason,
                "limits": self._named(KINDS[reason].limits),
                "last_hour": times,
                "since_start": since_start[reason],
            }
            for reason, times in times_by_reason(last_hour).items()
            if times
        ]
        return sorted(rows, key=lambda row: row["last_hour"], reverse=True)

    def _named(self, limits: Iterable[str]) -> str:
        """Return limits with their values."""
        return ", ".join(f"{name} {getattr(self._server.limits, name):,g}" for name in limits)

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
        if not address.others:
            return {"url": address.url, "note": "on this machine only"}
        return {"url": address.url, "note": "without TLS" if address.url.startswith("ws://") else ""}

    def _recent_results(self) -> dict[str, Any]:
        """Return what usage records said last, and let a thread read them again after some seconds.

        Nobody waits for the thread: a week of many records takes seconds, and a disk that hangs for longer.
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
            self._recent = status.recent_usage(self._data, now)
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


MAX_REFUSED_ADDRESSES: Final = 10
"""Addresses with the most refusals that are shown."""


def of(server: Server, store: Store, data: Path, settings: RunningSettings) -> AdminPages:
    """Return the pages of a server."""
    pages = StatusPages(server)
    dashboard_pages = DashboardPages(pages, server, data, settings)
    return AdminPages(
        unready=pages.unready,
        metrics=pages.metrics,
        flushing=lambda: store.flushing,
        disk=DiskProbe(data),
        json={"/varz": pages.varz, "/connz": pages.connz, "/limitz": pages.limitz},
        dashboard=Dashboard(
            title="Restante mailbox server",
            sections=(Path(__file__).with_name("web") / "sections.html").read_text(),
            sample=dashboard_pages.sample,
            details=dashboard_pages.details,
            change=dashboard_pages.change,
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
        return list(collect(self._server, ready=ready))

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
            "refusals": times_by_reason(quotas.refusals),
            "refused_addresses": _most_refused(quotas.lately_refused),
            "queue": {
                "commands": len(self._loop.queue),
                "bytes": self._loop.queue.held_bytes,
                "owed_bytes": server.owing,
                "held_bytes": server.held_bytes,
            },
            "commits": {
                "count": measured.commit_seconds.count,
                "seconds": measured.commit_seconds.total,
                "slow": measured.slow_commits,
                "latest_slow": [commit._asdict() for commit in measured.latest_slow_commits],
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
            "held_bytes": socket.holding,
        }

    async def limitz(self, _query: Query) -> dict[str, Any]:
        """Return each limit, how much of it is used if it is one of the whole server, and its refusals."""
        server, state = self._server, self._loop.dispatcher.state
        used = {
            "connections": len(server.admitted),
            "stored_bytes": state.stored,
            "held_bytes": server.held_bytes,
        }
        times = times_by_reason(self._loop.dispatcher.quotas.refusals)
        reasons: dict[str, list[str]] = {}
        for kind in KINDS.values():
            for name in kind.limits:
                reasons.setdefault(name, []).append(kind.reason)
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
        {"address_id": address_id, "reason": reason, "times": times}
        for (reason, address_id), times in refused.most_common(MAX_REFUSED_ADDRESSES)
    ]
