"""Subscribe to topics: hand over history from Mailservers and live envelopes, each once, until told to stop.

    every server ──live──┐
                         ├──▶ one inbox ──▶ the subscriber
    one server ──history─┘

Live connections are made before history is requested, so no envelope falls between the two. History that is not known
yet is requested again when a lost connection is back, and each minute in any case. These requests find missed
envelopes and advance the state. Live envelopes alone never advance it, because a missed envelope leaves no trace.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from restante.common.dice import SystemDice
from restante.common.errors import Misuse
from restante.waku.client.fetch import GREET_TIMEOUT, OnState, RequestOptions, Subscriber, fetch
from restante.waku.client.inbox import REMEMBERED_HASHES, Inbox
from restante.waku.client.outbound_connection import NodeUnavailableError, connect
from restante.waku.client.ranges import FetchState, HistoryQuery
from restante.waku.client.requester import Budgets, FetchReport, Timeouts
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keys import new_key
from restante.waku.protocol.acceptance import Policy, judge
from restante.waku.protocol.interest import Interest

STATE_SAVE_DELAY: Final = 5.0
"""Maximum seconds until live envelopes are recorded in the state. Each save writes the whole file and flushes it."""

REMEMBERED_FAILURES: Final = 16
"""Failures of one server that are remembered, so that each is reported once. Servers choose their error texts, and a
server that stays connected may send a new one each minute for months."""


class Intervals(msgspec.Struct, frozen=True, kw_only=True):
    """How long the subscription waits, in seconds."""

    history: float = 60.0
    """Between two requests for history. Each asks for the time since the last one and for the overlap before it."""
    first: float = 1.0
    """Until a lost server is dialled again. Doubled each time it cannot be reached,"""
    last: float = 60.0
    """up to this."""
    grace: float = 2.0
    """How long a request under way may go on after the subscription was told to stop."""


OnFailure = Callable[[int, str], None]
"""Receives a server and why its live connection or its history failed. Each remembered reason is reported once."""


async def subscribe(
    servers: Sequence[Enode],
    query: HistoryQuery,
    options: RequestOptions,
    subscriber: Subscriber,
    until: asyncio.Event,
    *,
    state: FetchState | None = None,
    keep: OnState | None = None,
    on_failure: OnFailure | None = None,
    budgets: Budgets | None = None,
    timeouts: Timeouts | None = None,
    intervals: Intervals | None = None,
) -> FetchReport:
    """Hand over envelopes of the query's topics sent since `query.lower`, and live ones, until `until` is set.

    Each server has its own live connection, under a fresh key. Live envelopes are judged as a node judges them. The
    report has what the last request for history left missing, its failures, and the number of all envelopes handed
    over. Raises Misuse, and errors of the subscriber.
    """
    if not query.topics:
        raise Misuse("name the topics to subscribe to")
    subscription = _Subscription(servers, query, options, subscriber, keep or _nothing, on_failure or _nothing)
    subscription.state = (state or FetchState()).copy()
    subscription.budgets = budgets or Budgets()
    subscription.timeouts = timeouts or Timeouts()
    subscription.intervals = intervals or Intervals()
    return await subscription.run(until)


def _nothing(*_: object) -> None:
    """Ignore a callback that the caller did not set."""


class _Subscription:
    state: FetchState
    budgets: Budgets
    timeouts: Timeouts
    intervals: Intervals

    def __init__(
        self,
        servers: Sequence[Enode],
        query: HistoryQuery,
        options: RequestOptions,
        subscriber: Subscriber,
        keep: OnState,
        on_failure: OnFailure,
    ) -> None:
        self._servers = servers
        self._query = query
        self._options = options
        self._subscriber = subscriber
        self._keep = keep
        self._on_failure = on_failure
        self._interest = Interest.named(query.topics)
        self._inbox = Inbox(self._interest)
        self._dice = SystemDice()
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._again = asyncio.Event()
        """Set to request history at once."""
        self._answered = asyncio.Event()
        """Set while no request for history is under way."""
        self._live = FetchState()
        """Live envelopes that were handed over, of times that will be requested again."""
        self._saving: asyncio.TimerHandle | None = None
        self._reported: dict[int, deque[str]] = {}
        """By server: the last `REMEMBERED_FAILURES` reported failures since its last connection."""
        self._report = FetchReport([], Counter(), {})
        self._handed_over = 0

    async def run(self, until: asyncio.Event) -> FetchReport:
        self._report = FetchReport(self.state.missing(self._now()), Counter(), {})
        for name in self._query.state_keys():
            self._inbox.mark_handed_over(map(bytes.fromhex, self.state.recent.get(name, ())))
        tried = [asyncio.Event() for _ in self._servers]
        listening = [asyncio.create_task(self._listen(number, each)) for number, each in enumerate(tried)]
        fetching = asyncio.create_task(self._fetch_repeatedly(tried))
        stopped = asyncio.create_task(self._stop_requested(until))
        tasks: list[asyncio.Future[Any]] = [stopped, fetching, *listening]
        try:
            await asyncio.wait((self._failed, *tasks), return_when=asyncio.FIRST_COMPLETED)
            for each in (self._failed, *tasks):
                if each.done():
                    each.result()  # except for `stopped`, these tasks end only with an error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._saving is not None:
                self._saving.cancel()
            self._failed.cancel()
        self._save()
        report = self._report
        return FetchReport(report.missing, Counter({"handed over": self._handed_over}), report.failures)

    async def _stop_requested(self, until: asyncio.Event) -> None:
        """Wait until the subscription is to stop, and then at most `grace` for a request under way."""
        await until.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.intervals.grace):
                await self._answered.wait()

    def _hand_over(self, envelopes: list[Envelope]) -> None:
        self._subscriber(envelopes)
        self._handed_over += len(envelopes)

    # ── live envelopes ───────────────────────────────────────────────────────────────────────────

    async def _listen(self, server: int, tried: asyncio.Event) -> None:
        """Stay connected to a server."""
        wait = self.intervals.first
        while True:
            try:
                async with connect(
                    self._servers[server], new_key(self._dice), self._interest, GREET_TIMEOUT, on_envelopes=self._came
                ) as connection:
                    wait = self.intervals.first
                    self._reported.pop(server, None)
                    tried.set()
                    self._again.set()
                    words = await connection.wait_closed()
            except NodeUnavailableError as error:
                words = str(error)
            self._say(server, words)
            tried.set()
            await asyncio.sleep(wait)
            wait = min(2 * wait, self.intervals.last)

    def _came(self, envelopes: list[Envelope]) -> None:
        """Handle envelopes that a server relays. An error of the subscriber ends the whole subscription."""
        if self._failed.done():
            return
        now = int(time.time())
        policy = Policy(min_pow=0.0, max_size=self.budgets.size)
        good = [
            each for each in envelopes if each.sent >= self._query.lower and judge(each, now, policy).refusal is None
        ]
        fresh = self._inbox.filter_new(good)
        if not fresh:
            return
        try:
            self._hand_over(fresh)
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self._failed.set_exception(error)
            return
        for each in fresh:
            self._live.remember(self._query, each)
        if self._saving is None:
            self._saving = self._loop.call_later(STATE_SAVE_DELAY, self._save_soon)

    # ── history ──────────────────────────────────────────────────────────────────────────────────

    async def _fetch_repeatedly(self, tried: Sequence[asyncio.Event]) -> None:
        for each in tried:
            await each.wait()
        while True:
            self._again.clear()
            self._answered.clear()
            self._report = await fetch(
                self._servers,
                self._now(),
                self._options,
                self._hand_over,
                inbox=self._inbox,
                state=self.state,
                keep=self._learn,
                budgets=self.budgets,
                timeouts=self.timeouts,
            )
            for server, words in self._report.failures.items():
                self._say(server, words)
            self._answered.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.intervals.history):
                    await self._again.wait()

    def _now(self) -> HistoryQuery:
        return HistoryQuery(self._query.lower, max(self._query.lower, int(time.time())), self._query.topics)

    def _say(self, server: int, words: str) -> None:
        reported = self._reported.setdefault(server, deque(maxlen=REMEMBERED_FAILURES))
        if words not in reported:
            reported.append(words)
            self._on_failure(server, words)

    # ── state ────────────────────────────────────────────────────────────────────────────────────

    def _learn(self, state: FetchState) -> None:
        """Save the state of history together with the live envelopes since then."""
        self._live.known = state.known
        self._live.forget(self._query)
        most = REMEMBERED_HASHES // len(self._query.topics)
        # Without a limit, the hashes would grow while no history request is answered.
        for hashes in self._live.recent.values():
            while len(hashes) > most:
                del hashes[next(iter(hashes))]
        self.state = state.copy()
        self.state.also(self._live)
        self._keep(self.state)

    def _save(self) -> None:
        self._learn(self.state)

    def _save_soon(self) -> None:
        self._saving = None
        try:
            self._save()
        except Exception as error:  # noqa: BLE001 - `run` raises it
            if not self._failed.done():
                self._failed.set_exception(error)
