"""Quotas per address: what each address created that is still live, and what the server refused it.

These refusals depend on the address (limits.py, `address_…`). Refusals by the rules are the same for all addresses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Self

import msgspec

from restante.common.address_registry import SECONDS_PER_DAY, BaseQuota
from restante.common.refusals import Refusal, RefusalCounts
from restante.common.token_bucket import Bucket
from restante.common.usage_records import MailboxUsage
from restante.mailbox.core import model, session
from restante.mailbox.core.limits import KIB, Limits
from restante.mailbox.core.model import BatchCounts, Change, Mailbox, Now
from restante.mailbox.core.session import Command
from restante.mailbox.core.state import MAILBOX_BYTES, MESSAGE_BYTES, State
from restante.mailbox.protocol.hashcash import MAX_BITS
from restante.mailbox.protocol.refusals import SERVER_FULL, TOO_MANY_CLAIMS, TOO_MANY_NAMEPLATES, TOO_MUCH_STORED

MAX_KNOWN_NAMEPLATES: Final = 64
"""Maximum number of live nameplates that an address is known to have claimed, the latest ones. Claiming one of them
again, after a lost connection, is not a new guess."""

ABUSE_SCORE_TOLERATED: Final = 80
"""Abuse score above which an adaptive server demands work of an address. An office that reconnects after an outage
scores 20, a class of thirty that sends and receives scores 36."""

CONNECTION_ABUSE_SCORE: Final = 0.1
CLAIM_ABUSE_SCORE: Final = 1.0
REFUSED_CLAIM_ABUSE_SCORE: Final = 2.0
DENIAL_ABUSE_SCORE: Final = 2.0
"""What adds to the abuse score of an address: a connection; an allocation, or a claim of a nameplate that it had not
claimed before; a claim beyond `address_claims`; a denied permission."""

ABUSE_SCORE_DECAY: Final = 1 / 15
"""Points that the abuse score loses each second: four a minute."""

ABUSE_SCORE_PER_BIT: Final = 10
"""Points above ABUSE_SCORE_TOLERATED for each extra bit."""


REFUSALS_PER_SECOND: Final = 20
"""Refused connections of an address that get a second to clean up. More are closed at once: otherwise an address
could keep any number open, a second each."""


class QuotaRecord(msgspec.Struct, frozen=True, array_like=True):
    """What one process leaves of the quota of an address to the next. What is live is counted again."""

    key: bytes
    address_id: str | None
    demanded: int
    levels: tuple[tuple[float, float], ...]
    """Those of its buckets."""
    nameplates: list[int]
    """The keys of nameplates that it is known to have claimed."""


class AddressQuota(BaseQuota):
    """What one address has live, and its rates and abuse score."""

    __slots__ = (
        "_abuse_score",
        "_claims",
        "_connects",
        "_recent",
        "_records",
        "_refusals",
        "address_id",
        "connections",
        "demanded",
        "nameplates",
        "stored",
    )

    def __init__(self) -> None:
        super().__init__()
        self.address_id: str | None = None
        """The name in logs of the client that connected last."""
        self.connections = 0
        self.nameplates = 0
        """Live nameplates that this address created."""
        self.stored = 0
        """Bytes of live mailboxes and messages that this address created."""
        self.demanded = 0
        """Bits that were last demanded of this address because of its own abuse score; 0: none."""
        self._claims = Bucket()
        self._connects = Bucket()
        self._refusals = Bucket()
        self._recent: dict[int, None] = {}
        """Keys of nameplates. A name may belong to another nameplate later; a key may not."""
        self._records = Bucket()
        self._abuse_score = Bucket()

    @property
    def live(self) -> bool:
        """Whether the address has a live connection, nameplate or mailbox."""
        return bool(self.pending_requests or self.connections or self.nameplates or self.stored)

    def idle(self, now: float, limits: Limits) -> bool:
        """Return whether the quota holds nothing that must be remembered."""
        return not (
            self.live
            or self._claims.spent(now, limits.address_claims / 60)
            or self._connects.spent(now, limits.address_connects / 60)
            or self.remembers_handshakes(now, limits.address_connects / 60)
            or self._refusals.spent(now, REFUSALS_PER_SECOND)
            or self._records.spent(now, limits.address_records / SECONDS_PER_DAY)
            or self._abuse_score.spent(now, ABUSE_SCORE_DECAY)
        )

    @property
    def _buckets(self) -> tuple[Bucket, ...]:
        return self._handshakes, self._claims, self._connects, self._refusals, self._records, self._abuse_score

    def record(self, key: bytes) -> QuotaRecord:
        """Return what the next process needs of it. `key` is that of its address."""
        levels = tuple(bucket.level for bucket in self._buckets)
        return QuotaRecord(key, self.address_id, self.demanded, levels, list(self._recent))

    @classmethod
    def restored(cls, record: QuotaRecord) -> Self:
        """Return a quota as the process before has left it, of an address that has nothing live."""
        quota = cls()
        quota.address_id, quota.demanded = record.address_id, record.demanded
        quota._recent = dict.fromkeys(record.nameplates[-MAX_KNOWN_NAMEPLATES:])
        for bucket, level in zip(quota._buckets, record.levels, strict=True):
            bucket.level = level
        return quota

    def charge_connect(self, now: float, limits: Limits) -> float:
        """Charge a new connection. Return 0, or the seconds after which it may try again if it comes too fast."""
        self.connections += 1
        rate = limits.address_connects / 60
        if rate and self._connects.spent(now, rate) + 1 > limits.address_connects_at_once:
            return self._connects.wait(now, rate, limits.address_connects_at_once - 1)
        self._connects.take(now, rate, 1)
        return 0.0

    def charge_refusal(self, now: float) -> bool:
        """Charge a refused connection; return whether it must be closed at once, without time to clean up."""
        if self._refusals.spent(now, REFUSALS_PER_SECOND) + 1 > REFUSALS_PER_SECOND:
            return True
        self._refusals.take(now, REFUSALS_PER_SECOND, 1)
        return False

    def charge_claim(self, key: int | None, now: float, limits: Limits) -> float:
        """Charge an allocation, or a claim of a nameplate that the address has not claimed before.

        `key` is the nameplate's key, or None if no such nameplate is live. Return 0, or the seconds after which the
        address may try again.
        """
        if key in self._recent:
            return 0.0
        rate = limits.address_claims / 60
        if rate and self._claims.spent(now, rate) + 1 > limits.address_claims_at_once:
            self.add_abuse_score(now, REFUSED_CLAIM_ABUSE_SCORE)
            return self._claims.wait(now, rate, limits.address_claims_at_once - 1)
        self._claims.take(now, rate, 1)
        self.add_abuse_score(now, CLAIM_ABUSE_SCORE)
        return 0.0

    def remember_nameplate(self, key: int) -> None:
        """Remember a live nameplate of this address: claiming it again is not a guess."""
        self._recent[key] = None
        if len(self._recent) > MAX_KNOWN_NAMEPLATES:
            del self._recent[next(iter(self._recent))]

    def charge_record(self, now: float, limits: Limits) -> bool:
        """Charge a usage record, and return whether the server may write it."""
        rate = limits.address_records / SECONDS_PER_DAY
        if rate and self._records.spent(now, rate) + 1 > limits.address_records:
            return False
        self._records.take(now, rate, 1)
        return True

    def add_abuse_score(self, now: float, points: float) -> None:
        """Add points to the abuse score, which falls by itself. `now` is in seconds of service."""
        self._abuse_score.take(now, ABUSE_SCORE_DECAY, points)

    def bits(self, now: float, base: int) -> int | None:
        """Return the bits that an adaptive server demands of this address, or None."""
        over = self._abuse_score.spent(now, ABUSE_SCORE_DECAY) - ABUSE_SCORE_TOLERATED
        return min(MAX_BITS, base + int(over // ABUSE_SCORE_PER_BIT)) if over > 0 else None


# ── quotas ────────────────────────────────────────────────────────────────────────────────────────


HOLDS_MUCH: Final = "the remaining room is reserved for addresses that hold less than {} KiB; try again later"

_CLAIMS: Final = frozenset({session.ClaimCommand, session.AllocateCommand})
_TAKES_ROOM: Final = frozenset({session.AddCommand, session.OpenCommand}) | _CLAIMS


class QuotasRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one process leaves to the next of what addresses have created. Quotas are numbers."""

    owners: dict[int, list[int]]
    mailbox_bytes: dict[int, list[tuple[int, int]]]
    visited: int
    visitors: int


