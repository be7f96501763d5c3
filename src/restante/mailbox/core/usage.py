"""Sides and moods → usage records, as the reference server computes them.

Source: magic-wormhole-mailbox-server 0.8.0, server.py:353 (nameplates) and :430 (mailboxes): later rules win.
Differences, each with its reason in docs/mailbox/protocol.md: a mark remembers crowding, not a third row, and
no duration is negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from restante.common.usage_records import ClientVersion, MailboxUsage, NameplateUsage, Result
from restante.mailbox.core.model import Mailbox, MailboxSide, Nameplate, NameplateSide


def blurred(when: float, blur: int) -> float:
    """Floor a time to a multiple of `blur` seconds; 0 keeps it."""
    return blur * (when // blur) if blur else when


def nameplate_usage(nameplate: Nameplate, when: float, *, blur: int, pruned: bool = False) -> NameplateUsage:
    """Summarize a nameplate that ends now."""
    result: Result = "happy" if len(nameplate.sides) == 2 else "lonely"
    if pruned:
        result = "pruney"
    if nameplate.crowded:
        result = "crowded"
    started, waiting, total = _times(nameplate.sides, when)
    return NameplateUsage(cut(nameplate.app_id), blurred(started, blur), waiting, total, result, float(blur))


def mailbox_usage(
    mailbox: Mailbox, sides: Sequence[MailboxSide], when: float, *, blur: int, pruned: bool = False
) -> MailboxUsage:
    """Summarize a mailbox that ends now; `sides` are its members with their last moods."""
    moods = [row.mood for row in sides]
    result: Result = "happy" if len(sides) == 2 else "lonely"
    if "lonely" in moods:
        result = "lonely"
    if "errory" in moods:
        result = "errory"
    if "scary" in moods:
        result = "scary"
    if pruned:
        result = "pruney"
    if mailbox.crowded:
        result = "crowded"
    started, waiting, total = _times(sides, when)
    silent = [row.side for row in sides if row.side in mailbox.shown and row.side not in mailbox.spoke]
    visitors = mailbox.visitors + len(silent)
    return MailboxUsage(
        cut(mailbox.app_id),
        mailbox.for_nameplate,
        blurred(started, blur),
        waiting,
        total,
        result,
        visitors,
        float(blur),
    )


MAX_TEXT_BYTES: Final = 128
"""Bytes of a client's text that are kept. App ids, sides, implementations and versions have up to 60. Longer ones
would fill the disk."""


def cut(text: str) -> str:
    """Cut a client's text to MAX_TEXT_BYTES of UTF-8, between two characters."""
    if 4 * len(text) <= MAX_TEXT_BYTES:
        return text
    return text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def client_version(
    app_id: str, side: str, when: float, said: object, *, blur: int, address_id: str | None = None
) -> ClientVersion:
    """Record who bound: `said` is the bind's client_version, a list [implementation, version] or anything."""
    implementation, version = said[:2] if isinstance(said, list) and len(said) >= 2 else (None, None)
    return ClientVersion(
        cut(app_id),
        cut(side),
        blurred(when, blur),
        cut(implementation) if isinstance(implementation, str) else None,
        cut(version) if isinstance(version, str) else None,
        address_id,
        float(blur),
    )


def _times(sides: Sequence[MailboxSide] | Sequence[NameplateSide], when: float) -> tuple[float, float | None, float]:
    """Give started, waiting and total time. A clock set back in between makes a duration 0, not negative."""
    added = sorted(row.added for row in sides) or [when]
    waiting = added[1] - added[0] if len(added) > 1 else None
    return added[0], waiting, max(0.0, when - added[0])
