"""The transit relay of the fleet: its data directory, as the real rules and the real store leave it.

Some of the transfers of all mailbox servers pass through it, and strangers knock. Its randomness is its own, so that
the rest of the fleet is the same with it and without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Final

from restante.common.address_registry import AddressRegistry
from restante.common.net import parse_ip
from restante.common.transfer_records import CurrentTransfers, TransferResult
from restante.demo.events import Events
from restante.demo.fleet import DAY_SECONDS, HOUR_SECONDS, MAILBOX_SERVERS, RELAY, Fleet, log_normal
from restante.demo.load import conversation_load
from restante.demo.people import draw_address
from restante.demo.simulation import Pause, Process, Simulation
from restante.relay.core.limits import Limits
from restante.relay.core.quotas import AddressQuota
from restante.relay.core.relay import Now, Relay, Side
from restante.relay.protocol.request import Request
from restante.relay.store.sqlite import Store

RELAYED_SHARE: Final = 0.3
"""Share of the conversations whose sides cannot reach each other, so that the bytes pass through the relay."""

IN_VAIN_SHARE: Final = 0.15
"""Share of those in which one side asks the relay, and then the sides reach each other directly."""

SPARE_SHARE: Final = 0.06
"""Share of the transfers whose first side asks twice, by IPv4 and by IPv6."""

IMPATIENT_SHARE: Final = 0.004
"""Share of the transfers whose first side does not wait for the other, because of an error in its program."""

EARLY_SHARE: Final = 0.1
"""Share of the transfers whose first side asks before the second has typed the code, as the Go client does."""

EARLY_SECONDS: Final = 25.0
EARLY_SIGMA: Final = 1.1
"""How long such a side waits: half of them 25 seconds, one in fifty more than four minutes."""

APART_SECONDS: Final = 0.25
APART_SIGMA: Final = 0.9
"""How long the first side waits otherwise: both ask when they know from each other which relay it is."""

GIVE_UP_SECONDS: Final = 3.0
"""The median of the seconds after which a side leaves that has reached the other one directly."""

SIZE_BYTES: Final = 6_000_000
SIZE_SIGMA: Final = 2.2
MAX_SIZE_BYTES: Final = 60_000_000_000
"""Bytes of a transfer: half of them have up to 6 MB, one in fifty more than half a gigabyte."""

BYTES_PER_SECOND: Final = 4_000_000
RATE_SIGMA: Final = 0.8
"""The rate of a transfer."""

KNOCKS_PER_DAY: Final = 9
"""Connections of strangers who look for servers of any kind, on each address of the internet."""

SPEAKING_SHARE: Final = 0.7
"""Share of them who send something. The others leave."""

KNOCK_SECONDS: Final = 2.0
"""The median of the seconds after which they leave."""

_REQUEST_CHARACTERS: Final = (64, 16, 16)
"""Characters of a token, and of each side (restante.relay.protocol.request)."""


def simulate_relay(fleet: Fleet, events: Events, folder: Path) -> int:
    """Simulate the relay, and write its data directory. Return the number of transfers that began."""
    dice = fleet.dice(RELAY)
    simulation = Simulation(fleet.begin)
    relay = _SimulatedRelay(simulation, fleet.begin, dice)
    transfers = 0
    for start in sorted(_starts(fleet, events, dice)):
        chance = dice.random()
        if chance < RELAYED_SHARE:
            transfers += 1
            simulation.start(relay.transfer(), start)
        elif chance < RELAYED_SHARE + IN_VAIN_SHARE:
            simulation.start(relay.ask_in_vain(), start)
    at = fleet.begin
    while (at := at + dice.expovariate(KNOCKS_PER_DAY / DAY_SECONDS)) < fleet.end:
        simulation.start(relay.knock(), at)
    asyncio.run(relay.run(folder, fleet.end))
    return transfers


def _starts(fleet: Fleet, events: Events, dice: Random) -> Iterator[float]:
    """Yield when conversations begin at the mailbox servers, which have as much load as these, but during outages."""
    for server in MAILBOX_SERVERS:
        outages = [outage for outage in events.outages if outage.server == server.name]
        for start in conversation_load(fleet, server).arrivals(dice):
            if not any(outage.contains(start) for outage in outages):
                yield start


class _SimulatedRelay:
    """The relay, and what its clients do. A process begins a connection, and ends it."""

    def __init__(self, simulation: Simulation, begin: float, dice: Random) -> None:
        self._simulation, self._begin, self._dice = simulation, begin, dice
        self._day_key = b""
        self._addresses = AddressRegistry(AddressQuota, self._draw_key)
        self._relay = Relay(Limits())

    async def run(self, folder: Path, end: float) -> None:
        """Run until the end, and save every hour."""
        store = Store.open(folder)
        try:
            store.database.execute("PRAGMA synchronous = OFF")  # until the end the files are drafts
            for at in range(int(self._begin) + HOUR_SECONDS, int(end) + 1, HOUR_SECONDS):
                self._simulation.run(at)
                await self._save(store)
            store.database.execute("PRAGMA synchronous = FULL")  # the last checkpoint flushes all of them
        finally:
            await store.close()

    async def _save(self, store: Store) -> None:
        relay, now = self._relay, self._now()
        relay.expire(now)
        records, relay.records = relay.records, []
        current = CurrentTransfers(self._begin, now.wall, 2 * relay.pairs, relay.waiting, 0)
        await store.save(records, relay.traffic.saved(), self._day_key, current)

    def _now(self) -> Now:
        return Now(self._simulation.now, self._simulation.now - self._begin)

    def _draw_key(self) -> bytes:
        """Draw the key of the addresses' names. That of the day is drawn last."""
        self._day_key = self._dice.randbytes(32)
        return self._day_key

    def transfer(self) -> Process:
        """Simulate a transfer: one side asks, then the other, and then bytes are passed on."""
        dice, relay = self._dice, self._relay
        first_address, second_address = draw_address(dice), draw_address(dice)
        token, first_side, second_side = (dice.randbytes(size // 2).hex().encode() for size in _REQUEST_CHARACTERS)
        chance, is_early = dice.random(), dice.random() < EARLY_SHARE
        times = 2 if chance < SPARE_SHARE else 1
        asked = [side for _ in range(times) if (side := self._ask(first_address, Request(token, first_side)))]
        yield Pause(log_normal(dice, *((EARLY_SECONDS, EARLY_SIGMA) if is_early else (APART_SECONDS, APART_SIGMA))))
        if chance > 1 - IMPATIENT_SHARE:
            return self._leave(asked, "impatient")
        second = self._ask(second_address, Request(token, second_side))
        if second is None or second.pair is None:  # refused, at a limit
            return self._leave(asked)
        pair = second.pair
        size = min(round(log_normal(dice, SIZE_BYTES, SIZE_SIGMA)), MAX_SIZE_BYTES)
        yield Pause(size / log_normal(dice, BYTES_PER_SECOND, RATE_SIGMA))
        relay.count_bytes(pair, size)
        relay.end_pair(pair, self._now())

    def ask_in_vain(self) -> Process:
        """Simulate a side that asks, and leaves when it has reached the other one directly."""
        token, side = (self._dice.randbytes(size // 2).hex().encode() for size in _REQUEST_CHARACTERS[:2])
        asked = self._ask(draw_address(self._dice), Request(token, side))
        yield Pause(log_normal(self._dice, GIVE_UP_SECONDS, APART_SIGMA))
        self._leave(filter(None, [asked]))

    def knock(self) -> Process:
        """Simulate a stranger who does not know what a relay is."""
        opened = self._open(draw_address(self._dice))
        yield Pause(min(log_normal(self._dice, KNOCK_SECONDS, APART_SIGMA), self._relay.limits.handshake))
        self._leave(filter(None, [opened]), "errory" if self._dice.random() < SPEAKING_SHARE else None)

    def _leave(self, sides: Iterable[Side], result: TransferResult | None = None) -> None:
        for side in sides:
            self._relay.end(side, self._now(), result)

    def _ask(self, address: str, request: Request) -> Side | None:
        """Connect and send a request. None: the relay refused it."""
        side = self._open(address)
        if side is not None:
            self._relay.request(side, request, self._now())
        return side if side is not None and side.state != "ended" else None

    def _open(self, address: str) -> Side | None:
        """Connect. None: the relay refused it."""
        parsed = parse_ip(address)
        assert parsed is not None
        name = self._addresses.day_id(parsed, self._simulation.now)
        opened = self._relay.open(None, (self._addresses.get_or_add(parsed),), name, self._now())
        return opened if isinstance(opened, Side) else None
