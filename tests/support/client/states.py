"""The states of the client, docs/client/states.md, found by running it.

To write it anew: PYTHONPATH=src:tests .venv/bin/python -m support.client.states
"""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from restante.client import errors
from restante.client.core.state import MailboxStatus, NameplateStatus, is_number
from support.client.explorer import CONNECTED, LOST, Node, Step, explore
from support.client.reference import table
from support.documents import ROOT

PATH: Final = ROOT / "docs" / "client" / "states.md"

HEAD: Final = """\
# The states of the client

What a wormhole sends and reports when, for people who debug one or write a client. This page is generated: a
program runs `Machine` in `src/restante/client/core`, applies every event in every state that can be reached, and
notes what happens.

A state is what is wanted of the nameplate or the mailbox, or what has become of it. It survives a lost connection,
and a journal keeps it. An event that a table does not have changes nothing there, except that it may make the
wormhole fail: the last table has all that do.

A row with several states or events holds for each of them. *When* says what must hold besides; where it is empty,
the row holds always. *Connected* means that the server has sent its welcome and the client its `bind`: commands are
sent only then, and what would be sent earlier is sent when a connection is made. An `error` with `retry` is a lost
connection. *Ended* means that the wormhole
was closed or has failed.
"""

NAMEPLATE: Final = """\
## The nameplate

The first part of a code. It is wanted from `allocate_code` or `set_code` on, and released as soon as the peer has
sent anything, so that its number is free for others. Until the key is agreed, it is claimed again on each
connection: the answer shows whether the code has expired.
"""

MAILBOX: Final = """\
## The mailbox

Where both sides add messages. The answer to `claim` names it. The server sends each message back that it has
stored, and after `open` all that it has; the `pong` to the `ping` behind `open` marks their end. Then what is
missing there is added again: the server may have lost it.
"""

KEY: Final = """\
## The key

Both sides add their halves of the key (`pake`), then what their applications are (`version`), sealed with the key.
Whoever can open the peer's `version` knows that the peer has the same key. Messages have the phases `0`, `1` and so
on, and wait for the key. The mailbox is open here, and both sides want receipts.
"""

CONNECTION: Final = """\
## A new connection

What is sent, in order, when the server has sent its welcome. It follows from the state alone. `add` stands for
messages that no connection has added yet. Those that an earlier one has added wait for the end of the replay, and
all later ones with them, so that they are stored in order.
"""

LISTING: Final = """\
## The nameplates in use

What `nameplates` and `complete` ask the server for. They are wanted until the server has answered. A lost connection
does not change that, and a journal does not keep it.
"""

FAILED: Final = "Failed"

FAILURES: Final = """\
## What makes a wormhole fail

Each of these ends the wormhole with an error, if it has not ended before. It tells `Failed`, and from then on it
wants to release the nameplate and to close the mailbox with the error's mood, as the tables above say. A wormhole of
a journal ends for this process only where the error is the server's fault: nothing more is sent to that server, and
a later process continues.
"""

Outcome = tuple[str, tuple[str, ...], tuple[str, ...]]
"""The next state, what is sent, and what is told."""


class Row(NamedTuple):
    """A row of a table."""

    states: tuple[str, ...]
    events: tuple[str, ...]
    when: str
    outcome: Outcome


def ended(node: Node) -> str:
    return "ended" if node.values["mood"] is not None else "not ended"


def connected(node: Node) -> str:
    return "connected" if node.bound else "not connected"


def asked(node: Node) -> str:
    return "a server may have claimed it" if node.values["claim_sent"] else "no server was asked"


def known(node: Node) -> str:
    return "a mailbox is known" if node.values["mailbox"] is not None else "no mailbox is known"


def peer(node: Node) -> str:
    return "the peer has been heard" if node.values["peer_side"] is not None else "no peer has been heard"


def agreed(node: Node) -> str:
    return "no key" if node.key == "none" else "a key"


def confirmed(node: Node) -> str:
    return "the peer is confirmed" if node.key == "confirmed" else "the peer is not confirmed"


def replayed(node: Node) -> str:
    done = node.connection is not None and json.loads(node.connection)["replayed"]
    return "after the replay" if done else "during the replay"


def unsent(node: Node) -> str:
    new = any(not each.get("sent") for each in node.values.get("own", {}).values())
    return "a message of ours is new" if new else "none of ours is new"


