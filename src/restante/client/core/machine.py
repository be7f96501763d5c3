"""One wormhole: its state, and what was sent on its connection to the server.

After each event `_send_missing` compares the two and sends what is missing, so that a new connection needs no rules
of its own. A side may repeat each command on any number of connections (docs/mailbox/protocol.md).

    code known ──▶ claim ──▶ open, add pake ──pake──▶ add version, release ──version──▶ messages ──▶ close

The server sends each message back that it has stored. After `open` it sends all stored messages; the `pong` to a
`ping` behind the `open` marks their end. Then what is missing there is added again: a server may have lost it. What
is new waits for that, so that messages are stored in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, get_args

import msgspec

import restante
from restante.client.core.conversation import RECEIPT, Conversation, UnstoredMessages
from restante.client.core.outputs import NameplatesListed, Output, Reconnect, SendFrame, ShowWork
from restante.client.core.state import MailboxStatus, NameplateStatus, WormholeState
from restante.client.errors import (
    CodeExpiredError,
    CrowdedError,
    LonelyError,
    PermissionNeededError,
    ServerError,
    WelcomeError,
    WormholeError,
)
from restante.client.events import Closed, CodeKnown, Failed, ReplayEnded, WaitingForPeer, Welcomed
from restante.client.protocol import server_messages
from restante.client.protocol.code import is_nameplate, nameplate_of
from restante.client.protocol.server_messages import Greeting, ServerMessage
from restante.common.errors import Misuse
from restante.common.texts import cleaned

# ── The state of a connection ─────────────────────────────────────────────────────────────────────


END_OF_REPLAY: Final = "end of replay"
"""The payload of the ping that follows an `open`."""
END_OF_REPLAY_JSON: Final = msgspec.json.encode(END_OF_REPLAY)


class ServerConnectionState:
    """What was sent on one connection, and what the server owes there. A new connection has a new one."""

    def __init__(self) -> None:
        self.bound = False
        self.working = False
        """Whether the server waits for proof of work."""
        self.last_goal: tuple[NameplateStatus, MailboxStatus, bool] | None = None
        """The statuses, and whether a list is wanted, for which this connection was last sent what was missing."""
        self.sent: set[str] = set()
        """Types of commands, each sent once."""
        self.replayed = False
        """Whether all stored messages have come."""
        self.has_earlier = False
        """Whether earlier connections have added messages of this side that may be lost."""
        self.known_phases: set[str] = set()
        """Phases of this side that this connection has added, or found in the mailbox, until the replay has ended."""
        self.unstored: set[str] = set()
        """Phases of this side that this connection has added, and that the server has not sent back."""
        self.new: set[str] = set()
        """Those of them that no earlier connection has added: no peer can have them."""
        self.receipt: str | None = None
        """The phase of the newest receipt that this connection has added."""

    def note_added(self, phase: str, *, new: bool) -> None:
        """Note that a message of this side was added. It is new if no earlier connection has added it."""
        self.unstored.add(phase)
        if new:
            self.new.add(phase)
        if phase.startswith(RECEIPT):
            self.receipt = phase

    def note_echo(self, phase: str) -> bool:
        """Note that the server has sent a message of this side back. Return whether it owed that."""
        owed = phase in self.unstored
        self.unstored.discard(phase)
        self.new.discard(phase)
        return owed

    def delays(self, phase: str) -> bool:
        """Return whether a message is a receipt that has to wait until the one before it is stored."""
        return self.receipt in self.unstored and phase.startswith(RECEIPT)

    def begin_command(self, kind: str) -> bool:
        """Note that a command is sent. Return False if it was sent before."""
        is_new = kind not in self.sent
        self.sent.add(kind)
        return is_new

    @property
    def all_stored(self) -> bool:
        """Whether the server has sent back all messages that this connection has added."""
        return self.replayed and not self.unstored

    def owes_answer(self, state: WormholeState) -> bool:
        """Return whether the server has to say something next: the welcome, an answer, or an echo."""
        if not self.bound:
            return not self.working
        return (
            state.nameplate_status in _UNANSWERED
            or state.mailbox_status is MailboxStatus.CLOSING
            or ("open" in self.sent and not self.replayed)
            or bool(self.unstored)
        )


_UNANSWERED: Final = {NameplateStatus.ALLOCATING, NameplateStatus.CLAIMING, NameplateStatus.RELEASING}
"""What is wanted of a nameplate and not answered yet."""


# ── Commands ──────────────────────────────────────────────────────────────────────────────────────


class CommandSender:
    """Sends the commands that the state wants and a connection lacks."""

    def __init__(self, state: WormholeState, conversation: Conversation, emit: Callable[[Output], None]) -> None:
        self._state, self._conversation, self._emit = state, conversation, emit

    def send(self, kind: str, **fields: Any) -> None:
        """Send a command."""
        self._emit(SendFrame(msgspec.json.encode({"type": kind, **fields})))

    def send_missing(self, connection: ServerConnectionState, *, list_wanted: bool) -> None:
        """Send what the state wants and this connection has not been sent."""
        state = self._state
        self._send_nameplate(connection)
        if state.mailbox_status is MailboxStatus.OPEN and state.nameplate_status is not NameplateStatus.CLAIMING:
            self._send_messages(connection)
        if state.mailbox_status is MailboxStatus.CLOSING and connection.begin_command("close"):
            self.send("close", mailbox=state.mailbox, mood=state.mood)
        if list_wanted and connection.begin_command("list"):
            self.send("list")

    def add_lost(self, connection: ServerConnectionState) -> None:
        """Add our messages, in order, that were not in the mailbox when the server sent all that it has stored.

        Nothing is added to a mailbox that is being closed.
        """
        if self._state.mailbox_status is not MailboxStatus.OPEN:
            return
        for phase in self._state.own:
            if phase not in connection.known_phases:
                self._add(connection, phase)
        connection.known_phases.clear()

    def _send_nameplate(self, connection: ServerConnectionState) -> None:
        state = self._state
        status = state.nameplate_status
        if status is NameplateStatus.ALLOCATING and connection.begin_command("allocate"):
            state.claim_sent = True  # an allocated nameplate is claimed already
            self.send("allocate")
        if status is NameplateStatus.CLAIMING and connection.begin_command("claim"):
            state.claim_sent = True
            self.send("claim", nameplate=state.nameplate)
        if status is NameplateStatus.RELEASING and connection.begin_command("release"):
            self.send("release", nameplate=state.nameplate)

    def _send_messages(self, connection: ServerConnectionState) -> None:
        """Add the messages that no connection has added. Those of earlier ones wait for the replay's end.

        Later ones wait with them, so that they are stored in order: wormhole-william ends at a version before a pake.
        """
        fresh: Iterable[str] = self._conversation.fresh
        delayed = [phase for phase in fresh if connection.delays(phase)]
        if connection.begin_command("open"):
            self.send("open", mailbox=self._state.mailbox)
            self.send("ping", ping=END_OF_REPLAY)
            fresh = self._state.own
            connection.has_earlier = any(own.sent for own in fresh.values())
        if connection.has_earlier and not connection.replayed:
            fresh = delayed = []
        for phase in fresh:
            own = self._state.own.get(phase)
            if own is not None and not own.sent and not connection.delays(phase):
                if not connection.replayed:
                    connection.known_phases.add(phase)
                self._add(connection, phase)
        self._conversation.fresh[:] = delayed

    def _add(self, connection: ServerConnectionState, phase: str) -> None:
        own = self._state.own[phase]
        connection.note_added(phase, new=not own.sent)
        own.sent = True
        self.send("add", phase=phase, body=own.body)


# ── The end of a wormhole ─────────────────────────────────────────────────────────────────────────


Mood = Literal["happy", "lonely", "errory", "scary"]
"""What `BaseWormhole.close` can say of how it went. These four are in the server's usage records; the reference
server counts any other as happy (mailbox server 0.8.0: server.py:446)."""

MOODS: Final = get_args(Mood)


def check_mood(mood: object) -> None:
    """Raise Misuse if a wormhole cannot be closed with a mood."""
    if mood is not None and mood not in MOODS:
        raise Misuse(f"a wormhole is closed with the mood {', '.join(MOODS[:-1])} or {MOODS[-1]}, not {mood!r}")


def finish_wormhole(state: WormholeState, mood: str) -> None:
    """Set the statuses of a wormhole that ends: its nameplate is released, its mailbox closed, if it has them."""
    if state.mood is None:
        state.mood = mood
    nameplate, mailbox = state.nameplate_status, state.mailbox_status
    if state.claim_sent and nameplate in {NameplateStatus.ALLOCATING, NameplateStatus.CLAIMING}:
        return  # the server may have opened a mailbox for this side, and the answer to a claim names it
    claimed = nameplate in {NameplateStatus.CLAIMED, NameplateStatus.RELEASING}
    if nameplate is not NameplateStatus.RELEASED:
        state.nameplate_status = NameplateStatus.RELEASING if claimed else NameplateStatus.RELEASED
    if mailbox is not MailboxStatus.CLOSED:
        state.mailbox_status = MailboxStatus.CLOSING if state.mailbox is not None else MailboxStatus.CLOSED


def give_up_command(state: WormholeState, command: str | None, *, crowded: bool = False) -> None:
    """Set the status for which a refused command was sent, so that it is not sent again.

    A claim that was refused because of two others is released: the reference server notes it before it counts the
    sides, and keeps the nameplate until all of them have released it (mailbox server 0.8.0: server.py:282-296).
    """
    if command == "claim" and crowded:
        state.nameplate_status = NameplateStatus.RELEASING
    elif command in {"allocate", "claim", "release"}:
        state.nameplate_status = NameplateStatus.RELEASED
    elif command in {"open", "close"}:
        state.mailbox_status = MailboxStatus.CLOSED


# ── The wormhole ──────────────────────────────────────────────────────────────────────────────────


SERVERS_FAULT: Final = (ServerError, WelcomeError, PermissionNeededError)
"""Errors after which a lasting wormhole can be continued later: the server may be in order then."""


class Machine:
    """A wormhole without its connection. Call a method for what happens, then carry out what `outputs` returns."""

    def __init__(self, state: WormholeState, draw: Callable[[int], bytes], *, lasting: bool = False) -> None:
        """Continue from a state. `draw` returns so many random bytes. A `lasting` wormhole outlives server errors."""
        self.state, self.lasting = state, lasting
        self.connection: ServerConnectionState | None = None
        """The connection, while there is one."""
        self._outputs: list[Output] = []
        self._list_wanted = False
        self._list_waiters = 0
        self._conversation = Conversation(state, draw, self._outputs.append, lasting=lasting)
        self._commands = CommandSender(state, self._conversation, self._outputs.append)
        self._closed_reported = False
        self.failure: WormholeError | None = None
        """Why the wormhole cannot succeed, since this machine knows."""
        self.answers = 0
        """How often a server has answered something that was waited for."""
        try:
            self._conversation.resume()
        except WormholeError as error:
            self.fail(error)

    def outputs(self) -> list[Output]:
        """Return the outputs since the last call, in order."""
        if not self._outputs:
            return []
        outputs = self._outputs.copy()
        self._outputs.clear()
        return outputs

    # ── what the application wants ───────────────────────────────────────────────────────────────

    def allocate(self, words: str) -> None:
        """Ask the server for a nameplate. The code is the nameplate and these words."""
        self._check_no_code()
        self.state.words, self.state.nameplate_status = words, NameplateStatus.ALLOCATING
        self._send_missing()

    def set_code(self, code: str, mailbox: str | None = None) -> None:
        """Use a given code, and no nameplate if its mailbox is known. Raises CodeError if it is not a code."""
        nameplate = nameplate_of(code)
        self._check_no_code()
        self._use_code(code, nameplate)
        if mailbox is not None:
            self.state.nameplate_status = NameplateStatus.RELEASED
            self.state.mailbox, self.state.mailbox_status = mailbox, MailboxStatus.OPEN
        self._send_missing()

    def list_nameplates(self) -> None:
        """Ask which nameplates are in use."""
        self._list_wanted = True
        self._list_waiters += 1
        if self.connection is not None:
            self.connection.sent.discard("list")
        self._send_missing()

    def forget_list(self) -> None:
        """Note that one caller of `list_nameplates` waits no longer."""
        self._list_waiters -= 1
        self._list_wanted = self._list_wanted and self._list_waiters > 0
        self._send_missing()

    def send(self, plaintext: bytes) -> int:
        """Send a message to the peer's application. Return its number."""
        if self.state.mood is not None:
            raise ValueError("the wormhole is closed")
        number = self._conversation.send(plaintext)
        self._send_missing()
        return number

    def processed(self, number: int) -> None:
        """Note that the peer's messages up to this number are processed. The others are delivered again later."""
        self._conversation.processed(number)
        self._send_missing()

    def close(self, mood: str | None = None) -> None:
        """End the wormhole: release its nameplate and close its mailbox. The mood says how it went."""
        if mood is None:
            mood = "happy" if self.state.peer_versions is not None else LonelyError.mood
        finish_wormhole(self.state, mood)
        if self.failure is not None and self.connection is None:
            # A lasting one sends nothing more on this connection.
            self._outputs.append(Reconnect("the wormhole is being closed"))
        self._send_missing()

    # ── what the connection brings ───────────────────────────────────────────────────────────────

    def connected(self) -> None:
        """Note that there is a new connection. The server speaks first."""
        self.connection = ServerConnectionState()

    def disconnected(self) -> None:
        """Note that the connection is gone."""
        self.connection = None

    def permitted(self, stamp: str) -> None:
        """Show the work that `ShowWork` asked for."""
        if self.connection is not None and not self.connection.bound:
            self._commands.send("submit-permissions", method="hashcash", stamp=stamp)
            self._bind()

    def receive(self, text: str | bytes) -> bool:
        """Handle a frame from the server. Return whether anything can have changed: an ack changes nothing."""
        if self.connection is None:
            return False
        try:
            message = server_messages.parse_message(text)
        except ValueError as error:
            self.fail(ServerError(str(error)))
        else:
            if (handle := _HANDLERS.get(message.type)) is None:
                return False
            try:
                handle(self, message)
            except WormholeError as error:
                self.fail(error)
        self._send_missing()
        return True

    @property
    def unstored(self) -> UnstoredMessages:
        """The application's messages that the server has not stored."""
        return self._conversation.unstored

    @property
    def all_stored(self) -> bool:
        """Whether the server has stored all that the application has sent, as far as this connection knows."""
        return self.connection is not None and self.connection.all_stored and not self.state.unsealed

    @property
    def awaits_answer(self) -> bool:
        """Whether the server owes an answer."""
        if self.connection is None:
            return False
        return self.connection.owes_answer(self.state) or (self.connection.bound and self._list_wanted)

    # ── what the server says ─────────────────────────────────────────────────────────────────────

    def _welcome(self, message: ServerMessage) -> None:
        assert self.connection is not None
        greeting = message.welcome
        assert isinstance(greeting, Greeting)
        if self.connection.bound or self.connection.working:
            return
        if greeting.error is not None:
            self.fail(WelcomeError(f"the server does not want to be used: {cleaned(greeting.error)}"))
            return
        self.answers += 1
        self._outputs.append(Welcomed(greeting.motd, greeting.current_cli_version))
        permissions = greeting.permissions
        if permissions is msgspec.UNSET or permissions.none is not None:
            self._bind()
        elif permissions.hashcash is not None:
            self.connection.working = True
            self._outputs.append(ShowWork(permissions.hashcash.bits, permissions.hashcash.resource))
        else:
            self.fail(PermissionNeededError("the server demands a permission of a kind that is not known here"))

    def _bind(self) -> None:
        assert self.connection is not None
        self.connection.bound = True
        version = ("restante", restante.__version__)
        self._commands.send("bind", appid=self.state.app_id, side=self.state.side, client_version=version)
        if self.state.nameplate_status is NameplateStatus.CLAIMED and self.state.key is None:
            self.state.nameplate_status = NameplateStatus.CLAIMING  # it may have expired: the answer shows it
        self._send_missing()

    def _nameplates(self, message: ServerMessage) -> None:
        assert not isinstance(message.nameplates, msgspec.UnsetType)
        if not self._list_wanted:
            return
        self._list_wanted = False
        self.answers += 1
        ids = (nameplate.id for nameplate in message.nameplates)
        self._outputs.append(NameplatesListed(list(filter(is_nameplate, ids))))

    def _allocated(self, message: ServerMessage) -> None:
        if self.state.nameplate_status is not NameplateStatus.ALLOCATING:
            return
        self.answers += 1
        nameplate = str(message.nameplate)
        if is_nameplate(nameplate):
            self._use_code(f"{nameplate}-{self.state.words}", nameplate)
            return
        if not self.lasting:
            give_up_command(self.state, "allocate")
        self.fail(ServerError(f"the server allocated {nameplate!r}, which is not a nameplate"))

    def _claimed(self, message: ServerMessage) -> None:
        state = self.state
        assert isinstance(message.mailbox, str)
        if state.nameplate_status is not NameplateStatus.CLAIMING:
            return
        self.answers += 1
        expired = state.mailbox is not None and state.mailbox != message.mailbox
        state.mailbox, state.nameplate_status = message.mailbox, NameplateStatus.CLAIMED
        if state.mood is not None:
            finish_wormhole(state, state.mood)
            return
        state.mailbox_status = MailboxStatus.OPEN
        if expired:
            self.fail(CodeExpiredError("the code expired before the peer came: agree on a new one"))

    def _released(self, _message: ServerMessage) -> None:
        if self.state.nameplate_status is NameplateStatus.RELEASING:
            self.state.nameplate_status = NameplateStatus.RELEASED

    def _closed(self, _message: ServerMessage) -> None:
        if self.state.mailbox_status is MailboxStatus.CLOSING:
            self.state.mailbox_status = MailboxStatus.CLOSED

    def _pong(self, message: ServerMessage) -> None:
        assert self.connection is not None
        assert not isinstance(message.pong, msgspec.UnsetType)
        asked = "open" in self.connection.sent and not self.connection.replayed
        if not asked or bytes(message.pong) != END_OF_REPLAY_JSON:  # a Raw equals no bytes
            return
        self.connection.replayed = True
        self.answers += 1
        self._outputs.append(ReplayEnded())
        if self.state.peer_side is None:
            self._outputs.append(WaitingForPeer())
        self._commands.add_lost(self.connection)
        self._conversation.check_complete()

    def _error(self, message: ServerMessage) -> None:
        reason = cleaned(str(message.error))
        hint = f": {cleaned(message.hint)}" if isinstance(message.hint, str) else ""
        if server_messages.asks_to_return(message):
            self.connection = None  # the next one is sent what this one lacks
            reason += "" if message.retry else hint  # the hint of an error with `retry` repeats it
            self._outputs.append(Reconnect(f"the server asks to try again later: {reason}"))
            return
        if server_messages.refused_command(message) == "list":
            self._list_wanted = False
        crowded = reason in {"crowded", "reclaimed"}
        if crowded or not self.lasting:
            give_up_command(self.state, server_messages.refused_command(message), crowded=crowded)
        if crowded:
            self.fail(
                CrowdedError(f"the code is used by two sides already, perhaps one of a killed process of yours{hint}")
            )
        else:
            self.fail(ServerError(f"the server refused: {reason}{hint}"))

    def _message(self, message: ServerMessage) -> None:
        state = self.state
        assert self.connection is not None
        assert isinstance(message.side, str)
        assert isinstance(message.phase, str)
        assert isinstance(message.body, str)
        if "open" not in self.connection.sent:
            self.fail(ServerError("the server sent a message of a mailbox that is not open"))
        elif message.side == state.side:
            self._echo(message.phase, message.body)
        elif state.peer_side in {None, message.side}:
            state.peer_side = message.side
            self._peer_message(message.phase, message.body)
        else:
            self.fail(CrowdedError("a third side sent a message"))

    def _peer_message(self, phase: str, body: str) -> None:
        if self.state.mood is not None:
            return
        if self.state.nameplate_status is NameplateStatus.CLAIMED:
            self.state.nameplate_status = NameplateStatus.RELEASING  # both are there: it is free for others
        assert self.connection is not None
        self._conversation.receive(phase, body, self.connection.new)

    def _echo(self, phase: str, body: str) -> None:
        assert self.connection is not None
        if not self.connection.replayed and phase in self.state.own:
            self.connection.known_phases.add(phase)
        self.answers += self.connection.note_echo(phase)
        self._conversation.echoed(phase, body)

    # ── codes, and the end ───────────────────────────────────────────────────────────────────────

    def _check_no_code(self) -> None:
        if self.state.nameplate_status is not NameplateStatus.NONE or self.state.mood is not None:
            raise ValueError("a wormhole has one code")

    def _use_code(self, code: str, nameplate: str) -> None:
        state = self.state
        state.code, state.nameplate, state.nameplate_status = code, nameplate, NameplateStatus.CLAIMING
        self._conversation.add_pake()
        self._outputs.append(CodeKnown(code))

    def fail(self, error: WormholeError) -> None:
        """End the wormhole without success. A server's fault ends a lasting one for this process only."""
        if self.state.mood is None and self.failure is None:
            self.failure = error
            self._outputs.append(Failed(error))
        if self.lasting and isinstance(error, SERVERS_FAULT):
            self.connection = None  # nothing more is sent to this server
            return
        finish_wormhole(self.state, error.mood)
        self._send_missing()

    def _send_missing(self) -> None:
        """Send what the state wants and this connection has not been sent."""
        connection, state = self.connection, self.state
        goal = (state.nameplate_status, state.mailbox_status, self._list_wanted)
        if connection is not None and connection.last_goal == goal and not self._conversation.fresh:
            return  # nothing has changed: this is the case for nearly every frame
        if state.nameplate_status is NameplateStatus.RELEASED and state.mailbox_status is MailboxStatus.CLOSED:
            if not self._closed_reported:
                self._closed_reported = True
                self._outputs.append(Closed(str(state.mood)))
            return
        if connection is None or not connection.bound:
            return
        connection.last_goal = goal
        self._commands.send_missing(connection, list_wanted=self._list_wanted)


_HANDLERS: Final[dict[str, Callable[[Machine, ServerMessage], None]]] = {
    "welcome": Machine._welcome,
    "nameplates": Machine._nameplates,
    "allocated": Machine._allocated,
    "claimed": Machine._claimed,
    "released": Machine._released,
    "message": Machine._message,
    "closed": Machine._closed,
    "pong": Machine._pong,
    "error": Machine._error,
}
"""What is done with a message, by its type. Other types are ignored: acks, and what later servers may send."""
