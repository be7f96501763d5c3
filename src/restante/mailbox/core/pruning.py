"""Pruning: ends idle mailboxes, and saves when the others were last touched.

It works in slices, one per batch, so that clients do not wait for it. The reference server prunes in one step, which
takes minutes for 50,000 mailboxes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from restante.common.usage_records import CurrentUsage
from restante.mailbox.core import model
from restante.mailbox.core.dispatcher import Dispatcher
from restante.mailbox.core.model import Mailbox, Now
from restante.mailbox.core.state import State

SLICE_WEIGHT: Final = 1000
"""Maximum weight of a slice. Checking a mailbox weighs 1; saving one 5, plus 1 for each 200 bytes of its names;
pruning one 20, plus 2 for each of its messages and 1 for each 2 KiB of them. A point takes about 3 µs on a slow core,
so a slice stays well below 10 ms."""

SLICE_SECONDS: Final = 0.002
"""Seconds after which a slice ends, whatever its weight: the first ones read code and memory that are in no cache."""

_SAVE_WEIGHT: Final = 5
_SAVED_AT_ONCE: Final = 256
"""A list of 50,000 mailboxes takes 10 ms, because it reads memory that is in no cache."""

_NAME_BYTES_PER_POINT: Final = 200
_PRUNE_WEIGHT: Final = 20
_MESSAGE_WEIGHT: Final = 2
_BYTES_PER_POINT: Final = 2048


def prune_idle(
    dispatcher: Dispatcher, clock: Callable[[], Now], prune_after: float, rebooted: float
) -> Iterator[None]:
    """Prune mailboxes that were idle for `prune_after` seconds of service, and save touches. Yields between slices.

    During the grace period after a start nothing is pruned, because clients may still reconnect.
    """
    state = dispatcher.state
    weight, slice_end = 0, 0.0
    for mailbox in _live_mailboxes(state):
        now = clock()
        if not weight:
            slice_end = now.service + SLICE_SECONDS
        weight += 1
        if mailbox.key in dispatcher.subscribers:
            dispatcher.apply_change(model.MailboxTouched(mailbox, now.service))
        elif now.service - mailbox.touched > prune_after and not state.in_grace_period:
            weight += _PRUNE_WEIGHT + _MESSAGE_WEIGHT * len(mailbox.messages) + mailbox.size // _BYTES_PER_POINT
            dispatcher.prune(mailbox, now)
        if weight >= SLICE_WEIGHT or now.service >= slice_end:
            weight = 0
            yield
    yield from save_touches(dispatcher)
    now = clock()
    subscribed = sum(map(len, dispatcher.subscribers.values()))
    dispatcher.apply_change(CurrentUsage(rebooted, now.wall, dispatcher.policy.blur or None, subscribed))
    if not state.in_grace_period:
        dispatcher.apply_change(model.Pruned(now.wall))


def _live_mailboxes(state: State) -> Iterator[Mailbox]:
    """Yield each live mailbox. The state may change between two of them."""
    for part in filter(None, state.parts):
        for mailbox in list(part.values()):
            if mailbox.key in part:  # it may have ended since
                yield mailbox


def save_touches(dispatcher: Dispatcher) -> Iterator[None]:
    """Save when mailboxes were last touched. Yields between slices."""
    unsaved, weight = dispatcher.state.unsaved, 0
    remaining = len(unsaved)
    while remaining > 0 and unsaved:
        mailboxes = list(islice(unsaved.values(), min(remaining, _SAVED_AT_ONCE)))
        remaining -= len(mailboxes)
        for mailbox in mailboxes:
            if mailbox.key in unsaved:  # it may have ended or been saved since
                dispatcher.apply_change(model.MailboxSaved(mailbox))
                weight += _SAVE_WEIGHT + mailbox.names // _NAME_BYTES_PER_POINT
            if weight >= SLICE_WEIGHT:
                weight = 0
                yield
