"""Data that the processes of a mailbox server's clients share, and the first commands of each client."""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import Final

from restante.client.timing_log import TimingLog
from restante.demo.client import SimulatedClient
from restante.demo.people import ClientRelease, FleetApp, Person, Population
from restante.demo.server import SimulatedServer
from restante.demo.simulation import Pause, Process, Simulation

PAKE_BYTES: Final = 80
VERSION_BYTES: Final = 100
OFFER_BYTES: Final = 130
"""Sizes of the messages of a transfer, which are sealed and so look random."""

NO_CODE: Final = -1
"""What a client uses that has not been told the code: one that is stopped too early, or that guesses."""


class World:
    """The server, the people, and what their clients know of one another."""

    def __init__(self, simulation: Simulation, server: SimulatedServer, people: Population, dice: Random) -> None:
        self.simulation, self.server, self.people, self.dice = simulation, server, people, dice
        self.logs: dict[str, TimingLog] = {}
        """The timing logs of clients that have ended, by their names."""
        self._codes: dict[str, int] = {}
        """The code that each live side uses: it stands for the key that two sides agree on."""

    def client(self, address: str, code: int = NO_CODE, log: str = "") -> SimulatedClient:
        """Return a client that has just connected."""
        client = SimulatedClient(self.simulation, self.server, address, self.dice, log)
        self._codes[client.side] = code
        return client

    def same_code(self, client: SimulatedClient) -> bool:
        """Return whether a client and its peer use the same code: else neither can read what the other sealed."""
        return self._codes[client.side] == self._codes.get(client.peer)

    def start(self, process: Callable[[], Process], after: float = 0.0) -> None:
        """Start a process after some seconds."""
        self.simulation.start(process(), self.simulation.now + after)

    def body(self, size: int) -> str:
        """Return a message's body."""
        return self.dice.randbytes(size).hex()

    def forget(self, client: SimulatedClient) -> None:
        """End a client."""
        client.leave()
        del self._codes[client.side]
        if client.log is not None:
            self.logs[client.log_name] = client.log


def bind_client(world: World, client: SimulatedClient, app: FleetApp, person: Person) -> ClientRelease:
    """Bind, and return the version of the client that the person has now."""
    version = world.people.release(person, world.simulation.now)
    client.bind(app.app_id, person.implementation, version.version)
    return version


def claim_nameplate(client: SimulatedClient, nameplate: str) -> Generator[Pause, None, bool]:
    """Claim a nameplate, and wait for the answer. Return whether the claim was granted."""
    client.command("claim", nameplate=nameplate)
    yield client.round_trip()
    return not client.refusal


def open_mailbox(world: World, client: SimulatedClient, mailbox: str) -> None:
    """Open a mailbox, and add this side's half of the key."""
    client.command("open", mailbox=mailbox)
    client.command("add", phase="pake", body=world.body(PAKE_BYTES))
