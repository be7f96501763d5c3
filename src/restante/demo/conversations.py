"""What people do with a mailbox server. Each conversation is a process for each side.

The results in the usage records follow from the commands. No process says what a record should be, but how a client
closes: `lonely` if nobody came, `scary` if the other side has another code, `errory` if the transfer failed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from restante.client.timing_log import CRYPTO
from restante.demo.client import NO_CODE, OFFER_BYTES, PAKE_BYTES, VERSION_BYTES, SimulatedClient, World
from restante.demo.fleet import log_normal
from restante.demo.people import APPS, FleetApp, Person
from restante.demo.simulation import Pause, Process

MEETING_SECONDS: Final = 22.0
MEETING_SIGMA: Final = 1.1
"""From the code to the other side: half of them are there after 22 seconds, one in fifty after more than three
minutes. The code is read out or pasted, and typed."""

DIRECT_SECONDS: Final = 3.0
"""The median for sides that know the mailbox: programs meet, not people."""

PATIENCE_SECONDS: Final = 240.0
PATIENCE_SIGMA: Final = 0.8
"""Until somebody gives up who waits in vain."""

RECEIVER_PATIENCE_SECONDS: Final = 20.0
"""The median for somebody who has typed a code: the other side should be there."""

PEER_SECONDS: Final = 30.0
"""Until a client gives up whose peer has said something and then nothing more."""

TRANSFER_SECONDS: Final = 5.0
TRANSFER_SIGMA: Final = 1.5
"""The bytes of a transfer, which do not pass through the server."""

DOUBLED_SECONDS: Final = 0.3
"""Between two people who use the same code, at most: later ones find the nameplate free again."""

NOTICED_SECONDS: Final = 20.0
"""From a failure to the next attempt."""

KEY_SECONDS: Final = 0.0003
"""To compute a half of the key, or the key (design.md, "Speed")."""

CODES: Final = 1 << 16
"""Codes with one nameplate and two words."""

SECOND_ATTEMPT_SHARE: Final = 0.7
"""Share of the people who try again when a code turned out to be wrong or known to somebody else."""


class SimulatedConversation(msgspec.Struct, kw_only=True):
    """A conversation, and how it ends. The default is one that succeeds."""

    app: FleetApp
    sender: Person
    receiver: Person
    direct: bool = False
    """Whether the sides know the mailbox."""
    comes: bool = True
    """Whether the receiver comes at all."""
    mistyped: str = ""
    """What the receiver gets wrong at the first attempt: "word" or "number"."""
    vanishes: bool = False
    """Whether both computers go to sleep before the end."""
    fails: bool = False
    """Whether the transfer fails: no space left, or cancelled."""
    doubled: bool = False
    """Whether two people use the same code."""
    visited: bool = False
    """Whether the receiver first stops its client at once, and starts it again."""
    reconnects: bool = False
    """Whether the sender's connection is lost while it waits."""
    code: int = 0
    nameplate: str = ""
    mailbox: str = ""
    meeting: float = MEETING_SECONDS
    """The median of the seconds until the receiver comes."""
    seconds: float = TRANSFER_SECONDS
    """How long the transfer takes."""
    log: str = ""
    """Under which name both sides keep a timing log; "": they keep none."""


CHANCES: Final[tuple[tuple[float, dict[str, Any]], ...]] = (
    (0.05, {"comes": False}),
    (0.012, {"mistyped": "word"}),
    (0.012, {"mistyped": "number"}),
    (0.02, {"vanishes": True}),
    (0.02, {"fails": True}),
    (0.006, {"doubled": True}),
    (0.01, {"visited": True}),
    (0.04, {"reconnects": True}),
)
"""Share of the conversations, and what is special about them. The others succeed at once."""


def draw_conversation(world: World) -> SimulatedConversation:
    """Draw a conversation."""
    dice = world.dice
    app = dice.choices(APPS, [app.share for app in APPS])[0]
    sender, receiver = world.people.two_of(app, dice)
    chance = dice.random()
    special: dict[str, Any] = {}
    for share, fields in CHANCES:
        if chance < share:
            special = fields
            break
        chance -= share
    seconds = log_normal(dice, TRANSFER_SECONDS, TRANSFER_SIGMA)
    code = dice.randrange(CODES)
    conversation = SimulatedConversation(
        app=app, sender=sender, receiver=receiver, code=code, seconds=seconds, **special
    )
    if dice.random() < app.direct:
        conversation.direct, conversation.doubled, conversation.mailbox = True, False, dice.randbytes(8).hex()
        conversation.meeting, conversation.mistyped = DIRECT_SECONDS, ""
    return conversation


def simulate_conversation(world: World, conversation: SimulatedConversation) -> Process:
    """Simulate the sender of a conversation, who starts its receivers."""
    sender = _ConversationSide(world, conversation, conversation.code, sends=True)
    mood = yield from sender.send()
    sender.client.end()
    if mood == "scary":
        _try_again(world, conversation)


def _receive(
    world: World, conversation: SimulatedConversation, *, code: int, nameplate: str, stops: bool = False
) -> Process:
    """Simulate a receiver, with the code and the nameplate as it has typed them.

    The client of one that `stops` is stopped before it adds a message.
    """
    receiver = _ConversationSide(world, conversation, code, sends=False)
    yield from receiver.receive(nameplate, stops=stops)
    receiver.client.end()


def _start_receivers(world: World, conversation: SimulatedConversation) -> None:
    """Start the receivers that use the code, after the time that it takes to read it out and to type it."""
    if not conversation.comes:
        return
    after = log_normal(world.dice, conversation.meeting, MEETING_SIGMA)
    again = after + log_normal(world.dice, NOTICED_SECONDS, MEETING_SIGMA)

    def receiver(
        *, code: int = conversation.code, nameplate: str = conversation.nameplate, stops: bool = False
    ) -> Process:
        return _receive(world, conversation, code=code, nameplate=nameplate, stops=stops)

    if conversation.visited:
        world.start(receiver(code=NO_CODE, stops=True), after)
        world.start(receiver(), again)
    elif conversation.mistyped == "word":
        world.start(receiver(code=conversation.code + 1), after)
    elif conversation.mistyped == "number":
        world.start(receiver(nameplate=f"{conversation.nameplate}{world.dice.randrange(10)}"), after)
        world.start(receiver(), again)
    else:
        world.start(receiver(), after)
        if conversation.doubled:
            world.start(receiver(), after + DOUBLED_SECONDS * world.dice.random())


def _try_again(world: World, conversation: SimulatedConversation) -> None:
    """Start the second attempt of two people whose code turned out to be wrong, with another code."""
    if not conversation.direct and world.dice.random() < SECOND_ATTEMPT_SHARE:
        second = replace(conversation, mistyped="", code=world.dice.randrange(CODES))
        world.start(simulate_conversation(world, second), log_normal(world.dice, NOTICED_SECONDS, MEETING_SIGMA))


class _ConversationSide:
    """The sender or a receiver of a conversation, and its client.

    What it does ends with the mood with which it closed the mailbox; "" if it did not.
    """

    def __init__(self, world: World, conversation: SimulatedConversation, code: int, *, sends: bool) -> None:
        """Connect, and bind."""
        self._world, self._conversation, self._sends = world, conversation, sends
        self._person = conversation.sender if sends else conversation.receiver
        what = "send" if sends else "receive"
        self.client = SimulatedClient(
            world, self._person.address, code, f"{conversation.log}-{what}" if conversation.log else ""
        )
        self.client.note("command dispatch", which=f"cmd_{what}")
        self._release = self.client.bind_person(conversation.app, self._person)
        self._nameplate = ""
        """The nameplate that leads to the mailbox; "" if the side knows the mailbox."""

    def send(self) -> Generator[Pause, None, str]:
        """Do what the sender does."""
        client, conversation = self.client, self._conversation
        yield client.round_trip()
        if not conversation.direct:
            client.command("allocate")
            if client.refusal:
                return ""
            conversation.nameplate = self._nameplate = str(client.received["allocated"].nameplate)
            yield client.round_trip()
            conversation.mailbox = yield from client.claim(self._nameplate)
            if not conversation.mailbox:
                return ""
        client.command("open", mailbox=conversation.mailbox)
        client.add("pake", PAKE_BYTES)
        _start_receivers(self._world, conversation)
        if conversation.reconnects:
            yield from self._lose_connection()
        return (yield from self._exchange(PATIENCE_SECONDS))

    def receive(self, nameplate: str, *, stops: bool) -> Generator[Pause, None, str]:
        """Do what a receiver does."""
        client, mailbox = self.client, self._conversation.mailbox
        yield client.round_trip()
        if nameplate:
            self._nameplate = nameplate
            mailbox = yield from client.claim(nameplate)
            if not mailbox:
                return ""
        client.command("open", mailbox=mailbox)
        if stops:
            yield client.round_trip()
            return ""
        client.add("pake", PAKE_BYTES)
        return (yield from self._exchange(RECEIVER_PATIENCE_SECONDS))

    def _lose_connection(self) -> Generator[Pause, None, None]:
        """Lose the connection of somebody who waits, and connect again as shipped clients do."""
        client, conversation, dice = self.client, self._conversation, self._world.dice
        yield Pause(log_normal(dice, conversation.meeting / 3, MEETING_SIGMA))
        client.leave()
        yield Pause(1.5 + dice.random())  # the first delay of the Python client (restante.client.connection.driver)
        client.reconnect()
        client.bind_person(conversation.app, self._person)
        yield client.round_trip()
        if self._nameplate and not client.phases:
            yield from client.claim(self._nameplate)
        if not client.refusal:
            client.command("open", mailbox=conversation.mailbox)

    def _exchange(self, median_patience: float) -> Generator[Pause, None, str]:
        """Agree on a key, transfer something, and close, as far as that is possible."""
        client = self.client
        patience = log_normal(self._world.dice, median_patience, PATIENCE_SIGMA)
        client.task = self._world.simulation.current
        client.note_span("pake1", KEY_SECONDS, waiting=CRYPTO)
        mood = yield from self._until_close(patience)
        if mood:
            if mood == "lonely" and self._nameplate:
                client.command("release", nameplate=self._nameplate)
            client.command("close", mood=mood)
            yield client.round_trip()
        client.note("exit")
        return mood

    def _until_close(self, patience: float) -> Generator[Pause, None, str]:
        """Do what comes before the close."""
        client, conversation, dice = self.client, self._conversation, self._world.dice
        if not (yield from client.wait_for("pake", patience)):
            return "" if client.refusal else "lonely"
        client.note_span("pake2", KEY_SECONDS, waiting=CRYPTO)
        if self._nameplate:
            client.command("release", nameplate=self._nameplate)
        client.add("version", VERSION_BYTES)
        if not (yield from client.wait_for("version", PEER_SECONDS)):
            return "" if client.refusal else "lonely"
        if not client.has_same_code():
            return "scary"
        if conversation.vanishes:
            yield Pause(log_normal(dice, TRANSFER_SECONDS, TRANSFER_SIGMA))
            return ""
        if dice.random() < self._release.failing:
            conversation.fails = True
        client.add("0", OFFER_BYTES)
        if not (yield from client.wait_for("0", PEER_SECONDS)):
            return "" if client.refusal else "errory"
        yield from self._transfer()
        return "errory" if conversation.fails else "happy"

    def _transfer(self) -> Generator[Pause, None, None]:
        """Wait while bytes go from one side to the other, on a connection of their own."""
        client, seconds = self.client, self._conversation.seconds
        connect = client.round_trip()
        yield connect
        client.note_span("transit connect", connect.seconds)
        yield Pause(seconds)
        client.note_span("tx file" if self._sends else "rx file", seconds)
