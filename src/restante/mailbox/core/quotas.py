"""Quotas per address: what each address has made that still lives, and what was refused to it.

A refusal here is for want of room of one's own (limits.py, `address_…`); what the rules refuse, they refuse to all.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from restante.common.usage_records import ClientVersion, MailboxUsage, NameplateUsage
from restante.mailbox.core import model, session
from restante.mailbox.core.address_quotas import AddressQuota
from restante.mailbox.core.limits import MIB, SMALL_HOLDER_BYTES, Limits
from restante.mailbox.core.model import Change, Decision, Mailbox, Now
from restante.mailbox.core.rules import SERVER_FULL
from restante.mailbox.core.session import Command
from restante.mailbox.core.state import MAILBOX_BYTES, MESSAGE_BYTES, State

MAX_REFUSAL_COUNTERS: Final = 10_000
"""Addresses whose refusals are counted one by one in a minute."""

TOO_MANY_NAMEPLATES: Final = "too many nameplates from your address"
TOO_MUCH_STORED: Final = "too much is kept for your address"
TOO_MANY_RECORDS: Final = "too many usage records from an address: this one is left out"
TOO_MANY_CLAIMS: Final = "too many different nameplates claimed from your address"

HOLDS_MUCH: Final = (
    f"what room is left is for addresses that hold less than {SMALL_HOLDER_BYTES // MIB} MiB; try again later"
)

USAGE_RECORDS: Final = frozenset({ClientVersion, MailboxUsage, NameplateUsage})

_TAKES_ROOM: Final = (session.AddCommand, session.OpenCommand, session.ClaimCommand, session.AllocateCommand)


class Quotas:
    """Who made what, by the keys of nameplates and mailboxes."""

    def __init__(self) -> None:
        self.refused: Counter[tuple[str, str | None]] = Counter()
        """How often what was refused for want of permission or room, by address id; who logs it clears it."""
        self.visited = 0
        self.visitors = 0
        """Mailboxes that had visitors, and how many (records.MailboxUsage); who logs it clears it."""
        self._owners: dict[int, tuple[AddressQuota, ...]] = {}
        """From which addresses a live nameplate was made."""
        self._kept: dict[int, dict[AddressQuota, int]] = {}
        """How much of a live mailbox was made from which address, in bytes."""

    def count_refusal(self, words: str, address_id: str | None) -> None:
        """Count a refusal; when there are too many addresses to tell apart, as nobody's."""
        key = words, address_id
        self.refused[key if key in self.refused or len(self.refused) < MAX_REFUSAL_COUNTERS else (words, None)] += 1

    def charge_command(
        self, view: State, quota: AddressQuota, command: Command, now: Now, limits: Limits
    ) -> tuple[str, str] | None:
        """Charge a command to an address. Return a refusal, words and hint, of what is more than it may have."""
        names = isinstance(command, session.ClaimCommand | session.AllocateCommand)
        lives: model.Nameplate | None = None
        if isinstance(command, session.ClaimCommand):
            lives = view.app(command.app_id).nameplates.get(command.nameplate)
        # Charged first: whatever the answer is, it tells whether the nameplate lives.
        if names and (wait := quota.charge_claim(lives.key if lives else None, now.service, limits)):
            return TOO_MANY_CLAIMS, f"try again in {math.ceil(wait)} s"
        if limits.address_bytes and quota.stored >= limits.address_bytes and isinstance(command, _TAKES_ROOM):
            return TOO_MUCH_STORED, f"{limits.address_bytes} bytes may be kept at a time: close some mailboxes"
        if quota.stored >= SMALL_HOLDER_BYTES and view.nearly_full(limits) and _makes(view, command):
            return SERVER_FULL, HOLDS_MUCH
        if names and not lives and limits.address_nameplates and quota.nameplates >= limits.address_nameplates:
            return TOO_MANY_NAMEPLATES, f"{limits.address_nameplates} may live at a time: close some"
        if lives:
            quota.remember_nameplate(lives.key)
        return None

    def record_made(self, address_quotas: tuple[AddressQuota, ...], decision: Decision) -> None:
        """Add what a command from these addresses has made."""
        for change in decision.changes:
            if type(change) is model.NameplateMade:
                self._owners[change.nameplate.key] = address_quotas
                for quota in address_quotas:
                    quota.nameplates += 1
                    quota.remember_nameplate(change.nameplate.key)
            elif type(change) is model.MailboxMade:
                self._add_stored(address_quotas, change.mailbox, MAILBOX_BYTES + change.mailbox.names)
            elif type(change) is model.MessageAdded:
                self._add_stored(address_quotas, change.mailbox, MESSAGE_BYTES + len(change.message.wire))

    def charge_record(
        self,
        record: Change,
        gone: Change | None,
        address_quotas: tuple[AddressQuota, ...],
        now: float,
        limits: Limits,
    ) -> bool:
        """Charge a usage record, and return whether it may be written. One that may not is counted.

        That of a bind is charged to these quotas. That of a nameplate or mailbox is followed by `gone`, which tells
        which one it was, and charged to whoever made it.
        """
        if isinstance(record, NameplateUsage) and isinstance(gone, model.NameplateGone):
            address_quotas = self._owners.get(gone.nameplate.key, ())
        elif isinstance(record, MailboxUsage) and isinstance(gone, model.MailboxGone):
            address_quotas = tuple(self._kept.get(gone.mailbox.key, ()))[:1]
        if all(quota.charge_record(now, limits) for quota in address_quotas):
            return True
        self.count_refusal(TOO_MANY_RECORDS, record.address_id if isinstance(record, ClientVersion) else None)
        return False

    def record_gone(self, change: Change) -> None:
        """Remove what lives no more, and count its visitors."""
        if type(change) is MailboxUsage and change.visitors:
            self.visited += 1
            self.visitors += change.visitors
        elif type(change) is model.NameplateGone:
            self._forget_nameplate(change.nameplate.key)
        elif type(change) is model.MailboxGone:
            self._forget_mailbox(change.mailbox.key)

    def forget_all_but(self, state: State) -> None:
        """Remove all that is not in this state."""
        nameplates = {plate.key for app in state.apps.values() for plate in app.nameplates.values()}
        for key in self._owners.keys() - nameplates:
            self._forget_nameplate(key)
        for key in self._kept.keys() - {mailbox.key for mailbox in state.mailboxes()}:
            self._forget_mailbox(key)

    def _add_stored(self, address_quotas: tuple[AddressQuota, ...], mailbox: Mailbox, size: int) -> None:
        kept = self._kept.setdefault(mailbox.key, {})
        for quota in address_quotas:
            quota.stored += size
            kept[quota] = kept.get(quota, 0) + size

    def _forget_nameplate(self, key: int) -> None:
        for owner in self._owners.pop(key, ()):
            owner.nameplates -= 1

    def _forget_mailbox(self, key: int) -> None:
        for quota, size in self._kept.pop(key, {}).items():
            quota.stored -= size


def _makes(view: State, command: Command) -> bool:
    """Return whether a command creates something that takes room. To join what exists takes none."""
    app = view.app(command.app_id)
    if isinstance(command, session.ClaimCommand):
        return command.nameplate not in app.nameplates
    if isinstance(command, session.OpenCommand):
        return command.mailbox_id not in app.mailboxes
    return isinstance(command, _TAKES_ROOM)
