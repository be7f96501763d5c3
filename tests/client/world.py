"""Two wormholes and a mailbox server in one process, joined by queues that a test empties one frame at a time."""

from __future__ import annotations

import json
from collections import deque
from random import Random

import msgspec

from restante.client.core.machine import Machine
from restante.client.core.outputs import MessageReceived, Output, SendFrame
from restante.client.core.state import NEW_BYTES, State, new_state
from support.mailbox.givens import Frame, Inbox
from support.mailbox.worlds import World

APP_ID = "example.com/test"


class Side:
    """A wormhole in a process that can be killed, on a connection that can be cut."""

    def __init__(
        self, world: World, seed: int, *, wants_receipts: bool = False, seeds: bool = False, lasting: bool = False
    ) -> None:
        self.world, self._lasting = world, lasting
        self.dice = Random(seed)
        random = self.dice.randbytes(NEW_BYTES)
        state = new_state(APP_ID, {"seed": seed}, random, wants_receipts=wants_receipts, seeds=seeds)
        self.machine = Machine(state, self.dice.randbytes, lasting=lasting)
        self.events: list[Output] = []
        """What the application was told."""
        self.attentive = True
        """Whether the application processes each message when it is told."""
        self.processed: list[bytes] = []
        """The peer's messages that the application has processed. They are in its checkpoint."""
        self._told: deque[MessageReceived] = deque()
        self._inbox: Inbox | None = None
        self._heard = 0
        self._to_server: deque[bytes] = deque()

    @property
    def connected(self) -> bool:
        return self._inbox is not None

    @property
    def frames(self) -> list[Frame]:
        """What the server has sent on this connection."""
        assert self._inbox is not None
        return self._inbox.frames

    def connect(self) -> None:
        self._inbox = self.world.connect()
        self._heard = 0
        self.machine.connected()
        self.take()

    def cut(self) -> None:
        """Lose the connection with everything that is under way."""
        if self._inbox is not None:
            self.world.lose(self._inbox)
            self.world.flush()
            self._inbox = None
        self._to_server.clear()
        self.machine.disconnected()

    def restart(self) -> None:
        """Kill the process after a checkpoint, and start it again."""
        self.cut()
        self._told.clear()
        state = msgspec.json.decode(msgspec.json.encode(self.machine.state), type=State)
        self.machine = Machine(state, self.dice.randbytes, lasting=self._lasting)

    def take(self) -> None:
        """Carry out what the machine wants."""
        while outputs := self.machine.outputs():
            self._carry_out(outputs)

    def _carry_out(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, SendFrame):
                self._to_server.append(output.text)
            else:
                self.events.append(output)
                if isinstance(output, MessageReceived):
                    self._told.append(output)
                    if self.attentive:
                        self.process()

    def process(self) -> None:
        """Let the application process the next message, if there is one."""
        if self._told:
            message = self._told.popleft()
            self.processed.append(message.plaintext)
            self.machine.processed(message.number)
            self.take()

    def speak(self) -> bool:
        """Bring one frame to the server."""
        if self._inbox is None or not self._to_server:
            return False
        self.world.say(self._inbox, self._to_server.popleft().decode())
        self.world.flush()
        return True

    def listen(self) -> bool:
        """Bring one frame from the server."""
        if self._inbox is None or self._heard == len(self._inbox.frames):
            return False
        self._heard += 1
        self.machine.receive(json.dumps(self._inbox.frames[self._heard - 1]).encode())
        self.take()
        return True


def settle(*sides: Side) -> None:
    """Connect all sides, and let every frame arrive."""
    for side in sides:
        if not side.connected:
            side.connect()
        side.take()
    while any([*(side.speak() for side in sides), *(side.listen() for side in sides)]):
        pass
