"""The dispatcher: it handles what connections send, one item after the other, and records what each is answered.

Everything here is synchronous and does no I/O. The content of an `outbox` must not be sent before the changes in
`changes` are durable; the commit loop ensures that. A batch has the same result as its commands one by one, because
each command is decided on the state that the previous one left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec import UNSET, Raw
from msgspec.structs import replace

from restante.common.dice import Dice
from restante.common.errors import PeerError
from restante.common.refusals import Refusal
from restante.common.usage_records import ClientVersion
from restante.mailbox.core import model, session
from restante.mailbox.core.connection_state import LOST_SOCKET, ConnectionState
from restante.mailbox.core.model import (
    ERROR,
    FAILED,
    OK,
    REFUSED,
    UNDONE,
    BatchCounts,
    Change,
    Decision,
    Mailbox,
    MailboxTouched,
    Now,
    Policy,
)
from restante.mailbox.core.quotas import DENIAL_ABUSE_SCORE, AddressQuota, Quotas
from restante.mailbox.core.rules import RULES, PruneCommand, decide
from restante.mailbox.core.session import AddCommand, Command, Session
from restante.mailbox.core.state import FOLDS, State
from restante.mailbox.protocol import messages, parsing
from restante.mailbox.protocol.frame_text import FrameText
from restante.mailbox.protocol.messages import Received
from restante.mailbox.protocol.parsing import Malformed
from restante.mailbox.protocol.refusals import DENIED, MAILBOX_FULL, SERVER_FULL, TOO_MANY_RECORDS

INTERNAL_ERROR: Final = "internal error"
NOT_STORED: Final = "the server could not store this, try again"
SERVICE_RESTART: Final = 1012
"""The close code after which a client may connect again (IANA's registry of WebSocket close codes)."""

TRY_AGAIN_LATER: Final = 1013
CLEANUP_CLOSE_CODES: Final = frozenset({1008, TRY_AGAIN_LATER})
"""Close codes before which a rejected client may release and close."""

MAX_SUBSCRIBERS: Final = 32
"""Connections that have one mailbox open. A mailbox is for two sides, but a side may have more connections that are
dead and not detected yet."""


FRAME_WEIGHT: Final = 700
"""Weight of a frame that is sent, in addition to its bytes: to queue, stamp and write one takes 3 µs."""

MESSAGE_GONE_WEIGHT: Final = 100
"""Weight of each message of a mailbox that ends: to delete and free one takes some 0.3 µs."""

MAX_DEPARTING_COMMANDS: Final = 16
MAX_DEPARTING_CHARACTERS: Final = 4096
"""Commands that are examined after a connection was refused, and the maximum length of each. The Python client sends
five short ones before it has read the refusal, and two after that."""


class Dispatcher:
    """Sessions, subscribers, and the current batch."""

    def __init__(self, state: State, dice: Dice, policy: Policy) -> None:
        self.state = state
        self.dice = dice
        self.policy = policy
        self.connections: set[ConnectionState] = set()
        self.connections_seen = 0
        """Connections since the start."""
        self.last_message: Received | Malformed | None = None
        """The message of the last frame; None if the frame was not a message."""
        self.changes: list[Change] = []
        """Changes to make durable before any reply is sent. Touches are not among them: they may be lost."""
        self.with_output: list[ConnectionState] = []
        """Connections with messages in their outbox, or with a verdict."""
        self.subscribers: dict[int, list[ConnectionState]] = {}
        """The connections that have a mailbox open, by its key."""
        self.quotas = Quotas()
        self._weight = 0
        """The weight of what the last command did, in addition to its bytes."""
        self.cost = 0
        """Bytes of the last command, and bytes that it made the server send, to all connections."""
        self.internal_errors: list[Exception] = []
        """Errors inside the rules in this batch. The rules are pure, so an error leaves the state as it was."""
        self.batch = BatchCounts()
        self._before: dict[ConnectionState, Session] = {}
        """The sessions of connections that this batch has changed or lost, as they were before it."""
        self._sent_away: list[ConnectionState] = []
        """Connections that were given a verdict in this batch."""
        self._lost: list[tuple[ConnectionState, Now]] = []
        """Connections that were lost in this batch, and when."""
        self._parsed: tuple[FrameText, Received | Malformed | PeerError] | None = None
        """The text that `parse_ahead` parsed last, and its message or error."""

    # ── input ────────────────────────────────────────────────────────────────────────────────────

    def add_connection(self, connection: ConnectionState) -> None:
        """Assign the next number, from 1, to a new connection, and handle its commands from now on."""
        self.connections_seen += 1
        connection.number = self.connections_seen
        self.connections.add(connection)

    def restore_connection(self, connection: ConnectionState, *, answered: bool) -> None:
        """Handle the commands of a connection that another process has left.

        `answered`: whether it was sent the answer to its `allocate`.
        """
        self.connections.add(connection)
        session_before = connection.session
        if session_before.app_id is None:
            return
        self.state.arrive(session_before.app_id, session_before.side)
        if session_before.subscribed is not None:
            self.subscribers.setdefault(session_before.subscribed, []).append(connection)
        if answered and session_before.allocated is not None:
            self.state.apps[session_before.app_id].answered[session_before.allocated] = connection

    def parse_ahead(self, connection: ConnectionState, text: FrameText) -> None:
        """Parse a text that `handle` will be called with next, because both together take long."""
        if connection.verdict is not None or connection.lost:
            return
        try:
            self._parsed = text, parsing.attempt(text)
        except Exception:  # noqa: BLE001 - our bug: `handle` parses the text again, and closes the connection
            self._parsed = None

    def handle(self, connection: ConnectionState, text: FrameText, size: int, now: Now) -> int:
        """Handle the text of one frame, of `size` bytes of memory (`size_of`), which arrived at `now`.

        Return its weight in the batch: its bytes, the bytes sent for it, and the weight of other work.
        """
        self.cost, self._weight = size, 0
        if connection.verdict is not None:
            self._answer_departing(connection, text, now)
        elif not connection.lost:
            self.last_message = None
            outcome = self._handle(connection, text, now)
            if outcome is OK:
                self.batch.carried_out.append(type(self.last_message))
            else:
                self.batch.not_carried_out.append((type(self.last_message), outcome))
        return self._weight + self.cost

    def _handle(self, connection: ConnectionState, text: FrameText, now: Now) -> str:
        """Handle the text of a frame of an open connection, and return the outcome."""
        try:
            message = parsing.attempt(text) if self._parsed is None else self._parsed_before(text)
            if isinstance(message, PeerError):
                return self.refuse_frame(connection, message)
            self.last_message = message
            if type(message) is not Malformed or message.kind is not None:
                self._send(connection, messages.ACK + message.id)
            # Nobody reads the list of a closed connection, and it takes 1 to 5 ms if nameplates have changed.
            if connection.gone and type(message) is messages.List:
                return OK
            command = session.step(connection.session, message)
            if type(command) is Refusal:
                return self._reject(connection, command, text, now)
            quotas = connection.address_quotas
            refusal = self._charge(quotas, command, now) if quotas else None
            if refusal is None:
                decision = RULES[type(command)](self.state, command, now, self.dice, self.policy)
                mailbox = decision.mailbox
                refusal = None if mailbox is None else self._refusal_of_subscriber(mailbox)
            if refusal is not None:
                self._end_others(connection, command, refusal)
                return self._reject(connection, refusal, text, now)
        except Exception as error:  # noqa: BLE001 - our bug must stay with one connection; nothing was changed yet
            self.internal_errors.append(error)
            self._reply(connection, messages.Error(INTERNAL_ERROR, messages.NULL))
            self._send_away(connection, PeerError(1011, INTERNAL_ERROR))
            return FAILED
        self._apply(decision.changes, now, quotas)
        self._advance(connection, command, decision)
        if decision.refusal is not None:
            self._end_others(connection, command, decision.refusal)
            return self._reject(connection, decision.refusal, text, now)
        reply = command.response(decision, message.id, now.wall)
        if reply is not None:
            self._send(connection, messages.encode(reply))
        return OK

    def _send_away(self, connection: ConnectionState, verdict: PeerError) -> None:
        """Have a connection closed after what is sent to it."""
        connection.verdict = verdict
        self._sent_away.append(connection)

    def _reject(self, connection: ConnectionState, refusal: Refusal, text: FrameText, now: Now) -> str:
        """Answer a command that is refused, and return the outcome.

        A connection that does not meet its demand is closed.
        """
        self._reply(connection, messages.Error(refusal.message, Raw(text), refusal.hint or UNSET))
        if not refusal.reason:
            return ERROR
        self.batch.refused.append((refusal.reason, connection.session.address_id))
        if refusal.reason == DENIED.reason:
            self._send_away(connection, DENIED.error(1008, refusal.hint))
            for quota in connection.address_quotas:
                quota.add_abuse_score(now.service, DENIAL_ABUSE_SCORE)
        return REFUSED

    def _end_others(self, connection: ConnectionState, command: Command, refusal: Refusal) -> None:
        """Send the refusal of an `add` to the other subscribers, too, if the server is full.

        The sender's client ends with it. Without it, the other side's would wait for ever.
        """
        if refusal.reason == SERVER_FULL.reason and type(command) is AddCommand:
            for other in self.subscribers.get(connection.session.subscribed or 0, ()):
                if other is not connection:
                    self._reply(other, messages.Error(refusal.message, messages.NULL, refusal.hint))

    def _charge(self, address_quotas: tuple[AddressQuota, ...], command: Command, now: Now) -> Refusal | None:
        """Charge a command to all its addresses. Return the first refusal."""
        first_refusal = None
        for quota in address_quotas:
            refusal = self.quotas.charge_command(self.state, quota, command, now, self.policy.limits)
            first_refusal = first_refusal or refusal
        return first_refusal

    def _refusal_of_subscriber(self, mailbox: Mailbox) -> Refusal | None:
        """Return the refusal of another connection that opens a mailbox, if too many have it open."""
        if len(self.subscribers.get(mailbox.key, ())) < MAX_SUBSCRIBERS:
            return None
        return MAILBOX_FULL.refusal(f"{MAX_SUBSCRIBERS} connections have it open already")

    def _answer_departing(self, connection: ConnectionState, text: FrameText, now: Now) -> None:
        """Acknowledge `release`, `close` and `ping` of a client that was refused, and carry out nothing.

        The Python client releases its nameplate as soon as it is refused, and reconnects for ever until that is
        answered (mailbox reference client _terminator.py, 0.24.0). A client that sends more than it needs for that is
        not read any more.
        """
        if connection.lost or connection.verdict is None or connection.verdict.code not in CLEANUP_CLOSE_CODES:
            return
        connection.departing_commands += 1
        if connection.departing_commands > MAX_DEPARTING_COMMANDS or len(text) > MAX_DEPARTING_CHARACTERS:
            connection.socket.ignore()
            return
        try:
            message = parsing.parse(text)
        except PeerError:
            return
        reply: messages.Reply
        match message:
            case messages.Release():
                reply = messages.Released(message.id, now.wall)
            case messages.Close():
                reply = messages.Closed(message.id, now.wall)
            case messages.Ping():
                reply = messages.Pong(message.id, now.wall, message.ping)
            case _:
                return
        if not connection.outbox:
            self.with_output.append(connection)
        connection.outbox += map(messages.encode, (messages.Ack(message.id), reply))

    def lose(self, connection: ConnectionState, now: Now) -> None:
        """Record that a connection is lost."""
        self._before.setdefault(connection, connection.session)
        self._lost.append((connection, now))
        self.connections.discard(connection)
        connection.lost = True
        connection.socket = LOST_SOCKET
        session_before = connection.session
        if session_before.app_id is None:
            return
        app = self.state.app(session_before.app_id)
        if session_before.allocated is not None and app.answered.get(session_before.allocated) is connection:
            del app.answered[session_before.allocated]
        if session_before.subscribed is not None:
            self._unsubscribe(connection, session_before.subscribed)
            mailbox = app.mailboxes.get(session_before.mailbox_id or "")
            if mailbox is not None:  # its idle time begins now
                self.apply_change(model.MailboxTouched(mailbox, now.service))
        self.state.leave(session_before.app_id, session_before.side)

    def apply_change(self, change: Change) -> None:
        """Apply a change that no command caused, and that has no consequences outside of the state."""
        self.state.fold(change)
        if type(change) is not MailboxTouched:
            self.changes.append(change)

    def prune(self, mailbox: Mailbox, now: Now) -> None:
        """End a mailbox that has been idle for too long."""
        self.batch.pruned += 1
        self._apply(decide(self.state, PruneCommand(mailbox), now, self.dice, self.policy).changes, now)

    def refuse_frame(self, connection: ConnectionState, error: PeerError) -> str:
        """Answer a frame that is not a message, and have the connection closed. Return the outcome."""
        if connection.verdict is None:
            retry = True if error.code == TRY_AGAIN_LATER else UNSET
            self._reply(connection, messages.Error(error.text, messages.NULL, error.hint or UNSET, retry))
            # Not the error that was raised: its traceback holds the frame's text, and a cycle back to the connection.
            self._send_away(connection, PeerError(error.code, error.text))
            if error.reason:
                self.batch.refused.append((error.reason, connection.session.address_id))
        return REFUSED if error.reason else ERROR

    # ── output ───────────────────────────────────────────────────────────────────────────────────

    def _parsed_before(self, text: FrameText) -> Received | Malformed | PeerError:
        """Return what `parse_ahead` has made of a text, or parse it."""
        assert self._parsed is not None
        (parsed_text, message), self._parsed = self._parsed, None
        return message if parsed_text is text else parsing.attempt(text)

    def _reply(self, connection: ConnectionState, reply: messages.Reply) -> None:
        self._send(connection, messages.encode(reply))

    def _send(self, connection: ConnectionState, body: bytes) -> None:
        if connection.verdict is not None:
            return  # the error was the last message
        outbox = connection.outbox
        if not outbox:
            self.with_output.append(connection)
        outbox.append(body)
        self.cost += len(body)
        self._weight += FRAME_WEIGHT

    def _apply(self, changes: list[Change], now: Now, address_quotas: tuple[AddressQuota, ...] = ()) -> None:
        """Apply changes, except usage records beyond what an address may cause."""
        state, applied = self.state, self.changes
        for change in changes:
            kind = type(change)
            if kind in _RECORDED and not self._record(change, now, address_quotas):
                continue
            fold = FOLDS.get(kind)
            if fold is not None:
                fold(state, change)
            if kind is not MailboxTouched:
                applied.append(change)
                follow = _CONSEQUENCES.get(kind)
                if follow is not None:
                    follow(self, change)
        if address_quotas:
            self.quotas.record_made(address_quotas, changes)

    def _record(self, change: Change, now: Now, address_quotas: tuple[AddressQuota, ...]) -> bool:
        """Count what ends, and remove a record that may not be stored. Return whether something is left."""
        if type(change) is model.MailboxGone or type(change) is model.NameplateGone:
            assert change.usage is not None
            self.batch.usage.append(change.usage)
            if not self._may_record(change, now, address_quotas):
                change.usage = None
            return True
        return self._may_record(change, now, address_quotas)

    def _may_record(self, change: Change, now: Now, address_quotas: tuple[AddressQuota, ...]) -> bool:
        """Charge the usage record of a change, and return whether it may be stored."""
        for quota in self.quotas.payers(change, address_quotas):
            if not quota.charge_record(now.service, self.policy.limits):
                self.batch.refused.append((TOO_MANY_RECORDS.reason, quota.address_id))
                return False
        return True

    def _message_added(self, change: model.MessageAdded) -> None:
        mailbox, message = change.mailbox, change.message
        self.batch.added.append(change.touched)
        self._deliver(self.subscribers.get(mailbox.key, ()), mailbox, message)

    def _mailbox_side_set(self, change: model.MailboxSideSet) -> None:
        self._weight += change.mailbox.names

    def _mailbox_gone(self, change: model.MailboxGone) -> None:
        self.quotas.forget_mailbox(change.mailbox.key)
        self._weight += len(change.mailbox.messages) * MESSAGE_GONE_WEIGHT
        for subscriber in self.subscribers.pop(change.mailbox.key, ()):
            self._set_session(subscriber, replace(subscriber.session, subscribed=None))

    def _nameplate_gone(self, change: model.NameplateGone) -> None:
        self.quotas.forget_nameplate(change.nameplate.key)

    def _advance(self, connection: ConnectionState, command: Command, decision: Decision) -> None:
        """Move the connection's session on, and update connected sides and subscribers accordingly."""
        if type(command) is AddCommand:
            return
        before = connection.session
        after = command.after(before, decision)
        if after is not before:
            self._set_session(connection, after)
            self.batch.solved += before.demand is not after.demand
        if decision.refusal is not None:
            return
        if decision.mailbox is not None:
            self.subscribers.setdefault(decision.mailbox.key, []).append(connection)
            for message in decision.mailbox.messages:
                self._deliver((connection,), decision.mailbox, message)
        elif before.subscribed is not None and connection.session.subscribed is None:
            self._unsubscribe(connection, before.subscribed)
        if type(command) is session.BindCommand:
            self.state.arrive(command.app_id, command.side)
        elif type(command) is session.AllocateCommand:
            app = self.state.app(command.app_id)
            self.state.remember_nameplate(app.nameplates[decision.name])
            app.answered[decision.name] = connection

    def _deliver(
        self, subscribers: Iterable[ConnectionState], mailbox: Mailbox, message: model.StoredMessage
    ) -> None:
        """Send a message to connections, as `_send` does, and remember their sides."""
        sender, wire, with_output = message.side, message.wire, self.with_output
        sent = 0
        for subscriber in subscribers:
            if subscriber.verdict is not None:
                continue
            side = subscriber.session.side
            if side != sender and side not in mailbox.recipients:
                self.state.remember_mailbox(mailbox)
                mailbox.recipients = [*mailbox.recipients, side]
            outbox = subscriber.outbox
            if not outbox:
                with_output.append(subscriber)
            outbox.append(wire)
            sent += 1
        self.cost += sent * len(wire)
        self._weight += sent * FRAME_WEIGHT

    def _unsubscribe(self, connection: ConnectionState, key: int) -> None:
        subscribers = self.subscribers.get(key)
        if subscribers is not None and connection in subscribers:
            subscribers.remove(connection)
            if not subscribers:
                del self.subscribers[key]

    def _set_session(self, connection: ConnectionState, new_session: Session) -> None:
        """Replace a connection's session, remembering the one from before this batch."""
        self._before.setdefault(connection, connection.session)
        connection.session = new_session

    # ── the end of a batch ───────────────────────────────────────────────────────────────────────

    def end_batch(self) -> list[ConnectionState]:
        """End a durable batch: count what was refused. Return the connections that have something to send."""
        self.quotas.count_batch(self.batch)
        self.state.end_batch()
        with_output, self.with_output = self.with_output, []
        self.changes = []
        self.internal_errors = []
        self.batch.clear()
        self._before = {}
        self._sent_away = []
        self._lost = []
        return with_output

    def undo_batch(self) -> None:
        """Undo a batch that was not stored, and discard its replies.

        Afterwards all is as if the batch had only lost the connections that were lost in it. Rates, keys and sequence
        numbers that it used stay used.
        """
        undone = [*self.batch.carried_out, *(kind for kind, _ in self.batch.not_carried_out)]
        for connection in self._sent_away:
            connection.verdict = None
        # A client that was sent away before this batch is still told that it was released (`_answer_departing`).
        departing = [connection for connection in self.with_output if connection.verdict is not None]
        for connection in self.with_output:
            if connection.verdict is None:
                connection.outbox = []
        self.state.undo_batch()
        self.quotas.undo_batch()
        for connection, before in self._before.items():
            self._restore_session(connection, before)
        lost = self._lost
        self.batch.clear()
        self.end_batch()
        self.with_output = departing
        for connection, now in lost:
            self.lose(connection, now)
        self.batch.not_carried_out += [(kind, UNDONE) for kind in undone]

    def close_sender(self, connection: ConnectionState) -> None:
        """Have a connection closed, whose command could not be stored. Call this after `undo_batch`.

        There is no error message: after one, shipped clients go on with the commands that follow, or wait for ever.
        After a close they connect again, and send again what was not acknowledged.
        """
        if connection.verdict is None and not connection.lost:
            self._send_away(connection, PeerError(SERVICE_RESTART, NOT_STORED))
            self.with_output.append(connection)

    def _restore_session(self, connection: ConnectionState, before: Session) -> None:
        after, connection.session = connection.session, before
        bound, subscribed = after.app_id is not None, after.subscribed
        if connection.lost:  # `undo_batch` calls `lose` again
            bound, subscribed, connection.lost = False, None, False
        if subscribed is not None and subscribed != before.subscribed:
            self._unsubscribe(connection, subscribed)
        if before.subscribed is not None and subscribed != before.subscribed:
            self.subscribers.setdefault(before.subscribed, []).append(connection)
        if before.app_id is not None and not bound:
            self.state.arrive(before.app_id, before.side)
        elif before.app_id is None and bound:
            self.state.leave(after.app_id or "", after.side)


_RECORDED: Final = frozenset({ClientVersion, model.MailboxGone, model.NameplateGone})
"""Changes with a usage record."""

_CONSEQUENCES: Final[dict[type, Callable[[Dispatcher, Any], None]]] = {
    model.MessageAdded: Dispatcher._message_added,
    model.MailboxSideSet: Dispatcher._mailbox_side_set,
    model.MailboxGone: Dispatcher._mailbox_gone,
    model.NameplateGone: Dispatcher._nameplate_gone,
}
"""What changes cause outside of the state."""
