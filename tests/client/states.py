"""The tables of the client's states, docs/client/states.md, table_rows by running it.

What the page says around the tables is written by hand. To write them anew:
PYTHONPATH=src:tests .venv/bin/python -m client.states
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from client.explorer import CONNECTED, LOST, Node, Step, explore
from restante.client import errors
from restante.client.core.state import MailboxStatus, NameplateStatus, is_number
from support.client.reference import table
from support.documents import ROOT

PATH: Final = ROOT / "docs" / "client" / "states.md"
TABLE: Final = re.compile(r"^\| (\w+) \| (\w+) \|.*\n(?:\|.*\n?)*", re.MULTILINE)

FAILED: Final = "Failed"
WELCOME: Final = "`welcome`"
COMMANDS: Final = {"bind", "allocate", "claim", "release", "open", "ping", "add", "close"}

Outcome = tuple[str, tuple[str, ...], tuple[str, ...]]
"""The next state, what is sent, and what is told."""

Feature = Callable[[Node], str]
"""The words for what a row may depend on."""


class Row(NamedTuple):
    """A row of a table."""

    states: tuple[str, ...]
    events: tuple[str, ...]
    when: str
    outcome: Outcome


def either(holds: Callable[[Node], object], yes: str, no: str) -> Feature:
    return lambda node: yes if holds(node) else no


def is_open(node: Node) -> bool:
    """Return whether the mailbox is open on this connection."""
    return "open" in node.connected.get("sent", ())


def adds_earlier(node: Node) -> bool:
    """Return whether messages of ours wait for the end of the replay, or will on the next connection."""
    return bool(node.connected["earlier"]) if is_open(node) else any(own.get("sent") for own in node.own.values())


def loses(node: Node) -> bool:
    return bool(set(node.own) - set(node.connected.get("found", ())))


def is_new(node: Node) -> bool:
    return any(not own.get("sent") for own in node.own.values())


def is_unstored(node: Node) -> bool:
    return any(is_number(phase) and not own.get("stored") for phase, own in node.own.items())


FEATURES: Final[Sequence[Feature]] = (
    either(lambda node: node.bound, "connected", "not connected"),
    either(lambda node: node.values["mood"] is not None, "ended", "not ended"),
    either(lambda node: node.values["mailbox"] is not None, "a mailbox is known", "no mailbox is known"),
    either(lambda node: node.values["claim_sent"], "a server may have claimed it", "no server was asked"),
    either(lambda node: node.key == "none", "no key", "a key"),
    either(lambda node: node.key == "confirmed", "the peer is confirmed", "the peer is not confirmed"),
    either(lambda node: node.values["peer_side"] is not None, "the peer has been heard", "no peer has been heard"),
    either(lambda node: node.connected.get("replayed"), "after the replay", "during the replay"),
    either(is_new, "a message of ours is new", "none of ours is new"),
    either(is_unstored, "one of ours was not stored before", "all of ours were stored before"),
    either(loses, "the server has lost some of ours", "the server has all of ours"),
    either(adds_earlier, "an earlier connection has added some", "no earlier connection has added any"),
)
"""What the rows of a state and event may depend on, the simplest first."""

WAITS: Final = either(
    lambda node: node.values.get("unsealed"), "a message waits for the key", "no message waits for the key"
)
OPEN: Final = either(is_open, "it is open on this connection", "it is not open on this connection")
OVER: Final = either(lambda node: node.told_closed, "all of it is over", "something is left at the server")


def in_mailbox(node: Node) -> str:
    return f"the mailbox is {node.mailbox.value}"


def in_nameplate(node: Node) -> str:
    return f"the nameplate is {node.nameplate.value}"


def rows(
    steps: Iterable[Step],
    state: Callable[[Node], str],
    outcome: Callable[[Step], Outcome],
    features: Sequence[Feature],
) -> list[Row]:
    """Return the rows of a table: those that change the state or send or tell something, equal ones as one."""
    cases: dict[tuple[str, str], dict[Node, Outcome]] = defaultdict(dict)
    for step in steps:
        if step.event not in {CONNECTED, LOST}:
            cases[state(step.before), step.event][step.before] = outcome(step)
    single = [
        (where, event, when, result)
        for (where, event), results in cases.items()
        for when, result in divided(results, features)
        if result not in {(where, (), ()), (where, (), (FAILED,))}
    ]
    by_event: dict[tuple[str, str, Outcome], list[str]] = defaultdict(list)
    for where, event, when, result in single:
        by_event[where, when, result].append(event)
    by_state: dict[tuple[tuple[str, ...], str, Outcome], list[str]] = defaultdict(list)
    for (where, when, result), happens in by_event.items():
        by_state[tuple(happens), when, result].append(where)
    return [Row(tuple(states), happens, when, result) for (happens, when, result), states in by_state.items()]


def divided(results: dict[Node, Outcome], features: Sequence[Feature]) -> list[tuple[str, Outcome]]:
    """Return the outcomes with the words for when each comes, by as few features as tell them apart."""
    for count in range(5):
        for chosen in itertools.combinations(features, count):
            cases: dict[tuple[str, ...], set[Outcome]] = defaultdict(set)
            for node, result in results.items():
                cases[tuple(feature(node) for feature in chosen)].add(result)
            if all(len(outcomes) == 1 for outcomes in cases.values()):
                return simplified({words: min(outcomes) for words, outcomes in cases.items()})
    raise AssertionError(set(results.values()))


def simplified(cases: dict[tuple[str, ...], Outcome]) -> list[tuple[str, Outcome]]:
    """Return cases without the words that make no difference to them."""

    def decides(chosen: Sequence[int], words: tuple[str, ...]) -> bool:
        alike = (other for case, other in cases.items() if all(case[place] == words[place] for place in chosen))
        return set(alike) == {cases[words]}

    joined: dict[tuple[tuple[str, ...], Outcome], dict[str, None]] = defaultdict(dict)
    for words, result in cases.items():
        subsets = itertools.chain.from_iterable(
            itertools.combinations(range(len(words)), count) for count in range(len(words) + 1)
        )
        enough = [words[place] for place in next(chosen for chosen in subsets if decides(chosen, words))]
        joined[tuple(enough[:-1]), result].update(dict.fromkeys(enough[-1:]))
    return [
        (", ".join([*first, *filter(None, [" or ".join(last)])]).replace(" or the nameplate is ", " or "), result)
        for (first, result), last in joined.items()
    ]


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def kept(names: Iterable[str], kinds: Collection[str]) -> tuple[str, ...]:
    """Return the commands or events of these kinds. Several messages that are added are one `add`."""
    short = (re.split(r"[ (]", name)[0] for name in names)
    return tuple(dict.fromkeys(name for name in short if name in kinds))


# ── the tables ───────────────────────────────────────────────────────────────────────────────────


def states_table(
    head: str,
    order: Sequence[str],
    steps: Iterable[Step],
    state: Callable[[Node], str],
    sent: Callable[[Step], tuple[str, ...]] | set[str],
    told: set[str],
    features: Sequence[Feature],
) -> str:
    """Return what happens in each state: the next one, what is sent, and what the application is told."""

    def outcome(step: Step) -> Outcome:
        frames = kept(step.sent, sent) if isinstance(sent, set) else sent(step)
        return state(step.after), frames, kept(step.told, told)

    table_rows = sorted(rows(steps, state, outcome, features), key=lambda row: [*map(order.index, row.states)])
    cells = [
        [code(row.states), "; ".join(row.events), row.when, code([row.outcome[0]]), *map(code, row.outcome[1:])]
        for row in table_rows
    ]
    return table([head, "event", "when", "next", "sent", "told"], cells)


def connection_table(steps: Iterable[Step]) -> str:
    """Return what is sent on a new connection."""
    table_rows = rows(
        (step for step in steps if step.event == WELCOME),
        lambda node: f"{node.nameplate.value}, {node.mailbox.value}",
        lambda step: (step.after.nameplate.value, kept(step.sent, COMMANDS), ()),
        FEATURES,
    )
    order = [
        f"{nameplate.value}, {box.value}" for nameplate, box in itertools.product(NameplateStatus, MailboxStatus)
    ]
    cells = [
        [*map(code, ([name] for name in state.split(", "))), row.when, code(row.outcome[1])]
        for row in sorted(table_rows, key=lambda row: order.index(row.states[0]))
        for state in row.states
    ]
    return table(["nameplate", "mailbox", "when", "sent, in order"], cells)


def failure_table(steps: Iterable[Step], lasting: Iterable[Step]) -> str:
    """Return what makes a wormhole fail, and its errors, and what becomes of a lasting one."""
    goes_on: dict[str, set[bool]] = defaultdict(set)
    causes: dict[str, set[str]] = defaultdict(set)
    for step in lasting:
        for name in step.failures:
            goes_on[name].add(step.after.values["mood"] is None)
    for step in steps:
        for name in step.failures:
            causes[name].add(step.event)
    cells = []
    for name, events in sorted(causes.items()):
        [later] = goes_on[name]
        journal = "continues later" if later else "ends"
        cells.append(["; ".join(sorted(events)), f"`{name}`", f"`{getattr(errors, name).mood}`", journal])
    return table(["event", "error", "mood", "a wormhole of a journal"], cells)


def added(step: Step) -> tuple[str, ...]:
    return tuple(name for name in step.sent if name.startswith("add") and not step.event.startswith("`pong"))


def tables() -> dict[tuple[str, str], str]:
    """Return the tables by the first two words of their heads."""
    steps, with_receipts, listing = explore(), explore(wants_receipts=True), explore(listing=True)
    lasting = [*explore(lasting=True, listing=True), *explore(lasting=True, wants_receipts=True)]
    opened = [step for step in with_receipts if is_open(step.before) and not step.before.values["mood"]]
    return {
        ("nameplate", "event"): states_table(
            "nameplate",
            [status.value for status in NameplateStatus],
            steps,
            lambda node: node.nameplate.value,
            {"allocate", "claim", "release"},
            {"CodeKnown", FAILED},
            [*FEATURES, in_mailbox],
        ),
        ("mailbox", "event"): states_table(
            "mailbox",
            [status.value for status in MailboxStatus],
            steps,
            lambda node: node.mailbox.value,
            {"open", "ping", "add", "close"},
            {"ReplayEnded", "WaitingForPeer", "MessageStored", "Closed", FAILED},
            [*FEATURES, OPEN, in_nameplate],
        ),
        ("nameplate", "mailbox"): connection_table(steps),
        ("key", "event"): states_table(
            "key",
            ["none", "agreed", "confirmed"],
            [step._replace(after=step.before) if step.after.values["mood"] else step for step in opened],
            lambda node: node.key,
            added,
            {"KeyAgreed", "PeerConfirmed", "MessageReceived", "MessageDelivered", FAILED},
            [*FEATURES, WAITS],
        ),
        ("nameplates", "event"): states_table(
            "nameplates",
            ["none", "wanted"],
            listing,
            lambda node: "wanted" if node.listing else "none",
            {"list"},
            {"NameplatesListed"},
            [OVER, *FEATURES],
        ),
        ("event", "error"): failure_table([*with_receipts, *listing], lasting),
    }


def page() -> str:
    """Return the page."""
    new = tables()
    return TABLE.sub(lambda old: new[old[1], old[2]], PATH.read_text())


if __name__ == "__main__":
    PATH.write_text(page())
