"""The relay without its sockets: which connections wait, which are paired, what is refused, and what is recorded.

Source: magic-wormhole-transit-relay 0.5.0, server_state.py:71 (who is paired) and :431 (how a connection ends). Its
set has no order; here the side that has waited longest is paired. It has no limits.

Every call takes constant time, but for `request` if redundant sides are closed, and for those that return lists.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

from restante.common.refusals import Refusal, RefusalCounts, RefusalKind
from restante.common.transfer_records import RESULTS, TransferRecord, TransferResult
from restante.relay.core.limits import SLOW_BYTES_PER_SECOND, UNLIMITED, Limits
from restante.relay.core.quotas import AddressQuota, DayBytes, Traffic
from restante.relay.core.usage import transfer_record
from restante.relay.protocol.refusals import (
    ADDRESS_DAY_USED_UP,
    DRAINING,
    MONTH_USED_UP,
    NO_PARTNER,
    NO_REQUEST,
    PAIR_TOO_BIG,
    TOO_MANY_PAIRS,
    TOO_MANY_PAIRS_OF_ADDRESS,
    TOO_MANY_RECORDS,
    TOO_MANY_WAITING,
    TOO_MANY_WAITING_FROM_ADDRESS,
)
from restante.relay.protocol.request import Request


class Now(msgspec.Struct, frozen=True, gc=False):
    """The time at which something happened."""

    wall: float
    """Seconds since 1970, for usage records, days and months."""
    service: float
    """Seconds of a clock that is never set, for limits and durations."""


SideState = Literal["new", "waiting", "paired", "ended"]


class Side:
    """A connection of a client."""

    __slots__ = (
        "address_id",
        "address_quotas",
        "connection",
        "next_waiting",
        "pair",
        "previous_waiting",
        "request",
        "started",
        "state",
    )

    next_waiting: Side
    previous_waiting: Side
    """The sides that wait for the same token are a ring. It begins with the one that has waited longest."""

    def __init__(
        self, connection: object, address_quotas: tuple[AddressQuota, ...], address_id: str | None, started: Now
    ) -> None:
        self.connection = connection
        """The connection of the server. The relay only stores it."""
        self.address_quotas = address_quotas
        self.address_id = address_id
        self.started = started
        """When it connected."""
        self.state: SideState = "new"
        """`new`: its request has not come yet."""
        self.request: Request | None = None
        self.pair: Pair | None = None
        """None: it is not paired yet, or has ended."""


class Pair:
    """Two sides that are connected."""

    __slots__ = ("address_quotas", "began", "bytes", "day_bytes", "ended", "first", "second", "turn")

    def __init__(self, first: Side, second: Side, began: Now) -> None:
        self.first = first
        """The side that has waited."""
        self.second = second
        self.began = began
        self.bytes = 0
        """Bytes passed on in both directions. `Relay.count_bytes` counts them."""
        self.ended = False
        self.address_quotas = tuple(dict.fromkeys(first.address_quotas + second.address_quotas))
        """The quotas of both addresses: one if they are equal, none if the addresses are not counted."""
        self.turn = 0
        self.day_bytes: tuple[DayBytes, ...] = ()
        """The counters of its addresses for the day whose `Traffic.turn` is `turn`."""

    def other(self, side: Side) -> Side:
        """Return the other side of the pair."""
        return self.second if side is self.first else self.first


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request whose other side has not come: the side waits."""


