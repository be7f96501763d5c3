"""The books: what each address has made that still lives, and what was refused to it.

A refusal here is for want of room of one's own (limits.py, `address_…`); what the rules refuse, they refuse to all.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from restante.common.usage_records import ClientVersion, MailboxUsage, NameplateUsage
from restante.mailbox.core import model, session
from restante.mailbox.core.addresses import Account
from restante.mailbox.core.limits import MIB, SMALL_HOLDER, Limits
from restante.mailbox.core.model import Change, Decision, Mailbox, Now
from restante.mailbox.core.rules import FULL
from restante.mailbox.core.session import Command
from restante.mailbox.core.state import MAILBOX, MESSAGE, State

LEDGER: Final = 10_000
"""Addresses whose refusals are counted one by one in a minute."""

TOO_MANY_NAMEPLATES: Final = "too many nameplates from your address"
TOO_MUCH: Final = "too much is kept for your address"
TOO_MANY_RECORDS: Final = "too many usage records from an address: this one is left out"
TOO_MANY_CLAIMS: Final = "too many different nameplates claimed from your address"

HOLDS_MUCH: Final = (
    f"what room is left is for addresses that hold less than {SMALL_HOLDER // MIB} MiB; try again later"
)

RECORDS: Final = frozenset({ClientVersion, MailboxUsage, NameplateUsage})

_TAKES_ROOM: Final = (session.Add, session.Open, session.Claim, session.Allocate)


class Books:
    """Who made what, by the keys of nameplates and mailboxes."""

    def __init__(self) -> None:
        self.refused: Counter[tuple[str, str | None]] = Counter()
        """How often what was refused for want of permission or room, by address id; who logs it clears it."""
        self.visited = 0
        self.visitors = 0
        """Mailboxes that had visitors, and how many (records.MailboxUsage); who logs it clears it."""
        self._owners: dict[int, tuple[Account, ...]] = {}
        """From which addresses a live nameplate was made."""
        self._kept: dict[int, dict[Account, int]] = {}
        """How much of a live mailbox was made from which address, in bytes."""

    def refuse(self, words: str, address_id: str | None) -> None:
        """Count a refusal; when there are too many addresses to tell apart, as nobody's."""
        key = words, address_id
        self.refused[key if key in self.refused or len(self.refused) < LEDGER else (words, None)] += 1

    def overdrawn(
        self, view: State, account: Account, command: Command, now: Now, limits: Limits
    ) -> tuple[str, str] | None:
        """Tell whether this is more than an address may have: the words, and the hint. A claim is taken note of."""
        names = isinstance(command, session.Claim | session.Allocate)
        lives: model.Nameplate | None = None
        if isinstance(command, session.Claim):
            lives = view.app(command.app_id).nameplates.get(command.nameplate)
        # Charged first: whatever the answer is, it tells whether the nameplate lives.
        if names and (wait := account.claim(lives.key if lives else None, now.service, limits)):
            return TOO_MANY_CLAIMS, f"try again in {math.ceil(wait)} s"
        if limits.address_bytes and account.stored >= limits.address_bytes and isinstance(command, _TAKES_ROOM):
            return TOO_MUCH, f"{limits.address_bytes} bytes may be kept at a time: close some mailboxes"
        if account.stored >= SMALL_HOLDER and view.nearly_full(limits) and _makes(view, command):
            return FULL, HOLDS_MUCH
        if names and not lives and limits.address_nameplates and account.nameplates >= limits.address_nameplates:
            return TOO_MANY_NAMEPLATES, f"{limits.address_nameplates} may live at a time: close some"
        if lives:
            account.knows(lives.key)
        return None

    def made(self, accounts: tuple[Account, ...], decision: Decision) -> None:
        """Enter what a command from these addresses has made."""
        for change in decision.changes:
            if type(change) is model.NameplateMade:
                self._owners[change.nameplate.key] = accounts
                for account in accounts:
                    account.nameplates += 1
                    account.knows(change.nameplate.key)
            elif type(change) is model.MailboxMade:
                self._keep(accounts, change.mailbox, MAILBOX + change.mailbox.names)
            elif type(change) is model.MessageAdded:
                self._keep(accounts, change.mailbox, MESSAGE + len(change.message.wire))

    def may_record(
        self, record: Change, gone: Change | None, accounts: tuple[Account, ...], now: float, limits: Limits
    ) -> bool:
        """Charge a usage record; tells whether it may be written. One that may not is counted.

        That of a bind is charged to these accounts. That of a nameplate or mailbox is followed by `gone`, which tells
        which one it was, and charged to whoever made it.
        """
        if isinstance(record, NameplateUsage) and isinstance(gone, model.NameplateGone):
            accounts = self._owners.get(gone.nameplate.key, ())
        elif isinstance(record, MailboxUsage) and isinstance(gone, model.MailboxGone):
            accounts = tuple(self._kept.get(gone.mailbox.key, ()))[:1]
        if all(account.record(now, limits) for account in accounts):
            return True
        self.refuse(TOO_MANY_RECORDS, record.address_id if isinstance(record, ClientVersion) else None)
        return False

    def ended(self, change: Change) -> None:
        """Strike out what lives no more, and count its visitors."""
        if type(change) is MailboxUsage and change.visitors:
            self.visited += 1
            self.visitors += change.visitors
        elif type(change) is model.NameplateGone:
            self._disown(change.nameplate.key)
        elif type(change) is model.MailboxGone:
            self._let_go(change.mailbox.key)

    def compare(self, state: State) -> None:
        """Strike out all that is not in this state."""
        nameplates = {plate.key for app in state.apps.values() for plate in app.nameplates.values()}
        for key in self._owners.keys() - nameplates:
            self._disown(key)
        for key in self._kept.keys() - {mailbox.key for mailbox in state.mailboxes()}:
            self._let_go(key)

    def _keep(self, accounts: tuple[Account, ...], mailbox: Mailbox, size: int) -> None:
        kept = self._kept.setdefault(mailbox.key, {})
        for account in accounts:
            account.stored += size
            kept[account] = kept.get(account, 0) + size

    def _disown(self, key: int) -> None:
        for owner in self._owners.pop(key, ()):
            owner.nameplates -= 1

    def _let_go(self, key: int) -> None:
        for account, size in self._kept.pop(key, {}).items():
            account.stored -= size


def _makes(view: State, command: Command) -> bool:
    """Return whether a command creates something that takes room. To join what exists takes none."""
    app = view.app(command.app_id)
    if isinstance(command, session.Claim):
        return command.nameplate not in app.nameplates
    if isinstance(command, session.Open):
        return command.mailbox_id not in app.mailboxes
    return isinstance(command, _TAKES_ROOM)
