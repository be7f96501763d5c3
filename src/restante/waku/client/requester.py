"""The requester: it asks trusted Mailservers for history, page by page, until all of a query is known.

    WAITING ──time──▶ CONNECTING ──connected──▶ WRITING ──request_sent──▶ REQUESTED ──a cursor──▶ WRITING
       ▲                  │                        │                          │
       └──── a failure: back off, or try another ──┴──────────────────────────┤ the last missing page ends
             server, from what is known                                       ▼
                                                                            DONE

The requester does no I/O and reads no clock. The caller reports events, carries out the returned actions in order,
and calls `handle_timeout` at `next_timeout`. Servers are numbers; the first is preferred.

One server is asked at a time. `Budgets` limits what each may cost, so that a server whose answer never ends leaves
the others their turn. A cursor is valid only at the server that sent it. The next server is asked for what is not
known yet (`Walk`). What a cheating server sent does not count as known. The requester cannot detect that a server
omits envelopes; therefore servers must be trusted.

An envelope may reach an archive late, by its time to live and 20 s. So what is younger than `overlap` at the request
is handed over but not recorded as known, and is requested again in the next run.
"""

from __future__ import annotations

import math
from collections import Counter
from enum import Enum, auto
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from restante.common.errors import PeerError
from restante.waku.client.inbox import Inbox
from restante.waku.client.ranges import FetchState, HistoryQuery, Range, subtract_ranges
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.rlp import BREACH
from restante.waku.protocol import completion
from restante.waku.protocol.completion import Completed, Failed
from restante.waku.protocol.request import CURSOR_BYTES, MAX_PAGE_ENVELOPES, Request

# ── The actions of a requester, the budgets and timeouts that limit it, and the report at its end ───


PositiveInt = Annotated[int, Meta(ge=1)]


class Budgets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that each server may cost the requester."""

    pages: PositiveInt = 1_000
    envelopes: PositiveInt = 200_000
    """Envelopes that the server sends, wanted or not."""
    bytes: PositiveInt = 256 << 20
    """Bytes of the envelopes that the server sends."""
    seconds: Annotated[float, Meta(gt=0, le=1e9)] = 600.0
    """Seconds spent on the server: connecting, asking, and backing off after a failure."""
    size: PositiveInt = 1 << 20
    """Bytes of one envelope. Larger ones are not handed over."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long the requester waits, in seconds, unless a field says otherwise."""

    connect: float = 20.0
    answer: float = 30.0
    """Seconds without anything that was requested. status-go waits as long (protocol/messenger_mailserver.go)."""
    back_off: float = 2.0
    """Seconds until a server that failed is tried again. Each failure in a row doubles them."""
    tries: int = 3
    """Failures in a row after which a server is not tried again."""
    overlap: float = 80.0
    """Age in seconds below which envelopes are requested again in the next run. An envelope lives for 50 s, is still
    accepted for 20 s after that, and clocks may differ by 10 s."""
    limit: int = MAX_PAGE_ENVELOPES
    """Envelopes per page."""


# ── actions ──────────────────────────────────────────────────────────────────────────────────────


class Connect(msgspec.Struct, frozen=True):
    """Action: connect to a server, trust it, and call `connected` or `lost`."""

    server: int


class SendRequest(msgspec.Struct, frozen=True):
    """Action: send this request to a server, under an id that the caller chooses.

    Call `request_sent` with that id before any event of the answer.
    """

    server: int
    request: Request


class Leave(msgspec.Struct, frozen=True):
    """Action: disconnect from a server. The requester expects no event for this."""

    server: int


class HandOver(msgspec.Struct, frozen=True):
    """Action: hand these envelopes to the subscriber."""

    envelopes: list[Envelope]


class Save(msgspec.Struct, frozen=True):
    """Action: save this state. The subscriber has everything that was handed over before."""

    state: FetchState


class FetchReport(msgspec.Struct, frozen=True):
    """The result of a query."""

    missing: list[Range]
    """Times that no server answered for. If empty, the query is complete."""
    counts: Counter[str]
    """Numbers of envelopes: `handed over`, `known`, and why others were unwanted. Also `pages`."""
    failures: dict[int, str]
    """By server: why it is not asked any more, or its last failure."""


class Finished(msgspec.Struct, frozen=True):
    """Action: the query has ended. The requester expects no event and returns no action after this."""

    report: FetchReport


Action = Connect | SendRequest | Leave | HandOver | Save | Finished


# ──────────
# One range of times at one Mailserver, page by page: what it sent, in which order, and what is known from that.
#
# Shipped servers iterate over their archive by key: the sending time, then the hash. The order is ascending with
# LevelDB and descending with PostgreSQL. A cursor is a key. If all that was sent is in one of these orders,
# everything from the first end to the cursor is known, whatever happens later. If the order is neither, or a cursor
# is not a key as shipped servers send it, nothing is known before the last page.