class Quotas:
    """Which addresses created which nameplates and mailboxes, and counters of refusals and visitors."""

    def __init__(self) -> None:
        self.refusal_counts = RefusalCounts()
        """Refusals for lack of permission or room."""
        self.visited = 0
        """Mailboxes that ended and had visitors. The caller that logs it clears it."""
        self.visitors = 0
        """Number of their visitors (usage_records.MailboxUsage). The caller that logs it clears it."""
        self._owners: dict[int, tuple[AddressQuota, ...]] = {}
        """The quotas of the addresses that created a live nameplate, by its key."""
        self._mailbox_bytes: dict[int, dict[AddressQuota, int]] = {}
        """Bytes of a live mailbox that each address created, by the mailbox's key and the address's quota."""
        self._owners_before: dict[int, tuple[AddressQuota, ...]] = {}
        self._mailbox_bytes_before: dict[int, dict[AddressQuota, int]] = {}
        """The entries of both that the current batch has changed, as they were before it."""

    def record(self, numbers: Mapping[AddressQuota, int]) -> QuotasRecord:
        """Return who has created what is live, between two batches. `numbers` are those of the quotas."""
        return QuotasRecord(
            {key: [numbers[quota] for quota in owners] for key, owners in self._owners.items()},
            {
                key: [(numbers[quota], size) for quota, size in sizes.items()]
                for key, sizes in self._mailbox_bytes.items()
            },
            self.visited,
            self.visitors,
        )

    def restore(self, record: QuotasRecord, quotas: Sequence[AddressQuota]) -> None:
        """Go on with what the process before has left. `quotas` are the quotas by number."""
        self.visited, self.visitors = record.visited, record.visitors
        for key, numbers in record.owners.items():
            owners = self._owners[key] = tuple(quotas[number] for number in numbers)
            for quota in owners:
                quota.nameplates += 1
        for key, sizes in record.mailbox_bytes.items():
            self._mailbox_bytes[key] = {quotas[number]: size for number, size in sizes}
            for number, size in sizes:
                quotas[number].stored += size

    def count_batch(self, batch: BatchCounts) -> None:
        """Count what a batch refused, and the visitors of mailboxes that ended in it. An undone batch has none."""
        self._owners_before.clear()
        self._mailbox_bytes_before.clear()
        for reason, address_id in batch.refused:
            self.refusal_counts.count(reason, address_id)
        for record in batch.usage:
            if type(record) is MailboxUsage and record.visitors:
                self.visited += 1
                self.visitors += record.visitors

    def charge_command(
        self, view: State, quota: AddressQuota, command: Command, now: Now, limits: Limits
    ) -> Refusal | None:
        """Charge a command to an address. Return the refusal if it exceeds a quota."""
        kind = type(command)  # each isinstance that does not hold takes 0.3 µs: msgspec's classes are abstract
        claims = kind in _CLAIMS
        live: model.Nameplate | None = None
        if type(command) is session.ClaimCommand:
            live = view.app(command.app_id).nameplates.get(command.nameplate)
        # This check is first, because the answer of any later one reveals whether the nameplate is live.
        if claims and (wait := quota.charge_claim(live.key if live else None, now.service, limits)):
            return TOO_MANY_CLAIMS.refusal(f"try again in {math.ceil(wait)} s")
        if limits.address_bytes and quota.stored >= limits.address_bytes and kind in _TAKES_ROOM:
            return TOO_MUCH_STORED.refusal(
                f"{limits.address_bytes} bytes may be kept at a time: close some mailboxes"
            )
        if view.nearly_full(limits) and quota.stored >= limits.small_holder_bytes and _creates(view, command):
            return SERVER_FULL.refusal(HOLDS_MUCH.format(limits.small_holder_bytes // KIB))
        if claims and not live and limits.address_nameplates and quota.nameplates >= limits.address_nameplates:
            return TOO_MANY_NAMEPLATES.refusal(f"{limits.address_nameplates} may live at a time: close some")
        if live:
            quota.remember_nameplate(live.key)
        return None

    def record_made(self, address_quotas: tuple[AddressQuota, ...], changes: Sequence[Change]) -> None:
        """Add what a command from these addresses has created."""
        for change in changes:
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

    def payers(self, change: Change, address_quotas: tuple[AddressQuota, ...]) -> tuple[AddressQuota, ...]:
        """Return the quotas that pay for the usage record of a change, which a command from these addresses causes.

        Who bound pays for the record of a bind. Who created a nameplate or mailbox pays for its record.
        """
        if type(change) is model.NameplateGone:
            return self._owners.get(change.nameplate.key, ())
        if type(change) is model.MailboxGone:
            return tuple(self._mailbox_bytes.get(change.mailbox.key, ()))[:1]
        return address_quotas

    def undo_batch(self) -> None:
        """Undo what the current batch has created and ended."""
        owners, self._owners_before = self._owners_before, {}
        for nameplate, quotas in owners.items():
            self.forget_nameplate(nameplate)
            if quotas:
                self._owners[nameplate] = quotas
                for quota in quotas:
                    quota.nameplates += 1
        stored_before, self._mailbox_bytes_before = self._mailbox_bytes_before, {}
        for mailbox, sizes in stored_before.items():
            self.forget_mailbox(mailbox)
            if sizes:
                self._mailbox_bytes[mailbox] = sizes
                for quota, size in sizes.items():
                    quota.stored += size

    def _add_stored(self, address_quotas: tuple[AddressQuota, ...], mailbox: Mailbox, size: int) -> None:
        sizes = self._mailbox_bytes.setdefault(mailbox.key, {})
        if mailbox.key not in self._mailbox_bytes_before:
            self._mailbox_bytes_before[mailbox.key] = sizes.copy()
        for quota in address_quotas:
            quota.stored += size
            sizes[quota] = sizes.get(quota, 0) + size

    def forget_nameplate(self, key: int) -> None:
        """Remove a nameplate that has ended from the quotas."""
        owners = self._owners.pop(key, ())
        self._owners_before.setdefault(key, owners)
        for owner in owners:
            owner.nameplates -= 1

    def forget_mailbox(self, key: int) -> None:
        """Remove a mailbox that has ended from the quotas."""
        sizes = self._mailbox_bytes.pop(key, {})
        self._mailbox_bytes_before.setdefault(key, sizes)
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
