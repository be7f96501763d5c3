"""History requests: read, checked, queued, and answered one page at a time, as fast as the peer reads.

    packet ──read──▶ request ──▶ the peer's queue ──a slot──▶ a page ──▶ P2P Messages … Request Complete
                        │                            └── the slot would come too late: an error
                        └── invalid, not allowed, too many: an error, at once

Each queue has one page at a time, and the number of all pages is limited by slots. So the memory for them is bounded,
and a peer that requests much does not delay peers that request little. Nor does a peer that requests and does not
read: when others wait, its page ends early, with a cursor. Requests that exceed a rate are answered later. They are
not refused, because status-go asks another Mailserver after two errors (protocol/messenger_mailserver_cycle.go).
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from time import perf_counter
from typing import Final, Literal, NamedTuple

import msgspec

from restante.common.errors import StoreDamaged, StoreError
from restante.common.histogram import Histogram
from restante.common.logs import log, trace_text
from restante.common.token_bucket import Bucket
from restante.waku.archive.query import DEFAULT_BOUNDS, Bounds, Page, PageQuery
from restante.waku.archive.sqlite import Archive
from restante.waku.connection.peer_connection import PeerConnection
from restante.waku.connection.quotas import make_room
from restante.waku.connection.read_pacing import REFUSAL_COST
from restante.waku.envelope import rlp
from restante.waku.envelope.bloom import ALL_BITS
from restante.waku.envelope.envelope import cut
from restante.waku.envelope.keccak import keccak
from restante.waku.limits import Limits
from restante.waku.node.clock import NodeClock
from restante.waku.protocol import completion, packets
from restante.waku.protocol.request import NOT_ALLOWED, Demands, Request, RequestError
from restante.waku.protocol.request import parse as parse_request

MAX_PAGES: Final = 16
"""Pages in memory at a time. Each has up to 8 MiB."""

PAGE_PACKET_BYTES: Final = 64 * 1024
"""Bytes of envelopes in a packet of a page, unless one envelope is larger. A confirmation cannot overtake a packet:
on a line of 1 Mbit/s it would wait 8 s for one of 1 MiB."""

MAX_QUEUED_REQUESTS: Final = 16
"""Requests of one peer that may wait. status-go sends three at once, and the next when one is complete."""

MAX_QUEUE_SECONDS: Final = 20.0
"""Seconds that the first request of a queue waits for a slot before it is refused. status-go waits 30 s for the
whole answer (protocol/messenger_mailserver.go) and then asks again, so a later page would be useless. The time that a
peer takes to read its previous pages does not count, because a slow peer is not one that asks too fast."""

MAX_QUEUED_BYTES: Final = 48 * 1024 * 1024
"""Bytes of memory for the waiting requests of all peers: four hundred requests of a thousand topics, or twenty
thousand of ten."""

GUARANTEED_QUEUE_BYTES: Final = 8 * 1024
"""Bytes of that memory that each peer may have even if others have used it up: three requests of status-go, of ten
topics each."""

VALIDATION: Final = "validation"
PEER_LIMIT: Final = "peer_req_limit"
ITERATOR: Final = "iterator"
PROCESS: Final = "process"
REFUSALS: Final = (VALIDATION, PEER_LIMIT, ITERATOR, PROCESS)
"""Why a request is refused, in the words of status-go's metrics (mailserver/metrics.go): the request is invalid; its
sender may not ask, or asks too often; the archive cannot be read; or another error."""

TOPICS: Final = "topics"
BLOOM: Final = "bloom"
NO_FILTER: Final = "none"
FILTERS: Final = (TOPICS, BLOOM, NO_FILTER)
"""What a request asks for: envelopes of some topics, of a bloom filter, or all."""

CURSOR_SENT_BYTES: Final = 4
"""Bytes at the beginning of a cursor that are the time of sending."""

UNREADABLE: Final = "the archive cannot be read"
"""The error for the peer, and the event in the log."""

DELAY_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
"""Bounds of a histogram: seconds from reading a request until the last byte of its answer is handed to the
network."""

PACKET_SIZE_BOUNDS: Final = (1024, 4096, 16384, 65536, 262144, 1048576)
"""Bounds of a histogram: bytes of a packet of envelopes."""


class RequestCount(StrEnum):
    """What requests and their envelopes are counted as. The values are the names in the log of a minute."""

    RECEIVED = "requests"
    READ = "attempts"
    """Requests whose id could be read. Metrics of status-go call them attempts."""
    REFUSED = "requests refused"
    ANSWERED = "requests answered"
    BATCHED = "batched"
    """Answered requests that allowed several envelopes in a packet."""
    ENVELOPES_SENT = "envelopes handed over"


class HistoryTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Which peers are served, and how."""

    demands: Demands = Demands()
    descending: bool = False
    allow: frozenset[bytes] | None = None
    """Node ids that are served. None: all."""
    bounds: Bounds = DEFAULT_BOUNDS
    """Bounds of one page."""


