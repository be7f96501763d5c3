"""History and live envelopes as streams: a program iterates over the envelopes that `fetch` and `subscribe` return.

The connections run in a task of their own. What the program has not taken yet waits in memory. The state of a stream
covers only what the program has taken.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from types import TracebackType
from typing import Any, Final, Self

from restante.common.errors import Misuse, RestanteError
from restante.common.texts import counted
from restante.waku.client import fetch as fetching
from restante.waku.client.fetch import OnState, RequestOptions
from restante.waku.client.options import DEFAULT_OPTIONS, ConnectionOptions
from restante.waku.client.ranges import FetchState, HistoryQuery, Range
from restante.waku.client.requester import FetchReport
from restante.waku.client.subscribe import SubscriptionRun
from restante.waku.devp2p import enode
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import TOPIC, Envelope
from restante.waku.envelope.keys import Key
from restante.waku.envelope.payload import SymmetricKey
from restante.waku.passwords import OFFLINE_INBOX
from restante.waku.protocol.request import Form

Mailservers = Enode | str | Sequence[Enode | str]
"""One Mailserver, or several of which the first is preferred; enodes or their URLs."""

OnServerFailure = Callable[[Enode, str], None]
"""Receives a server and why its live connection or its history failed."""

DEFAULT_AGE_SECONDS: Final = 86400
"""How far back a fetch goes by default, in seconds."""


class IncompleteError(RestanteError):
    """No server answered for some of the requested times. The envelopes of the other times have been handed over."""

    def __init__(self, missing: Sequence[Range], failures: Mapping[Enode, str]) -> None:
        ranges = ", ".join(f"{lower} to {upper}" for lower, upper in missing)
        reasons = "".join(f"; {server.address}: {reason}" for server, reason in failures.items())
        super().__init__(f"no Mailserver answered for the times {ranges}{reasons}")
        self.missing = list(missing)
        """Ranges in seconds since 1970, both ends included."""
        self.failures = dict(failures)
        """By server, why it was not asked any more, or its last failure."""


class LaggingError(RestanteError):
    """The program takes live envelopes more slowly than they arrive, and too many wait for it."""


class EnvelopeStream:
    """The envelopes of a fetch. Iterate over it once: over envelopes, or with `pages` over lists of them.

    Leaving the loop ends the fetch. `async with` ends it at the end of the block, even after an exception. Without an
    exception the state then also covers the last list of which all envelopes were yielded.
    """

    def __init__(
        self,
        servers: Sequence[Enode],
        query: HistoryQuery,
        options: RequestOptions,
        state: FetchState | None,
        keep: OnState | None,
    ) -> None:
        self.state = state or FetchState()
        """What is known: everything that the program has taken. Pass it to the next call, which continues there."""
        self.report: FetchReport | None = None
        """The result. None until the iteration has ended by itself."""
        self._servers = servers
        self._query = query
        self._options = options
        self._keep = keep or fetching.do_nothing
        self._waiting: deque[list[Envelope] | FetchState] = deque()
        """What the program has not taken yet. Each state follows the envelopes that it covers."""
        self._waiting_bytes = 0
        self._in_page = False
        """Whether a part of the list that was last taken from `_waiting` has not been yielded."""
        self._wakeup = asyncio.Event()
        """Set when something waits, or when the task has ended."""
        self._task: asyncio.Task[FetchReport] | None = None

    @property
    def failures(self) -> dict[Enode, str]:
        """By server, why it was not asked any more, or its last failure. Empty until the iteration has ended."""
        failures = {} if self.report is None else self.report.failures
        return {self._servers[number]: reason for number, reason in failures.items()}

    async def __aiter__(self) -> AsyncIterator[Envelope]:
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                size = len(page)
                for number, envelope in enumerate(page, 1):
                    self._in_page = number < size
                    yield envelope

    async def pages(self) -> AsyncGenerator[list[Envelope], None]:
        """Yield envelopes in lists, as they arrive. Raises what the function that returned the stream names."""
        if self._task is not None:
            raise Misuse("a stream can be iterated over once: call the function again")
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._wakeup.set())
        try:
            while self._waiting or not self._task.done():
                self._wakeup.clear()
                while self._waiting:
                    item = self._waiting.popleft()
                    if isinstance(item, FetchState):
                        self._set_state(item)
                    else:
                        self._waiting_bytes -= _total_bytes(item)
                        yield item
                if not self._task.done():
                    await self._wakeup.wait()
            self.report = self._task.result()
        finally:
            await self._end()
        self._check(self.report)

    async def aclose(self) -> None:
        """End the iteration and its connections. Envelopes that were not taken are dropped."""
        await self._end()
        self._waiting.clear()

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while kind is None and not self._in_page and self._waiting:
                item = self._waiting.popleft()
                if not isinstance(item, FetchState):
                    break
                self._set_state(item)
        finally:
            await self.aclose()

    def _run(self) -> Coroutine[Any, Any, FetchReport]:
        """Fetch envelopes, and put them and each new state into `_waiting`."""
        return fetching.fetch(
            self._servers, self._query, self._options, self._put, state=self.state, keep=self._put_state
        )

    def _put(self, envelopes: list[Envelope]) -> None:
        self._waiting_bytes += _total_bytes(envelopes)
        self._waiting.append(envelopes)
        self._wakeup.set()

    def _put_state(self, state: FetchState) -> None:
        self._waiting.append(state)
        self._wakeup.set()

    def _set_state(self, state: FetchState) -> None:
        self.state = state
        self._keep(state)

    def _check(self, report: FetchReport) -> None:
        if report.missing:
            raise IncompleteError(report.missing, self.failures)


class Subscription(EnvelopeStream):
    """The envelopes of a subscription. The iteration goes on until `stop`, or until the loop is left."""

    def __init__(
        self,
        servers: Sequence[Enode],
        query: HistoryQuery,
        options: RequestOptions,
        state: FetchState | None,
        keep: OnState | None,
        on_failure: OnServerFailure | None,
    ) -> None:
        super().__init__(servers, query, options, state, keep)
        self._on_failure = on_failure or fetching.do_nothing
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """End the iteration. A request for history that is under way has `ConnectionOptions.stop_seconds` more."""
        self._stop.set()

    def _run(self) -> Coroutine[Any, Any, FetchReport]:
        return SubscriptionRun(
            self._servers,
            self._query,
            self._options,
            self._put,
            state=self.state,
            keep=self._put_state,
            on_failure=lambda server, reason: self._on_failure(self._servers[server], reason),
        ).run(self._stop)

    def _put(self, envelopes: list[Envelope]) -> None:
        maximum = self._options.connection.max_bytes
        if self._waiting_bytes + _total_bytes(envelopes) > maximum:
            raise LaggingError(f"more than {counted(maximum, 'byte')} of envelopes wait to be taken")
        super()._put(envelopes)

    def _check(self, report: FetchReport) -> None:
        """Do nothing: what is missing was requested repeatedly, and `on_failure` was called."""


def _total_bytes(envelopes: Iterable[Envelope]) -> int:
    return sum(len(envelope.raw) for envelope in envelopes)


# ── functions ────────────────────────────────────────────────────────────────────────────────────


def fetch(
    servers: Mailservers,
    *,
    topics: Iterable[bytes] | None,
    since: float | None = None,
    until: float | None = None,
    password: str | SymmetricKey = OFFLINE_INBOX,
    form: Form = "envelope",
    key: Key | None = None,
    state: FetchState | None = None,
    keep: OnState | None = None,
    options: ConnectionOptions = DEFAULT_OPTIONS,
) -> EnvelopeStream:
    """Return the archived envelopes of these topics that were sent from `since` to `until`, each once.

    `servers` are trusted to leave nothing out. If one fails, the next is asked. `topics` are up to 1,000 of 4 bytes
    each; None means all topics. Times are seconds since 1970, both included, by default the last 24 hours.
    `password` is the Mailservers', or the key derived from it; `form="plain"` sends requests that need none. `key`
    identifies the program to Mailservers that answer only some nodes; by default each connection has a fresh key.
    `state` is that of an earlier stream: what it covers is not requested again. `keep` is called with each new
    state. `options` are times and limits.

    Raises Misuse for arguments that cannot be used. The iteration raises IncompleteError at its end if no server
    answered for some times.
    """
    now = int(time.time())
    query = _query(topics, now - DEFAULT_AGE_SECONDS if since is None else since, now if until is None else until)
    request_options = _request_options(password, form, key, options)
    return EnvelopeStream(_enodes(servers), query, request_options, state, keep)


def subscribe(
    servers: Mailservers,
    *,
    topics: Iterable[bytes],
    since: float | None = None,
    password: str | SymmetricKey = OFFLINE_INBOX,
    form: Form = "envelope",
    key: Key | None = None,
    state: FetchState | None = None,
    keep: OnState | None = None,
    on_failure: OnServerFailure | None = None,
    options: ConnectionOptions = DEFAULT_OPTIONS,
) -> Subscription:
    """Return the envelopes of these topics that were sent since `since`, and new ones as they arrive, each once.

    `since` is in seconds since 1970, by default the present; with the `state` of an earlier stream, by default what
    that does not cover of the last 24 hours. The stream stays connected to every server, dials lost ones again, and
    requests history each minute, so that nothing is missed. `on_failure` is called with a server and the
    reason when its connection or its history fails. The other arguments are those of `fetch`; `key` is used for
    history only.

    Raises Misuse for arguments that cannot be used. The iteration raises LaggingError if more bytes of
    envelopes than `ConnectionOptions.max_bytes` wait for the program.
    """
    now = int(time.time())
    if since is None:
        since = now if state is None else now - DEFAULT_AGE_SECONDS
    query = _query(topics, since, now)
    request_options = _request_options(password, form, key, options)
    return Subscription(_enodes(servers), query, request_options, state, keep, on_failure)


def _enodes(servers: Mailservers) -> list[Enode]:
    enodes = [servers] if isinstance(servers, Enode | str) else servers
    if not enodes:
        raise Misuse("no Mailserver is named: name at least one")
    return [enode.as_enode(enode_or_url) for enode_or_url in enodes]


def _query(topics: Iterable[bytes] | None, since: float, until: float) -> HistoryQuery:
    if topics is None:
        return HistoryQuery(int(since), int(until), bloom=bloom.ALL_BITS)
    topic_set = frozenset[bytes]() if isinstance(topics, bytes | str) else frozenset(topics)
    if not topic_set or not all(isinstance(topic, bytes) and len(topic) == TOPIC for topic in topic_set):
        raise Misuse(f"topics are a list of bytes, each of {TOPIC}: topic_of(name) returns that of a public chat")
    return HistoryQuery(int(since), int(until), topic_set)


def _request_options(
    password: str | SymmetricKey, form: Form, key: Key | None, options: ConnectionOptions
) -> RequestOptions:
    to = None if form == "plain" else password
    if isinstance(to, str):
        to = _default_key() if to == OFFLINE_INBOX else SymmetricKey.from_password(to)
    return RequestOptions(form=form, to=to, key=key, connection=options)


@cache
def _default_key() -> SymmetricKey:
    """Return the key of the default password. Deriving it takes tens of milliseconds."""
    return SymmetricKey.from_password(OFFLINE_INBOX)
