"""Pruning goes on while clients do what they do: between two slices anything may come, go, or be made anew.

The machine prunes in one go; here a slice is one mailbox, and each slice and each command is committed by itself.
`--effort N` looks N times as hard (effort.py).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.mailbox.core import pruning
from restante.mailbox.core.dispatcher import Dispatcher
from restante.mailbox.core.model import Now, Policy
from restante.mailbox.store.schema import connect
from restante.mailbox.store.sqlite import Store
from support.dice import FakeDice
from support.effort import examples
from support.mailbox.givens import Inbox
from support.mailbox.picture import picture

PRUNE_AFTER = 600.0
BOXES = 6


class PruningScene:
    """A dispatcher over a store, and one mailbox for each of a few clients, who have it open or have left."""

    def __init__(self, store: Store, dispatcher: Dispatcher) -> None:
        self.store = store
        self.dispatcher = dispatcher
        self.service = 0.0
        self.inboxes: dict[int, Inbox] = {}
        self.used: set[int] = set()
        """Keys of the mailboxes that clients touched, since this was last cleared."""
        self.ended: set[int] = set()
        """Of those that they ended."""

    def now(self) -> Now:
        return Now(1_700_000_000.0 + self.service, self.service)

    def say(self, box: int, kind: str, **keys: Any) -> None:
        if box not in self.inboxes:
            inbox = self.inboxes[box] = Inbox()
            self.dispatcher.add_connection(inbox.connection)
            self.say(box, "bind", appid="x", side=f"side{box}")
        self.dispatcher.handle(self.inboxes[box].connection, json.dumps({"type": kind, **keys}), self.now())

    def touches(self) -> dict[int, float]:
        return {mailbox.key: mailbox.touched for mailbox in self.dispatcher.state.mailboxes()}

    def deserted(self) -> set[int]:
        """Keys of the mailboxes that pruning must end."""
        touches = self.touches()
        return {key for key in touches if self.service - touches[key] > PRUNE_AFTER} - set(
            self.dispatcher.subscribers
        )

    def do(self, box: int, deed: str) -> None:
        self.service += 0.125  # so that a touch can be told from the one before
        before = self.touches()
        self._do(box, deed)
        after = self.touches()
        self.used |= {key for key in after if after[key] != before.get(key)}
        self.ended |= set(before) - set(after)

    def _do(self, box: int, deed: str) -> None:
        if deed == "open":
            self.say(box, "open", mailbox=f"m{box}")
        elif deed == "add":
            self.say(box, "add", phase="p", body="00")
        elif deed == "close":
            self.say(box, "close", mailbox=f"m{box}", mood="happy")
        elif deed == "claim":
            self.say(box, "claim", nameplate=str(box))
        elif deed == "release":
            self.say(box, "release", nameplate=str(box))
        elif box in self.inboxes:
            self.dispatcher.lose(self.inboxes.pop(box).connection, self.now())

    async def commit(self) -> None:
        assert self.dispatcher.internal_errors == []
        if self.dispatcher.changes:
            await self.store.apply(self.dispatcher.changes, self.now())
        for connection in self.dispatcher.end_batch():
            connection.outbox = []
        found, state = await self.store.view(), self.dispatcher.state
        assert picture(found, touches=False) == picture(state, touches=False)
        for mailbox in found.mailboxes():
            live = state.app(mailbox.app_id).mailboxes[mailbox.mailbox_id]
            assert mailbox.touched == live.touched or mailbox.key in state.unsaved


deeds = st.tuples(
    st.integers(0, BOXES - 1), st.sampled_from(("open", "open", "add", "close", "close", "claim", "release", "lose"))
)


@pytest.fixture(autouse=True)
def slices_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "SLICE_WEIGHT", 1)


async def prune_a_scene(
    before: list[tuple[int, str]], late: list[tuple[int, str]], meanwhile: list[list[Any]]
) -> None:
    store = Store(connect(":memory:"))
    try:
        scene = PruningScene(store, Dispatcher(await store.view(), FakeDice(), Policy()))
        dispatcher, state = scene.dispatcher, scene.dispatcher.state
        for deed in before:
            scene.do(*deed)
            await scene.commit()
        scene.service += PRUNE_AFTER + 1.0
        for deed in late:
            scene.do(*deed)
            await scene.commit()
        deserted = scene.deserted()
        pruned: set[int] = set()
        scene.used.clear()
        scene.ended.clear()

        slices = iter(meanwhile)
        known = set(scene.touches())
        for _ in pruning.prune_idle(dispatcher, scene.now, PRUNE_AFTER, 0.0):
            await scene.commit()
            pruned |= known - set(scene.touches())
            for deed in next(slices, []):
                scene.do(*deed)
                await scene.commit()
            known = set(scene.touches())
            scene.service += 0.25
        await scene.commit()
        pruned |= known - set(scene.touches())

        assert pruned <= deserted, "somebody was there, or had been lately"
        assert deserted - pruned <= scene.used | scene.ended, "nobody used it, and it is still there"
        assert not set(scene.touches()) & pruned
        assert store.database.execute("SELECT count(*) FROM usage_mailboxes WHERE result = 'pruney'").fetchone() == (
            len(pruned),
        )
        assert store.database.execute("SELECT connections_websocket FROM usage_current").fetchone() == (
            sum(map(len, dispatcher.subscribers.values())),
        )
        assert set(state.unsaved) <= scene.used
        for key in dispatcher.subscribers:
            assert scene.touches()[key] >= PRUNE_AFTER
    finally:
        await store.close()


@given(
    st.lists(deeds, max_size=20),
    st.lists(deeds, max_size=6),
    st.lists(st.lists(deeds, max_size=3), max_size=12) | st.just([]),
)
@examples(60)
def test_pruning_ends_idle_mailboxes_only(
    before: list[tuple[int, str]], late: list[tuple[int, str]], meanwhile: list[list[Any]]
) -> None:
    asyncio.run(prune_a_scene(before, late, meanwhile))


async def test_looking_into_an_app_counts_in_a_slice() -> None:
    """A list of all mailboxes was made first: of 200,000 in as many apps in 76 ms."""
    store = Store(connect(":memory:"))
    try:
        dispatcher = Dispatcher(await store.view(), FakeDice(), Policy())
        for number in range(10):
            dispatcher.state.arrive(f"app {number}", "a")
        slices = list(pruning.prune_idle(dispatcher, lambda: Now(0.0, 0.0), PRUNE_AFTER, 0.0))
        assert len(slices) == 10
    finally:
        await store.close()
