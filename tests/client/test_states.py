"""All that can happen to a wormhole with one code and one message, found by running it (docs/client/states.md).

If it is `lasting`, as in a journal, a new connection after an error is that of the next process. The server answers
in order, or refuses, and sends all messages of ours back at once.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from restante.client import errors
from restante.client.core import conversation
from restante.client.core.conversation import PAKE, VERSION
from restante.client.core.machine import END_OF_REPLAY, Machine, ServerConnectionState
from restante.client.core.outputs import MessageReceived, Output, SendFrame, ShowWork
from restante.client.core.state import NEW_BYTES, MailboxStatus, NameplateStatus, WormholeState, is_number, new_state
from restante.client.errors import PermissionNeededError, WormholeError
from restante.client.events import Failed
from restante.client.protocol.keys import NONCE_BYTES, MessageKeys, seal
from support.documents import ROOT

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


@cache
def plain_data(text: str) -> dict[str, Any]:
    return dict(json.loads(text))


class Node(NamedTuple):
    state: str
    connection: str | None
    asked: tuple[str, ...]
    """Commands on this connection that the server has to answer, in order."""
    told_closed: bool
    listing: bool
    lasting: bool

    @property
    def values(self) -> dict[str, Any]:
        return plain_data(self.state)

    @property
    def own(self) -> dict[str, Any]:
        return dict(self.values.get("own", {}))

    @property
    def connected(self) -> dict[str, Any]:
        return plain_data(self.connection or "{}")

    @property
    def key(self) -> str:
        if self.values["key"] is None:
            return "none"
        return "agreed" if self.values["peer_versions"] is None else "confirmed"


class Step(NamedTuple):
    before: Node
    event: str
    after: Node
    sent: tuple[str, ...]
    told: tuple[str, ...]

    @property
    def failures(self) -> list[str]:
        return [name[len("Failed(") : -1] for name in self.told if name.startswith("Failed(")]


Act = Callable[[Machine], object]


@cache
def explore(*, lasting: bool = False, listing: bool = False, **options: Any) -> list[Step]:
    """Return every step from every state that can be reached. With `listing`, the application asks for nameplates."""
    bodies = messages_of_the_peer(**options)
    state = new_state(APP_ID, {}, bytes([1]) * NEW_BYTES, **options)
    begin = frozen(Machine(state, bytes, lasting=lasting), (), False, False, lasting)
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
    told = tuple(
        f"Failed({type(output.error).__name__})" if isinstance(output, Failed) else type(output).__name__
        for output in outputs
        if not isinstance(output, SendFrame | ShowWork)
    )
    told_closed = node.told_closed or "Closed" in told
    listing = (node.listing or event == LIST) and "NameplatesListed" not in told and event != "`error` to `list`"
    return Step(node, event, frozen(machine, asked, told_closed, listing, node.lasting), sent, told)


def frozen(machine: Machine, asked: tuple[str, ...], *rest: bool) -> Node:
    state = msgspec.json.decode(msgspec.json.encode(machine.state), type=WormholeState)
    if state.code is not None:
        state.words = None
    if state.mood is not None:
        state.mood, state.own, state.unsealed, state.inbox = WormholeError.mood, {}, [], {}
        state.key = state.peer_versions = None
        state.mailbox = None if state.mailbox is None else MAILBOX
    connection = None
    if machine.connection is not None:
        fields = {**vars(machine.connection), "working": machine.connection.working and not machine.connection.bound}
        connection = msgspec.json.encode(fields, order="deterministic").decode()
    plain = msgspec.json.encode(state, order="deterministic").decode()
    asked = () if connection is None else asked
    return Node(plain, connection, asked, *rest)


def thawed(node: Node) -> Machine:
    machine = Machine(msgspec.json.decode(node.state, type=WormholeState), bytes, lasting=node.lasting)
    if node.told_closed or node.listing:
        machine.list_nameplates()
    if not node.listing:
        machine.forget_list()
    machine.outputs()  # among them Closed, once more
    if node.connection is not None:
        connection, fields = ServerConnectionState(), json.loads(node.connection)
        for name, default in list(vars(connection).items()):
            setattr(connection, name, set(fields[name]) if isinstance(default, set) else fields[name])
        if connection.last_goal is not None:
            nameplate, mailbox, listed = fields["last_goal"]
            connection.last_goal = (NameplateStatus(nameplate), MailboxStatus(mailbox), listed)
        machine.connection = connection
    return machine


CONNECTED: Final = "a new connection is made"
LOST: Final = "the connection is lost"
RETRY: Final = "`error` with `retry`"
LIST: Final = "`nameplates()`"

REFUSED: Final = "00" * 50


def events(node: Node, bodies: dict[str, str], *, listing: bool) -> Iterator[tuple[str, Act]]:
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
    if not asked:
        return {}
    command, refusal = asked[0], {"type": "error", "orig": {"type": asked[0]}}
    answer = ANSWERS[command]
    acts = {f"`{answer['type']}`": _says(**answer), f"`error` to `{command}`": _says(**refusal, error="refused")}
    if command == "claim":
        if known:
            acts["`claimed`, of another mailbox"] = _says(type="claimed", mailbox="another")
        acts["`error` to `claim`: crowded"] = _says(**refusal, error="crowded")
    return acts


def messages(node: Node, bodies: dict[str, str]) -> Iterator[tuple[str, Act]]:
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
        own = node.own["0"]  # it has come back, or an earlier connection has added it
        can_be_received = own.get("stored") or (own.get("sent") and "0" not in node.connected["new"])
        premature = "" if can_be_received else ", for a message that it cannot have"
        yield f"the peer's receipt{premature}", _message(PEER, RECEIPT, bodies[RECEIPT])
        yield "the peer's receipt, altered", _message(PEER, RECEIPT, REFUSED)
    if values["peer_side"] is not None:
        yield "a message of a third side", _message("somebody", PAKE, bodies[PAKE])


def messages_of_the_peer(**options: Any) -> dict[str, str]:
    ours, theirs = (Machine(new_state(APP_ID, {}, bytes([side]) * NEW_BYTES, **options), bytes) for side in (1, 2))
    theirs.state.side = PEER
    for machine in (ours, theirs):
        machine.set_code(f"{NAMEPLATE}-{WORDS}")
    theirs.connected()
    for message in ({"type": "welcome", "welcome": {}}, ANSWERS["claim"]):
        _says(**message)(theirs)
    _message(ours.state.side, PAKE, ours.state.own[PAKE].body)(theirs)
    theirs.send(b"hello")
    receipt = seal(MessageKeys(bytes.fromhex(theirs.state.key or "")).key(PEER, RECEIPT), b"", bytes(NONCE_BYTES))
    return {RECEIPT: receipt.hex()} | {phase: own.body for phase, own in theirs.state.own.items()}


def _says(**message: Any) -> Act:
    return lambda machine: machine.receive(json.dumps(message))


def _message(side: str, phase: str, body: str) -> Act:
    return _says(type="message", side=side, phase=phase, body=body)


def _come_back(machine: Machine, back: dict[str, str]) -> None:
    for phase, body in back.items():
        _message(machine.state.side, phase, body)(machine)


PAGE: Final = (ROOT / "docs" / "client" / "states.md").read_text()
FAILED: Final = "Failed"
WELCOME: Final = "`welcome`"
SERVERS: Final = {"ServerError", "WelcomeError", "PermissionNeededError"}
ONLY_IN_A_JOURNAL: Final = {"OldCheckpointError": "PeerMessageError"}
"""Errors of a wormhole of a journal, and what any other wormhole fails with instead."""
IN_A_JOURNAL: Final = {
    **dict.fromkeys(SERVERS, "continues later"),
    **{other: f"ends with `{name}`" for name, other in ONLY_IN_A_JOURNAL.items()},
}


def is_open(node: Node) -> bool:
    return "open" in node.connected.get("sent", ())


HOLDS: Final[dict[tuple[str, str], Callable[[Node], object]]] = {
    ("connected", "not connected"): lambda node: node.connected.get("bound"),
    ("ended", "not ended"): lambda node: node.values["mood"] is not None,
    ("a server may have claimed it", "no server was asked"): lambda node: node.values["claim_sent"],
    ("a key", "no key"): lambda node: node.key != "none",
    ("the peer has been heard", "no peer has been heard"): lambda node: node.values["peer_side"] is not None,
    ("the replay has ended", "during the replay"): lambda node: node.connected.get("replayed"),
    ("one of ours was not stored before", ""): lambda node: any(
        is_number(phase) and not own.get("stored") for phase, own in node.own.items()
    ),
    ("a message of ours is new", "none of ours is new"): lambda node: any(
        not own.get("sent") for own in node.own.values()
    ),
    ("the server has lost some of ours", "the server has all of ours"): lambda node: bool(
        set(node.own) - set(node.connected.get("known_phases", ()))
    ),
    # They wait for the end of the replay, or will on the next connection.
    ("an earlier connection has added some", "no earlier connection has added any"): lambda node: (
        bool(node.connected["has_earlier"]) if is_open(node) else any(own.get("sent") for own in node.own.values())
    ),
    ("a message waits for the key", "no message waits for the key"): lambda node: node.values.get("unsealed"),
    ("it is open on this connection", ""): is_open,
    ("all of it is over", "something is left at the server"): lambda node: node.told_closed,
}


class Row(NamedTuple):
    states: tuple[str, ...]
    events: tuple[str, ...]
    when: str
    outcome: tuple[str, ...]

    def holds(self, node: Node) -> bool:
        """Return whether all of *when* holds. The last part of it may name alternatives."""
        parts = re.split(r"; and |, (?!or )", self.when) if self.when else []
        return all(any(holds(phrase, node) for phrase in re.split(r",? or ", part)) for part in parts)


def holds(phrase: str, node: Node) -> bool:
    for (yes, no), is_so in HOLDS.items():
        if phrase in {yes, no}:
            return bool(is_so(node)) == (phrase == yes)
    return bool(node.values["nameplate_status"] == phrase.rsplit(maxsplit=1)[-1])


def table(head: str) -> list[list[str]]:
    (lines,) = re.findall(rf"^\| {re.escape(head)} \|\n\|[- |]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines.splitlines()]


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def kept(names: Iterable[str], kinds: set[str]) -> str:
    short = (re.split(r"[ (]", name)[0] for name in names)
    return code(dict.fromkeys(name for name in short if name in kinds))


def added(step: Step) -> str:
    return code(name for name in step.sent if name.startswith("add") and not step.event.startswith("`pong"))


def in_key_table(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield the steps where the mailbox is open. A wormhole that has ended has no key any more."""
    for step in steps:
        if is_open(step.before) and not step.before.values["mood"]:
            yield step._replace(after=step.before) if step.after.values["mood"] else step


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("head", "options", "state", "commands", "tells"),
    [
        (
            "nameplate",
            {},
            lambda node: node.values["nameplate_status"],
            {"allocate", "claim", "release"},
            {"CodeKnown", FAILED},
        ),
        (
            "mailbox",
            {},
            lambda node: node.values["mailbox_status"],
            {"open", "ping", "add", "close"},
            {"ReplayEnded", "WaitingForPeer", "MessageStored", "Closed", FAILED},
        ),
        (
            "key",
            {"wants_receipts": True},
            lambda node: node.key,
            set(),
            {"KeyAgreed", "PeerConfirmed", "MessageReceived", "MessageDelivered", FAILED},
        ),
        (
            "nameplates",
            {"listing": True},
            lambda node: "wanted" if node.listing else "none",
            {"list"},
            {"NameplatesListed"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_tables_have_each_event_that_does_something(
    head: str, options: dict[str, bool], state: Callable[[Node], str], commands: set[str], tells: set[str]
) -> None:
    rows = [
        Row(tuple(re.findall(r"`(\w+)`", states)), tuple(happens.split("; ")), when, tuple(outcome))
        for states, happens, when, *outcome in table(f"{head} | event | when | next | sent | told")
    ]
    of_use = set()
    for step in in_key_table(explore(**options)) if head == "key" else explore(**options):
        if step.event in {CONNECTED, LOST}:
            continue
        before, after = state(step.before), state(step.after)
        frames = kept(step.sent, commands) if commands else added(step)
        outcome = (f"`{after}`", frames, kept(step.told, tells))
        changes_nothing = after == before and not frames and outcome[2] in {"", f"`{FAILED}`"}
        holding = [
            row for row in rows if before in row.states and step.event in row.events and row.holds(step.before)
        ]
        assert {row.outcome for row in holding} == (set() if changes_nothing else {outcome}), step
        of_use |= {(row, before, step.event) for row in holding}
    assert len(of_use) == sum(len(row.states) * len(row.events) for row in rows)


@pytest.mark.thorough
def test_the_page_has_what_is_sent_on_a_new_connection() -> None:
    commands = {"bind", "allocate", "claim", "release", "open", "ping", "add", "close"}
    greeted = [(step.before.values, step.sent) for step in explore() if step.event == WELCOME]
    sent = {
        (f"`{state['nameplate_status']}`", f"`{state['mailbox_status']}`", "", kept(names, commands))
        for state, names in greeted
    }
    assert sent == {tuple(cells) for cells in table("nameplate | mailbox | when | sent, in order")}


@pytest.mark.thorough
def test_the_page_has_what_makes_a_wormhole_fail() -> None:
    lasting = [*explore(lasting=True, listing=True), *explore(lasting=True, wants_receipts=True)]
    goes_on: dict[str, set[bool]] = defaultdict(set)
    causes: dict[str, set[str]] = defaultdict(set)
    for step in lasting:
        for name in step.failures:
            goes_on[name].add(step.after.values["mood"] is None)
            if name in ONLY_IN_A_JOURNAL:
                causes[name].add(step.event)
    for step in [*explore(wants_receipts=True), *explore(listing=True)]:
        for name in step.failures:
            causes[name].add(step.event)
    assert all(causes[name] == causes[other] for name, other in ONLY_IN_A_JOURNAL.items())
    assert goes_on == {name: {name in SERVERS} for name in causes if name not in ONLY_IN_A_JOURNAL.values()}
    assert table("event | error | mood | a wormhole of a journal") == [
        [
            "; ".join(sorted(causes[name])),
            f"`{name}`",
            f"`{getattr(errors, name).mood}`",
            IN_A_JOURNAL.get(name, "ends"),
        ]
        for name in sorted(causes)
    ]


def test_an_error_of_the_server_changes_nothing_that_a_journal_keeps() -> None:
    """Only a step of the peer or the application, or a crowded mailbox, ends a lasting wormhole."""
    failed = [step for step in explore(lasting=True, listing=True) if step.failures]
    faults = [step for step in failed if set(step.failures) <= SERVERS]
    assert 100 < len(faults) < len(failed)
    for step in faults:
        assert step.after.state == step.before.state
        assert step.after.connection is None
        assert step.sent == ()


@pytest.mark.parametrize("lasting", [False, True])
def test_a_wormhole_that_is_closed_leaves_nothing_wherever_it_was(lasting: bool) -> None:
    steps = explore(lasting=lasting, listing=True)
    before: dict[Node, list[Node]] = defaultdict(list)
    for step in steps:
        if step.before.values["mood"] is not None:
            before[step.after].append(step.before)
    reaching, waiting = set[Node](), [step.after for step in steps if step.after.told_closed]
    while waiting:
        node = waiting.pop()
        if node not in reaching:
            reaching.add(node)
            waiting += before[node]
    assert all(step.after in reaching for step in steps if step.after.values["mood"] is not None)
