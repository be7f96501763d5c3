"""The requester: it asks trusted Mailservers for history, page by page, until all of a query is known.

    WAITING ──time──▶ CONNECTING ──connected──▶ WRITING ──request_sent──▶ REQUESTED ──a cursor──▶ WRITING
       ▲                  │                        │                          │
       └──── a failure: back off, or try another ──┴──────────────────────────┤ the last missing page ends
             server, from what is known                                       ▼
                                                                            DONE

The requester does no I/O and reads no clock. The caller reports events, carries out the returned actions in order,
and calls `handle_timeout` at `next_timeout`. Servers are numbers; the first is preferred.

One server is asked at a time. The options limit what each may cost, so that the others are asked even if the answer
of one never ends. A cursor is valid only at the server that sent it. The next server is asked for what is not known
yet (`RangeFetch`). What a cheating server sent does not count as known. The requester cannot detect that a server
omits envelopes; therefore servers must be trusted.

An envelope may reach an archive late, by its time to live and 20 s. So what is younger than `overlap` at the request
is handed over but not recorded as known, and is requested again in the next run.

The file has the actions of a requester, what is known of a range (`RangeFetch`), and the `Requester`.
"""

from __future__ import annotations

import math
from enum import Enum, auto

import msgspec

from restante.common.errors import PeerError
from restante.waku.client.inbox import Inbox
from restante.waku.client.options import DEFAULT_OPTIONS, ConnectionOptions
from restante.waku.client.ranges import FetchState, HistoryQuery, Range, subtract_ranges
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.rlp import BREACH
from restante.waku.protocol import completion
from restante.waku.protocol.completion import Completed, RequestRefused
from restante.waku.protocol.request import CURSOR_BYTES, Request

# ── actions and report ───────────────────────────────────────────────────────────────────────────


class Connect(msgspec.Struct, frozen=True):
    """Action: connect to a server within `connect_seconds`, trust it, and call `connected` or `server_failed`."""

    server: int


class SendRequest(msgspec.Struct, frozen=True):
    """Action: send this request to a server, under an id that the caller chooses.

    Call `request_sent` with that id before any event of the answer.
    """

    server: int
    request: Request


class Disconnect(msgspec.Struct, frozen=True):
    """Action: disconnect from a server. The requester expects no event for this."""

    server: int


class HandOver(msgspec.Struct, frozen=True):
    """Action: pass these envelopes to the subscriber."""

    envelopes: list[Envelope]


class SaveState(msgspec.Struct, frozen=True):
    """Action: save this state. The subscriber has everything that was handed over before."""

    state: FetchState


class FetchReport(msgspec.Struct, frozen=True):
    """The result of a query."""

    missing: list[Range]
    """Times that no server answered for. If empty, the query is complete."""
    handed_over: int
    """Number of envelopes that the subscriber has received."""
    failures: dict[int, str]
    """By server: why it is not asked any more, or its last failure."""
    refusals: dict[int, str]
    """What the servers said whose failure is an answer with an error."""


class Finished(msgspec.Struct, frozen=True):
    """Action: the query has ended. The requester expects no event and returns no action after this."""

    report: FetchReport


Action = Connect | SendRequest | Disconnect | HandOver | SaveState | Finished


# ── one range at one server ──────────────────────────────────────────────────────────────────────


class NoProgressError(PeerError):
    """The server sends page after page without progress. No honest server does."""

    def __init__(self, reason: str) -> None:
        super().__init__(BREACH, reason)


