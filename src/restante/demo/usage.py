"""A mailbox server's days: its data directory, and for the probed server a trace and the timing logs of probes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

from restante.demo.client import World
from restante.demo.conversations import SimulatedConversation, draw_conversation, simulate_conversation
from restante.demo.events import Events, Outage
from restante.demo.fleet import DAY_SECONDS, HOUR_SECONDS, PROBED_SERVER, Fleet, MailboxServer, log_normal
from restante.demo.guessing import guess_codes
from restante.demo.load import conversation_load
from restante.demo.people import APPS, Person, Population, draw_address
from restante.demo.server import SimulatedServer
from restante.demo.simulation import Pause, Process, Simulation

RETURNING_SHARE: Final = 0.25
"""Share of the people who find the server down and try again when it is back."""

RETURN_SECONDS: Final = 1800.0
"""The mean of the seconds after which they do."""

PROBE_HOURS: Final = 6
"""Between two transfers that the operator makes to see how long they take."""

PROBE_SECONDS: Final = 2.0
"""The median of the seconds until the probe's receiver comes."""

PROBE_TRANSFER_SECONDS: Final = 3.0
PROBE_SIGMA: Final = 0.2
"""How long the transfer takes: it is the same file each time."""

TRACED_DAYS: Final = 7
"""The last days, in which the operator has a trace written."""

TRACE_FILE: Final = "trace.jsonl"
LOGS_FOLDER: Final = "logs"
DATA_FOLDER: Final = "data"


def simulate_server(fleet: Fleet, events: Events, server: MailboxServer, folder: Path) -> int:
    """Simulate a mailbox server, and write its files. Return the number of conversations that began."""
    probed = server.name == PROBED_SERVER
    outages = [outage for outage in events.outages if outage.server == server.name]
    dice = fleet.dice(server.name, "conversations")
    people = Population(fleet, server, events.releases)
    starts = sorted(_starts(fleet, server, outages, dice))
    folder.mkdir(parents=True)
    data = folder / DATA_FOLDER
    if probed:
        (folder / LOGS_FOLDER).mkdir()
    for begin, end in _uptimes(fleet, outages):
        simulation = Simulation(begin)
        with SimulatedServer(data, lambda: simulation.now, dice) as running:  # noqa: B023 - it ends in this turn
            world = World(simulation, running, people, dice)
            simulation.start(_prune_repeatedly(running))
            for start in starts:
                if begin <= start < end:
                    simulation.start(_begin_conversation(world), start)
            for attack in events.attacks:
                if attack.server == server.name and begin <= attack.begin.timestamp() < end:
                    simulation.start(guess_codes(world, attack), attack.begin.timestamp())
            if probed:
                simulation.start(_make_probes(world, end), _next_probe(begin))
                simulation.start(_start_trace(running, folder), max(begin, fleet.end - TRACED_DAYS * DAY_SECONDS))
            simulation.run(end)
        for name, log in world.logs.items():
            log.write(folder / LOGS_FOLDER / f"{name}.json")
    return len(starts)


def _starts(fleet: Fleet, server: MailboxServer, outages: Sequence[Outage], dice: Random) -> Iterator[float]:
    """Yield when conversations begin. During an outage none do; some begin later."""
    for start in conversation_load(fleet, server).arrivals(dice):
        outage = next((outage for outage in outages if outage.contains(start)), None)
        if outage is None:
            yield start
        elif dice.random() < RETURNING_SHARE:
            yield outage.end.timestamp() + dice.expovariate(1 / RETURN_SECONDS)


def _uptimes(fleet: Fleet, outages: Sequence[Outage]) -> Iterator[tuple[float, float]]:
    """Yield the times between the outages."""
    begin = fleet.begin
    for outage in sorted(outages, key=lambda outage: outage.begin):
        yield begin, outage.begin.timestamp()
        begin = outage.end.timestamp()
    yield begin, fleet.end


def _begin_conversation(world: World) -> Process:
    yield from simulate_conversation(world, draw_conversation(world))


def _prune_repeatedly(server: SimulatedServer) -> Process:
    while True:
        yield Pause(server.prune_every)
        server.prune()


def _next_probe(at: float) -> float:
    return (at // (PROBE_HOURS * HOUR_SECONDS) + 1) * PROBE_HOURS * HOUR_SECONDS


def _make_probes(world: World, end: float) -> Process:
    """Make a transfer between two computers of the operator, again and again, and keep both timing logs."""
    sender, receiver = (Person(draw_address(world.dice), "restante", 0.0) for _ in range(2))
    while (now := world.simulation.now) < end:
        name = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d-%H%M")
        seconds = log_normal(world.dice, PROBE_TRANSFER_SECONDS, PROBE_SIGMA)
        conversation = SimulatedConversation(
            app=APPS[0], sender=sender, receiver=receiver, meeting=PROBE_SECONDS, seconds=seconds, log=name
        )
        world.start(simulate_conversation(world, conversation))
        yield Pause(_next_probe(now) - now)


def _start_trace(server: SimulatedServer, folder: Path) -> Process:
    """Write a trace from now on."""
    server.write_trace(folder / TRACE_FILE)
    yield from ()
