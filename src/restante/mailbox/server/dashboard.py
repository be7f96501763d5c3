"""What the dashboard of the mailbox server shows and changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

from restante.common.admin_http import Query
from restante.common.errors import Misuse, StoreError
from restante.common.last_hour import LastHour
from restante.common.usage_records import MEANINGS
from restante.common.worker import Worker
from restante.mailbox.server import refusals
from restante.mailbox.server.running_settings import RunningSettings
from restante.mailbox.server.server import Server
from restante.mailbox.server.user_address import best
from restante.mailbox.store import recent

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
        shown = await self._pages.varz({})
        return {
            **shown,
            "limits": (await self._pages.limitz({}))["limits"],
            "refusals_by_reason": self._refused_last_hour(shown["refusals"]),
            "refusals_since_start": sum(shown["refusals"].values()),
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
                "limits": self._named(refusals.LIMITS.get(reason, ())),
                "last_hour": times,
                "since_start": since_start[reason],
            }
            for reason, times in refusals.by_reason(last_hour).items()
            if times
        ]
        return sorted(rows, key=lambda row: row["last_hour"], reverse=True)

    def _named(self, limits: Iterable[str]) -> str:
        """Return limits with their values."""
        return ", ".join(f"{name} {getattr(self._server.limits, name):,g}" for name in limits)

    async def change(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Change settings. Raises Misuse."""
        return self._settings.change(wanted)

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
            self._recent = recent.read(self._data, now)
        except (StoreError, Misuse) as error:
            self._recent = {"problem": str(error)}
        except Exception:
            self._recent = {"problem": "an error of the server, which its log has"}
            raise
        finally:
            ended = self._clock()
            self._recent_until = ended + max(RECENT_SECONDS, (ended - began) / RECENT_SHARE)
            self._reading = False