def waits(node: Node) -> str:
    return "a message waits for the key" if node.values.get("unsealed") else "no message waits for the key"


def stored(node: Node) -> str:
    new = any(is_number(phase) and not each.get("stored") for phase, each in node.values.get("own", {}).items())
    return "one of ours was not stored before" if new else "all of ours were stored before"


def found(node: Node) -> str:
    connection = {} if node.connection is None else json.loads(node.connection)
    missing = set(node.values.get("own", {})) - set(connection.get("found", []))
    return "the server has lost some of ours" if missing else "the server has all of ours"


def earlier(node: Node) -> str:
    """Return whether messages of ours wait for the end of the replay, or will on the next connection."""
    if opened(node):
        some = json.loads(node.connection or "")["earlier"]
    else:
        some = any(each.get("sent") for each in node.values.get("own", {}).values())
    return "an earlier connection has added some" if some else "no earlier connection has added any"


def opened(node: Node) -> bool:
    """Return whether the mailbox is open on this connection."""
    return node.connection is not None and "open" in json.loads(node.connection)["sent"]


def opened_here(node: Node) -> str:
    return "it is open on this connection" if opened(node) else "it is not open on this connection"


def in_mailbox(node: Node) -> str:
    return f"the mailbox is {node.mailbox.value}"


def over(node: Node) -> str:
    return "all of it is over" if node.told_closed else "something is left at the server"


def in_nameplate(node: Node) -> str:
    return f"the nameplate is {node.nameplate.value}"


WELCOME: Final = "`welcome`"
COMMANDS: Final = {"bind", "allocate", "claim", "release", "open", "ping", "add", "close"}

Feature = Callable[[Node], str]

FEATURES: Final[Sequence[Feature]] = (
    *(connected, ended, known, asked, agreed, confirmed, peer),
    *(replayed, unsent, stored, found, earlier),
)
"""What the rows of a state and event may depend on, the simplest first."""


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
                cases[tuple(each(node) for each in chosen)].add(result)
            if all(len(each) == 1 for each in cases.values()):
                return simplified({words: min(each) for words, each in cases.items()})
    raise AssertionError(set(results.values()))


