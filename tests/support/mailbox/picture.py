"""A state as plain data, field by field, so that two of them can be compared and a difference can be read."""

from __future__ import annotations

from typing import Any

import msgspec

from restante.mailbox.core.state import State


def picture(state: State, *, touches: bool = True) -> dict[str, Any]:
    """All that is live and stored. `touches` may be left out: memory is ahead of the store in them, by design."""
    return {
        app_id: {
            "mailboxes": {
                mailbox_id: {
                    name: value
                    for name, value in msgspec.structs.asdict(mailbox).items()
                    if name != "recipients" and (touches or name != "touched")
                }
                for mailbox_id, mailbox in app.mailboxes.items()
            },
            "nameplates": {name: msgspec.structs.asdict(nameplate) for name, nameplate in app.nameplates.items()},
            "counts_by_length": {length: count for length, count in app.counts_by_length.items() if count},
            "allocated": app.allocated,
            "listing": app.listing(),
        }
        for app_id, app in state.apps.items()
        if app.mailboxes or app.nameplates
    }
