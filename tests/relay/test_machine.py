"""What clients and clocks may do, in any order: to the core, the reference's code, and a simple model of limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from restante.common.refusals import Refusal
from restante.relay.core.limits import SLOW_BYTES_PER_SECOND, UNLIMITED, Limits
from restante.relay.core.quotas import AddressQuota
from restante.relay.core.relay import Now, Pair, Paired, Refused, Relay, Side
from restante.relay.protocol.request import Request
from support.effort import examples
from support.relay.worlds import EPOCH, CoreWorld, ReferenceWorld

# ── the reference ─────────────────────────────────────────────────────────────────────────────────

TOKENS: Final = ("t" * 64, "u" * 64)
SIDES: Final = ("", f" for side {'a' * 16}", f" for side {'b' * 16}", f" for side {'c' * 16}")
REQUESTS: Final = [f"please relay {token}{side}\n".encode() for token in TOKENS for side in SIDES]
OTHERS: Final = (
    *(
        b"",
        b"\n",
        b"hello",
        b"hello\n",
        b"\xff\x00",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
    ),
    *(b"x" * 1023, b"x" * 1024, b"x" * 1025, b"x" * 1024 + b"\n", b"x" * 1025 + b"\n", b"x" * 2000 + b"\n"),
    *(REQUESTS[0][:-1] + b"\r\n", REQUESTS[1][:-1] + b" \n", REQUESTS[0][:-2] + b"\n", REQUESTS[0][:-2] + b"-\n"),
)

picks = st.integers(0, 9)
requests = st.sampled_from([*REQUESTS[:4] * 3, *REQUESTS[4:]])
texts = st.sampled_from([*REQUESTS, *OTHERS])


class BesideTheReference(RuleBasedStateMachine):
    """The core and the reference's code get the same bytes and losses at the same times."""

    @initialize(blur=st.sampled_from((0, 0, 60)))
    def begin(self, blur: int) -> None:
        self.core = CoreWorld(replace(UNLIMITED, handshake=1e9), blur)
        self.reference = ReferenceWorld(blur)
        self.names: list[str] = []
        """Connections that are open."""
        self.rests: dict[str, bytes] = {}
        """What is still to be sent of requests that are sent in pieces."""

    @rule()
    def connect(self) -> None:
        self._connect()

    @rule(request=requests, behind=st.sampled_from((b"", b"", b"", b"x", b"hello\n", REQUESTS[0])))
    def ask(self, request: bytes, behind: bytes) -> None:
        self._send(self._connect(), request + behind)

    @rule(request=requests, share=st.floats(0, 1))
    def begin_to_ask(self, request: bytes, share: float) -> None:
        name, size = self._connect(), int(share * len(request))
        self.rests[name] = request[size:]
        self._send(name, request[:size])

    @precondition(lambda self: self.rests)
    @rule(pick=picks)
    def send_the_rest(self, pick: int) -> None:
        name = list(self.rests)[pick % len(self.rests)]
        self._send(name, self.rests.pop(name))

    @precondition(lambda self: self.names)
    @rule(pick=picks, text=texts)
    def send(self, pick: int, text: bytes) -> None:
        self._send(self.names[pick % len(self.names)], text)

    @precondition(lambda self: self.names)
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        name = self.names[pick % len(self.names)]
        self.core.leave(name, "close")
        self.reference.leave(name, "close")
        self._compare()

    @rule(seconds=st.sampled_from((0.25, 1.0, 60.0, 5000.0)))
    def wait(self, seconds: float) -> None:
        self.core.advance(seconds)
        self.reference.advance(seconds)

    def _connect(self) -> str:
        name = str(len(self.core.inboxes))
        self.core.open(name)
        self.reference.open(name)
        self.names.append(name)
        return name

    def _send(self, name: str, data: bytes) -> None:
        if data:  # no segment is empty
            self.core.send(name, data)
            self.reference.send(name, data)
        self._compare()

    def _compare(self) -> None:
        for name, inbox in self.core.inboxes.items():
            its = self.reference.inboxes[name]
            assert (inbox.received, inbox.closed) == (its.received, its.closed)
        self.names = [name for name in self.names if not self.core.inboxes[name].closed]
        self.rests = {name: rest for name, rest in self.rests.items() if name in self.names}
        assert _in_any_order(self.core.usage()) == _in_any_order(self.reference.usage())


