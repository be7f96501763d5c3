"""Who may pass on how many bytes, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.relay.core.pacing import (
    BURST_SECONDS,
    MAX_QUANTUM_BYTES,
    MIN_QUANTUM_BYTES,
    Flow,
    Pacer,
    Rates,
    bounded_quantum,
)
from support.effort import examples

MB = 1_000_000


class Way:
    """A direction of a pair that gets messages of some bytes at a rate, or always has as many as its buffer."""

    def __init__(
        self,
        world: World,
        addresses: Sequence[str],
        rate: float,
        message: int = 1000,
        buffer: int = 1 << 40,
        flow_of: Way | None = None,
    ) -> None:
        self.world = world
        self.flow: Flow = flow_of.flow if flow_of else world.pacer.add(addresses)
        self.rate = rate
        self._message, self._buffer = message, buffer
        self.read = 0
        self.waits = False
        self.longest_wait = 0.0
        self._since = 0.0

    def _unread(self) -> int:
        if math.isinf(self.rate):
            return self._buffer
        return int(self.rate * self.world.now / self._message + 1e-9) * self._message - self.read

    def available(self) -> int:
        return max(1, self._unread())

    def step(self) -> bool:
        """Read what is granted, if bytes are there. Return whether there were some."""
        if self.waits or not self._unread():
            return False
        size = self.world.pacer.ask(self.flow, self, self.world.now)
        if size:
            self._take(size)
        else:
            self.waits, self._since = True, self.world.now
        return True

    def granted(self, size: int) -> None:
        self.waits = False
        self.longest_wait = max(self.longest_wait, self.world.now - self._since)
        self._take(size)

    def _take(self, granted: int) -> None:
        size = min(granted, self._unread())
        self.read += size
        self.world.pacer.give_back(self.flow, granted - size, self.world.now)


class World:
    def __init__(self, rates: Rates, late: float = 0.005) -> None:
        self.pacer = Pacer(rates)
        self.now = 0.0
        self._late = late
        """Seconds by which each turn is late."""
        self.ways: list[Way] = []

    def pair(self, *addresses: str, rate: float = math.inf, message: int = 1000, buffer: int = 1 << 40) -> Way:
        way = Way(self, addresses, rate, message, buffer)
        self.ways.append(way)
        return way

    def other_way(self, way: Way) -> Way:
        other = Way(self, (), math.inf, flow_of=way)
        self.ways.append(other)
        return other

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            while sum(way.step() for way in self.ways):
                pass
            turn = self.pacer.next_turn
            self.now = min(end, self.now + 0.05, math.inf if turn is None else max(turn, self.now) + self._late)
            if self.now >= end:
                return
            for reader, size in self.pacer.turn(self.now):
                reader.granted(size)

    def rates(self, seconds: float) -> list[float]:
        """Return the bytes a second of each way, in so many seconds from now."""
        before = [way.read for way in self.ways]
        self.run(seconds)
        return [(way.read - one) / seconds for way, one in zip(self.ways, before, strict=True)]


def near(rate: float) -> object:
    return pytest.approx(rate, rel=0.05)


def test_without_rates_no_pair_asks() -> None:
    world = World(Rates())
    assert not world.pair("a", "b").flow.is_paced
    assert world.pacer.next_turn is None


@pytest.mark.parametrize("rate", [1_000, 20_000, MB, 125 * MB, 2_000 * MB])
@pytest.mark.parametrize("late", [0.001, 0.005, 0.04])
def test_a_pair_has_its_rate_also_if_turns_are_late(rate: float, late: float) -> None:
    world = World(Rates(pair=rate), late)
    world.pair("a", "b")
    seconds = max(20, 40 * MIN_QUANTUM_BYTES / rate)
    if rate * late > MAX_QUANTUM_BYTES:
        assert rate * BURST_SECONDS > rate * late
    assert world.rates(seconds) == [near(rate)]


@pytest.mark.parametrize("number", [2, 7, 100])
def test_pairs_share_the_total_alike(number: int) -> None:
    world = World(Rates(total=50 * MB))
    for index in range(number):
        world.pair(f"{index}")
    shares = world.rates(20)
    assert sum(shares) == near(50 * MB)
    assert max(shares) - min(shares) <= MAX_QUANTUM_BYTES / 20  # what the first was granted while it was alone


def test_a_share_that_one_does_not_use_goes_to_the_others() -> None:
    world = World(Rates(total=10 * MB))
    world.pair("a", rate=MB)
    world.pair("b")
    world.pair("c")
    assert world.rates(20) == [near(MB), near(4.5 * MB), near(4.5 * MB)]


@pytest.mark.parametrize("rates", [Rates(total=MB), Rates(address=MB), Rates(address=MB, total=MB)])
def test_pairs_that_send_a_little_take_nothing_else_from_a_transfer_and_do_not_wait_for_each_other(
    rates: Rates,
) -> None:
    world = World(rates)
    transfer = world.pair("a")
    small = [world.pair("a", rate=450, message=90) for _ in range(100)]
    assert world.rates(20) == [pytest.approx(MB - 100 * 450, rel=0.01), *[near(450)] * 100]
    assert max(way.longest_wait for way in small) < 0.2
    assert transfer.longest_wait < 0.2


@pytest.mark.parametrize(("total", "buffer"), [(2 * MB, 20_000), (20 * MB, 200_000)])
def test_a_pair_that_never_has_a_quantum_at_once_has_its_share(total: float, buffer: int) -> None:
    world = World(Rates(total=total))
    world.pair("a", buffer=buffer)
    world.pair("b")
    assert world.rates(20) == [near(total / 2)] * 2


def test_both_directions_of_a_pair_have_one_share() -> None:
    world = World(Rates(total=9 * MB))
    first = world.pair("a")
    world.other_way(first)
    world.pair("b")
    assert world.rates(20) == [near(2.25 * MB), near(2.25 * MB), near(4.5 * MB)]


def test_a_pair_counts_for_the_addresses_of_both_sides_and_once_for_the_same() -> None:
    world = World(Rates(address=4 * MB))
    world.pair("a", "b")
    world.pair("a", "c")
    world.pair("d", "d")
    assert world.rates(20) == [near(2 * MB), near(2 * MB), near(4 * MB)]


def test_what_an_address_cannot_use_of_the_total_goes_to_others() -> None:
    world = World(Rates(address=MB, total=10 * MB, pair=8 * MB))
    for _ in range(4):
        world.pair("school")
    world.pair("home", rate=0.5 * MB)
    assert world.rates(20) == [*[near(MB / 4)] * 4, near(0.5 * MB)]


def test_a_pair_that_needs_two_busy_addresses_is_not_starved() -> None:
    world = World(Rates(address=MB))
    both = world.pair("a", "b")
    for _ in range(9):
        world.pair("a")
        world.pair("b")
    assert world.rates(50)[0] >= 0.05 * MB
    assert both.longest_wait < 3


def test_a_slowed_pair_has_its_rate_and_the_others_theirs() -> None:
    world = World(Rates(total=10 * MB))
    slowed = world.pair("a")
    world.pair("b")
    world.pacer.slow_down(slowed.flow, 16_384, 0)
    assert world.rates(40) == [near(16_384), near(10 * MB)]
    world.pacer.slow_down(slowed.flow, 0, world.now)
    assert world.rates(40) == [near(5 * MB), near(5 * MB)]


def test_one_pair_can_be_slowed_without_rates() -> None:
    world = World(Rates())
    slowed, free = world.pair("a"), world.pair("a", rate=0)
    world.pacer.slow_down(slowed.flow, 16_384, 0)
    assert (slowed.flow.is_paced, free.flow.is_paced) == (True, False)
    assert world.rates(60)[0] == near(16_384)


def test_other_rates_apply_to_those_that_wait() -> None:
    world = World(Rates(total=1000))
    for index in range(5):
        world.pair(f"{index}")
    world.run(1)
    world.pacer.set_rates(Rates(total=10 * MB), world.now)
    assert world.rates(20) == [near(2 * MB)] * 5
    world.pacer.set_rates(Rates(), world.now)
    assert not any(way.flow.is_paced for way in world.ways)
    assert {reader for reader, _ in world.pacer.turn(world.now)} == {way for way in world.ways if way.waits}


@pytest.mark.parametrize("rates", [Rates(pair=1000 * MB), Rates(address=1000 * MB), Rates(total=1000 * MB)])
@pytest.mark.parametrize("off", [False, True])
def test_bytes_of_a_high_rate_do_not_delay_a_pair_for_longer_at_a_low_one(rates: Rates, off: bool) -> None:
    world = World(rates)
    way = world.pair("a")
    world.run(1)
    if off:
        world.pacer.set_rates(Rates(), world.now)
    low = Rates(**{name: 0.1 * MB for name in rates.__struct_fields__ if getattr(rates, name)})
    world.pacer.set_rates(low, world.now)
    assert world.rates(2) == [pytest.approx(0.1 * MB, rel=0.2)]
    assert way.longest_wait < 1


def test_a_pair_that_ends_while_it_waits_leaves_nothing_behind() -> None:
    world = World(Rates(pair=MB, address=MB, total=MB))
    for _ in range(3):
        world.pair("a", "b")
    world.run(1)
    for way in world.ways:
        world.pacer.remove(way.flow, world.now)
    world.ways.clear()
    world.run(5)
    assert (world.pacer.next_turn, world.pacer._addresses, world.pacer._flows) == (None, {}, set())


def test_what_is_given_back_goes_to_those_that_wait_at_once() -> None:
    pacer, way = Pacer(Rates(total=100_000)), World(Rates()).pair("b")
    granted, waiting = pacer.add(["a"]), pacer.add(["b"])
    size = pacer.ask(granted, way, 0)
    assert pacer.ask(waiting, way, 0) == 0
    assert pacer.turn(0) == []
    pacer.give_back(granted, size, 0)
    assert pacer.next_turn == 0
    assert pacer.turn(0) == [(way, size)]


def test_what_is_given_back_late_allows_no_more_than_a_pause() -> None:
    pacer, way = Pacer(Rates(total=100_000)), World(Rates()).pair("b")
    first, second, third = (pacer.add([address]) for address in "abc")
    size = pacer.ask(first, way, 0)
    pacer.give_back(first, size, 10)
    assert (pacer.ask(second, way, 10), pacer.ask(third, way, 10)) == (size, 0)


def test_what_a_pair_had_of_other_rates_while_it_waited_goes_to_others_at_its_end() -> None:
    pacer, way = Pacer(Rates(address=100_000, total=100_000)), World(Rates()).pair("b")
    first, ending, waiting = pacer.add(["a"]), pacer.add(["b"]), pacer.add(["b"])
    size = pacer.ask(first, way, 0)
    assert pacer.ask(ending, way, 0) == pacer.ask(waiting, way, 0) == 0
    pacer.remove(ending, 0)
    pacer.give_back(first, size, 0)
    assert [reader for reader, _ in pacer.turn(0)] == [way]


def test_a_new_pair_does_not_forget_what_its_address_has_used() -> None:
    world = World(Rates(address=MB))
    begun = world.now
    read = 0
    while world.now < begun + 10:
        way = world.pair("a")
        world.run(0.01)
        read += way.read
        world.pacer.remove(way.flow, world.now)
        world.ways.clear()
    assert read <= 10 * MB * 1.05


@pytest.mark.parametrize("begun", [0, 2e5, 3e7])
@pytest.mark.parametrize("rate", [1e5, 1e9, 1e12])
def test_a_turn_ends_also_if_what_is_left_takes_no_time(begun: float, rate: float) -> None:
    """Adding some nanoseconds to the time since a boot long ago does not change it."""
    pacer = Pacer(Rates(pair=rate, address=rate, total=rate))
    way = World(Rates()).pair("b")
    now = begun
    for size in range(1, 500):
        flow = pacer.add(["a"])
        granted = pacer.ask(flow, way, now)
        pacer.give_back(flow, granted - size, now)
        pacer.remove(flow, now)
        now = pacer.next_turn or now
        pacer.turn(now)
    pacer.turn(now + 1000)
    assert not pacer._addresses


@given(
    total=st.floats(1e5, 1e8),
    address=st.floats(1e5, 1e8),
    addresses=st.lists(st.sampled_from(["a", "b", "c", "d", "ab", "cd"]), min_size=1, max_size=12),
)
@examples(30)
def test_no_rate_is_exceeded_and_no_share_is_lost(total: float, address: float, addresses: list[str]) -> None:
    rates = Rates(address=address, total=total)
    world = World(rates)
    for letters in addresses:
        world.pair(*letters)
    world.run(1)
    shares = world.rates(20)
    slack = 2 * bounded_quantum(min(total, address)) * len(addresses) / 20
    of_addresses = {
        letter: sum(share for share, letters in zip(shares, addresses, strict=True) if letter in letters)
        for letter in "abcd"
    }
    assert sum(shares) <= total * 1.02 + slack
    assert max(of_addresses.values()) <= address * 1.02 + slack
    full = {letter for letter, used in of_addresses.items() if used >= address * 0.95 - slack}
    if sum(shares) < total * 0.95 - slack:  # whoever gets less is limited by an address
        assert all(full & set(letters) for letters in addresses)
    assert min(shares) > 0


@pytest.mark.parametrize("rate", [math.inf, 10_000])
def test_a_pair_that_is_slowed_does_not_pay_for_what_it_had_at_its_rate(rate: float) -> None:
    world = World(Rates(pair=10 * MB))
    way = world.pair("a", rate=rate)
    world.run(1)
    way.rate = math.inf
    world.pacer.slow_down(way.flow, 4096, world.now)
    assert world.rates(10)[0] > 0
    assert world.rates(60) == [pytest.approx(4096, rel=0.2)]
