"""The desk: takes what connections say, one thing after the other, and notes what each is to be told.

Everything here is synchronous and does no I/O. What is in an `outbox` must not leave before the changes in
`changes` are durable; the office sees to that. A batch means what its commands mean one after the other, because
each is decided on the state that the one before it left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from msgspec import Raw
from msgspec.structs import replace

from restante.errors import PeerError
from restante.mailbox import messages, model, session
from restante.mailbox.messages import Malformed, Received
from restante.mailbox.model import Change, Decision, Dice, Mailbox, Now, Policy
from restante.mailbox.rules import Prune, decide
from restante.mailbox.session import FRESH, Command, Session
from restante.mailbox.state import State

OUR_FAULT: Final = "internal error"


class Line(Protocol):
    """The socket's end of a connection."""

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        """Send each body with the stamp behind it, in one write."""

    def hang_up(self, code: int, reason: str) -> None:
        """Close the WebSocket after all that was sent."""


class _Nowhere:
    """The line of a connection that is lost; to let go of the real one leaves no cycle for the collector."""

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        pass

    def hang_up(self, code: int, reason: str) -> None:
        pass


NOWHERE: Final = _Nowhere()


class Connection:
    """The desk's end of a connection."""

    __slots__ = ("line", "lost", "outbox", "session", "verdict")

    def __init__(self, line: Line) -> None:
        self.line: Line = line
        self.session: Session = FRESH
        self.outbox: list[bytes] = []
        """Encoded replies, lacking their stamp."""
        self.verdict: PeerError | None = None
        """Why the connection is to be closed; nothing more is taken from it."""
        self.lost = False