def _in_any_order(records: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(record[name] for name in sorted(record)) for record in records)


TestBesideTheReference = BesideTheReference.TestCase
TestBesideTheReference.settings = examples(60)


# ── limits ────────────────────────────────────────────────────────────────────────────────────────

DAY: Final = 86_400


@dataclass(eq=False)
class ModelSide:
    """A connection, as the relay must see it. `state` is one of those of `Side`."""

    addresses: tuple[str, ...]
    opened: float
    state: str = "new"
    request: Request | None = None
    asked: float = 0.0


@dataclass(eq=False)
class ModelPair:
    sides: tuple[ModelSide, ModelSide]
    bytes: int = 0

    @property
    def addresses(self) -> set[str]:
        return {address for side in self.sides for address in side.addresses}


@dataclass
class Bucket:
    """Records that an address has caused; they are forgotten evenly over a day."""

    spent: float = 0.0
    at: float = 0.0


def calendar_month(wall: float) -> str:
    return f"{datetime.fromtimestamp(wall, UTC):%Y-%m}"


@dataclass
class Model:
    """All connections ever made, in order, and sums over them."""

    sides: list[ModelSide] = field(default_factory=list)
    pairs: list[ModelPair] = field(default_factory=list)
    day_bytes: Counter[str] = field(default_factory=Counter)
    saved_bytes: Counter[str] = field(default_factory=Counter)
    """Those of addresses that have not connected since the restart."""
    named: set[str] = field(default_factory=set)
    """Addresses that have connected on this day since the restart, and not only as a client's second address."""
    bytes_today: int = 0
    bytes_this_month: int = 0
    month: str = calendar_month(EPOCH)
    """That of the bytes. It is later than that of the clock if the clock was set back while the relay was down."""
    buckets: dict[str, Bucket] = field(default_factory=dict)
    results: Counter[str] = field(default_factory=Counter)
    recorded: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    draining: bool = False

    def open_sides(self, *states: str) -> list[ModelSide]:
        return [side for side in self.sides if side.state in (states or ("new", "waiting"))]

    def running(self, address: str | None = None) -> int:
        return sum(address is None or address in pair.addresses for pair in self.pairs)

    def used_up(self, addresses: set[str] | tuple[str, ...], limits: Limits) -> bool:
        limit = limits.address_day_bytes
        return bool(limit) and any(self.day_bytes[address] >= limit for address in addresses)

    def refusal_of_open(self, addresses: tuple[str, ...], limits: Limits) -> str | None:
        if self.draining:
            return "draining"
        if limits.waiting and len(self.open_sides()) >= limits.waiting:
            return "waiting"
        for address in addresses:
            waiting = sum(address in side.addresses for side in self.open_sides())
            if limits.address_waiting and waiting >= limits.address_waiting:
                return "address_waiting"
        return None

    def partner(self, request: Request) -> ModelSide | None:
        """Return the side that has waited longest of those that match."""
        matching = [
            side
            for side in self.open_sides("waiting")
            if side.request is not None
            and side.request.token == request.token
            and (None in (side.request.side, request.side) or side.request.side != request.side)
        ]
        return min(matching, key=lambda side: side.asked, default=None)

    def refusal_of_request(self, side: ModelSide, partner: ModelSide | None, limits: Limits) -> str | None:
        if limits.month_bytes and self.bytes_this_month >= limits.month_bytes:
            return "month_bytes"
        addresses = {*side.addresses, *(partner.addresses if partner else ())}
        if self.used_up(addresses, limits):
            return "address_day_bytes"
        if partner is None:
            return None
        if limits.pairs and self.running() >= limits.pairs:
            return "pairs"
        if limits.address_pairs and any(self.running(address) >= limits.address_pairs for address in addresses):
            return "address_pairs"
        return None

    def record(self, side: ModelSide, result: str, now: float, limits: Limits) -> None:
        side.state = "ended"
        self.results[result] += 1
        limit = limits.address_records
        for address in side.addresses:
            bucket = self.buckets.setdefault(address, Bucket())
            if limit:
                bucket.spent = max(0.0, bucket.spent - (now - bucket.at) * (limit / DAY))
                bucket.at = now
                if bucket.spent + 1 > limit:
                    self.refusals["address_records"] += 1
                    return
                bucket.spent += 1
        self.recorded[result] += 1