class RangeFetch:
    """One range at one server, page by page: what the server has sent, in which order, and what is known from that.

    Shipped servers iterate over their archive by key: the sending time, then the hash. The order is ascending with
    LevelDB and descending with PostgreSQL. A cursor is a key. If all that was sent is in one of these orders,
    everything from the first end to the cursor is known, whatever happens later. If the order is neither, or a cursor
    is not a key as shipped servers send it, nothing is known before the last page.

    `requested` is when the range was first requested, by the wall clock.
    """

    def __init__(self, lower: int, upper: int, requested: float) -> None:
        self.lower = lower
        self.upper = upper
        self.requested = requested
        self.cursor = b""
        """Where the next page begins."""
        self.known_range: Range | None = None
        """The times that are fully known, unless the server lies."""
        self.complete = False
        self._cursors: set[bytes] = set()
        self._hashes: set[bytes] = set()
        self._page_envelopes = 0
        """Envelopes of the current page."""
        self._new_envelopes = 0
        """Envelopes of the current page that no earlier page had."""
        self._previous_key = b""
        self._ascending: bool | None = None
        """The order of the keys. None: there were not two yet."""
        self._ordered = True

    def add(self, envelope: Envelope) -> bool:
        """Record an envelope. Return False if this server has already sent it."""
        self._page_envelopes += 1
        if envelope.hash in self._hashes:
            self._ordered = False
            return False
        self._hashes.add(envelope.hash)
        self._new_envelopes += 1
        self._check_order(envelope.sent.to_bytes(4) + envelope.hash)
        return True

    def has(self, envelope_hash: bytes) -> bool:
        """Return whether the envelope with this hash has arrived."""
        return envelope_hash in self._hashes

    def end_page(self, end: Completed) -> None:
        """Record the end of a page. Raises NoProgressError."""
        if not end.cursor:
            self.known_range = (self.lower, self.upper)
            self.complete = True
            self._hashes.clear()
            return
        if end.cursor in self._cursors:
            raise NoProgressError("its cursor does not advance")
        if self._page_envelopes and not self._new_envelopes:
            raise NoProgressError("its pages repeat")
        self._cursors.add(end.cursor)
        self.cursor = end.cursor
        self._page_envelopes = self._new_envelopes = 0
        sent = int.from_bytes(end.cursor[:4])
        if len(end.cursor) != CURSOR_BYTES or not self.lower <= sent <= self.upper:
            self._ordered = False  # it is not a key of the requested range
        self._check_order(end.cursor)
        self._set_known_range(sent)

    def _check_order(self, key: bytes) -> None:
        """Compare a key with the previous one. Record if they are not in the order of those before."""
        if self._previous_key and key != self._previous_key:
            ascending = key > self._previous_key
            if self._ascending is None:
                self._ascending = ascending
            elif self._ascending != ascending:
                self._ordered = False
        self._previous_key = key

    def _set_known_range(self, sent: int) -> None:
        """Set what is known at a cursor. Other envelopes of its second may still follow."""
        self.known_range = None
        if not self._ordered or self._ascending is None:
            return
        lower = self.lower if self._ascending else max(sent + 1, self.lower)
        upper = min(sent - 1, self.upper) if self._ascending else self.upper
        if lower <= upper:
            self.known_range = (lower, upper)


# ── requester ─────────────────────────────────────────────────────────────────────────────────────


class RequesterPhase(Enum):
    """What the requester waits for."""

    WAITING = auto()
    CONNECTING = auto()
    WRITING = auto()
    REQUESTED = auto()
    DONE = auto()


class _ServerState(msgspec.Struct):
    """What the requester knows of one server."""

    failures: int = 0
    """Failures in a row."""
    reason: str = ""
    """Why it failed the last time."""
    refusal: str = ""
    """What it said, if it then answered with an error."""
    given_up: bool = False
    not_before: float = -math.inf
    """When it may be tried again."""
    since: float = 0.0
    """When it last became the current server."""
    pages: int = 0
    envelopes: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """Seconds spent on it until `since`, and on backing off after its failures."""
    range_fetches: list[RangeFetch] = msgspec.field(default_factory=list)


