"""Pruning: ends idle mailboxes, and saves when the others were last touched.

It works in slices, one per batch, so that clients do not wait for it. The reference server prunes in one step, which
takes minutes for 50,000 mailboxes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

_SAVE_WEIGHT: Final = 5
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
    weight = 0
    for mailbox in _each_mailbox(state):
        now = clock()
        weight += 1
        if mailbox is None:
            pass
        elif mailbox.key in dispatcher.subscribers:
            dispatcher.apply_change(model.MailboxTouched(mailbox, now.service))
        elif now.service - mailbox.touched > prune_after and not state.in_grace_period:
            weight += _PRUNE_WEIGHT + _MESSAGE_WEIGHT * len(mailbox.messages) + mailbox.size // _BYTES_PER_POINT
            dispatcher.prune(mailbox, now)
        if weight >= SLICE_WEIGHT:
            weight = 0
            yield
    yield from save_touches(dispatcher)
    now = clock()
    subscribed = sum(map(len, dispatcher.subscribers.values()))
    dispatcher.apply_change(CurrentUsage(rebooted, now.wall, dispatcher.policy.blur or None, subscribed))
    if not state.in_grace_period:
        dispatcher.apply_change(model.Pruned(now.wall))


def _each_mailbox(state: State) -> Iterator[Mailbox | None]:
    """Yield each live mailbox, and None for each app. The state may change between two of them.

    There is no list of all mailboxes: making one of 200,000 in as many apps would block the loop for 76 ms.
    """
    apps = list(state.apps)
    while apps:
        yield None
        waiting = list(state.app(apps.pop()).mailboxes.values())
        while waiting:
            mailbox = waiting.pop()  # releases the list one by one: freeing 50,000 at once would block it for 9 ms
            if state.app(mailbox.app_id).mailboxes.get(mailbox.mailbox_id) is mailbox:  # it may have ended since
                yield mailbox


def save_touches(dispatcher: Dispatcher) -> Iterator[None]:
    """Save when mailboxes were last touched. Yields between slices."""
    weight = 0
    for mailbox in list(dispatcher.state.unsaved.values()):
        if mailbox.key in dispatcher.state.unsaved:  # it may have ended or been saved since
            dispatcher.apply_change(model.MailboxSaved(mailbox))
            weight += _SAVE_WEIGHT + mailbox.names // _NAME_BYTES_PER_POINT
        if weight >= SLICE_WEIGHT:
            weight = 0
            yield
