"""Quotas per address: what each address created that is still live, and what the server refused it.

These refusals depend on the address (limits.py, `address_…`). Refusals by the rules are the same for all addresses.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from restante.common.usage_records import ClientVersion, MailboxUsage, NameplateUsage
from restante.mailbox.core import model, session
from restante.mailbox.core.address_quotas import AddressQuota
from restante.mailbox.core.limits import KIB, Limits
from restante.mailbox.core.model import BatchCounts, Change, Decision, Mailbox, Now
from restante.mailbox.core.rules import SERVER_FULL
from restante.mailbox.core.session import Command
from restante.mailbox.core.state import MAILBOX_BYTES, MESSAGE_BYTES, State

MAX_REFUSAL_COUNTERS: Final = 10_000
"""Maximum number of pairs of error and address whose refusals are counted separately in a minute."""

TOO_MANY_NAMEPLATES: Final = "too many nameplates from your address"
TOO_MUCH_STORED: Final = "too much is kept for your address"
TOO_MANY_RECORDS: Final = "too many usage records from an address: this one is left out"
TOO_MANY_CLAIMS: Final = "too many different nameplates claimed from your address"

HOLDS_MUCH: Final = "the remaining room is reserved for addresses that hold less than {} KiB; try again later"

USAGE_RECORDS: Final = frozenset({ClientVersion, MailboxUsage, NameplateUsage})

_CLAIMS: Final = frozenset({session.ClaimCommand, session.AllocateCommand})
_TAKES_ROOM: Final = frozenset({session.AddCommand, session.OpenCommand}) | _CLAIMS


class Quotas:
    """Which addresses created which nameplates and mailboxes, and counters of refusals and visitors."""

    def __init__(self) -> None:
        self.refused: Counter[tuple[str, str | None]] = Counter()
        """Refusals for lack of permission or room, by error and address id. `end_minute` clears them."""
        self.refusals: Counter[str] = Counter()
        """The same since the start, by error. Clients cannot choose the words."""
        self.lately_refused: Counter[tuple[str, str | None]] = Counter()
        """`refused`, and what it was in the last whole minute."""
        self.visited = 0
        """Mailboxes that ended and had visitors. The caller that logs it clears it."""
        self.visitors = 0
        """Number of their visitors (usage_records.MailboxUsage). The caller that logs it clears it."""
        self._owners: dict[int, tuple[AddressQuota, ...]] = {}
        """The quotas of the addresses that created a live nameplate, by its key."""
        self._kept: dict[int, dict[AddressQuota, int]] = {}
        """Bytes of a live mailbox that each address created, by the mailbox's key and the address's quota."""
        self._owners_before: dict[int, tuple[AddressQuota, ...]] = {}
        self._kept_before: dict[int, dict[AddressQuota, int]] = {}
        """The entries of `_owners` and `_kept` that the current batch has changed, as they were before it."""

    def count_refusal(self, words: str, address_id: str | None) -> None:
        """Count a refusal. Beyond MAX_REFUSAL_COUNTERS, new pairs of error and address count without an address."""
        self.refusals[words] += 1
        key: tuple[str, str | None] = words, address_id
        if key not in self.refused and len(self.refused) >= MAX_REFUSAL_COUNTERS:
            key = words, None
        self.refused[key] += 1
        self.lately_refused[key] += 1

    def end_minute(self) -> Counter[tuple[str, str | None]]:
        """Return the refusals of the minute that has ended, and begin another one."""
        ended, self.refused, self.lately_refused = self.refused, Counter(), self.refused.copy()
        return ended

    def count_batch(self, batch: BatchCounts) -> None:
        """Count what a batch refused, and the visitors of mailboxes that ended in it. An undone batch has none."""
        self._owners_before.clear()
        self._kept_before.clear()
        for words, address_id in batch.refused:
            self.count_refusal(words, address_id)
        for record in batch.ended:
            if type(record) is MailboxUsage and record.visitors:
                self.visited += 1
                self.visitors += record.visitors

    def charge_command(
        self, view: State, quota: AddressQuota, command: Command, now: Now, limits: Limits
    ) -> tuple[str, str] | None:
        """Charge a command to an address. If it exceeds a quota, return the error and the hint."""
        kind = type(command)  # each isinstance that does not hold takes 0.3 µs: msgspec's classes are abstract
        claims = kind in _CLAIMS
        live: model.Nameplate | None = None
        if type(command) is session.ClaimCommand:
            live = view.app(command.app_id).nameplates.get(command.nameplate)
        # This check is first, because the answer of any later one reveals whether the nameplate is live.
        if claims and (wait := quota.charge_claim(live.key if live else None, now.service, limits)):
            return TOO_MANY_CLAIMS, f"try again in {math.ceil(wait)} s"
        if limits.address_bytes and quota.stored >= limits.address_bytes and kind in _TAKES_ROOM:
            return TOO_MUCH_STORED, f"{limits.address_bytes} bytes may be kept at a time: close some mailboxes"
        if view.nearly_full(limits) and quota.stored >= limits.small_holder_bytes and _creates(view, command):
            return SERVER_FULL, HOLDS_MUCH.format(limits.small_holder_bytes // KIB)
        if claims and not live and limits.address_nameplates and quota.nameplates >= limits.address_nameplates:
            return TOO_MANY_NAMEPLATES, f"{limits.address_nameplates} may live at a time: close some"
        if live:
            quota.remember_nameplate(live.key)
        return None

    def record_made(self, address_quotas: tuple[AddressQuota, ...], decision: Decision) -> None:
        """Add what a command from these addresses has created."""
        for change in decision.changes:
            if type(change) is model.NameplateMade:
                key = change.nameplate.key
                self._owners_before[key] = ()
                self._owners[key] = address_quotas
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
    ) -> tuple[str, str | None] | None:
        """Charge a usage record. If it exceeds a quota, return the error and the id of the address.

        The record of a bind is charged to `address_quotas`. The record of a nameplate or mailbox is charged to the
        address that created it; `gone` is the change that follows the record and identifies it.
        """
        if isinstance(record, NameplateUsage) and isinstance(gone, model.NameplateGone):
            address_quotas = self._owners.get(gone.nameplate.key, ())
        elif isinstance(record, MailboxUsage) and isinstance(gone, model.MailboxGone):
            address_quotas = tuple(self._kept.get(gone.mailbox.key, ()))[:1]
        for quota in address_quotas:
            if not quota.charge_record(now, limits):
                return TOO_MANY_RECORDS, quota.address_id
        return None

    def record_gone(self, change: Change) -> None:
        """Remove a nameplate or mailbox that has ended from the quotas."""
        if type(change) is model.NameplateGone:
            self._forget_nameplate(change.nameplate.key)
        elif type(change) is model.MailboxGone:
            self._forget_mailbox(change.mailbox.key)

    def undo_batch(self) -> None:
        """Undo what the current batch has created and ended."""
        owners, self._owners_before = self._owners_before, {}
        for nameplate, quotas in owners.items():
            self._forget_nameplate(nameplate)
            if quotas:
                self._owners[nameplate] = quotas
                for quota in quotas:
                    quota.nameplates += 1
        kept, self._kept_before = self._kept_before, {}
        for mailbox, sizes in kept.items():
            self._forget_mailbox(mailbox)
            if sizes:
                self._kept[mailbox] = sizes
                for quota, size in sizes.items():
                    quota.stored += size

    def _add_stored(self, address_quotas: tuple[AddressQuota, ...], mailbox: Mailbox, size: int) -> None:
        kept = self._kept.setdefault(mailbox.key, {})
        if mailbox.key not in self._kept_before:
            self._kept_before[mailbox.key] = kept.copy()
        for quota in address_quotas:
            quota.stored += size
            kept[quota] = kept.get(quota, 0) + size

    def _forget_nameplate(self, key: int) -> None:
        owners = self._owners.pop(key, ())
        self._owners_before.setdefault(key, owners)
        for owner in owners:
            owner.nameplates -= 1

    def _forget_mailbox(self, key: int) -> None:
        sizes = self._kept.pop(key, {})
        self._kept_before.setdefault(key, sizes)
        for quota, size in sizes.items():
            quota.stored -= size


def _creates(view: State, command: Command) -> bool:
    """Return whether a command creates something that takes room. Joining what exists takes none."""
    app = view.app(command.app_id)
    if isinstance(command, session.ClaimCommand):
        return command.nameplate not in app.nameplates
    if isinstance(command, session.OpenCommand):
        return command.mailbox_id not in app.mailboxes
    return type(command) in _TAKES_ROOM
