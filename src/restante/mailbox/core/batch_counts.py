"""What the commands of a batch were, for the metrics."""

from __future__ import annotations

from restante.common.usage_records import MailboxUsage, NameplateUsage


class BatchCounts:
    """Counts of a batch. Lists are the cheapest way to count them: a batch may have 500."""

    __slots__ = ("added", "carried_out", "ended", "others", "pruned", "refused", "solved")

    def __init__(self) -> None:
        self.carried_out: list[type] = []
        """The classes of the messages that were carried out."""
        self.others: list[tuple[type, str]] = []
        """The classes of the other messages, NoneType for a text that was no message, and their outcomes."""
        self.added: list[float] = []
        """The service times at which the `add`s that were carried out were received."""
        self.ended: list[MailboxUsage | NameplateUsage] = []
        """The nameplates and mailboxes that ended, also those whose usage record is left out."""
        self.refused: list[tuple[str, str | None]] = []
        """Refusals for lack of permission or room: their error, and the id of the address."""
        self.pruned = 0
        """Mailboxes that were pruned."""
        self.solved = 0
        """Connections that have shown the work that was demanded of them."""

    def clear(self) -> None:
        """Forget all of it."""
        self.carried_out.clear()
        self.others.clear()
        self.added.clear()
        self.ended.clear()
        self.refused.clear()
        self.pruned = self.solved = 0
