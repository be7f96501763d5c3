"""Commands in, changes out: what the rules make of commands, gathered to be applied as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from msgspec import Raw

from restante.mailbox.core import session
from restante.mailbox.core.model import Change, Decision, Mailbox, MailboxTouched, Now, Policy
from restante.mailbox.core.rules import PruneCommand, decide
from restante.mailbox.core.state import State
from restante.mailbox.store.interface import Store
from support.dice import FakeDice

APP = "x"


class Ledger:
    """Working memory: the folded state, and the changes that no store has seen yet."""

    def __init__(self, state: State, wall: float = 1_700_000_000.0, service: float = 0.0) -> None:
        self.state = state
        self.wall = wall
        self.service = service
        self.changes: list[Change] = []
        self._dice = FakeDice()

    @classmethod
    async def begin(cls, store: Store) -> Self:
        return cls(await store.view(), service=store.service)

    @property
    def now(self) -> Now:
        return Now(self.wall, self.service)

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.service += seconds

    def do(self, command: session.Command | PruneCommand) -> Decision:
        decision = decide(self.state, command, self.now, self._dice, Policy())
        self.note(*decision.changes)
        return decision

    def note(self, *changes: Change) -> None:
        for change in changes:
            self.state.fold(change)
            if not isinstance(change, MailboxTouched):  # as the dispatcher: a touch is worth no commit
                self.changes.append(change)

    async def commit(self, store: Store) -> Sequence[Change]:
        changes, self.changes = self.changes, []
        await store.apply(changes, self.now)
        return changes

    def bind(self, side: str, app: str = APP) -> None:
        self.do(session.BindCommand(app, side, ["python", "0.24.0"], None))
        self.state.arrive(app, side)

    def allocate(self, side: str, app: str = APP) -> str:
        return self.do(session.AllocateCommand(app, side)).name

    def claim(self, side: str, nameplate: str, app: str = APP) -> str:
        return self.do(session.ClaimCommand(app, side, nameplate)).name

    def release(self, side: str, nameplate: str, app: str = APP) -> None:
        self.do(session.ReleaseCommand(app, side, nameplate))

    def open(self, side: str, mailbox: str, app: str = APP) -> None:
        self.do(session.OpenCommand(app, side, mailbox))

    def add(
        self, side: str, mailbox: str, body: bytes, phase: bytes = b'"0"', msg_id: bytes = b"null", app: str = APP
    ) -> None:
        self.do(session.AddCommand(app, side, mailbox, Raw(phase), Raw(body), Raw(msg_id)))

    def close(self, side: str, mailbox: str, mood: str | None = "happy", app: str = APP) -> None:
        self.do(session.CloseCommand(app, side, mailbox, mood))

    def prune(self, mailbox: str, app: str = APP) -> None:
        self.do(PruneCommand(self.mailbox(mailbox, app)))

    def mailbox(self, mailbox: str, app: str = APP) -> Mailbox:
        return self.state.app(app).mailboxes[mailbox]
