"""All that can happen to a wormhole, found by running it: every event in every state that is reachable.

A machine has its own random bytes, one code, and one message of its own. It may be lasting, as in a journal: then a
new connection after an error is that of the next process. The peer is a second machine, whose messages
are computed once and come in order. The server answers in order, or refuses, and sends all messages of ours back at
once. What a wormhole that has ended does not look at any more is left out of its state.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from restante.client.core import conversation
from restante.client.core.connection_state import END_OF_REPLAY, ConnectionState
from restante.client.core.conversation import PAKE, VERSION
from restante.client.core.machine import Machine
from restante.client.core.outputs import Failed, MessageReceived, Output, SendFrame, ShowWork
from restante.client.core.state import NEW_BYTES, MailboxStatus, NameplateStatus, State, new_state
from restante.client.errors import PermissionNeededError, WormholeError

APP_ID: Final = "example.com/states"
NAMEPLATE: Final = "4"
WORDS: Final = "purple-sausages"
MAILBOX: Final = "m"
PEER: Final = "the peer"
RECEIPT: Final = f"{conversation.RECEIPT}1"

ANSWERS: Final[dict[str, dict[str, Any]]] = {
    "allocate": {"type": "allocated", "nameplate": NAMEPLATE},
    "claim": {"type": "claimed", "mailbox": MAILBOX},
    "release": {"type": "released"},
    "close": {"type": "closed"},
    "ping": {"type": "pong", "pong": END_OF_REPLAY},
    "list": {"type": "nameplates", "nameplates": [{"id": NAMEPLATE}]},
}
"""Commands that have an answer of their own, and the answer. An added message comes back."""


@cache
def plain_data(text: str) -> dict[str, Any]:
    return dict(json.loads(text))


class Node(NamedTuple):
    """A machine at rest, with all that decides what it does next."""

    state: str
    connection: str | None
    asked: tuple[str, ...]
    """Commands on this connection that the server has to answer, in order."""
    told_closed: bool
    listing: bool
    """Whether the nameplates are wanted."""
    lasting: bool

    @property
    def values(self) -> dict[str, Any]:
        """The state as plain data."""
        return plain_data(self.state)

    @property
    def own(self) -> dict[str, Any]:
        """The messages of this side, by phase."""
        return dict(self.values.get("own", {}))

    @property
    def connected(self) -> dict[str, Any]:
        """The connection as plain data; empty if there is none."""
        return plain_data(self.connection or "{}")

    @property
    def key(self) -> str:
        """What is known of the key."""
        if self.values["key"] is None:
            return "none"
        return "agreed" if self.values["peer_versions"] is None else "confirmed"


class Step(NamedTuple):
    """What an event does."""

    before: Node
    event: str
    after: Node
    sent: tuple[str, ...]
    """Commands, in order."""
    told: tuple[str, ...]

    @property
    def failures(self) -> list[str]:
        """The errors with which the wormhole has failed, by name."""
        return [name[len("Failed(") : -1] for name in self.told if name.startswith("Failed(")]


Act = Callable[[Machine], object]


@cache
def explore(*, lasting: bool = False, listing: bool = False, **options: Any) -> list[Step]:
    """Return every step from every state that can be reached. The other options are those of `new_state`.

    A `lasting` wormhole is of a journal. With `listing`, the application also asks for nameplates.
    """
    bodies = messages_of_the_peer(**options)
    state = new_state(APP_ID, {}, bytes([1]) * NEW_BYTES, **options)
    begin = frozen(Machine(state, bytes, lasting=lasting), ())
    steps, known, waiting = [], {begin}, deque([begin])
    while waiting:
        node = waiting.popleft()
        for event, act in events(node, bodies, listing=listing):
            step = tried(node, event, act)
            steps.append(step)
            if step.after not in known:
                known.add(step.after)
                waiting.append(step.after)
    return steps


def tried(node: Node, event: str, act: Act) -> Step:
    """Return what an event does to a machine."""
    machine = thawed(node)
    act(machine)
    outputs: list[Output] = []
    while fresh := machine.outputs():
        outputs += fresh
        for output in fresh:
            if isinstance(output, MessageReceived):
                machine.processed(output.number)
    commands = [json.loads(output.text) for output in outputs if isinstance(output, SendFrame)]
    asked = () if event in {CONNECTED, LOST, RETRY} else node.asked[event in answers(node.asked, known=True) :]
    asked += tuple(command["type"] for command in commands if command["type"] in ANSWERS)
    sent = tuple(command["type"] + (f" {command['phase']}" if "phase" in command else "") for command in commands)
    told = tuple(name_of(output) for output in outputs if not isinstance(output, SendFrame | ShowWork))
    return Step(node, event, frozen(machine, asked), sent, told)


def name_of(event: Output) -> str:
    """Return an event's name, and the error's."""
    kind = type(event).__name__
    return f"{kind}({type(event.error).__name__})" if isinstance(event, Failed) else kind


# ── a machine, and back ──────────────────────────────────────────────────────────────────────────


def frozen(machine: Machine, asked: tuple[str, ...]) -> Node:
    """Return a machine as a node. Sets are sorted, so that equal machines are equal nodes."""
    state = msgspec.json.decode(msgspec.json.encode(machine.state), type=State)
    if state.code is not None:
        state.words = None
    if state.mood is not None:
        state.mood, state.own, state.unsealed, state.inbox = WormholeError.mood, {}, [], {}
        state.key = state.peer_versions = None
        state.mailbox = None if state.mailbox is None else MAILBOX
    connection = None
    if machine.connection is not None:
        fields = {**vars(machine.connection), "working": machine.connection.working and not machine.connection.bound}
        connection = json.dumps(fields, default=_plain, sort_keys=True)
    plain = msgspec.json.encode(state, order="deterministic").decode()
    asked = () if connection is None else asked
    return Node(plain, connection, asked, machine._closed_reported, machine._list_wanted, machine._lasting)


def thawed(node: Node) -> Machine:
    """Return a node as a machine."""
    machine = Machine(msgspec.json.decode(node.state, type=State), bytes, lasting=node.lasting)
    machine.outputs()
    machine._closed_reported, machine._list_wanted = node.told_closed, node.listing
    if node.connection is not None:
        connection, fields = ConnectionState(), json.loads(node.connection)
        for name, default in list(vars(connection).items()):
            setattr(connection, name, set(fields[name]) if isinstance(default, set) else fields[name])
        if connection.wanted is not None:
            nameplate, mailbox, listed = fields["wanted"]
            connection.wanted = (NameplateStatus(nameplate), MailboxStatus(mailbox), listed)
        machine.connection = connection
    return machine


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else value.value


# ── what can happen ──────────────────────────────────────────────────────────────────────────────

CONNECTED: Final = "a new connection is made"
LOST: Final = "the connection is lost"
RETRY: Final = "`error` with `retry`"
LIST: Final = "`nameplates()`"

REFUSED: Final = "00" * 50
"""The body of a message that nobody has sealed."""

Event = tuple[str, Act]
"""Its name, and what it does to a machine."""


def events(node: Node, bodies: dict[str, str], *, listing: bool) -> Iterator[Event]:
    """Yield what can happen in a state. `bodies` are those of the peer's messages."""
    values = node.values
    if values["mood"] is None:  # what the application can do
        if values["nameplate_status"] == "none":
            yield "`allocate_code`", lambda machine: machine.allocate(WORDS)
            yield "`set_code`", lambda machine: machine.set_code(f"{NAMEPLATE}-{WORDS}")
        if values["next_own"] == 0:
            yield "`send`", lambda machine: machine.send(b"hello")
        if listing and not node.listing:
            yield LIST, Machine.list_nameplates
        yield "`close`", Machine.close
    if node.connection is None:
        yield CONNECTED, Machine.connected
        return
    yield LOST, Machine.disconnected
    if node.connected["bound"]:
        yield from answers(node.asked, known=values["mailbox"] is not None).items()
        yield "`error` to another command", _says(type="error", error="refused", orig={"type": "add"})
        yield RETRY, _says(type="error", error="try again", orig={"type": "add"}, retry=True)
        if "open" in node.connected["sent"]:
            yield from messages(node, bodies)
    elif node.connected["working"]:
        yield "the demanded work is done", lambda machine: machine.permitted("stamp")
        yield "the demanded work is too much", lambda machine: machine.fail(PermissionNeededError("too much"))
    else:
        demand = {"permission-required": {"hashcash": {"bits": 1, "resource": "r"}}}
        yield "`welcome`", _says(type="welcome", welcome={})
        yield "`welcome` that demands work", _says(type="welcome", welcome=demand)
        yield "`welcome` with an `error`", _says(type="welcome", welcome={"error": "closed for good"})


