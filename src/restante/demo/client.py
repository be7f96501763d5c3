"""The clients of a mailbox server in virtual time: what they send, what they have received, and their timing logs.

The time of the simulation is the server's. A frame that is handled now was sent half a round trip ago, and its answer
arrives half a round trip later; a client that goes on after `round_trip` has received it.
"""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import Any, Final

import msgspec

from restante.client.protocol import server_messages
from restante.client.protocol.server_messages import ServerMessage
from restante.client.timing_log import TimingLog
from restante.demo.fleet import log_normal
from restante.demo.people import ClientRelease, FleetApp, Person, Population
from restante.demo.server import SimulatedServer
from restante.demo.simulation import Pause, Process, SimulatedTask, Simulation

SIDE_BYTES: Final = 5
"""Random bytes of a side, as shipped clients use (restante.client.core.state, which needs PyNaCl)."""

ID_BYTES: Final = 2
"""Random bytes of a command's id, as shipped clients use (restante.client.connection.driver)."""

ROUND_TRIP_SECONDS: Final = 0.05
ROUND_TRIP_SIGMA: Final = 0.6
"""The round trip of a client: half of them are between 33 and 75 ms."""

JITTER_SHARE: Final = 0.3
"""By which share a frame may take longer than the fastest one."""

SKEW_SECONDS: Final = 0.2
"""How far the clocks of the clients that keep a log are off: the standard deviation."""

PAKE_BYTES: Final = 80
VERSION_BYTES: Final = 100
OFFER_BYTES: Final = 130
"""Sizes of the messages of a transfer, which are sealed and so look random."""

NO_CODE: Final = -1
"""What a client uses that has not been told the code: one that is stopped too early, or that guesses."""

_ACK: Final = b'{"type":"ack"'

_encode: Final = msgspec.json.Encoder().encode


class World:
    """The server, the people, and what their clients know of one another."""

    def __init__(self, simulation: Simulation, server: SimulatedServer, people: Population, dice: Random) -> None:
        self.simulation, self.server, self.people, self.dice = simulation, server, people, dice
        self.logs: dict[str, TimingLog] = {}
        """The timing logs of clients that have ended, by their names."""
        self.codes: dict[str, int] = {}
        """The code that each live side uses: it stands for the key that two sides agree on."""

    def start(self, process: Process, after: float = 0.0) -> None:
        """Start a process after some seconds."""
        self.simulation.start(process, self.simulation.now + after)


