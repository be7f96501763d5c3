"""A state as plain data, field by field, so that two of them can be compared and a difference can be read."""

from __future__ import annotations

from typing import Any

import msgspec

from restante.mailbox.core.state import State
from restante.mailbox.store.sqlite import Store
from support.mailbox.ledger import Ledger


def picture(state: State, *, touches: bool = True) -> dict[str, Any]:
    """All that is live and stored. `touches` may be left out: memory is ahead of the store in them, by design."""
    return {
        app_id: {
            "mailboxes": {
                mailbox_id: {
                    name: value
                    for name, value in msgspec.structs.asdict(mailbox).items()
                    if name != "shown" and (touches or name != "touched")
                }
                for mailbox_id, mailbox in app.mailboxes.items()
            },
            "nameplates": {name: msgspec.structs.asdict(nameplate) for name, nameplate in app.nameplates.items()},
            "taken": {length: count for length, count in app.taken.items() if count},
            "allocated": app.allocated,
            "listing": app.listing(),
        }
        for app_id, app in state.apps.items()
        if app.mailboxes or app.nameplates
    }


async def assert_shown(store: Store, ledger: Ledger) -> State:
    """A view shows what was applied, and nothing else; gives it."""
    found, state = await store.view(), ledger.state
    assert picture(found, touches=False) == picture(state, touches=False)
    for mailbox in found.mailboxes():
        assert mailbox.touched <= ledger.mailbox(mailbox.mailbox_id, mailbox.app_id).touched
    keys = [mailbox.key for mailbox in found.mailboxes()]
    keys += [nameplate.key for app in found.apps.values() for nameplate in app.nameplates.values()]
    assert len(keys) == len(set(keys))
    assert max(keys, default=0) < found.next_key <= state.next_key
    sequences = [message.sequence for mailbox in found.mailboxes() for message in mailbox.messages]
    assert max(sequences, default=0) < found.next_sequence <= state.next_sequence
    assert found.stored == state.stored
    assert not found.unsaved
    return found