class _QueuedRequest(NamedTuple):
    """A request in a queue."""

    request: Request
    read_at: float
    """When it was read, by `perf_counter`: the loop's clock may count whole milliseconds, which is as long as a page
    takes."""

    @property
    def size(self) -> int:
        """Return an upper estimate of the memory that it takes."""
        return 1024 + 128 * len(self.request.topics)


def _filter_label(request: Request) -> str:
    """Return what a request asks for (FILTERS)."""
    if request.topics:
        return TOPICS
    return NO_FILTER if request.bloom in {None, ALL_BITS} else BLOOM


class HistoryRequests:
    """The requests of all peers: queued, and answered a page at a time."""

    def __init__(self, archive: Archive, terms: HistoryTerms, limits: Limits, clock: NodeClock) -> None:
        self.counts: Counter[RequestCount] = Counter()
        self.refusals: Counter[str] = Counter()
        """Refused requests, by reason."""
        self.delays = Histogram(DELAY_BOUNDS)
        """Seconds from reading a request to the end of its answer."""
        self.delays_by_filter = {name: Histogram(DELAY_BOUNDS) for name in FILTERS}
        """The same, by what was asked for."""
        self.searches = Histogram(DELAY_BOUNDS)
        """Seconds to find a page, including the wait for a reader of the archive."""
        self.packets = Histogram(PACKET_SIZE_BOUNDS)
        """Bytes of envelopes in a packet."""
        self.queries: Counter[str] = Counter()
        """Searches, by what they asked for (FILTERS)."""
        self.queued_bytes = 0
        """Bytes of memory for requests that were read and not answered."""
        self.damaged = False
        """Whether part of the archive was found to be damaged."""
        self._unreadable = ""
        """Why the archive could not be read, the last time; it is logged when it changes."""
        self._archive = archive
        self._terms = terms
        self._limits = limits
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._quotas = RequesterQuotas()
        self._queues: dict[PeerConnection, deque[_QueuedRequest]] = {}
        self._tasks: dict[PeerConnection, asyncio.Task[None]] = {}
        """The tasks that serve a queue."""
        self._slots = PageSlots(MAX_PAGES)
        self._unread: dict[PeerConnection, None] = {}
        """Connections whose page waits for the peer to read, the longest wait first."""

    def receive(self, connection: PeerConnection, payload: bytes) -> None:
        """Handle a P2P Request: queue it, or refuse it."""
        self.counts[RequestCount.RECEIVED] += 1
        try:
            request = parse_request(payload, self._terms.demands, int(self._clock.wall()))
            self._check_cursor(request)
        except RequestError as error:
            connection.charge(REFUSAL_COST)
            self.counts[RequestCount.READ] += error.id is not None
            self._refuse(connection, error.id, error.text, VALIDATION)
            return
        self.counts[RequestCount.READ] += 1
        new = _QueuedRequest(request, perf_counter())
        refusal = self._refusal_text(connection, new)
        if refusal:
            self._refuse(connection, request.id, refusal, PEER_LIMIT)
            return
        connection.active_at = self._loop.time()
        self.queued_bytes += new.size
        queue = self._queues.setdefault(connection, deque())
        queue.append(new)
        if connection not in self._tasks:
            self._start_task(connection, queue)

    def _check_cursor(self, request: Request) -> None:
        """Raise RequestError if a cursor is behind all of the requested times: no page of the request ended there.

        It belongs to another request or another server. An empty answer would say that nothing is left.
        """
        sent = int.from_bytes(request.cursor[:CURSOR_SENT_BYTES])
        if request.cursor and (sent < request.lower if self._terms.descending else sent > request.upper):
            raise RequestError("request is invalid: the cursor is no position in the requested times", request.id)

    def _start_task(self, connection: PeerConnection, queue: deque[_QueuedRequest]) -> None:
        self._queues[connection] = queue
        task = self._tasks[connection] = asyncio.create_task(self._serve_queue(connection, queue))
        task.add_done_callback(partial(self._task_done, connection))

    def _refusal_text(self, connection: PeerConnection, new: _QueuedRequest) -> str:
        """Return why a request is refused, or an empty text."""
        terms = self._terms
        if terms.allow is not None and connection.node_id not in terms.allow:
            return NOT_ALLOWED
        queue = self._queues.get(connection, ())
        own = new.size + sum([queued.size for queued in queue])
        full = own > GUARANTEED_QUEUE_BYTES and self.queued_bytes + new.size > MAX_QUEUED_BYTES
        full |= len(queue) > MAX_QUEUED_REQUESTS  # the first request of a queue is being answered
        return "too many requests at once" if full else ""

    def _refuse(self, connection: PeerConnection, request_id: bytes | None, text: str, reason: str) -> None:
        self.counts[RequestCount.REFUSED] += 1
        self.refusals[reason] += 1
        if request_id is not None:
            connection.send(packets.REQUEST_COMPLETE, completion.encode_refusal(request_id, text))

    def forget(self, connection: PeerConnection) -> None:
        """Remove all requests of a closed connection."""
        queue = self._queues.pop(connection, None)
        while queue:
            self._remove_first(queue)
        task = self._tasks.get(connection)
        if task is not None:
            task.cancel()

    def _remove_first(self, queue: deque[_QueuedRequest]) -> None:
        """Remove the first request of a queue, if it has one: it was answered, or its connection is closed."""
        if queue:
            self.queued_bytes -= queue.popleft().size

    # ── pages ────────────────────────────────────────────────────────────────────────────────────

    async def _serve_queue(self, connection: PeerConnection, queue: deque[_QueuedRequest]) -> None:
        """Answer the requests in a peer's queue. No page is made before the peer has read what was sent."""
        while queue:
            await connection.writable()
            queued, done = queue[0], True
            try:
                async with self._page_slot(connection, self._clock.monotonic() + MAX_QUEUE_SECONDS) as in_time:
                    if in_time:
                        done = await self._answer(connection, queued.request)
                    else:
                        self._refuse(connection, queued.request.id, "rate limit exceeded", PEER_LIMIT)
            finally:
                if done:
                    self._remove_first(queue)
            if done and in_time:
                seconds = perf_counter() - queued.read_at
                self.delays.add(seconds)
                self.delays_by_filter[_filter_label(queued.request)].add(seconds)

    @asynccontextmanager
    async def _page_slot(self, connection: PeerConnection, deadline: float) -> AsyncIterator[bool]:
        """Wait for a page slot and yield True. Yield False if the peer may have its next page only after `deadline`.

        If all slots are taken, the page that has waited longest for its peer to read ends and frees its slot. A peer
        that exceeds its rate waits in a slot of its address. So it does not delay others, and at most
        `MAX_PAGES_PER_ADDRESS` pages at a time add to its debt.
        """
        quota = self._quotas.obtain(connection.address)
        quota.queues += 1
        try:
            if quota.slots.locked():
                self._end_unread_page(connection.address)
            async with quota.slots:
                if not await self._charge_page(connection, deadline):
                    yield False
                    return
                if self._slots.locked():
                    self._end_unread_page()
                async with self._slots:
                    yield True
        finally:
            quota.queues -= 1

    async def _charge_page(self, connection: PeerConnection, deadline: float) -> bool:
        """Wait until the peer may have its next page, and charge it. Return False if that is after `deadline`."""
        while True:
            now = self._clock.monotonic()
            quotas = self._both_quotas(connection)
            wait = max(quota.wait(now, self._limits) for quota in quotas)
            if now + wait > deadline:
                return False
            if not wait:
                break
            await self._clock.pause(wait)
        for quota in quotas:
            quota.pages.take(now, self._limits.pages, 1)
        return True

    def _both_quotas(self, connection: PeerConnection) -> list[RequesterQuota]:
        """Return the quotas of a peer's node id and of its address."""
        return [self._quotas.obtain(connection.node_id), self._quotas.obtain(connection.address)]

    def _end_unread_page(self, address: str | None = None) -> None:
        """End the page that has waited longest for its peer to read; with an address, among those of that address."""
        connections = (connection for connection in self._unread if address in {None, connection.address})
        connection = next(connections, None)
        if connection is not None:
            del self._unread[connection]
            connection.end_wait()

    def _task_done(self, connection: PeerConnection, task: asyncio.Task[None]) -> None:
        del self._tasks[connection]
        if not task.cancelled() and task.exception() is not None:
            log.error("a page of history could not be read", fault=trace_text(task.exception()))
        queue = self._queues.pop(connection, None)
        if queue:  # a request was queued after the task had ended or failed
            self._start_task(connection, queue)

    async def _answer(self, connection: PeerConnection, request: Request) -> bool:
        """Answer a request. Return False if nothing was sent, because the peer did not read and others waited."""
        started = perf_counter()
        try:
            page = await self._archive.page(self._query(request), self._terms.bounds)
        except StoreError as error:
            self._log_unreadable(error)
            self._refuse(connection, request.id, UNREADABLE, ITERATOR)
            return True
        except Exception as error:  # noqa: BLE001 - after any error, the request is refused and the next page is made
            log.error("a page of history could not be read", fault=trace_text(error))
            self._refuse(connection, request.id, "internal error", PROCESS)
            return True
        self.searches.add(perf_counter() - started)
        now = self._clock.monotonic()
        self.queries[_filter_label(request)] += 1
        for quota in self._both_quotas(connection):
            quota.rows.take(now, self._limits.rows, page.examined)
        return await self._send_page(connection, request, page)

    def _log_unreadable(self, error: StoreError) -> None:
        self.damaged |= isinstance(error, StoreDamaged)
        if str(error) != self._unreadable:
            self._unreadable = str(error)
            log.error(UNREADABLE, reason=self._unreadable)

    def _query(self, request: Request) -> PageQuery:
        return PageQuery(
            lower=request.lower,
            upper=request.upper,
            topics=request.topics or None,
            bloom=request.bloom,
            limit=request.limit,
            after=request.cursor or None,
            descending=self._terms.descending,
        )

    async def _send_page(self, connection: PeerConnection, request: Request, page: Page) -> bool:
        """Send a page as the peer reads, then Request Complete as its last packet. Return False if nothing was sent.

        If others need the page's slot meanwhile, the rest is left for the next page, as if the page had been too
        large.
        """
        last_hash, cursor = page.last_hash, page.cursor
        raws, stops = memoryview(page.encoded), [*page.stops, 0]
        last_index, sent = -1, 0  # the index of the last envelope sent, and how many were sent
        for part in packets.packet_ranges(page.stops, PAGE_PACKET_BYTES if request.batch else 0):
            if not await self._wait_for_reader(connection):
                if not sent:
                    return False
                last_hash, cursor = _position_after(bytes(raws[stops[last_index - 1] : stops[last_index]]))
                break
            body = raws[stops[part.start - 1] : stops[part.stop - 1]]
            self.packets.add(len(body))
            connection.send_large(packets.P2P_MESSAGE, rlp.list_head(len(body)), body)
            last_index, sent = part.stop - 1, sent + len(part)
        else:
            if last_index != len(page.stops) - 1:  # the last envelope of the page fits into no packet
                last_hash = keccak(raws[stops[last_index - 1] : stops[last_index]]) if sent else None
        connection.send(
            packets.REQUEST_COMPLETE,
            completion.encode(request.id, last_hash or completion.NO_HASH, cursor or b"", request.answer),
        )
        connection.flush()
        self.counts[RequestCount.ANSWERED] += 1
        self.counts[RequestCount.BATCHED] += request.batch
        self.counts[RequestCount.ENVELOPES_SENT] += sent
        return True

    async def _wait_for_reader(self, connection: PeerConnection) -> bool:
        """Wait until the peer has read. Return False if another request needs the page's slot first."""
        connection.flush()
        if not connection.writing_paused:
            return True
        self._unread[connection] = None
        try:
            if self._quotas.obtain(connection.address).slots.waiting:
                self._end_unread_page(connection.address)
            if self._slots.waiting:
                self._end_unread_page()
            if connection in self._unread:
                await connection.writable()
            return connection in self._unread
        finally:
            self._unread.pop(connection, None)


