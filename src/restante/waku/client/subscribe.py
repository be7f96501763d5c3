"""Subscribe to topics: hand over history from Mailservers and live envelopes, each once, until the caller stops it.

    every server ──live──┐
                         ├──▶ one inbox ──▶ the subscriber
    one server ──history─┘

Live connections are made before history is requested, so no envelope is missed between the two. History that is not
known yet is requested again after a lost connection was made again, and each minute in any case. These requests
return missed envelopes and advance the state. Live envelopes alone never advance it, because a client does not notice
that it missed one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from restante.common.errors import Misuse
from restante.waku.client.fetch import OnState, RequestOptions, Subscriber, do_nothing, fetch
from restante.waku.client.inbox import DEFAULT_MAX_HASHES, Inbox
from restante.waku.client.outbound_connection import NodeUnavailableError, connect
from restante.waku.client.ranges import FetchState, HistoryQuery
from restante.waku.client.requester import FetchReport
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol.acceptance import Policy, judge
from restante.waku.protocol.interest import Interest

STATE_SAVE_DELAY: Final = 5.0
"""Maximum seconds until live envelopes are recorded in the state. Each save writes the whole file and flushes it."""

MAX_REMEMBERED_FAILURES: Final = 16
"""Failures of one server that are stored, so that each is reported once. Servers choose their error texts, and a
server that stays connected may send a new one each minute for months."""

OnFailure = Callable[[int, str], None]
"""Receives a server and why its live connection or its history failed. Each stored reason is reported once."""


class SubscriptionRun:
    """Hands over envelopes of the query's topics sent since `query.lower`, and live ones.

    Each server has its own live connection, under a fresh key. Live envelopes are judged as a node judges them.
    Raises Misuse if the query has no topics.
    """

    def __init__(
        self,
        servers: Sequence[Enode],
        query: HistoryQuery,
        options: RequestOptions,
        subscriber: Subscriber,
        *,
        state: FetchState | None = None,
        keep: OnState = do_nothing,
        on_failure: OnFailure = do_nothing,
    ) -> None:
        if not query.topics:
            raise Misuse("name the topics to subscribe to")
        self._servers = servers
        self._query = query
        self._options = options
        self._subscriber = subscriber
        self._state = (state or FetchState()).copy()
        self._keep = keep
        self._on_failure = on_failure
        self._interest = Interest.of_topics(query.topics)
        self._inbox = Inbox(self._interest)
        self._loop = asyncio.get_running_loop()
        self._error: asyncio.Future[None] = self._loop.create_future()
        """Gets an error of the subscriber or of `keep` that was raised in a callback."""
        self._fetch_now = asyncio.Event()
        """Set to request history at once."""
        self._idle = asyncio.Event()
        """Set while no request for history is under way."""
        self._live_state = FetchState()
        """Live envelopes that were handed over, of times that will be requested again."""
        self._save_timer: asyncio.TimerHandle | None = None
        self._reported: dict[int, deque[str]] = {}
        """By server: the last `MAX_REMEMBERED_FAILURES` reported failures since its last connection."""
        self._report = FetchReport(self._state.missing(self._query_until_now()), 0, {}, {})
        self._handed_over = 0

    async def run(self, until: asyncio.Event) -> FetchReport:
        """Run until `until` is set, and return a report. Raises errors of the subscriber and of `keep`.

        The report has what was missing after the last request for history, its failures, and the number of all
        envelopes handed over.
        """
        for key in self._query.state_keys():
            self._inbox.mark_handed_over(map(bytes.fromhex, self._state.recent.get(key, ())))
        dialled = [asyncio.Event() for _ in self._servers]
        listen_tasks = [asyncio.create_task(self._listen(server, event)) for server, event in enumerate(dialled)]
        fetch_task = asyncio.create_task(self._fetch_repeatedly(dialled))
        stop_task = asyncio.create_task(self._wait_for_stop(until))
        tasks: list[asyncio.Future[Any]] = [stop_task, fetch_task, *listen_tasks]
        try:
            await asyncio.wait((self._error, *tasks), return_when=asyncio.FIRST_COMPLETED)
            for future in (self._error, *tasks):
                if future.done():
                    future.result()  # except for `stop_task`, these end only with an error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._save_timer is not None:
                self._save_timer.cancel()
            self._error.cancel()
        self._set_state(self._state)
        return msgspec.structs.replace(self._report, handed_over=self._handed_over)

    async def _wait_for_stop(self, until: asyncio.Event) -> None:
        """Wait until `until` is set, and then at most `stop_seconds` for a request under way."""
        await until.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.connection.stop_seconds):
                await self._idle.wait()

    def _hand_over(self, envelopes: list[Envelope]) -> None:
        self._subscriber(envelopes)
        self._handed_over += len(envelopes)

    # ── live envelopes ───────────────────────────────────────────────────────────────────────────

    async def _listen(self, server: int, dialled: asyncio.Event) -> None:
        """Stay connected to a server. Set `dialled` after the first attempt."""
        options = self._options.connection
        delay = options.first_delay_seconds
        while True:
            try:
                async with connect(
                    self._servers[server],
                    options=options,
                    interest=self._interest,
                    on_envelopes=self._on_live_envelopes,
                ) as connection:
                    delay = options.first_delay_seconds
                    self._reported.pop(server, None)
                    dialled.set()
                    self._fetch_now.set()
                    reason = await connection.wait_closed()
            except NodeUnavailableError as error:
                reason = str(error)
            self._report_failure(server, reason)
            dialled.set()
            await asyncio.sleep(delay)
            delay = min(2 * delay, options.max_delay_seconds)

    def _on_live_envelopes(self, envelopes: list[Envelope]) -> None:
        """Handle envelopes that a server relays. An error of the subscriber ends the whole subscription."""
        if self._error.done():
            return
        now = int(time.time())
        policy = Policy(min_pow=0.0, max_size=self._options.connection.max_envelope_bytes)
        acceptable = [
            envelope
            for envelope in envelopes
            if envelope.sent >= self._query.lower and judge(envelope, now, policy).refusal is None
        ]
        new_envelopes = self._inbox.filter_new(acceptable)
        if not new_envelopes:
            return
        try:
            self._hand_over(new_envelopes)
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self._error.set_exception(error)
            return
        for envelope in new_envelopes:
            self._live_state.remember(self._query, envelope)
        if self._save_timer is None:
            self._save_timer = self._loop.call_later(STATE_SAVE_DELAY, self._on_save_timer)

    # ── history ──────────────────────────────────────────────────────────────────────────────────

    async def _fetch_repeatedly(self, dialled: Sequence[asyncio.Event]) -> None:
        for event in dialled:
            await event.wait()
        while True:
            self._fetch_now.clear()
            self._idle.clear()
            self._report = await fetch(
                self._servers,
                self._query_until_now(),
                self._options,
                self._hand_over,
                inbox=self._inbox,
                state=self._state,
                keep=self._set_state,
            )
            for server, reason in self._report.failures.items():
                self._report_failure(server, reason)
            self._idle.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.connection.history_seconds):
                    await self._fetch_now.wait()

    def _query_until_now(self) -> HistoryQuery:
        return HistoryQuery(self._query.lower, max(self._query.lower, int(time.time())), self._query.topics)

    def _report_failure(self, server: int, reason: str) -> None:
        reported = self._reported.setdefault(server, deque(maxlen=MAX_REMEMBERED_FAILURES))
        if reason not in reported:
            reported.append(reason)
            self._on_failure(server, reason)

    # ── state ────────────────────────────────────────────────────────────────────────────────────

    def _set_state(self, state: FetchState) -> None:
        """Set and save the state of history together with the live envelopes since then."""
        self._live_state.known = state.known
        self._live_state.forget(self._query)
        # Without a limit, the hashes would grow while no history request is answered.
        max_hashes = DEFAULT_MAX_HASHES // len(self._query.topics)
        for hashes in self._live_state.recent.values():
            while len(hashes) > max_hashes:
                del hashes[next(iter(hashes))]
        self._state = state.copy()
        self._state.also(self._live_state)
        self._keep(self._state)

    def _on_save_timer(self) -> None:
        self._save_timer = None
        try:
            self._set_state(self._state)
        except Exception as error:  # noqa: BLE001 - `run` raises it
            if not self._error.done():
                self._error.set_exception(error)