LIMITS: Final = st.builds(
    Limits,
    handshake=st.sampled_from((10.0, 60.0)),
    address_waiting=st.sampled_from((0, 0, 1, 3)),
    waiting=st.sampled_from((0, 0, 2, 5)),
    waiting_seconds=st.sampled_from((0.0, 30.0, 86_400.0)),
    address_pairs=st.sampled_from((0, 0, 1, 2)),
    pairs=st.sampled_from((0, 0, 1, 3)),
    pair_bytes=st.sampled_from((0, 0, 10)),
    address_day_bytes=st.sampled_from((0, 8)),
    month_bytes=st.sampled_from((0, 0, 12)),
    address_records=st.just(0),
)
ALIKE: Final = ((0, b"a" * 16), (0, b"a" * 16), (0, b"b" * 16), (0, None), (1, b"a" * 16), (1, b"b" * 16))
ADDRESSES: Final = st.sampled_from(((), ("A",), ("A",), ("B",), ("C",), ("A", "B")))
MATCHING: Final = st.sampled_from([Request(TOKENS[number].encode(), side) for number, side in ALIKE])


class WithLimits(RuleBasedStateMachine):
    """The relay's rules beside the model. Limits change while it runs; it restarts."""

    @initialize(limits=LIMITS, records=st.sampled_from((0, 3)))
    def begin(self, limits: Limits, records: int) -> None:
        self.records_limit = records
        self.model = Model()
        self.elapsed = 0.0
        self.wall = EPOCH
        self.set_limits(limits)
        self._start()

    def _start(self) -> None:
        self.relay = Relay(self.limits)
        self.quotas: dict[str, AddressQuota] = {}
        self.sides: dict[ModelSide, Side] = {}
        self.pairs: dict[ModelPair, Pair] = {}

    def now(self) -> Now:
        return Now(self.wall, self.elapsed)

    @rule(limits=LIMITS)
    def set_limits(self, limits: Limits) -> None:
        self.limits = replace(limits, address_records=self.records_limit)
        if hasattr(self, "relay"):
            self.relay.limits = self.limits

    @rule(addresses=ADDRESSES, request=MATCHING)
    def arrive(self, addresses: tuple[str, ...], request: Request) -> None:
        self.open(addresses)
        if self.model.sides and self.model.sides[-1].state == "new":
            self.request(-1, request)

    @rule(addresses=ADDRESSES)
    def open(self, addresses: tuple[str, ...]) -> None:
        self._tick()
        quotas = tuple(self.quotas.setdefault(address, AddressQuota()) for address in addresses)
        address_id = f"{addresses[0]}{self.wall // DAY}" if addresses else None
        answer = self.relay.open(object(), quotas, address_id, self.now())
        refusal = self.model.refusal_of_open(addresses, self.limits)
        assert (answer.reason if isinstance(answer, Refusal) else None) == refusal
        if refusal:
            self.model.refusals[refusal] += 1
        elif isinstance(answer, Side):
            side = ModelSide(addresses, self.elapsed)
            self.model.sides.append(side)
            self.sides[side] = answer
            if addresses:
                self.model.named.add(addresses[0])
                self.model.day_bytes[addresses[0]] += self.model.saved_bytes.pop(addresses[0], 0)
        self._compare()

    @precondition(lambda self: self.model.open_sides("new"))
    @rule(pick=st.integers(0, 9), request=MATCHING)
    def request(self, pick: int, request: Request) -> None:
        self._tick()
        new = self.model.open_sides("new")
        ours = new[pick % len(new)]
        partner = self.model.partner(request)
        refusal = self.model.refusal_of_request(ours, partner, self.limits)
        answer = self.relay.request(self.sides[ours], request, self.now())
        if refusal:
            assert isinstance(answer, Refused)
            assert answer.refusal.reason == refusal
            self.model.refusals[refusal] += 1
            refused = [side for side in (ours, partner) if side is not None]
            assert list(answer.sides) == [self.sides[side] for side in refused]
            for side in refused:
                self.model.record(side, "errory", self.elapsed, self.limits)
        elif partner is None:
            assert self.sides[ours].state == "waiting"
            ours.state, ours.request, ours.asked = "waiting", request, self.elapsed
        else:
            assert isinstance(answer, Paired)
            waiting = self.model.open_sides("waiting")
            spare = [other for other in waiting if other.request and other.request.token == request.token]
            spare.remove(partner)
            assert sorted(map(id, answer.redundant)) == sorted(id(self.sides[other]) for other in spare)
            for redundant in sorted(spare, key=lambda other: other.asked):
                self.model.record(redundant, "redundant", self.elapsed, self.limits)
            partner.state = ours.state = "paired"
            pair = ModelPair((partner, ours))
            assert (answer.pair.first, answer.pair.second) == (self.sides[partner], self.sides[ours])
            self.model.pairs.append(pair)
            self.pairs[pair] = answer.pair
        self._compare()

    @precondition(lambda self: self.model.open_sides())
    @rule(pick=st.integers(0, 9), result=st.sampled_from((None, None, "errory", "impatient")))
    def end(self, pick: int, result: Any) -> None:
        self._tick()
        sides = self.model.open_sides()
        side = sides[pick % len(sides)]
        self.relay.end(self.sides[side], self.now(), result)
        default = "empty" if side.state == "new" else "lonely"
        self.model.record(side, result or default, self.elapsed, self.limits)
        self.relay.end(self.sides[side], self.now(), result)
        self._compare()

    @precondition(lambda self: self.pairs)
    @rule(pick=st.integers(0, 9), by_side=st.sampled_from((None, None, 0, 1)), errory=st.booleans())
    def end_pair(self, pick: int, by_side: int | None, *, errory: bool) -> None:
        self._tick()
        pair, result = self._pick(pick), "happy"
        if by_side is not None:
            self.relay.end(self.sides[pair.sides[by_side]], self.now())
        elif errory:
            result = "errory"
            self.relay.end_pair(self.pairs[pair], self.now(), "errory")
        self.relay.end_pair(self.pairs[pair], self.now())
        self._end_pair(pair, result)
        self._compare()

    @precondition(lambda self: self.pairs)
    @rule(pick=st.integers(0, 9), size=st.integers(1, 9))
    def pass_bytes(self, pick: int, size: int) -> None:
        pair = self._pick(pick)
        goes_on = self.relay.count_bytes(self.pairs[pair], size)
        limit, before = self.limits.pair_bytes, pair.bytes
        pair.bytes += size
        self.model.bytes_today += size
        self.model.bytes_this_month += size
        self.model.day_bytes.update(dict.fromkeys(pair.addresses, size))
        assert goes_on == (not limit or pair.bytes < limit)
        if before < limit <= pair.bytes:
            self.model.refusals["pair_bytes"] += 1
        if not goes_on:
            self.relay.end_pair(self.pairs[pair], self.now())
            self._end_pair(pair)
        self._compare()

    @rule(seconds=st.sampled_from((0.5, 10.0, 30.0, 60.0, 3600.0, 86_400.0, 2_000_000.0)))
    def wait(self, seconds: float) -> None:
        self.elapsed += seconds
        self._pass_days(self.wall + seconds)
        expired = {id(side) for side in self.relay.expire(self.now())}
        for side in sorted(self.model.open_sides("new"), key=lambda side: side.opened):
            if self.elapsed - side.opened >= self.limits.handshake:
                expired.remove(id(self.sides[side]))
                self.model.refusals["handshake"] += 1
                self.model.record(side, "empty", self.elapsed, self.limits)
        for side in sorted(self.model.open_sides("waiting"), key=lambda side: side.asked):
            if 0 < self.limits.waiting_seconds <= self.elapsed - side.asked:
                expired.remove(id(self.sides[side]))
                self.model.refusals["waiting_seconds"] += 1
                self.model.record(side, "lonely", self.elapsed, self.limits)
        assert not expired
        self._compare()

    @rule(seconds=st.sampled_from((-86_400.0, -3600.0, -0.5, 0.5, 3600.0)))
    def set_the_wall_clock(self, seconds: float) -> None:
        self._pass_days(self.wall + seconds)
        self.relay.traffic.begin_day(self.wall)
        self._compare()

    @precondition(lambda self: len(self.model.sides) > 5)
    @rule(downtime=st.sampled_from((-2_000_000.0, -3600.0, 0.0, 3600.0, 86_400.0, 2_000_000.0)))
    def drain_and_restart(self, downtime: float) -> None:
        """Stop as a server does; later start with what it has saved. The clock may be set back meanwhile."""
        self._tick()
        drained = {id(side) for side in self.relay.drain(self.now())}
        new, waiting = self.model.open_sides("new"), self.model.open_sides("waiting")
        assert drained == {id(self.sides[side]) for side in new + waiting}
        for side in [*new, *sorted(waiting, key=lambda side: side.asked)]:
            self.model.record(side, "empty" if side.state == "new" else "lonely", self.elapsed, self.limits)
        self.model.draining = True
        self.open(("A",))
        self._compare()
        saved, before = self.relay.traffic.saved(), self.model
        address_bytes = Counter({name: before.day_bytes[name] for name in before.named if before.day_bytes[name]})
        address_bytes.update(before.saved_bytes)
        assert saved.address_bytes == {f"{name}{self.wall // DAY}": size for name, size in address_bytes.items()}
        self.model = Model(saved_bytes=address_bytes, bytes_today=before.bytes_today, month=calendar_month(self.wall))
        self._pass_days(self.wall + downtime)
        if before.month >= self.model.month:
            self.model.month, self.model.bytes_this_month = before.month, before.bytes_this_month
        self._start()
        self.relay.traffic.restore(saved, self.wall)
        self._compare()

    def _tick(self) -> None:
        """Let a moment pass, so that no two things happen at the same time."""
        self.elapsed += 1 / 1024

    def _pass_days(self, wall: float) -> None:
        day = wall // DAY
        month_before, month = calendar_month(self.wall), calendar_month(wall)
        if day != self.wall // DAY:
            self.model.bytes_today = 0
            self.model.day_bytes.clear()
            self.model.saved_bytes.clear()
            self.model.named.clear()
        if month not in {month_before, self.model.month}:
            self.model.month, self.model.bytes_this_month = month, 0
        self.wall = wall

    def _pick(self, pick: int) -> ModelPair:
        pairs = list(self.pairs)
        return pairs[pick % len(pairs)]

    def _end_pair(self, pair: ModelPair, result: str = "happy") -> None:
        pair.sides[1].state = "ended"
        self.model.record(pair.sides[0], result, self.elapsed, self.limits)
        self.model.pairs.remove(pair)
        del self.pairs[pair]

    def _compare(self) -> None:
        relay, model = self.relay, self.model
        assert {side: self.sides[side].state for side in model.sides} == {side: side.state for side in model.sides}
        assert (relay.new, relay.waiting) == (len(model.open_sides("new")), len(model.open_sides("waiting")))
        assert relay.pairs == len(model.pairs)
        assert +Counter(relay.results) == model.results
        assert Counter(record.result for record in relay.records) == model.recorded
        assert relay.refusal_counts.since_start == model.refusals
        for address, quota in self.quotas.items():
            assert quota.waiting == sum(address in side.addresses for side in model.open_sides())
            assert quota.pairs == model.running(address)
            assert quota.live == bool(quota.waiting or quota.pairs)
            assert relay.traffic.day_bytes_of(quota) == model.day_bytes[address]
        if relay.traffic.day == self.wall // DAY:  # it has begun with the first connection
            assert relay.traffic.day_bytes == model.bytes_today
            assert relay.traffic.month_bytes == model.bytes_this_month
        for pair, ours in self.pairs.items():
            month = 0 < self.limits.month_bytes <= model.bytes_this_month
            slowed = month or model.used_up(pair.addresses, self.limits)
            assert relay.slow_rate(ours) == (SLOW_BYTES_PER_SECOND if slowed else None)
        waiting = {id(relay._longest_waiting[token]) for token in relay._longest_waiting}
        assert waiting <= {id(self.sides[side]) for side in model.open_sides("waiting")}


TestWithLimits = WithLimits.TestCase
TestWithLimits.settings = examples(100)
