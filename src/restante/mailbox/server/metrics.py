"""Metrics of the mailbox server for Prometheus: counts that the server keeps in any case, read at each scrape.

Labels have the values of tables in this code, never texts of clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final, get_args

from prometheus_client import Metric

from restante import __version__
from restante.common.prometheus import counter, counters, gauge, gauges, histogram
from restante.common.usage_records import MailboxUsage, NameplateUsage
from restante.mailbox.core.model import OUTCOMES
from restante.mailbox.protocol.hashcash import Mode
from restante.mailbox.server import refusals
from restante.mailbox.server.measurements import COMMAND_TYPES
from restante.mailbox.server.server import Server

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
        {(reason,): times for reason, times in refusals.by_reason(dispatcher.quotas.refusals).items()},
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
    yield gauge("restante_held_bytes", "Bytes of memory of all connections, limited by held_bytes", server.held)
    yield gauge("restante_queue_commands", "Commands in the queue", len(server.commit_loop.queue))
    yield gauge(
        "restante_queue_bytes", "Bytes of memory of commands that are not handled yet", server.commit_loop.queue.held
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
