"""The states of the client: the document is what a run of the machine shows."""

from __future__ import annotations

from restante.client.core.state import MailboxStatus, NameplateStatus
from support.client import states
from support.client.explorer import explore


def test_the_document_is_what_the_machine_does() -> None:
    assert states.PATH.read_text() == states.page(), f"it is out of date: {states.__doc__}"


def test_every_state_is_reached() -> None:
    nodes = {step.before for step in explore()}
    assert {node.nameplate for node in nodes} == set(NameplateStatus)
    assert {node.mailbox for node in nodes} == set(MailboxStatus)
    assert {node.key for node in nodes} == {"none", "agreed", "confirmed"}


def test_a_wormhole_that_is_closed_leaves_nothing_wherever_it_was() -> None:
    """From each state in which it has ended, the answers of a server lead to the end."""
    steps = explore()
    ends = {step.after for step in steps if step.after.told_closed}
    reaching, size = set(ends), 0
    while len(reaching) > size:
        size = len(reaching)
        reaching |= {
            step.before for step in steps if step.after in reaching and step.before.values["mood"] is not None
        }
    assert all(step.after in reaching for step in steps if step.after.values["mood"] is not None)