class Requester:
    """One query to one or more trusted servers."""

    def __init__(
        self,
        query: HistoryQuery,
        servers: int,
        inbox: Inbox,
        state: FetchState | None = None,
        options: ConnectionOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.query = query
        self.options = options
        self.phase = RequesterPhase.WAITING
        self._handed_over = 0
        self._inbox = inbox
        self._base_state = (state or FetchState()).copy()
        """The state at the start, and the recent envelopes that were handed over since."""
        self._unknown_ranges = self._base_state.missing(query)
        """What was not known at the start."""
        self._servers = [_ServerState() for _ in range(servers)]
        self._current: int | None = None
        """The current server."""
        self._range_fetch: RangeFetch | None = None
        self._request_id: bytes | None = None
        self._pending_end: Completed | None = None
        """The end of a page whose last envelope has not arrived."""
        self._deadline = math.inf
        self._clock_offset = 0.0
        """Seconds by which the wall clock is ahead of the monotonic clock."""
        self._actions: list[Action] = []

    # ── events ───────────────────────────────────────────────────────────────────────────────────

    def start(self, now: float, wall: float) -> list[Action]:
        """Start. `now` is the time of a monotonic clock, `wall` the time since 1970, as in envelopes."""
        self._clock_offset = wall - now
        for key in self.query.state_keys():
            self._inbox.mark_handed_over(map(bytes.fromhex, self._base_state.recent.get(key, ())))
        self._connect_next(now)
        return self._take_actions()

    def connected(self, server: int, now: float) -> list[Action]:
        """Handle a new connection to a server."""
        if server == self._current and self.phase is RequesterPhase.CONNECTING:
            self._begin_range(now)
        return self._take_actions()

    def request_sent(self, server: int, request_id: bytes, now: float) -> list[Action]:
        """Handle that a request was sent with this id."""
        if server == self._current and self.phase is RequesterPhase.WRITING:
            self._request_id = request_id
            self._set_phase(RequesterPhase.REQUESTED, now, self.options.answer_seconds)
        return self._take_actions()

    def envelopes_received(self, server: int, envelopes: list[Envelope], now: float) -> list[Action]:
        """Handle the envelopes of a P2P Message."""
        if server != self._current or self._range_fetch is None:
            return self._take_actions()
        requested = self._filter_requested(self._servers[server], self._range_fetch, envelopes)
        if requested:
            self._hand_over(requested)
            self._deadline = max(self._deadline, now + self.options.answer_seconds)
        if (
            not self._give_up_if_over_budget(now)
            and self._pending_end is not None
            and self._range_fetch.has(self._pending_end.last_hash)
        ):
            self._end_page(self._pending_end, now)
        return self._take_actions()

    def request_completed(self, server: int, payload: bytes, now: float) -> list[Action]:
        """Handle a P2P Request Complete with this body."""
        if (
            server != self._current
            or self.phase is not RequesterPhase.REQUESTED
            or self._request_id is None
            or self._pending_end is not None
        ):
            return self._take_actions()
        try:
            end = completion.parse(payload, (self._request_id,))
        except PeerError as error:
            self._handle_failure(error.text, now)
            return self._take_actions()
        if end.id == self._request_id:  # otherwise it ends another answer
            if isinstance(end, RequestRefused):
                self._handle_failure(
                    f"it says: {end.explained}", now, refusal=end.explained, give_up=end.is_permanent
                )
            else:
                self._end_page(end, now)
        return self._take_actions()

    def server_failed(self, server: int, reason: str, now: float) -> list[Action]:
        """Handle that a server cannot be reached, has disconnected, or cannot be asked."""
        if server == self._current:
            self._handle_failure(reason, now)
        return self._take_actions()

    def next_timeout(self) -> float | None:
        """Return when to call `handle_timeout`, or None for never."""
        if self.phase is RequesterPhase.DONE:
            return None
        if self._current is None:
            return self._deadline
        return min(self._deadline, self._budget_end(self._servers[self._current]))

    def handle_timeout(self, now: float) -> list[Action]:
        """Handle a deadline that has passed."""
        deadline = self.next_timeout()
        if deadline is None or now < deadline:
            return self._take_actions()
        if self._current is None:
            self._connect_next(now)
        elif not self._give_up_if_over_budget(now):
            self._handle_failure(self._timeout_reason(), now)
        return self._take_actions()

    # ── servers ──────────────────────────────────────────────────────────────────────────────────

    def missing(self) -> list[Range]:
        """Return the times that no server has answered for."""
        known_ranges = [fetch.known_range for fetch in self._range_fetches() if fetch.known_range is not None]
        return subtract_ranges(self._unknown_ranges, known_ranges)

    def _range_fetches(self) -> list[RangeFetch]:
        return [fetch for server in self._servers for fetch in server.range_fetches]

    def _connect_next(self, now: float) -> None:
        """Connect to the preferred server that may be tried now, wait until one may be, or finish."""
        usable = [number for number, server in enumerate(self._servers) if not server.given_up]
        if not self.missing() or not usable:
            self._finish()
            return
        ready = [number for number in usable if self._servers[number].not_before <= now]
        if not ready:
            self.phase = RequesterPhase.WAITING
            self._deadline = min(self._servers[number].not_before for number in usable)
            return
        self._current = ready[0]
        self._servers[self._current].since = now
        self._set_phase(RequesterPhase.CONNECTING, now, math.inf)  # the caller limits it
        self._actions.append(Connect(self._current))

    def _handle_failure(self, reason: str, now: float, *, refusal: str = "", give_up: bool = False) -> None:
        """Disconnect from the current server, for a while or for good, and connect to another."""
        assert self._current is not None
        server = self._servers[self._current]
        pause = self.options.retry_seconds * 2**server.failures
        server.seconds += now - server.since + pause
        server.failures += 1
        server.reason, server.refusal = reason, refusal
        server.given_up = give_up or server.failures >= self.options.max_failures
        server.not_before = now + pause
        self._disconnect()
        self._connect_next(now)

    def _disconnect(self) -> None:
        if self._current is not None:
            self._actions.append(Disconnect(self._current))
        self._current = self._range_fetch = self._request_id = self._pending_end = None

    def _reject_server(self, reason: str, now: float) -> None:
        """Give the current server up. What it answered for does not count as known."""
        assert self._current is not None
        self._servers[self._current].range_fetches.clear()
        self._save_state()
        self._handle_failure(reason, now, give_up=True)

    def _timeout_reason(self) -> str:
        if self._pending_end is not None:
            return "its answer ended, and its last envelope did not come"
        writing = self.phase is RequesterPhase.WRITING
        return "the request could not be written in time" if writing else "it does not answer"

    # ── budgets ──────────────────────────────────────────────────────────────────────────────────

    def _budget_end(self, server: _ServerState) -> float:
        """Return when the server's seconds are used up."""
        return server.since + self.options.max_seconds - server.seconds

    def _give_up_if_over_budget(self, now: float) -> bool:
        """Give the current server up if it has used up its budget. Return whether it has."""
        assert self._current is not None
        server, options = self._servers[self._current], self.options
        checks = (
            (server.pages >= options.max_pages, options.max_pages, "pages"),
            (server.envelopes > options.max_envelopes, options.max_envelopes, "envelopes"),
            (server.bytes > options.max_bytes, options.max_bytes, "bytes"),
            (now >= self._budget_end(server), options.max_seconds, "seconds"),
        )
        used_up = [f"{limit:,.0f} {unit}" for exceeded, limit, unit in checks if exceeded]
        if used_up:
            self._handle_failure(f"its answer takes more than {used_up[0]}", now, give_up=True)
        return bool(used_up)

    # ── pages ────────────────────────────────────────────────────────────────────────────────────

    def _begin_range(self, now: float) -> None:
        """Request the first missing range from the current server."""
        assert self._current is not None
        lower, upper = self.missing()[0]
        self._range_fetch = RangeFetch(lower, upper, now + self._clock_offset)
        self._servers[self._current].range_fetches.append(self._range_fetch)
        self._request_page(now)

    def _request_page(self, now: float) -> None:
        assert self._current is not None
        assert self._range_fetch is not None
        self._request_id = self._pending_end = None
        topics = self.query.topics
        request = Request(
            id=b"",
            lower=self._range_fetch.lower,
            upper=self._range_fetch.upper,
            # Servers of 2019 to 2021 read only the filter. All three bits of each topic, as in 6/WAKU1, match the
            # topic filters of both kinds of servers (bloom.py).
            bloom=bloom.filter_of(topics) if topics else self.query.bloom,
            topics=topics,
            limit=self.options.page_envelopes,
            cursor=self._range_fetch.cursor,
        )
        self._set_phase(RequesterPhase.WRITING, now, self.options.answer_seconds)
        self._actions.append(SendRequest(self._current, request))

    def _set_phase(self, phase: RequesterPhase, now: float, seconds: float) -> None:
        self.phase, self._deadline = phase, now + seconds

    def _filter_requested(
        self, server: _ServerState, range_fetch: RangeFetch, envelopes: list[Envelope]
    ) -> list[Envelope]:
        """Count envelopes up to the server's budget. Return those that match and are new from this server."""
        requested = []
        for envelope in envelopes:
            server.envelopes += 1
            server.bytes += len(envelope.raw)
            if server.envelopes > self.options.max_envelopes or server.bytes > self.options.max_bytes:
                break
            is_new = range_fetch.add(envelope)
            if is_new and self.query.matches(envelope) and envelope.size() <= self.options.max_envelope_bytes:
                requested.append(envelope)
        return requested

    def _hand_over(self, envelopes: list[Envelope]) -> None:
        assert self._range_fetch is not None
        new_envelopes = self._inbox.filter_new(envelopes)
        self._handed_over += len(new_envelopes)
        overlap_begin = self._range_fetch.requested - self.options.overlap_seconds
        for envelope in new_envelopes:
            if envelope.sent > overlap_begin:
                self._base_state.remember(self.query, envelope)
        if new_envelopes:
            self._actions.append(HandOver(new_envelopes))

    def _end_page(self, end: Completed, now: float) -> None:
        """Handle the end of a page, once its last envelope has arrived."""
        assert self._current is not None
        assert self._range_fetch is not None
        if end.last_hash != completion.NO_HASH and not self._range_fetch.has(end.last_hash):
            self._pending_end = end
            return
        server = self._servers[self._current]
        server.pages += 1
        try:
            self._range_fetch.end_page(end)
        except NoProgressError as error:
            self._reject_server(error.text, now)
            return
        server.failures = 0
        self._save_state()
        if self._range_fetch.complete and not self.missing():
            self._finish()
        elif self._give_up_if_over_budget(now):
            return
        elif self._range_fetch.complete:
            self._begin_range(now)
        else:
            self._request_page(now)

    # ── state ────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> FetchState:
        """Return what is known, without the times of which envelopes may arrive late."""
        state = self._base_state.copy()
        for range_fetch in self._range_fetches():
            if range_fetch.known_range is None:
                continue
            lower, upper = range_fetch.known_range
            settled = min(upper, math.floor(range_fetch.requested - self.options.overlap_seconds))
            if lower <= settled:
                state.learn(self.query, (lower, settled))
        state.forget(self.query)
        return state

    def _save_state(self) -> None:
        self._actions.append(SaveState(self.state()))

    def _finish(self) -> None:
        self._disconnect()
        self.phase = RequesterPhase.DONE
        self._save_state()
        failures = {number: server.reason for number, server in enumerate(self._servers) if server.reason}
        refusals = {number: server.refusal for number, server in enumerate(self._servers) if server.refusal}
        self._actions.append(Finished(FetchReport(self.missing(), self._handed_over, failures, refusals)))

    def _take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions
