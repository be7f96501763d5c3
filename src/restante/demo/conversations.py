"""What people do with a mailbox server. Each conversation is a process for each side.

The results in the usage records follow from the commands. No process says what a record should be, but how a client
closes: `lonely` if nobody came, `scary` if the other side has another code, `errory` if the transfer failed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from restante.client.timing_log import CRYPTO
from restante.demo.client import SimulatedClient
from restante.demo.fleet import log_normal
from restante.demo.people import ClientRelease, FleetApp, Person
from restante.demo.simulation import Pause, Process
from restante.demo.world import OFFER_BYTES, VERSION_BYTES, World, bind_client, claim_nameplate, open_mailbox

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


def draw_conversation(world: World, app: FleetApp) -> SimulatedConversation:
    """Draw a conversation of an application."""
    dice = world.dice
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
        conversation.direct, conversation.doubled, conversation.mailbox = True, False, world.body(8)
        conversation.meeting, conversation.mistyped = DIRECT_SECONDS, ""
    return conversation


def simulate_conversation(world: World, conversation: SimulatedConversation) -> Process:
    """Simulate the sender of a conversation."""
    client = world.client(
        conversation.sender.address, conversation.code, conversation.log and f"{conversation.log}-send"
    )
    client.note("command dispatch", which="cmd_send")
    version = bind_client(world, client, conversation.app, conversation.sender)
    yield client.round_trip()
    if not conversation.direct:
        client.command("allocate")
        if client.refusal:
            return world.forget(client)
        conversation.nameplate = str(client.received["allocated"].nameplate)
        yield client.round_trip()
        if not (yield from claim_nameplate(client, conversation.nameplate)):
            return world.forget(client)
        conversation.mailbox = str(client.received["claimed"].mailbox)
    open_mailbox(world, client, conversation.mailbox)
    _start_receivers(world, conversation)
    if conversation.reconnects:
        yield from _lose_connection(world, client, conversation)
    return (
        yield from _exchange(world, client, conversation, version, _patience(world, PATIENCE_SECONDS), sends=True)
    )


def _receive(world: World, conversation: SimulatedConversation, *, code: int, nameplate: str) -> Process:
    """Simulate the receiver of a conversation, with the code as this side has typed it."""
    client = world.client(conversation.receiver.address, code, conversation.log and f"{conversation.log}-receive")
    client.note("command dispatch", which="cmd_receive")
    version = bind_client(world, client, conversation.app, conversation.receiver)
    yield client.round_trip()
    mailbox = conversation.mailbox
    if nameplate:
        if not (yield from claim_nameplate(client, nameplate)):
            return world.forget(client)
        mailbox = str(client.received["claimed"].mailbox)
    open_mailbox(world, client, mailbox)
    patience = _patience(world, RECEIVER_PATIENCE_SECONDS)
    return (yield from _exchange(world, client, conversation, version, patience, sends=False, nameplate=nameplate))


def _visit_mailbox(world: World, conversation: SimulatedConversation) -> Process:
    """Simulate a receiver whose client is stopped before it adds a message."""
    client = world.client(conversation.receiver.address)
    bind_client(world, client, conversation.app, conversation.receiver)
    yield client.round_trip()
    mailbox = conversation.mailbox
    if conversation.nameplate:
        if not (yield from claim_nameplate(client, conversation.nameplate)):
            return world.forget(client)
        mailbox = str(client.received["claimed"].mailbox)
    client.command("open", mailbox=mailbox)
    yield client.round_trip()
    return world.forget(client)


def _start_receivers(world: World, conversation: SimulatedConversation) -> None:
    """Start the receivers that use the code, after the time that it takes to read it out and to type it."""
    if not conversation.comes:
        return
    after = log_normal(world.dice, conversation.meeting, MEETING_SIGMA)
    again = after + log_normal(world.dice, NOTICED_SECONDS, MEETING_SIGMA)

    def receiver(*, code: int = conversation.code, nameplate: str = conversation.nameplate) -> Callable[[], Process]:
        return lambda: _receive(world, conversation, code=code, nameplate=nameplate)

    if conversation.visited:
        world.start(lambda: _visit_mailbox(world, conversation), after)
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
        world.start(
            lambda: simulate_conversation(world, second), log_normal(world.dice, NOTICED_SECONDS, MEETING_SIGMA)
        )


def _patience(world: World, median: float) -> float:
    return log_normal(world.dice, median, PATIENCE_SIGMA)


def _lose_connection(
    world: World, client: SimulatedClient, conversation: SimulatedConversation
) -> Generator[Pause, None, None]:
    """Lose the connection of somebody who waits, and connect again as shipped clients do."""
    yield Pause(log_normal(world.dice, conversation.meeting / 3, MEETING_SIGMA))
    client.leave()
    yield Pause(1.5 + world.dice.random())  # the first delay of the Python client (restante.client.connection.driver)
    client.reconnect()
    bind_client(world, client, conversation.app, conversation.sender)
    yield client.round_trip()
    if conversation.nameplate and not client.phases:
        yield from claim_nameplate(client, conversation.nameplate)
    if not client.refusal:
        client.command("open", mailbox=conversation.mailbox)


def _exchange(
    world: World,
    client: SimulatedClient,
    conversation: SimulatedConversation,
    version: ClientRelease,
    patience: float,
    *,
    sends: bool,
    nameplate: str | None = None,
) -> Process:
    """Agree on a key, transfer something, and close, as far as that is possible."""
    nameplate = conversation.nameplate if nameplate is None else nameplate
    client.task = world.simulation.current
    client.note_span("pake1", KEY_SECONDS, waiting=CRYPTO)
    mood = yield from _until_end(world, client, conversation, version, patience, sends=sends, nameplate=nameplate)
    if mood:
        if mood == "lonely" and nameplate:
            client.command("release", nameplate=nameplate)
        client.command("close", mood=mood)
        yield client.round_trip()
    client.note("exit")
    world.forget(client)
    if mood == "scary" and sends:
        _try_again(world, conversation)


def _until_end(
    world: World,
    client: SimulatedClient,
    conversation: SimulatedConversation,
    version: ClientRelease,
    patience: float,
    *,
    sends: bool,
    nameplate: str,
) -> Generator[Pause, None, str]:
    """Do what comes before the close. Return the mood of the close; "" if there is none."""
    if not (yield from client.wait_for("pake", patience)):
        return "" if client.refusal else "lonely"
    client.note_span("pake2", KEY_SECONDS, waiting=CRYPTO)
    if nameplate:
        client.command("release", nameplate=nameplate)
    client.command("add", phase="version", body=world.body(VERSION_BYTES))
    if not (yield from client.wait_for("version", PEER_SECONDS)):
        return "" if client.refusal else "lonely"
    if not world.same_code(client):
        return "scary"
    if conversation.vanishes:
        yield Pause(log_normal(world.dice, TRANSFER_SECONDS, TRANSFER_SIGMA))
        return ""
    if world.dice.random() < version.failing:
        conversation.fails = True
    client.command("add", phase="0", body=world.body(OFFER_BYTES))
    if not (yield from client.wait_for("0", PEER_SECONDS)):
        return "" if client.refusal else "errory"
    yield from _transfer(client, conversation, sends=sends)
    return "errory" if conversation.fails else "happy"


def _transfer(
    client: SimulatedClient, conversation: SimulatedConversation, *, sends: bool
) -> Generator[Pause, None, None]:
    """Wait while bytes go from one side to the other, on a connection of their own."""
    connect = client.round_trip()
    yield connect
    client.note_span("transit connect", connect.seconds)
    yield Pause(conversation.seconds)
    client.note_span("tx file" if sends else "rx file", conversation.seconds)
