"""Makes usage records from sides and moods, as the reference server does.

Source: magic-wormhole-mailbox-server 0.8.0, server.py:353 (nameplates) and :430 (mailboxes). The last rule that
applies determines the result. There are two differences, whose reasons are in docs/mailbox/protocol.md: a mark
records crowding, not a third row, and no duration is negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from restante.common.usage_records import ClientVersion, MailboxUsage, NameplateUsage, Result
from restante.mailbox.core.model import Mailbox, MailboxSide, Nameplate, NameplateSide


def blurred(time: float, blur: int) -> float:
    """Return a time rounded down to a multiple of `blur` seconds, or unchanged if `blur` is 0."""
    return blur * (time // blur) if blur else time


def nameplate_usage(nameplate: Nameplate, end: float, *, blur: int, pruned: bool = False) -> NameplateUsage:
    """Return the usage record of a nameplate that ends at `end`."""
    result: Result = "happy" if len(nameplate.sides) == 2 else "lonely"
    if pruned:
        result = "pruney"
    if nameplate.crowded:
        result = "crowded"
    started, waiting, total = _times(nameplate.sides, end)
    return NameplateUsage(cut(nameplate.app_id), blurred(started, blur), waiting, total, result, float(blur))


def mailbox_usage(
    mailbox: Mailbox, sides: Sequence[MailboxSide], end: float, *, blur: int, pruned: bool = False
) -> MailboxUsage:
    """Return the usage record of a mailbox that ends at `end`. `sides` are its members with their last moods."""
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
    started, waiting, total = _times(sides, end)
    silent = [row.side for row in sides if row.side in mailbox.recipients and row.side not in mailbox.senders]
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
"""Maximum size of a client's text in a usage record, in bytes. Real app ids, sides, implementations and versions
have up to 60. Without the limit, clients could fill the disk with long ones."""


def cut(text: str) -> str:
    """Return a client's text, cut between two characters to at most MAX_TEXT_BYTES of UTF-8."""
    if 4 * len(text) <= MAX_TEXT_BYTES:
        return text
    return text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def client_version(
    app_id: str, side: str, time: float, version_value: object, *, blur: int, address_id: str | None = None
) -> ClientVersion:
    """Return the usage record of a bind.

    `version_value` is the bind's client_version: a list [implementation, version]. Another value is ignored.
    """
    implementation, version = (
        version_value[:2] if isinstance(version_value, list) and len(version_value) >= 2 else (None, None)
    )
    return ClientVersion(
        cut(app_id),
        cut(side),
        blurred(time, blur),
        _storable(implementation),
        _storable(version),
        address_id,
        float(blur),
    )


def _storable(value: object) -> str | None:
    """Return a text of a client without U+0000 (parsing.NUL_ESCAPE), None for another value."""
    return cut(value.replace("\0", "\N{REPLACEMENT CHARACTER}")) if isinstance(value, str) else None


def _times(sides: Sequence[MailboxSide] | Sequence[NameplateSide], end: float) -> tuple[float, float | None, float]:
    """Return start, waiting time and total time. If the clock was set back, the total is 0, not negative."""
    added = sorted(row.added for row in sides) or [end]
    waiting = added[1] - added[0] if len(added) > 1 else None
    return added[0], waiting, max(0.0, end - added[0])