def _position_after(raw: bytes) -> tuple[bytes, bytes]:
    """Return the hash of an envelope, and the cursor that continues after it."""
    envelope = cut(raw, rlp.item_span(raw))
    return envelope.hash, envelope.sent.to_bytes(4) + envelope.hash


# ── quotas of requesters ──────────────────────────────────────────────────────────────────────────

MAX_PAGES_PER_ADDRESS: Final = 4
"""Pages of one address in memory at a time. A requester with many connections delays only its own address."""

MAX_REMEMBERED_REQUESTERS: Final = 10_000
"""Nodes and addresses whose quotas are remembered. The least recently used is forgotten first, unless it has
queues."""


class PageSlots(asyncio.Semaphore):
    """A limited number of pages. The task that has waited longest is the next to have one."""

    waiting = 0
    """Tasks that wait for a slot."""

    async def acquire(self) -> Literal[True]:
        """Wait for a free slot."""
        self.waiting += 1
        try:
            return await super().acquire()
        finally:
            self.waiting -= 1


class RequesterQuota:
    """What one node, or one address, has requested."""

    __slots__ = ("pages", "queues", "rows", "slots")

    def __init__(self) -> None:
        self.queues = 0
        """Only for an address: queues that have one of its pages, or wait for one."""
        self.pages = Bucket()
        self.rows = Bucket()
        self.slots = PageSlots(MAX_PAGES_PER_ADDRESS)

    def wait(self, now: float, limits: Limits) -> float:
        """Return the seconds until the requester may have its next page."""
        pages = self.pages.wait(now, limits.pages, limits.pages_at_once) if limits.pages else 0.0
        rows = self.rows.wait(now, limits.rows, limits.rows_at_once) if limits.rows else 0.0
        return max(pages, rows)


class RequesterQuotas:
    """The quotas of all nodes and addresses."""

    def __init__(self) -> None:
        self._quotas: OrderedDict[bytes | str, RequesterQuota] = OrderedDict()

    def obtain(self, name: bytes | str) -> RequesterQuota:
        """Return the quota of a node id or an address, a new one if necessary."""
        quota = self._quotas.get(name)
        if quota is None:
            make_room(self._quotas, MAX_REMEMBERED_REQUESTERS, lambda quota: bool(quota.queues))
            quota = self._quotas[name] = RequesterQuota()
        self._quotas.move_to_end(name)
        return quota