class SimulatedClient:
    """One side of a wormhole. It implements the socket that the server writes to."""

    def __init__(self, world: World, address: str, code: int = NO_CODE, log_name: str = "") -> None:
        """Connect. A client with the name of a log keeps one, by a clock that is not quite right."""
        self._world, self._simulation, self._server = world, world.simulation, world.server
        self._dice = world.dice
        self.side = self._dice.randbytes(SIDE_BYTES).hex()
        self._address = address
        self._half_trip = log_normal(self._dice, ROUND_TRIP_SECONDS, ROUND_TRIP_SIGMA) / 2
        self._log_name = log_name
        self._logged_at = 0.0
        skew = SKEW_SECONDS * self._dice.gauss() if log_name else 0.0
        self.log = TimingLog(lambda: self._logged_at + skew) if log_name else None
        self.task: SimulatedTask | None = None
        """The process to wake when the other side has sent something."""
        self.refusal = ""
        """Why the server refused a command or the connection."""
        self.received: dict[str, ServerMessage] = {}
        """The last answer of each type."""
        self.phases: set[str] = set()
        """The phases of messages of other sides."""
        self.peer = ""
        """The side of the latest of them."""
        world.codes[self.side] = code
        self._connection = self._server.connect(self, address)

    # ── what it sends ────────────────────────────────────────────────────────────────────────────

    def bind(self, app_id: str, implementation: str, version: str) -> None:
        """Name the application and the version of the client."""
        self.command("bind", appid=app_id, side=self.side, client_version=(implementation, version))

    def bind_person(self, app: FleetApp, person: Person) -> ClientRelease:
        """Bind with the version of the client that a person has now, and return this version."""
        release = self._world.people.release(person, self._simulation.now)
        self.bind(app.app_id, person.implementation, release.version)
        return release

    def claim(self, nameplate: str) -> Generator[Pause, None, str]:
        """Claim a nameplate, and wait for the answer. Return its mailbox; "" if the claim was refused."""
        self.command("claim", nameplate=nameplate)
        yield self.round_trip()
        return "" if self.refusal else str(self.received["claimed"].mailbox)

    def add(self, phase: str, size: int) -> None:
        """Add a message of a size."""
        self.command("add", phase=phase, body=self._dice.randbytes(size).hex())

    def command(self, kind: str, **fields: Any) -> None:
        """Send a command, which the server handles at once."""
        frame = _encode({"type": kind, **fields})
        command_id = self._dice.randbytes(ID_BYTES).hex()
        if self.log is None:
            frame = b'{"id":"%b",%b' % (command_id.encode(), frame[1:])
        else:
            self._logged_at = self._simulation.now - self._travel()
            frame = self.log.sent(self.side, frame, command_id)
        self._server.receive(self._connection, frame)

    def leave(self) -> None:
        """Close the connection."""
        self._server.lose(self._connection)

    def reconnect(self) -> None:
        """Begin another connection in place of a lost one."""
        self.leave()
        self._connection = self._server.connect(self, self._address)

    def end(self) -> None:
        """Close the connection for good, and keep the log."""
        self.leave()
        del self._world.codes[self.side]
        if self.log is not None:
            self._world.logs[self._log_name] = self.log

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────

    def round_trip(self) -> Pause:
        """Wait until the answers are there, and the next command has reached the server."""
        return Pause(2 * self._travel())

    def wait_for(self, phase: str, seconds: float) -> Generator[Pause, None, bool]:
        """Wait for a message of another side. Return whether it came."""
        deadline = self._simulation.now + seconds
        while phase not in self.phases and not self.refusal:
            if self._simulation.now >= deadline:
                return False
            yield Pause(deadline - self._simulation.now, until_woken=True)
        return not self.refusal

    def has_same_code(self) -> bool:
        """Return whether its peer uses the same code: else neither can read what the other sealed."""
        codes = self._world.codes
        return codes[self.side] == codes.get(self.peer)

    def _travel(self) -> float:
        return self._half_trip * (1 + JITTER_SHARE * self._dice.random())

    # ── the socket, as the server sees it ────────────────────────────────────────────────────────

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        """Receive frames."""
        delay = self._travel()
        for body in bodies:
            if self.log is not None:
                self._logged_at = self._server.sent_at + delay
                self.log.received(self.side, body + stamp)
            if not body.startswith(_ACK):
                self._process_message(server_messages.parse_message(body + stamp), delay)

    def _process_message(self, message: ServerMessage, delay: float) -> None:
        self.received[message.type] = message
        if message.type == "error":
            self.refusal = str(message.error)
        elif message.type != "message" or message.side == self.side:
            return
        else:
            self.phases.add(str(message.phase))
            self.peer = str(message.side)
        if self.task is not None:
            self._simulation.wake(self.task, delay + self._travel())

    def hang_up(self, code: int, reason: str) -> None:  # noqa: ARG002 - the socket's interface
        """Note that the server closes the connection."""
        self.refusal = self.refusal or reason

    def ignore(self) -> None:
        """Do nothing: this client sends little."""

    def pause(self) -> None:
        """Do nothing: each frame is handled at once."""

    def resume(self) -> None:
        """Do nothing: reading was not stopped."""

    def large_messages_done(self) -> None:
        """Do nothing: this client sends no large messages."""

    # ── the timing log ───────────────────────────────────────────────────────────────────────────

    def note(self, name: str, **details: Any) -> None:
        """Log that something happens now, if there is a log."""
        self.note_span(name, None, **details)

    def note_span(self, name: str, seconds: float | None, **details: Any) -> None:
        """Log something that ends now and took so long."""
        if self.log is not None:
            self._logged_at = self._simulation.now - self._half_trip
            stop = self.log.clock()
            self.log.add(name, stop if seconds is None else stop - seconds, seconds and stop, **details)
