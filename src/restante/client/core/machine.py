"""One wormhole: wanted state on one side, what this connection has been sent on the other.

After each event `_send_missing` compares the two and sends what is missing, so that a new connection needs no rules
of its own. A side may repeat each command on any number of connections (docs/mailbox/protocol.md).

    code known ──▶ claim ──▶ open, add pake ──pake──▶ add version, release ──version──▶ messages ──▶ close

The server sends each message back that it has stored. After `open` it sends all stored messages; the `pong` to a
`ping` behind the `open` marks their end. Then what is missing there is added again: a server may have lost it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

import restante
from restante.client.core.conversation import Conversation, is_number
from restante.client.core.outputs import (
    Closed,
    CodeKnown,
    Failed,
    MessageStored,
    NameplatesListed,
    Output,
    SendFrame,
    ShowWork,
    Welcomed,
)
from restante.client.core.state import MailboxStatus, NameplateStatus, State
from restante.client.errors import (
    CodeExpiredError,
    CrowdedError,
    LonelyError,
    PermissionNeededError,
    ServerError,
    WelcomeError,
    WormholeError,
)
from restante.client.protocol import server_messages
from restante.client.protocol.code import nameplate_of
from restante.client.protocol.server_messages import Greeting, ServerMessage

END_OF_REPLAY: Final = "end of replay"
"""The payload of the ping that follows an `open`."""


class _Link:
    """What was sent on this connection."""

    def __init__(self) -> None:
        self.bound = False
        self.sent: set[str] = set()
        """Types of commands, each sent once."""
        self.replayed = False
        """Whether all stored messages have come."""
        self.added: set[str] = set()
        """Phases of ours that this connection has added, or found in the mailbox."""


class Machine:
    """A wormhole without its connection. Call a method for what happens, then carry out what `outputs` returns."""

    def __init__(self, state: State, draw: Callable[[int], bytes]) -> None:
        """Continue from a state. `draw` returns so many random bytes."""
        self.state = state
        self._link: _Link | None = None
        self._outputs: list[Output] = []
        self._list_wanted = False
        self._conversation = Conversation(state, draw, self._outputs.append)
        self._closed_told = False

    def outputs(self) -> list[Output]:
        """Return the outputs since the last call, in order."""
        outputs = self._outputs.copy()
        self._outputs.clear()
        return outputs

    # ── what the application wants ───────────────────────────────────────────────────────────────

    def allocate(self, words: str) -> None:
        """Ask the server for a nameplate. The code is that and these words."""
        self._begin()
        self.state.words, self.state.nameplate_status = words, NameplateStatus.ALLOCATING
        self._send_missing()

    def set_code(self, code: str) -> None:
        """Use a given code. Raises CodeError if it is not a code."""
        nameplate = nameplate_of(code)
        self._begin()
        self._know(code, nameplate)
        self._send_missing()

    def list_nameplates(self) -> None:
        """Ask which nameplates are in use."""
        self._list_wanted = True
        if self._link is not None:
            self._link.sent.discard("list")
        self._send_missing()

    def send(self, plaintext: bytes) -> int:
        """Send a message to the peer's application. Return its number."""
        if self.state.mood is not None:
            raise ValueError("the wormhole is closed")
        number = self._conversation.send(plaintext)
        self._send_missing()
        return number

    def close(self, mood: str | None = None) -> None:
        """End the wormhole and leave nothing at the server. The mood says how it went."""
        if mood is None:
            mood = "happy" if self.state.peer_versions is not None else LonelyError.mood
        self._finish(mood)
        self._send_missing()

    # ── what the connection brings ───────────────────────────────────────────────────────────────

    def connected(self) -> None:
        """Note that there is a new connection. The server speaks first."""
        self._link = _Link()

    def disconnected(self) -> None:
        """Note that the connection is gone."""
        self._link = None

    def permitted(self, stamp: str) -> None:
        """Show the work that `ShowWork` asked for."""
        if self._link is not None and not self._link.bound:
            self._command("submit-permissions", method="hashcash", stamp=stamp)
            self._bind()

    def receive(self, text: str | bytes) -> None:
        """Handle a frame from the server."""
        if self._link is None:
            return
        try:
            message = server_messages.parse(text)
        except ValueError as error:
            self._fail(ServerError(str(error)))
        else:
            handle = _HANDLERS.get(message.type)
            if handle is not None:
                handle(self, message)
        self._send_missing()

    # ── what the server says ─────────────────────────────────────────────────────────────────────

    def _welcome(self, message: ServerMessage) -> None:
        assert self._link is not None
        greeting = message.welcome
        assert isinstance(greeting, Greeting)
        if self._link.bound:
            return
        if greeting.error is not None:
            self._fail(WelcomeError(greeting.error))
            return
        self._outputs.append(Welcomed(greeting.motd, greeting.current_cli_version))
        permissions = greeting.permissions
        if permissions is msgspec.UNSET or permissions.none is not None:
            self._bind()
        elif permissions.hashcash is not None:
            self._outputs.append(ShowWork(permissions.hashcash.bits, permissions.hashcash.resource))
        else:
            self._fail(PermissionNeededError("the server demands a permission of a kind that is not known here"))

    def _bind(self) -> None:
        assert self._link is not None
        self._link.bound = True
        version = ("restante", restante.__version__)
        self._command("bind", appid=self.state.app_id, side=self.state.side, client_version=version)
        if self.state.nameplate_status is NameplateStatus.CLAIMED and self.state.key is None:
            self.state.nameplate_status = NameplateStatus.CLAIMING  # it may have expired: the answer shows it
        self._send_missing()

    def _nameplates(self, message: ServerMessage) -> None:
        assert not isinstance(message.nameplates, msgspec.UnsetType)
        self._list_wanted = False
        self._outputs.append(NameplatesListed([each.id for each in message.nameplates]))

    def _allocated(self, message: ServerMessage) -> None:
        if self.state.nameplate_status is not NameplateStatus.ALLOCATING:
            return
        code = f"{message.nameplate}-{self.state.words}"
        try:
            self._know(code, nameplate_of(code))
        except ValueError:
            self._give_up("allocate")
            self._fail(ServerError(f"the server allocated {message.nameplate!r}, which is not a nameplate"))

    def _claimed(self, message: ServerMessage) -> None:
        state = self.state
        assert isinstance(message.mailbox, str)
        if state.nameplate_status is not NameplateStatus.CLAIMING:
            return
        expired = state.mailbox is not None and state.mailbox != message.mailbox
        state.mailbox, state.nameplate_status = message.mailbox, NameplateStatus.CLAIMED
        if state.mood is not None:
            self._finish(state.mood)
            return
        state.mailbox_status = MailboxStatus.OPEN
        if expired:
            self._fail(CodeExpiredError("the code expired before the peer came: agree on a new one"))

    def _released(self, _message: ServerMessage) -> None:
        if self.state.nameplate_status is NameplateStatus.RELEASING:
            self.state.nameplate_status = NameplateStatus.RELEASED

    def _closed(self, _message: ServerMessage) -> None:
        if self.state.mailbox_status is MailboxStatus.CLOSING:
            self.state.mailbox_status = MailboxStatus.CLOSED

    def _pong(self, message: ServerMessage) -> None:
        assert self._link is not None
        if message.pong == msgspec.json.encode(END_OF_REPLAY):
            self._link.replayed = True

    def _error(self, message: ServerMessage) -> None:
        self._give_up(server_messages.refused(message))
        words = str(message.error)
        hint = f": {message.hint}" if isinstance(message.hint, str) else ""
        if words in {"crowded", "reclaimed"}:
            self._fail(CrowdedError(f"the code is used by two sides already{hint}"))
        else:
            self._fail(ServerError(f"the server refused: {words}{hint}"))

    def _give_up(self, command: str | None) -> None:
        """Want no longer what a refused command was for."""
        if command in {"allocate", "claim", "release"}:
            self.state.nameplate_status = NameplateStatus.RELEASED
        elif command in {"open", "close"}:
            self.state.mailbox_status = MailboxStatus.CLOSED

    def _message(self, message: ServerMessage) -> None:
        state = self.state
        assert self._link is not None
        assert isinstance(message.side, str)
        assert isinstance(message.phase, str)
        assert isinstance(message.body, str)
        if "open" not in self._link.sent:
            self._fail(ServerError("the server sent a message of a mailbox that is not open"))
        elif message.side == state.side:
            self._echo(message.phase)
        elif state.peer_side in {None, message.side}:
            state.peer_side = message.side
            if state.mood is None:
                self._hear(message.phase, message.body)
        else:
            self._fail(CrowdedError("a third side sent a message"))

    def _hear(self, phase: str, body: str) -> None:
        if self.state.nameplate_status is NameplateStatus.CLAIMED:
            self.state.nameplate_status = NameplateStatus.RELEASING  # both are there: it is free for others
        try:
            self._conversation.hear(phase, body)
        except WormholeError as error:
            self._fail(error)

    def _echo(self, phase: str) -> None:
        assert self._link is not None
        self._link.added.add(phase)
        if is_number(phase):
            kept = [own for own in self.state.own if own.phase != phase]
            if len(kept) < len(self.state.own):
                self.state.own = kept
                self._outputs.append(MessageStored(int(phase)))

    # ── codes, and the end ──────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        if self.state.nameplate_status is not NameplateStatus.NONE or self.state.mood is not None:
            raise ValueError("a wormhole has one code")

    def _know(self, code: str, nameplate: str) -> None:
        state = self.state
        state.code, state.nameplate, state.nameplate_status = code, nameplate, NameplateStatus.CLAIMING
        self._conversation.begin()
        self._outputs.append(CodeKnown(code))

    def _fail(self, error: WormholeError) -> None:
        if self.state.mood is None:
            self._outputs.append(Failed(error))
        self._finish(error.mood)

    def _finish(self, mood: str) -> None:
        """Want to release the nameplate and to close the mailbox, as far as the server may know of them."""
        state = self.state
        if state.mood is None:
            state.mood = mood
        nameplate, mailbox = state.nameplate_status, state.mailbox_status
        if state.claim_sent and nameplate in {NameplateStatus.ALLOCATING, NameplateStatus.CLAIMING}:
            return  # the server may have opened a mailbox for us, and the answer to a claim names it
        claimed = nameplate in {NameplateStatus.CLAIMED, NameplateStatus.RELEASING}
        if nameplate is not NameplateStatus.RELEASED:
            state.nameplate_status = NameplateStatus.RELEASING if claimed else NameplateStatus.RELEASED
        if mailbox is not MailboxStatus.CLOSED:
            state.mailbox_status = MailboxStatus.CLOSING if state.mailbox is not None else MailboxStatus.CLOSED

    def _send_missing(self) -> None:
        """Send what the state wants and this connection has not been sent."""
        link, state = self._link, self.state
        if state.nameplate_status is NameplateStatus.RELEASED and state.mailbox_status is MailboxStatus.CLOSED:
            if not self._closed_told:
                self._closed_told = True
                self._outputs.append(Closed(str(state.mood)))
            return
        if link is None or not link.bound:
            return
        if state.nameplate_status is NameplateStatus.ALLOCATING and self._once("allocate"):
            state.claim_sent = True  # an allocated nameplate is claimed already
            self._command("allocate")
        if state.nameplate_status is NameplateStatus.CLAIMING and self._once("claim"):
            state.claim_sent = True
            self._command("claim", nameplate=state.nameplate)
        if state.nameplate_status is NameplateStatus.RELEASING and self._once("release"):
            self._command("release", nameplate=state.nameplate)
        if state.mailbox_status is MailboxStatus.OPEN and state.nameplate_status is not NameplateStatus.CLAIMING:
            self._send_messages(link)
        if state.mailbox_status is MailboxStatus.CLOSING and self._once("close"):
            self._command("close", mailbox=state.mailbox, mood=state.mood)
        if self._list_wanted and self._once("list"):
            self._command("list")

    def _send_messages(self, link: _Link) -> None:
        if self._once("open"):
            self._command("open", mailbox=self.state.mailbox)
            self._command("ping", ping=END_OF_REPLAY)
        for own in self.state.own:
            if own.phase not in link.added and (link.replayed or not own.sent):
                link.added.add(own.phase)
                own.sent = True
                self._command("add", phase=own.phase, body=own.body)

    def _once(self, kind: str) -> bool:
        assert self._link is not None
        first = kind not in self._link.sent
        self._link.sent.add(kind)
        return first

    def _command(self, kind: str, **fields: Any) -> None:
        self._outputs.append(SendFrame(msgspec.json.encode({"type": kind, **fields})))


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