def answers(asked: tuple[str, ...], *, known: bool) -> dict[str, Act]:
    """Return what the server can say to the first of the commands, if a mailbox is known or not."""
    if not asked:
        return {}
    command, refusal = asked[0], {"type": "error", "orig": {"type": asked[0]}}
    answer = ANSWERS[command]
    found = {f"`{answer['type']}`": _says(**answer), f"`error` to `{command}`": _says(**refusal, error="refused")}
    if command == "claim":
        if known:
            found["`claimed`, of another mailbox"] = _says(type="claimed", mailbox="another")
        found["`error` to `claim`: crowded"] = _says(**refusal, error="crowded")
    return found


def messages(node: Node, bodies: dict[str, str]) -> Iterator[Event]:
    """Yield messages of the mailbox."""
    values = node.values
    back = {phase: own["body"] for phase, own in node.own.items() if own.get("sent")}
    if back:
        yield "our messages come back", lambda machine: _come_back(machine, back)
    yield "the peer's `pake`", _message(PEER, PAKE, bodies[PAKE])
    if node.key == "none":
        yield "the peer's `pake`, not valid", _message(PEER, PAKE, "00")
    if node.key == "agreed":
        yield "the peer's `version`", _message(PEER, VERSION, bodies[VERSION])
        yield "the peer's `version`, of another code", _message(PEER, VERSION, REFUSED)
    if node.key == "confirmed" and values["next_peer"] == 0:
        yield "the peer's first message", _message(PEER, "0", bodies["0"])
        yield "the peer's first message, altered", _message(PEER, "0", REFUSED)
    unacknowledged = values["next_own"] > values["acknowledged"]
    if node.key == "confirmed" and values["abilities"].get("wants_receipts") and unacknowledged:
        yield "the peer's receipt", _message(PEER, RECEIPT, bodies[RECEIPT])
        yield "the peer's receipt, altered", _message(PEER, RECEIPT, REFUSED)
    if values["peer_side"] is not None:
        yield "a message of a third side", _message("somebody", PAKE, bodies[PAKE])


def messages_of_the_peer(**options: Any) -> dict[str, str]:
    """Return what the peer adds: phase → body."""
    ours, theirs = (Machine(new_state(APP_ID, {}, bytes([side]) * NEW_BYTES, **options), bytes) for side in (1, 2))
    theirs.state.side = PEER
    for machine in (ours, theirs):
        machine.set_code(f"{NAMEPLATE}-{WORDS}")
    theirs._conversation.receive(PAKE, ours.state.own[PAKE].body)
    theirs._conversation.send(b"hello")
    theirs._conversation._seal(RECEIPT, b"")
    return {phase: own.body for phase, own in theirs.state.own.items()}


def _says(**message: Any) -> Act:
    return lambda machine: machine.receive(json.dumps(message))


def _message(side: str, phase: str, body: str) -> Act:
    return _says(type="message", side=side, phase=phase, body=body)


def _come_back(machine: Machine, back: dict[str, str]) -> None:
    for phase, body in back.items():
        _message(machine.state.side, phase, body)(machine)
