"""The states of the client: docs/client/states.md says what a run of the machine shows, and so it ends."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import pytest

from client.explorer import CONNECTED, LOST, Node, Step, explore
from restante.client import errors
from restante.client.core.state import is_number
from support.documents import ROOT

PAGE: Final = (ROOT / "docs" / "client" / "states.md").read_text()
FAILED: Final = "Failed"
WELCOME: Final = "`welcome`"
SERVERS: Final = {"ServerError", "WelcomeError", "PermissionNeededError"}


def is_open(node: Node) -> bool:
    """Return whether the mailbox is open on this connection."""
    return "open" in node.connected.get("sent", ())


def adds_earlier(node: Node) -> bool:
    """Return whether messages of ours wait for the end of the replay, or will on the next connection."""
    return bool(node.connected["earlier"]) if is_open(node) else any(own.get("sent") for own in node.own.values())


def is_unstored(node: Node) -> bool:
    return any(is_number(phase) and not own.get("stored") for phase, own in node.own.items())


HOLDS: Final[dict[str, Callable[[Node], object]]] = {
    "connected": lambda node: node.connected.get("bound"),
    "ended": lambda node: node.values["mood"] is not None,
    "a server may have claimed it": lambda node: node.values["claim_sent"],
    "a key": lambda node: node.key != "none",
    "the peer has been heard": lambda node: node.values["peer_side"] is not None,
    "after the replay": lambda node: node.connected.get("replayed"),
    "one of ours was not stored before": is_unstored,
    "a message of ours is new": lambda node: any(not own.get("sent") for own in node.own.values()),
    "the server has lost some of ours": lambda node: set(node.own) - set(node.connected.get("found", ())),
    "an earlier connection has added some": adds_earlier,
    "a message waits for the key": lambda node: node.values.get("unsealed"),
    "it is open on this connection": is_open,
    "all of it is over": lambda node: node.told_closed,
}
"""What the column *when* says of a state."""

CONTRARY: Final = {
    "not connected": "connected",
    "not ended": "ended",
    "no server was asked": "a server may have claimed it",
    "no key": "a key",
    "no peer has been heard": "the peer has been heard",
    "during the replay": "after the replay",
    "none of ours is new": "a message of ours is new",
    "the server has all of ours": "the server has lost some of ours",
    "no earlier connection has added any": "an earlier connection has added some",
    "no message waits for the key": "a message waits for the key",
    "something is left at the server": "all of it is over",
}


class Row(NamedTuple):
    """A row of a table, as the page has it."""

    states: tuple[str, ...]
    events: tuple[str, ...]
    when: str
    outcome: tuple[str, ...]

    def holds(self, node: Node) -> bool:
        """Return whether all of *when* holds. The last part of it may name alternatives."""
        parts = self.when.split(", ") if self.when else []
        return all(any(holds(phrase, node) for phrase in part.split(" or ")) for part in parts)


def holds(phrase: str, node: Node) -> bool:
    if phrase in CONTRARY:
        return not HOLDS[CONTRARY[phrase]](node)
    return (
        bool(HOLDS[phrase](node))
        if phrase in HOLDS
        else node.values["nameplate_status"] == phrase.rsplit(maxsplit=1)[-1]
    )


def table(head: str) -> list[list[str]]:
    """Return the cells of the table with this head."""
    (lines,) = re.findall(rf"^\| {re.escape(head)} \|\n\|[- |]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines.splitlines()]


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def kept(names: Iterable[str], kinds: set[str]) -> str:
    """Return the commands or events of these kinds. Several messages that are added are one `add`."""
    short = (re.split(r"[ (]", name)[0] for name in names)
    return code(dict.fromkeys(name for name in short if name in kinds))


def added(step: Step) -> str:
    return code(name for name in step.sent if name.startswith("add") and not step.event.startswith("`pong"))


def in_key_table(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield the steps where the mailbox is open. A wormhole that has ended has no key any more."""
    for step in steps:
        if is_open(step.before) and not step.before.values["mood"]:
            yield step._replace(after=step.before) if step.after.values["mood"] else step


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
        pytest.param(
            "key",
            {"wants_receipts": True},
            lambda node: node.key,
            set(),
            {"KeyAgreed", "PeerConfirmed", "MessageReceived", "MessageDelivered", FAILED},
            marks=pytest.mark.thorough,
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
    """What rows that hold for it say is so. No row, state or event of a row is idle."""
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


def test_the_page_has_what_is_sent_on_a_new_connection() -> None:
    commands = {"bind", "allocate", "claim", "release", "open", "ping", "add", "close"}
    sent = {
        (
            *(f"`{step.before.values[status]}`" for status in ("nameplate_status", "mailbox_status")),
            "",
            kept(step.sent, commands),
        )
        for step in explore()
        if step.event == WELCOME
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
    for step in [*explore(wants_receipts=True), *explore(listing=True)]:
        for name in step.failures:
            causes[name].add(step.event)
    assert goes_on == {name: {name in SERVERS} for name in causes}
    assert table("event | error | mood | a wormhole of a journal") == [
        [
            "; ".join(sorted(causes[name])),
            f"`{name}`",
            f"`{getattr(errors, name).mood}`",
            "continues later" if name in SERVERS else "ends",
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
    """From each state in which it has ended, the answers of a server lead to the end."""
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
