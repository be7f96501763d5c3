"""The end of a wormhole: what is wanted of its nameplate and mailbox then."""

from __future__ import annotations

from typing import Final, Literal, get_args

from restante.client.core.state import MailboxStatus, NameplateStatus, State

Mood = Literal["happy", "lonely", "errory", "scary"]
"""What `BaseWormhole.close` can say of how it went. These four are in the server's usage records; the reference
server counts any other as happy (mailbox server 0.8.0: server.py:446)."""

MOODS: Final = get_args(Mood)


def finish(state: State, mood: str) -> None:
    """Want to release the nameplate and to close the mailbox, as far as the server may know of them."""
    if state.mood is None:
        state.mood = mood
    nameplate, mailbox = state.nameplate_status, state.mailbox_status
    if state.claim_sent and nameplate in {NameplateStatus.ALLOCATING, NameplateStatus.CLAIMING}:
        return  # the server may have opened a mailbox for this side, and the answer to a claim names it
    claimed = nameplate in {NameplateStatus.CLAIMED, NameplateStatus.RELEASING}
    if nameplate is not NameplateStatus.RELEASED:
        state.nameplate_status = NameplateStatus.RELEASING if claimed else NameplateStatus.RELEASED
    if mailbox is not MailboxStatus.CLOSED:
        state.mailbox_status = MailboxStatus.CLOSING if state.mailbox is not None else MailboxStatus.CLOSED


def give_up(state: State, command: str | None, *, crowded: bool = False) -> None:
    """Want no longer what a refused command was for.

    A claim that was refused because of two others is released: the reference server notes it before it counts the
    sides, and keeps the nameplate until all of them have released it (mailbox server 0.8.0: server.py:282-296).
    """
    if command == "claim" and crowded:
        state.nameplate_status = NameplateStatus.RELEASING
    elif command in {"allocate", "claim", "release"}:
        state.nameplate_status = NameplateStatus.RELEASED
    elif command in {"open", "close"}:
        state.mailbox_status = MailboxStatus.CLOSED