class StuckError(PeerError):
    """The server sends page after page without progress. No honest server does."""

    def __init__(self, words: str) -> None:
        super().__init__(BREACH, words)


class Walk:
    """One range at one server. `requested` is when it was first requested, by the wall clock."""

    def __init__(self, lower: int, upper: int, requested: float) -> None:
        self.lower = lower
        self.upper = upper
        self.requested = requested
        self.cursor = b""
        """Where the next page begins."""
        self.known: Range | None = None
        """The times that are fully known, unless the server lies."""
        self.over = False
        self._cursors: set[bytes] = set()
        self._hashes: set[bytes] = set()
        self._brought = 0
        """Envelopes of the current page."""
        self._fresh = 0
        """Envelopes of the current page that no earlier page had."""
        self._key = b""
        self._upward: bool | None = None
        self._ordered = True

    def take(self, envelope: Envelope) -> bool:
        """Record an envelope. Return False if this server has already sent it."""
        self._brought += 1
        if envelope.hash in self._hashes:
            self._ordered = False
            return False
        self._hashes.add(envelope.hash)
        self._fresh += 1
        self._pass(envelope.sent.to_bytes(4) + envelope.hash)
        return True

    def has(self, last: bytes) -> bool:
        """Return whether this envelope, the last of a page according to the server, has arrived."""
        return last in self._hashes

    def turn(self, end: Completed) -> None:
        """Record the end of a page. Raises StuckError."""
        if not end.cursor:
            self.known = (self.lower, self.upper)
            self.over = True
            self._hashes.clear()
            return
        if end.cursor in self._cursors:
            raise StuckError("its cursor does not advance")
        if self._brought and not self._fresh:
            raise StuckError("its pages repeat")
        self._cursors.add(end.cursor)
        self.cursor = end.cursor
        self._brought = self._fresh = 0
        sent = int.from_bytes(end.cursor[:4])
        if len(end.cursor) != CURSOR_BYTES or not self.lower <= sent <= self.upper:
            self._ordered = False  # it is not a key of the requested range
        self._pass(end.cursor)
        self._conclude(sent)

    def _pass(self, key: bytes) -> None:
        """Check that the keys still go in the same direction."""
        if self._key and key != self._key:
            upward = key > self._key
            if self._upward is None:
                self._upward = upward
            elif self._upward != upward:
                self._ordered = False
        self._key = key

    def _conclude(self, sent: int) -> None:
        """Set what is known at a cursor. Other envelopes of its second may still follow."""
        self.known = None
        if not self._ordered or self._upward is None:
            return
        known = (self.lower, min(sent - 1, self.upper)) if self._upward else (max(sent + 1, self.lower), self.upper)
        if known[0] <= known[1]:
            self.known = known


# ── requester ─────────────────────────────────────────────────────────────────────────────────────


UNREQUESTED: Final = "from a server that was not asked"
OVERSIZED: Final = "too large"

REFUSAL_PREFIX: Final = "it says: "
"""Precedes the words of a server that answers with an error."""


class Phase(Enum):
    """What the requester waits for."""

    WAITING = auto()
    CONNECTING = auto()
    WRITING = auto()
    REQUESTED = auto()
    DONE = auto()


class _Server(msgspec.Struct):
    """The state of one server."""

    failures: int = 0
    words: str = ""
    """Its last failure."""
    out: bool = False
    not_before: float = -math.inf
    since: float = 0.0
    """When it last became the current server."""
    pages: int = 0
    envelopes: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """Seconds spent on it until `since`, and on backing off after its failures."""
    walks: list[Walk] = msgspec.field(default_factory=list)


