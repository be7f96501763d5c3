"""Pruning goes on while clients do what they do: between two slices anything may come, go, or be made anew.

The machine prunes in one go; here a slice is one mailbox, and each slice and each command is committed by itself.
`--effort N` looks N times as hard (effort.py).
"""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.mailbox.core import pruning
from support.effort import examples
from support.mailbox.givens import Inbox, Options
from support.mailbox.worlds import CoreWorld, StoreWorld

PRUNE_AFTER = 600.0
BOXES = 6

Deed = tuple[int, str]


class PruningWorld(StoreWorld):
    """One mailbox for each of a few clients, who have it open or have left."""

    def __init__(self) -> None:
        super().__init__(Options(in_grace_period=False))
        self.clients: dict[int, Inbox] = {}
        self.used: set[int] = set()
        """Keys of the mailboxes that clients touched, since this was last cleared."""
        self.gone: set[int] = set()
        """Of those that they ended."""

    def touches(self) -> dict[int, float]:
        return {mailbox.key: mailbox.touched for mailbox in self.dispatcher.state.mailboxes()}

    def do(self, deeds: list[Deed]) -> None:
        for box, kind in deeds:
            self.advance(0.125)  # so that a touch can be told from the one before
            before = self.touches()
            if kind != "lose":
                if box not in self.clients:
                    self.clients[box] = self.connect()
                    self._send(box, "bind")
                self._send(box, kind)
            elif box in self.clients:
                self.lose(self.clients.pop(box))
            self.commit()
            after = self.touches()
            self.used |= {key for key in after if after[key] != before.get(key)}
            self.gone |= set(before) - set(after)

    def _send(self, box: int, kind: str) -> None:
        """Send a command, with all keys that any command has."""
        keys = {"appid": "x", "side": f"side{box}", "mailbox": f"m{box}", "nameplate": str(box)}
        self.say(self.clients[box], json.dumps({"type": kind, "phase": "p", "body": "00", **keys}))

    def commit(self) -> None:
        self.flush()
        self.check()
        state = self.dispatcher.state
        for mailbox in self._view().mailboxes():
            live = state.app(mailbox.app_id).mailboxes[mailbox.mailbox_id]
            assert mailbox.touched == live.touched or mailbox.key in state.unsaved


deeds = st.tuples(
    st.integers(0, BOXES - 1), st.sampled_from(("open", "open", "add", "close", "close", "claim", "release", "lose"))
)


@pytest.fixture(autouse=True)
def slices_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "SLICE_WEIGHT", 1)


@given(
    st.lists(deeds, max_size=20),
    st.lists(deeds, max_size=6),
    st.lists(st.lists(deeds, max_size=3), max_size=12) | st.just([]),
)
@examples(60)
def test_pruning_ends_idle_mailboxes_only(before: list[Deed], late: list[Deed], meanwhile: list[list[Deed]]) -> None:
    with closing(PruningWorld()) as world:
        dispatcher = world.dispatcher
        world.do(before)
        world.advance(PRUNE_AFTER + 1.0)
        world.do(late)
        touches, now = world.touches(), world.now().service
        deserted = {key for key in touches if now - touches[key] > PRUNE_AFTER} - set(dispatcher.subscribers)
        world.used.clear()
        world.gone.clear()

        pruned: set[int] = set()
        known = set(touches)
        slices = iter(meanwhile)
        for _ in pruning.prune_idle(dispatcher, world.now, PRUNE_AFTER, 0.0):
            world.commit()
            pruned |= known - set(world.touches())
            world.do(next(slices, []))
            known = set(world.touches())
            world.advance(0.25)
        world.commit()
        pruned |= known - set(world.touches())

        assert pruned <= deserted, "somebody was there, or had been lately"
        assert deserted - pruned <= world.used | world.gone, "nobody used it, and it is still there"
        assert not set(world.touches()) & pruned
        usage = world.usage()
        assert [record["result"] for record in usage.mailboxes].count("pruney") == len(pruned)
        assert usage.current is not None
        assert usage.current["connections_websocket"] == sum(map(len, dispatcher.subscribers.values()))
        assert set(dispatcher.state.unsaved) <= world.used
        for key in dispatcher.subscribers:
            assert world.touches()[key] >= PRUNE_AFTER


def test_looking_into_an_app_counts_in_a_slice() -> None:
    """A list of all mailboxes was made first: of 200,000 in as many apps in 76 ms."""
    with closing(CoreWorld(Options())) as world:
        for number in range(10):
            world.dispatcher.state.arrive(f"app {number}", "a")
        assert len(list(pruning.prune_idle(world.dispatcher, world.now, PRUNE_AFTER, 0.0))) == 10