class Paired(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request whose other side was waiting: both get OK."""

    pair: Pair
    redundant: tuple[Side, ...] = ()
    """Sides that waited for the same token. They have ended: the server closes them without an answer."""


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request that may not wait or be paired. The server answers BAD_HANDSHAKE to all its sides."""

    refusal: Refusal
    sides: tuple[Side, ...]
    """The side that asked, and its partner if there is one, which would wait in vain: clients do not ask again. Both
    have ended."""


WAITING: Final = Waiting()


class Relay:
    """All connections and pairs."""

    def __init__(self, limits: Limits = UNLIMITED, *, blur: int = 0) -> None:
        self.limits = limits
        """They may be replaced at any time."""
        self.blur = blur
        """Starts in usage records are rounded down to a multiple of this many seconds, and bytes are rounded up; 0:
        both are exact."""
        self.draining = False
        """Whether no more pairs are made, because the relay is about to stop."""
        self.records: list[TransferRecord] = []
        """Usage records. The server takes them once a second and clears the list."""
        self.results: dict[TransferResult, int] = dict.fromkeys(RESULTS, 0)
        """Pairs and connections that ended since the start, by result, also those whose usage record is left out."""
        self.refusal_counts = RefusalCounts()
        self.traffic = Traffic()
        self.pairs = 0
        """Pairs that run."""
        self._new: OrderedDict[Side, float] = OrderedDict()
        self._waiting: OrderedDict[Side, float] = OrderedDict()
        """Sides without a request, and sides that wait for another one, with the service time at which that began.
        The earliest is first."""
        self._longest_waiting: dict[bytes, Side] = {}
        """The side that has waited longest, by token. If several wait for a token, their requests name the same side:
        others would be paired."""

    @property
    def new(self) -> int:
        """The number of connections that have not sent their request yet."""
        return len(self._new)

    @property
    def waiting(self) -> int:
        """The number of connections that wait for another side."""
        return len(self._waiting)

    @property
    def waiting_tokens(self) -> int:
        """The number of tokens for which a connection waits."""
        return len(self._longest_waiting)

    def waiting_sides(self) -> list[Side]:
        """Return the sides that wait for another one, the earliest first."""
        return list(self._waiting)

    # ── connections ──────────────────────────────────────────────────────────────────────────────

    def open(
        self, connection: object, address_quotas: tuple[AddressQuota, ...], address_id: str | None, now: Now
    ) -> Side | Refusal:
        """Return the side of a new connection, or why it is refused: then the server closes it without an answer.

        `address_quotas` are those of the addresses that it counts for, and `address_id` is the first one's name of
        this day. A side ends by `end`, `expire`, `drain` or a refusal of `request`, as a redundant one, or with its
        pair.
        """
        limits = self.limits
        self.traffic.begin_day(now.wall)
        if self.draining:
            return self._refuse(DRAINING, "connect again later", address_id)
        if limits.waiting and len(self._new) + len(self._waiting) >= limits.waiting:
            return self._refuse(TOO_MANY_WAITING, f"{limits.waiting} may wait at a time", address_id)
        limit = limits.address_waiting
        if limit and any(quota.waiting >= limit for quota in address_quotas):
            return self._refuse(TOO_MANY_WAITING_FROM_ADDRESS, f"{limit} may wait at a time", address_id)
        if address_quotas and address_id is not None:
            self.traffic.name(address_quotas[0], address_id)
        for quota in address_quotas:
            quota.waiting += 1
        side = Side(connection, address_quotas, address_id, now)
        self._new[side] = now.service
        return side

    def request(self, side: Side, request: Request, now: Now) -> Waiting | Paired | Refused:
        """Let a new side wait, or pair it, or refuse it.

        The side that has waited for the same token longest is taken, if its side differs or one of them has none.
        """
        assert side.state == "new", side.state
        side.request = request
        partner = self._longest_waiting.get(request.token)
        if partner is not None and not _match(partner, request):
            partner = None
        refusal = self._refusal(side, partner)
        if refusal is not None:
            sides = (side,) if partner is None else (side, partner)
            for refused in sides:
                self.end(refused, now, "errory")
            return Refused(refusal, sides)
        if partner is not None:
            return self._pair(partner, side, now)
        del self._new[side]
        side.state, self._waiting[side] = "waiting", now.service
        self._join_ring(side, request.token)
        return WAITING

    def withdraw(self, side: Side) -> None:
        """End a new side that is no client of the relay. Nothing is recorded."""
        self._leave(side, "ended")

    def end(self, side: Side, now: Now, result: TransferResult | None = None) -> None:
        """End a side, with its pair if it has one: it was lost, or the server has closed it.

        `result` is `errory` if its request was malformed, and `impatient` if bytes came before the other side. By
        default it is `empty` before the request, and `lonely` after it. Its pair is `happy`. A side that has ended is
        left as it is.
        """
        if side.pair is not None:
            self.end_pair(side.pair, now)
        elif side.state != "ended":
            result = result or ("empty" if side.state == "new" else "lonely")
            self._leave(side, "ended")
            total_time = now.service - side.started.service
            self._record(result, side, now, waiting_time=None, total_time=total_time, total_bytes=0)

    def time_out(self, side: Side, now: Now, kind: RefusalKind = NO_REQUEST) -> None:
        """End a side that has sent no request in time, or has waited too long (NO_PARTNER), and count the refusal."""
        self._refuse(kind, "", side.address_id)
        self.end(side, now)

    def expire(self, now: Now) -> list[Side]:
        """End the sides that have sent no request in time or have waited too long. The server closes them.

        The server calls this once a second. It also begins another day.
        """
        self.traffic.begin_day(now.wall)
        limits = self.limits
        expired = self._end_since(self._new, now, limits.handshake, NO_REQUEST)
        if limits.waiting_seconds:
            expired += self._end_since(self._waiting, now, limits.waiting_seconds, NO_PARTNER)
        return expired

    def drain(self, now: Now) -> list[Side]:
        """Make no more pairs, and end all sides that have none. The server closes them; running pairs go on."""
        self.draining = True
        sides = [*self._new, *self._waiting]
        for side in sides:
            self.end(side, now)
        return sides

    # ── pairs ────────────────────────────────────────────────────────────────────────────────────

    def count_bytes(self, pair: Pair, size: int) -> bool:
        """Count bytes that a pair has passed on. Return False if `pair_bytes` is reached: the pair must be ended."""
        traffic = self.traffic
        if pair.turn != traffic.turn:
            pair.turn, pair.day_bytes = traffic.turn, traffic.counters(pair.address_quotas)
        pair.bytes += size
        traffic.bytes += size
        traffic.day_bytes += size
        traffic.month_bytes += size
        for day_bytes in pair.day_bytes:
            day_bytes.bytes += size
        limit = self.limits.pair_bytes
        if not limit or pair.bytes < limit:
            return True
        if pair.bytes - size < limit:
            self._refuse(PAIR_TOO_BIG, f"{limit} bytes may be passed on", pair.first.address_id)
        return False

    def slow_rate(self, pair: Pair) -> float | None:
        """Return the bytes a second to which a pair is slowed because a total is reached, or None."""
        limits = self.limits
        if limits.month_bytes and self.traffic.month_bytes >= limits.month_bytes:
            return SLOW_BYTES_PER_SECOND
        limit = limits.address_day_bytes
        if limit and any(self.traffic.day_bytes_of(quota) >= limit for quota in pair.address_quotas):
            return SLOW_BYTES_PER_SECOND
        return None

    def end_pair(self, pair: Pair, now: Now, result: Literal["happy", "errory"] = "happy") -> None:
        """End a pair: one of its sides was lost, or a limit ends it. A pair that has ended is left as it is.

        `result` is `errory` if the server could not connect its sides.
        """
        if pair.ended:
            return
        pair.ended = True
        self.pairs -= 1
        for quota in pair.address_quotas:
            quota.pairs -= 1
        first, second = pair.first, pair.second
        for side in (first, second):
            side.state, side.pair = "ended", None
        starts = first.started.service, second.started.service
        self._record(
            result,
            first,
            now,
            waiting_time=max(starts) - min(starts),
            total_time=now.service - min(starts),
            total_bytes=pair.bytes,
        )

    def _refusal(self, side: Side, partner: Side | None) -> Refusal | None:
        """Return why a side may not wait, or not be paired with a partner. Count it."""
        limits, traffic = self.limits, self.traffic
        if limits.month_bytes and traffic.month_bytes >= limits.month_bytes:
            return self._refuse(MONTH_USED_UP, f"{limits.month_bytes} may be passed on", side.address_id)
        sides = (side,) if partner is None else (side, partner)
        limit = limits.address_day_bytes
        if limit and (user := _first_at(limit, sides, traffic.day_bytes_of)):
            return self._refuse(ADDRESS_DAY_USED_UP, f"{limit} may be passed on", user.address_id)
        if partner is None:
            return None
        if limits.pairs and self.pairs >= limits.pairs:
            return self._refuse(TOO_MANY_PAIRS, f"{limits.pairs} may run at a time", side.address_id)
        limit = limits.address_pairs
        if limit and (user := _first_at(limit, sides, lambda quota: quota.pairs)):
            return self._refuse(TOO_MANY_PAIRS_OF_ADDRESS, f"{limit} may run at a time", user.address_id)
        return None

    def _pair(self, first: Side, second: Side, now: Now) -> Paired:
        redundant = []
        while (spare := first.next_waiting) is not first:
            self.end(spare, now, "redundant")
            redundant.append(spare)
        self._leave(first, "paired")
        self._leave(second, "paired")
        pair = Pair(first, second, now)
        first.pair = second.pair = pair
        self.pairs += 1
        for quota in pair.address_quotas:
            quota.pairs += 1
        pair.turn, pair.day_bytes = self.traffic.turn, self.traffic.counters(pair.address_quotas)
        return Paired(pair, tuple(redundant))

    def _end_since(self, sides: OrderedDict[Side, float], now: Now, seconds: float, kind: RefusalKind) -> list[Side]:
        expired = []
        while sides:
            side, since = next(iter(sides.items()))
            if now.service - since < seconds:
                break
            self.time_out(side, now, kind)
            expired.append(side)
        return expired

    def _leave(self, side: Side, state: SideState) -> None:
        """Stop counting a side as one that is new or waits."""
        if side.state == "new":
            del self._new[side]
        else:
            del self._waiting[side]
            self._leave_ring(side)
        side.state = state
        for quota in side.address_quotas:
            quota.waiting -= 1

    def _join_ring(self, side: Side, token: bytes) -> None:
        longest = self._longest_waiting.setdefault(token, side)
        if longest is side:
            side.next_waiting = side.previous_waiting = side
            return
        latest = longest.previous_waiting
        side.previous_waiting, side.next_waiting = latest, longest
        latest.next_waiting = longest.previous_waiting = side

    def _leave_ring(self, side: Side) -> None:
        assert side.request is not None
        token, following = side.request.token, side.next_waiting
        if following is side:
            del self._longest_waiting[token]
        elif self._longest_waiting[token] is side:
            self._longest_waiting[token] = following
        side.previous_waiting.next_waiting, following.previous_waiting = following, side.previous_waiting
        del side.next_waiting, side.previous_waiting  # no side refers to itself, so that it is freed at once

    def _refuse(self, kind: RefusalKind, hint: str, address_id: str | None) -> Refusal:
        self.refusal_counts.count(kind.reason, address_id)
        return kind.refusal(hint)

    def _record(
        self,
        result: TransferResult,
        side: Side,
        now: Now,
        *,
        waiting_time: float | None,
        total_time: float,
        total_bytes: int,
    ) -> None:
        self.results[result] += 1
        for quota in side.address_quotas:
            if not quota.charge_record(now.service, self.limits):
                self.refusal_counts.count(TOO_MANY_RECORDS.reason, side.address_id)
                return
        self.records.append(
            transfer_record(
                result,
                started=side.started.wall,
                waiting_time=waiting_time,
                total_time=total_time,
                total_bytes=total_bytes,
                address_id=side.address_id,
                blur=self.blur,
            )
        )


def _match(waiting: Side, request: Request) -> bool:
    """Return whether a request may be paired with a side that waits for the same token."""
    assert waiting.request is not None
    side = waiting.request.side
    return side is None or side != request.side


def _first_at(limit: int, sides: Iterable[Side], count: Callable[[AddressQuota], int]) -> Side | None:
    """Return the first side that has an address which has reached a limit, or None."""
    return next((side for side in sides if any(count(quota) >= limit for quota in side.address_quotas)), None)