class Desk:
    """Sessions, subscribers, and the batch at hand."""

    def __init__(self, state: State, dice: Dice, policy: Policy) -> None:
        self.state = state
        self.dice = dice
        self.policy = policy
        self.connections: set[Connection] = set()
        self.changes: list[Change] = []
        """What is to be made durable before anything is said. Touches are not worth it."""
        self.told: list[Connection] = []
        """Connections with something in their outbox, or a verdict."""
        self.subscribers: dict[int, list[Connection]] = {}
        """Who has a mailbox open, by its key."""
        self.faults: list[Exception] = []
        """What went wrong inside the rules in this batch; they are pure, so nothing else is touched."""
        self._before: dict[Connection, Session] = {}

    # ── what comes in ────────────────────────────────────────────────────────────────────────────

    def meet(self, connection: Connection) -> None:
        self.connections.add(connection)

    def take(self, connection: Connection, text: str, now: Now) -> None:
        """Take one frame's text; `now` is when it came."""
        try:
            message = self._read(connection, text)
            if message is None:
                return
            command = session.step(connection.session, message)
            if isinstance(command, str):
                self._say(connection, messages.Error(command, Raw(text)))
                return
            decision = decide(self.state, command, now, self.dice, self.policy)
        except Exception as fault:  # noqa: BLE001 - our bug must not become everybody's; nothing was changed yet
            self.faults.append(fault)
            self._say(connection, messages.Error(OUR_FAULT, messages.NULL))
            connection.verdict = PeerError(1011, OUR_FAULT)
            return
        self._settle(decision.changes)
        self._move(connection, command, decision)
        if decision.error is not None:
            self._say(connection, messages.Error(decision.error, Raw(text)))
            return
        reply = _ANSWERS[type(command)](self, command, decision, message.id, now.wall)
        if reply is not None:
            self._say(connection, reply)

    def listing(self, app_id: str) -> Raw:
        return Raw(self.state.app(app_id).listing() if self.policy.list_nameplates else b"[]")

    def lose(self, connection: Connection, now: Now) -> None:
        """Take note that a connection is gone."""
        self.connections.discard(connection)
        connection.lost = True
        connection.line = NOWHERE
        said = connection.session
        if said.app_id is None:
            return
        app = self.state.app(said.app_id)
        if said.allocated is not None and app.answered.get(said.allocated) is connection:
            del app.answered[said.allocated]
        if said.subscribed is not None:
            self._unsubscribe(connection, said.subscribed)
            mailbox = app.mailboxes.get(said.mailbox_id or "")
            if mailbox is not None:  # its idleness begins now
                self.note(model.MailboxTouched(mailbox, now.service))
        self.state.leave(said.app_id, said.side)

    def note(self, change: Change) -> None:
        """Take a change that is nobody's command."""
        self._settle([change])

    def prune(self, mailbox: Mailbox, now: Now) -> None:
        """End a mailbox that has been idle for too long."""
        self._settle(decide(self.state, Prune(mailbox), now, self.dice, self.policy).changes)

    def refuse_frame(self, connection: Connection, error: PeerError) -> None:
        """Answer what is no message at all, and have the connection closed."""
        if connection.verdict is None:
            self._say(connection, messages.Error(error.words, messages.NULL))
            connection.verdict = error

    # ── what comes of it ─────────────────────────────────────────────────────────────────────────

    def _read(self, connection: Connection, text: str) -> Received | Malformed | None:
        """Parse and acknowledge; None where there is nothing to do, or nothing more to be done."""
        if connection.verdict is not None or connection.lost:
            return None
        try:
            message = messages.parse(text)
        except PeerError as error:
            self.refuse_frame(connection, error)
            return None
        if not (isinstance(message, Malformed) and message.kind is None):
            self._say(connection, messages.Ack(message.id))
        return message

    def _say(self, connection: Connection, reply: messages.Reply) -> None:
        self._tell(connection, messages.encode(reply))

    def _tell(self, connection: Connection, body: bytes) -> None:
        if connection.verdict is not None:
            return  # the error was the last word
        if not connection.outbox:
            self.told.append(connection)
        connection.outbox.append(body)

    def _settle(self, changes: list[Change]) -> None:
        """Fold changes in, and let those who are subscribed know."""
        for change in changes:
            self.state.fold(change)
            if type(change) is not model.MailboxTouched:
                self.changes.append(change)
            if type(change) is model.MessageAdded:
                for subscriber in self.subscribers.get(change.mailbox.key, ()):
                    self._tell(subscriber, change.message.wire)
            elif type(change) is model.MailboxGone:
                for subscriber in self.subscribers.pop(change.mailbox.key, ()):
                    self._become(subscriber, replace(subscriber.session, subscribed=None))

    def _move(self, connection: Connection, command: Command, decision: Decision) -> None:
        """Move the connection's session on, and keep who is here and who has what open in step with it."""
        before = connection.session
        after = session.after(before, command, decision)
        if after is not before:
            self._become(connection, after)
        if decision.error is not None:
            return
        if decision.mailbox is not None:
            self.subscribers.setdefault(decision.mailbox.key, []).append(connection)
            for message in decision.mailbox.messages:
                self._tell(connection, message.wire)
        elif before.subscribed is not None and connection.session.subscribed is None:
            self._unsubscribe(connection, before.subscribed)
        if type(command) is session.Bind:
            self.state.arrive(command.app_id, command.side)
        elif type(command) is session.Allocate:
            self.state.app(command.app_id).answered[decision.name] = connection

    def _unsubscribe(self, connection: Connection, key: int) -> None:
        rest = self.subscribers.get(key)
        if rest is not None and connection in rest:
            rest.remove(connection)
            if not rest:
                del self.subscribers[key]

    def _become(self, connection: Connection, said: Session) -> None:
        """Move a connection's session on, remembering what it was before this batch."""
        self._before.setdefault(connection, connection.session)
        connection.session = said

    # ── the end of a batch ───────────────────────────────────────────────────────────────────────

    def turn(self) -> list[Connection]:
        """End the batch: it is durable. Gives the connections that have something to be told."""
        told, self.told = self.told, []
        self.changes = []
        self.faults = []
        self._before = {}
        return told

    def undo(self, state: State) -> None:
        """End the batch: nothing of it was stored. Go back to what was, on a state that was read anew."""
        for connection in self.told:
            connection.outbox = []
            connection.verdict = None
        for connection, said in self._before.items():
            connection.session = said
        self.turn()
        state.next_key = max(state.next_key, self.state.next_key)  # no key is given twice
        self.state = state
        self.subscribers = {}
        for connection in self.connections:
            said = connection.session
            if said.app_id is None:
                continue
            state.arrive(said.app_id, said.side)
            app = state.app(said.app_id)
            if said.allocated is not None and said.allocated in app.nameplates:
                app.answered[said.allocated] = connection
            if said.subscribed is not None:
                self.subscribers.setdefault(said.subscribed, []).append(connection)

    def refuse(self, connection: Connection, text: str, words: str) -> None:
        """Answer a command that could not be stored, after `undo`."""
        message = self._read(connection, text)
        if message is None:
            return
        self._say(connection, messages.Error(words, Raw(text)))


_Answer = Callable[[Desk, Any, Decision, Raw, float], messages.Reply | None]
_ANSWERS: Final[dict[type[Command], _Answer]] = {
    session.Bind: lambda *_: None,
    session.List: lambda desk, c, _, i, t: messages.Nameplates(i, t, desk.listing(c.app_id)),
    session.Allocate: lambda _, __, d, i, t: messages.Allocated(i, t, d.name),
    session.Claim: lambda _, __, d, i, t: messages.Claimed(i, t, d.name),
    session.Release: lambda _, __, ___, i, t: messages.Released(i, t),
    session.Open: lambda *_: None,
    session.Add: lambda *_: None,
    session.Close: lambda _, __, ___, i, t: messages.Closed(i, t),
    session.Ping: lambda _, c, __, i, t: messages.Pong(i, t, c.ping),
}
"""The direct response to a command that was carried out; what `open` and `add` get are messages."""
