"""The states of the client: the document is what a run of the machine shows."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Final

import pytest

from client import states
from client.explorer import Node, explore
from restante.client.core.state import MailboxStatus, NameplateStatus


@pytest.mark.thorough
def test_the_document_is_what_the_machine_does() -> None:
    assert states.PATH.read_text() == states.page(), f"it is out of date: {states.__doc__}"


def test_every_state_is_reached() -> None:
    nodes = {step.before for step in explore()}
    assert {node.nameplate for node in nodes} == set(NameplateStatus)
    assert {node.mailbox for node in nodes} == set(MailboxStatus)
    assert {node.key for node in nodes} == {"none", "agreed", "confirmed"}


def test_what_a_wormhole_does_does_not_depend_on_whether_it_was_asked_for_nameplates() -> None:
    steps = {(step.before, step.event): step for step in explore(listing=True)}
    compared = 0
    for (before, event), step in steps.items():
        if not before.listing or event == "`error` to `list`":
            continue
        other = steps.get((without_list(before), event))
        if other is not None:
            compared += 1
            assert [each for each in step.sent if each != "list"] == list(other.sent)
            assert step.told == other.told
    assert compared > 1000


def without_list(node: Node) -> Node:
    """Return a state as it would be if nobody had asked for nameplates."""
    connection = None
    if node.connection is not None:
        fields = json.loads(node.connection)
        fields["sent"] = [each for each in fields["sent"] if each != "list"]
        if fields["wanted"] is not None:
            fields["wanted"][2] = False
        connection = json.dumps(fields, sort_keys=True)
    return node._replace(
        connection=connection, asked=tuple(each for each in node.asked if each != "list"), listing=False
    )


SERVERS: Final = {"ServerError", "WelcomeError", "PermissionNeededError"}


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