class Requester:
    """One query to one or more trusted servers."""

    def __init__(
        self,
        query: HistoryQuery,
        servers: int,
        inbox: Inbox,
        state: FetchState | None = None,
        budgets: Budgets | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        self.query = query
        self.budgets = budgets or Budgets()
        self.timeouts = timeouts or Timeouts()
        self.phase = Phase.WAITING
        self.counts: Counter[str] = Counter()
        self._inbox = inbox
        self._base = (state or FetchState()).copy()
        self._todo = self._base.missing(query)
        self._servers = [_Server() for _ in range(servers)]
        self._at: int | None = None
        """The current server."""
        self._walk: Walk | None = None
        self._id: bytes | None = None
        self._held: Completed | None = None
        """The end of a page whose last envelope has not arrived."""
        self._due = math.inf
        self._ahead = 0.0
        """Seconds by which the wall clock is ahead of the monotonic clock."""
        self._out: list[Action] = []

    # ── events ───────────────────────────────────────────────────────────────────────────────────

    def start(self, now: float, wall: float) -> list[Action]:
        """Start. `now` is the time of a monotonic clock, `wall` the time since 1970, as in envelopes."""
        self._ahead = wall - now
        for name in self.query.state_keys():
            self._inbox.mark_handed_over(map(bytes.fromhex, self._base.recent.get(name, ())))
        self._turn(now)
        return self._take_actions()

    def connected(self, server: int, now: float) -> list[Action]:
        """Handle a new connection to a server."""
        if server == self._at and self.phase is Phase.CONNECTING:
            self._begin(now)
        return self._take_actions()

    def request_sent(self, server: int, request_id: bytes, now: float) -> list[Action]:
        """Handle that a request was sent with this id."""
        if server == self._at and self.phase is Phase.WRITING:
            self._id = request_id
            self._wait(Phase.REQUESTED, now, self.timeouts.answer)
        return self._take_actions()

    def came(self, server: int, envelopes: list[Envelope], now: float) -> list[Action]:
        """Handle the envelopes of a P2P Message."""
        if server != self._at or self._walk is None:
            self.counts[UNREQUESTED] += len(envelopes)
            return self._take_actions()
        asked_for = self._take(self._servers[server], self._walk, envelopes)
        if asked_for:
            self._hand_over(asked_for)
            self._due = max(self._due, now + self.timeouts.answer)
        if not self._give_up_spent(now) and self._held is not None and self._walk.has(self._held.last):
            self._end(self._held, now)
        return self._take_actions()

    def ended(self, server: int, payload: bytes, now: float) -> list[Action]:
        """Handle a P2P Request Complete with this body."""
        if server != self._at or self.phase is not Phase.REQUESTED or self._id is None or self._held is not None:
            return self._take_actions()
        try:
            end = completion.read(payload, (self._id,))
        except PeerError as error:
            self._fail(error.words, now)
            return self._take_actions()
        if end.id != self._id:
            self.counts["ends of other answers"] += 1
        elif isinstance(end, Failed):
            self._fail(f"{REFUSAL_PREFIX}{end.plainly}", now, out=end.lasts)
        else:
            self._end(end, now)
        return self._take_actions()

    def lost(self, server: int, words: str, now: float) -> list[Action]:
        """Handle that a server cannot be reached, is gone, or cannot be asked."""
        if server == self._at:
            self._fail(words, now)
        return self._take_actions()

    def next_timeout(self) -> float | None:
        """Return when to call `handle_timeout`, or None for never."""
        if self.phase is Phase.DONE:
            return None
        return self._due if self._at is None else min(self._due, self._spent_by(self._servers[self._at]))

    def handle_timeout(self, now: float) -> list[Action]:
        """Handle a deadline that has passed."""
        due = self.next_timeout()
        if due is None or now < due:
            return self._take_actions()
        if self._at is None:
            self._turn(now)
        elif not self._give_up_spent(now):
            self._fail(self._overdue(), now)
        return self._take_actions()

    # ── servers ──────────────────────────────────────────────────────────────────────────────────

    def missing(self) -> list[Range]:
        """Return the times that no server has answered for."""
        return subtract_ranges(self._todo, [walk.known for walk in self._walks() if walk.known is not None])

    def _walks(self) -> list[Walk]:
        return [walk for server in self._servers for walk in server.walks]

    def _turn(self, now: float) -> None:
        """Connect to the preferred server that may be tried now, wait until one may be, or finish."""
        left = [number for number, each in enumerate(self._servers) if not each.out]
        if not self.missing() or not left:
            self._finish()
            return
        ready = [number for number in left if self._servers[number].not_before <= now]
        if not ready:
            self.phase, self._due = Phase.WAITING, min(self._servers[number].not_before for number in left)
            return
        self._at = ready[0]
        self._servers[self._at].since = now
        self._wait(Phase.CONNECTING, now, self.timeouts.connect)
        self._out.append(Connect(self._at))

    def _fail(self, words: str, now: float, *, out: bool = False) -> None:
        """Leave the current server, for a while or for good, and turn to another."""
        assert self._at is not None
        server = self._servers[self._at]
        pause = self.timeouts.back_off * 2**server.failures
        server.seconds += now - server.since + pause
        server.failures += 1
        server.words = words
        server.out = out or server.failures >= self.timeouts.tries
        server.not_before = now + pause
        self._leave()
        self._turn(now)

    def _leave(self) -> None:
        if self._at is not None:
            self._out.append(Leave(self._at))
        self._at = self._walk = self._id = self._held = None

    def _reject_server(self, words: str, now: float) -> None:
        """Leave the current server for good. What it answered for does not count as known."""
        assert self._at is not None
        self._servers[self._at].walks.clear()
        self._save()
        self._fail(words, now, out=True)

    def _overdue(self) -> str:
        if self._held is not None:
            return "its answer ended, and its last envelope did not come"
        return {
            Phase.CONNECTING: "it cannot be reached in time",
            Phase.WRITING: "the request could not be written in time",
        }.get(self.phase, "it does not answer")

    # ── budgets ──────────────────────────────────────────────────────────────────────────────────

    def _spent_by(self, server: _Server) -> float:
        return server.since + self.budgets.seconds - server.seconds

    def _give_up_spent(self, now: float) -> bool:
        """Leave the current server for good if it has used up its budget. Return whether it has."""
        assert self._at is not None
        server, budgets = self._servers[self._at], self.budgets
        words = {
            "pages": server.pages >= budgets.pages,
            "envelopes": server.envelopes > budgets.envelopes,
            "bytes": server.bytes > budgets.bytes,
            "seconds": now >= self._spent_by(server),
        }
        over = [name for name, spent in words.items() if spent]
        if over:
            self._fail(f"its answer takes more than {getattr(budgets, over[0]):,.0f} {over[0]}", now, out=True)
        return bool(over)

    # ── pages ────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, now: float) -> None:
        """Request the first missing range from the current server."""
        assert self._at is not None
        lower, upper = self.missing()[0]
        self._walk = Walk(lower, upper, now + self._ahead)
        self._servers[self._at].walks.append(self._walk)
        self._request(now)

    def _request(self, now: float) -> None:
        assert self._at is not None
        assert self._walk is not None
        self._id = self._held = None
        topics = self.query.topics
        request = Request(
            id=b"",
            lower=self._walk.lower,
            upper=self._walk.upper,
            # Servers of 2019 to 2021 read only the filter. All three bits of each topic, as in 6/WAKU1, match the
            # topic filters of both kinds of servers (bloom.py).
            bloom=bloom.of(topics) if topics else self.query.bloom,
            topics=topics,
            limit=self.timeouts.limit,
            cursor=self._walk.cursor,
        )
        self._wait(Phase.WRITING, now, self.timeouts.answer)
        self._out.append(SendRequest(self._at, request))

    def _wait(self, phase: Phase, now: float, seconds: float) -> None:
        self.phase, self._due = phase, now + seconds

    def _take(self, server: _Server, walk: Walk, envelopes: list[Envelope]) -> list[Envelope]:
        """Count envelopes up to the server's budget. Return those that match and are new from this server."""
        found = []
        for each in envelopes:
            server.envelopes += 1
            server.bytes += len(each.raw)
            if server.envelopes > self.budgets.envelopes or server.bytes > self.budgets.bytes:
                break
            mismatch = self.query.mismatch(each) or (OVERSIZED if each.size() > self.budgets.size else "")
            if mismatch:
                self.counts[mismatch] += 1
            if walk.take(each) and not mismatch:
                found.append(each)
        return found

    def _hand_over(self, envelopes: list[Envelope]) -> None:
        assert self._walk is not None
        fresh = self._inbox.filter_new(envelopes)
        self.counts["known"] += len(envelopes) - len(fresh)
        self.counts["handed over"] += len(fresh)
        young = self._walk.requested - self.timeouts.overlap
        for each in fresh:
            if each.sent > young:
                self._base.remember(self.query, each)
        if fresh:
            self._out.append(HandOver(fresh))

    def _end(self, end: Completed, now: float) -> None:
        """Handle the end of a page, once its last envelope has arrived."""
        assert self._at is not None
        assert self._walk is not None
        if end.last != completion.NO_HASH and not self._walk.has(end.last):
            self._held = end
            return
        server = self._servers[self._at]
        server.pages += 1
        self.counts["pages"] += 1
        try:
            self._walk.turn(end)
        except StuckError as error:
            self._reject_server(error.words, now)
            return
        server.failures = 0
        self._save()
        if not self._walk.over:
            if not self._give_up_spent(now):
                self._request(now)
        elif self.missing():
            if not self._give_up_spent(now):
                self._begin(now)
        else:
            self._finish()

    # ── state ────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> FetchState:
        """Return what is known for good."""
        found = self._base.copy()
        for walk in self._walks():
            if walk.known is None:
                continue
            lower, upper = walk.known
            certain = min(upper, math.floor(walk.requested - self.timeouts.overlap))
            if lower <= certain:
                found.learn(self.query, (lower, certain))
        found.forget(self.query)
        return found

    def _save(self) -> None:
        self._out.append(Save(self.state()))

    def _finish(self) -> None:
        self._leave()
        self.phase = Phase.DONE
        self._save()
        failures = {number: each.words for number, each in enumerate(self._servers) if each.words}
        self._out.append(Finished(FetchReport(self.missing(), +self.counts, failures)))

    def _take_actions(self) -> list[Action]:
        said, self._out = self._out, []
        return said