def simplified(cases: dict[tuple[str, ...], Outcome]) -> list[tuple[str, Outcome]]:
    """Return cases without the words that make no difference to them."""
    done: dict[tuple[tuple[str, ...], Outcome], None] = {}
    for words, result in cases.items():
        for count in range(len(words) + 1):
            enough = next(
                (
                    chosen
                    for chosen in itertools.combinations(range(len(words)), count)
                    if all(
                        other == result
                        for each, other in cases.items()
                        if all(each[place] == words[place] for place in chosen)
                    )
                ),
                None,
            )
            if enough is not None:
                done[tuple(words[place] for place in enough), result] = None
                break
    joined: dict[tuple[tuple[str, ...], Outcome], list[str]] = defaultdict(list)
    for chosen, result in done:
        joined[chosen[:-1], result].extend(chosen[-1:])
    return [
        (", ".join([*first, *filter(None, [" or ".join(last)])]).replace(" or the nameplate is ", " or "), result)
        for (first, result), last in joined.items()
    ]


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{each}`" for each in names)


def printed(head: str, found: Iterable[Row], order: Sequence[str]) -> str:
    """Return rows as a table, by their states."""
    ordered = sorted(found, key=lambda row: [order.index(each) for each in row.states])
    cells = [
        [code(row.states), "; ".join(row.events), row.when, code([row.outcome[0]]), *map(code, row.outcome[1:])]
        for row in ordered
    ]
    return table([head, "event", "when", "next", "sent", "told"], cells)


def kept(names: Iterable[str], kinds: Collection[str]) -> tuple[str, ...]:
    """Return the commands or events of these kinds. Several messages that are added are one `add`."""
    short = (re.split(r"[ (]", each)[0] for each in names)
    return tuple(dict.fromkeys(each for each in short if each in kinds))


def failure_table(steps: Iterable[Step], lasting: Iterable[Step]) -> str:
    """Return what makes a wormhole fail, and its errors, and what becomes of a lasting one."""
    goes_on: dict[str, set[bool]] = defaultdict(set)
    for step in lasting:
        for each in step.told:
            if each.startswith(FAILED):
                goes_on[each.removeprefix(f"{FAILED}(").removesuffix(")")].add(step.after.values["mood"] is None)
    causes: dict[str, dict[str, None]] = defaultdict(dict)
    for step in steps:
        for each in step.told:
            if each.startswith(FAILED):
                causes[each.removeprefix(f"{FAILED}(").removesuffix(")")][step.event] = None
    cells = []
    for name, events in sorted(causes.items()):
        kind = getattr(errors, name)
        [later] = goes_on[name]
        journal = "continues later" if later else "ends"
        cells.append(["; ".join(sorted(events)), f"`{name}`", f"`{kind.mood}`", journal])
    return table(["event", "error", "mood", "a wormhole of a journal"], cells)


def listing_table(steps: Iterable[Step]) -> str:
    found = rows(
        steps,
        lambda node: "wanted" if node.listing else "none",
        lambda step: (
            "wanted" if step.after.listing else "none",
            kept(step.sent, {"list"}),
            kept(step.told, {"NameplatesListed"}),
        ),
        [over, *FEATURES],
    )
    return printed("nameplates", found, ["none", "wanted"])


def nameplate_table(steps: Iterable[Step]) -> str:
    found = rows(
        steps,
        lambda node: node.nameplate.value,
        lambda step: (
            step.after.nameplate.value,
            kept(step.sent, {"allocate", "claim", "release"}),
            kept(step.told, {"CodeKnown", FAILED}),
        ),
        [*FEATURES, in_mailbox],
    )
    return printed("nameplate", found, [each.value for each in NameplateStatus])


def mailbox_table(steps: Iterable[Step]) -> str:
    found = rows(
        steps,
        lambda node: node.mailbox.value,
        lambda step: (
            step.after.mailbox.value,
            kept(step.sent, {"open", "ping", "add", "close"}),
            kept(step.told, {"ReplayEnded", "WaitingForPeer", "MessageStored", "Closed", FAILED}),
        ),
        [*FEATURES, opened_here, in_nameplate],
    )
    return printed("mailbox", found, [each.value for each in MailboxStatus])


def connection_table(steps: Iterable[Step]) -> str:
    """Return what is sent on a new connection."""
    pairs = list(itertools.product(NameplateStatus, MailboxStatus))
    found = rows(
        (step for step in steps if step.event == WELCOME),
        lambda node: pair(node.nameplate, node.mailbox),
        lambda step: (pair(step.after.nameplate, step.after.mailbox), kept(step.sent, COMMANDS), ()),
        FEATURES,
    )
    order = [pair(*each) for each in pairs]
    cells = [
        [code(state.split(", ")[:1]), code(state.split(", ")[1:]), row.when, code(row.outcome[1])]
        for row in sorted(found, key=lambda row: order.index(row.states[0]))
        for state in row.states
    ]
    return table(["nameplate", "mailbox", "when", "sent, in order"], cells)


def pair(nameplate: NameplateStatus, mailbox: MailboxStatus) -> str:
    return f"{nameplate.value}, {mailbox.value}"


def key_table(steps: Iterable[Step]) -> str:
    found = rows(
        (step for step in steps if opened(step.before) and not step.before.values["mood"]),
        lambda node: node.key,
        lambda step: (
            step.before.key if step.after.values["mood"] else step.after.key,
            tuple(each for each in step.sent if each.startswith("add") and not step.event.startswith("`pong")),
            kept(step.told, {"KeyAgreed", "PeerConfirmed", "MessageReceived", "MessageDelivered", FAILED}),
        ),
        [*FEATURES, waits],
    )
    return printed("key", found, ["none", "agreed", "confirmed"])


def page() -> str:
    """Return the page."""
    steps, with_receipts, listing = explore(), explore(wants_receipts=True), explore(listing=True)
    lasting = [*explore(lasting=True, listing=True), *explore(lasting=True, wants_receipts=True)]
    parts = [
        HEAD,
        NAMEPLATE,
        nameplate_table(steps),
        MAILBOX,
        mailbox_table(steps),
        CONNECTION,
        connection_table(steps),
    ]
    parts += [KEY, key_table(with_receipts), LISTING, listing_table(listing)]
    parts += [FAILURES, failure_table([*with_receipts, *listing], lasting)]
    return "\n\n".join(each.strip("\n") for each in parts) + "\n"


if __name__ == "__main__":
    PATH.write_text(page())
