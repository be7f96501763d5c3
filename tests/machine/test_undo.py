"""A batch that was not stored is undone: nothing of it is left but the connections that were lost in it."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from restante.common.errors import PeerError
from restante.common.refusals import RefusalCounts
from restante.mailbox.core import pruning
from restante.mailbox.core.connection_state import ConnectionState
from restante.mailbox.core.dispatcher import NOT_STORED, SERVICE_RESTART
from restante.mailbox.core.model import UNDONE, Now
from restante.mailbox.core.quotas import AddressQuota
from restante.mailbox.core.state import App
from support.effort import examples
from support.mailbox.givens import Inbox, Options
from support.mailbox.worlds import CoreWorld

SLOTS = 6
"""Those of slots 0 and 3 are of one side, and so on."""
SIDES = 3
APPS = ("x", "x", "x", "x", "x", "y")

TEXTS = (
    *("bind", "allocate", "allocate", "claim", "claim", "release", "open", "open", "open", "add", "add", "close"),
    *("list", "not json"),
)
OTHERS = ("lose", "deny", "prune", "save")

Deed = tuple[str, int, int]
deeds = st.tuples(st.sampled_from(TEXTS * 2 + OTHERS), st.integers(0, SLOTS - 1), st.integers(1, 2))


class UndoneWorld(CoreWorld):
    def __init__(self, *, in_grace_period: bool) -> None:
        super().__init__(Options(address="203.0.113.1"))
        self.dispatcher.state.in_grace_period = in_grace_period
        self.clients: dict[int, Inbox] = {}
        self.lost: list[tuple[int, Now]] = []
        self.seat_all()

    def seat_all(self) -> None:
        for slot in range(SLOTS):
            if slot not in self.clients:
                self.options = self.options._replace(address=f"203.0.113.{1 + slot % 2}")
                self.clients[slot] = self.connect()
                if slot not in (0, 5):
                    self.do([("bind", slot, 1)])
        self.commit()

    def commit(self) -> None:
        for connection in self.dispatcher.end_batch():
            connection.outbox = []

    def do(self, batch: list[Deed]) -> list[ConnectionState]:
        senders: list[ConnectionState] = []
        self.lost = []
        state = self.dispatcher.state
        for kind, slot, number in batch:
            self.advance(0.125)
            if slot not in self.clients:
                continue
            connection = self.clients[slot].connection
            if kind == "lose":
                self.dispatcher.lose(self.clients.pop(slot).connection, self.now())
                self.lost.append((slot, self.now()))
            elif kind == "deny":
                self.dispatcher.refuse_frame(connection, PeerError(1008, "not you", hint="go away"))
            elif kind == "prune":
                self.advance(20.0)
                next(pruning.prune_idle(self.dispatcher, self.now, 30.0, 0.0), None)
            elif kind == "save":
                next(pruning.save_touches(self.dispatcher), None)
            else:
                nameplate = state.app(APPS[slot]).nameplates.get(str(number))
                keys = {
                    "appid": APPS[slot],
                    "side": f"side{slot % SIDES}",
                    "nameplate": str(number),
                    "mailbox": nameplate.mailbox_id if nameplate is not None else f"m{number}",
                }
                text = json.dumps({"type": kind, "phase": "p", "body": "00", **keys})
                text = text if kind != "not json" else kind
                self.dispatcher.handle(connection, text, len(text), self.now())
                senders.append(connection)
        return senders

    def picture(self) -> dict[str, Any]:
        dispatcher = self.dispatcher
        state = {name: drawn(value) for name, value in vars(dispatcher.state).items() if not name.startswith("next_")}
        return {
            "state": state,
            "quotas": drawn(vars(dispatcher.quotas)),
            "addresses": [(quota.nameplates, quota.stored) for quota in self.admission.addresses.quotas.values()],
            "connections": {connection.number for connection in dispatcher.connections},
            "subscribers": {key: sorted(map(drawn, value)) for key, value in dispatcher.subscribers.items()},
            "sessions": {peer.number: (drawn(peer.session), peer.lost) for peer in self._inboxes},
        }


def drawn(value: Any) -> Any:
    if isinstance(value, ConnectionState):
        return value.number
    if isinstance(value, AddressQuota):
        return value.address_id
    if isinstance(value, App):
        counts = {length: count for length, count in value.counts_by_length.items() if count}
        slots = {name: drawn(getattr(value, name)) for name in App.__slots__ if name != "_listing"}
        return {**slots, "listing": value.listing(), "counts_by_length": counts}
    if isinstance(value, RefusalCounts):
        return vars(value).copy()
    if isinstance(value, msgspec.Struct):
        return {name: drawn(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {drawn(key): drawn(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(drawn(item) for item in value)
    return value.copy() if isinstance(value, set) else value


@given(
    before=st.lists(st.lists(deeds, min_size=6, max_size=16), min_size=1, max_size=6),
    refused=st.lists(deeds, min_size=3, max_size=16),
    in_grace_period=st.booleans(),
)
@example(before=[], refused=[("bind", 5, 1)], in_grace_period=True)
@example(  # a side that has two nameplates claims the first
    before=[[("bind", 0, 1)], [("allocate", 0, 1)], [("allocate", 3, 1)]],
    refused=[("claim", 0, 1)],
    in_grace_period=False,
)
@example(  # a side is told again which nameplate it has
    before=[[("bind", 0, 1)], [("allocate", 0, 1), ("lose", 0, 1)]],
    refused=[("allocate", 3, 1)],
    in_grace_period=False,
)
@example(  # a third side leaves its mark
    before=[[("claim", 1, 1), ("claim", 2, 1)]], refused=[("claim", 3, 1)], in_grace_period=False
)
@examples(200)
def test_nothing_is_left_of_a_batch_that_was_undone(
    before: list[list[Deed]], refused: list[Deed], in_grace_period: bool
) -> None:
    with (
        closing(UndoneWorld(in_grace_period=in_grace_period)) as world,
        closing(UndoneWorld(in_grace_period=in_grace_period)) as other,
    ):
        for twin in (world, other):
            for batch in before:
                twin.do(batch)
                twin.commit()
                twin.seat_all()
        dispatcher = world.dispatcher
        verdicts = {inbox.connection: inbox.connection.verdict for inbox in world.clients.values()}
        senders = world.do(refused)
        departing = [connection for connection in dispatcher.with_output if verdicts[connection] is not None]
        commands = len(dispatcher.batch.carried_out) + len(dispatcher.batch.not_carried_out)
        dispatcher.undo_batch()
        assert [outcome for _, outcome in dispatcher.batch.not_carried_out] == [UNDONE] * commands
        assert dispatcher.with_output == departing
        assert all(connection.outbox for connection in departing)
        assert all(connection.verdict == verdict for connection, verdict in verdicts.items())
        for sender in senders:
            dispatcher.close_sender(sender)
        for connection in dispatcher.end_batch():
            if verdicts[connection] is None:
                assert (connection.outbox, connection.lost) == ([], False)
                assert connection.verdict is not None
                assert (connection.verdict.code, connection.verdict.text) == (SERVICE_RESTART, NOT_STORED)
        # The other world has lost the same connections at the same times, and has heard nothing else.
        for slot, now in world.lost:
            other.dispatcher.lose(other.clients.pop(slot).connection, now)
        other.commit()
        assert world.picture() == other.picture()
        assert dispatcher.changes == []
