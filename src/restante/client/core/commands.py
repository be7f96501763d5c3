"""The commands that the server is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from restante.client.core.connection_state import END_OF_REPLAY, ConnectionState
from restante.client.core.conversation import Conversation
from restante.client.core.outputs import Output, SendFrame
from restante.client.core.state import MailboxStatus, NameplateStatus, State


class Commands:
    """Sends the commands that the state wants and a connection lacks."""

    def __init__(self, state: State, conversation: Conversation, emit: Callable[[Output], None]) -> None:
        self._state, self._conversation, self._emit = state, conversation, emit

    def send(self, kind: str, **fields: Any) -> None:
        """Send a command."""
        self._emit(SendFrame(msgspec.json.encode({"type": kind, **fields})))

    def send_missing(self, connection: ConnectionState, *, list_wanted: bool) -> None:
        """Send what the state wants and this connection has not been sent."""
        state = self._state
        self._send_nameplate(connection)
        if state.mailbox_status is MailboxStatus.OPEN and state.nameplate_status is not NameplateStatus.CLAIMING:
            self._send_messages(connection)
        if state.mailbox_status is MailboxStatus.CLOSING and connection.begin("close"):
            self.send("close", mailbox=state.mailbox, mood=state.mood)
        if list_wanted and connection.begin("list"):
            self.send("list")

    def add_lost(self, connection: ConnectionState) -> None:
        """Add our messages, in order, that were not in the mailbox when the server sent all that it has stored.

        Nothing is added to a mailbox that is being closed.
        """
        if self._state.mailbox_status is not MailboxStatus.OPEN:
            return
        for phase in self._state.own:
            if phase not in connection.found:
                self._add(connection, phase)
        connection.found.clear()

    def _send_nameplate(self, connection: ConnectionState) -> None:
        state = self._state
        status = state.nameplate_status
        if status is NameplateStatus.ALLOCATING and connection.begin("allocate"):
            state.claim_sent = True  # an allocated nameplate is claimed already
            self.send("allocate")
        if status is NameplateStatus.CLAIMING and connection.begin("claim"):
            state.claim_sent = True
            self.send("claim", nameplate=state.nameplate)
        if status is NameplateStatus.RELEASING and connection.begin("release"):
            self.send("release", nameplate=state.nameplate)

    def _send_messages(self, connection: ConnectionState) -> None:
        """Add the messages that no connection has added. Those of earlier ones wait for the replay's end.

        Later ones wait with them, so that they are stored in order: wormhole-william ends at a version before a pake.
        """
        fresh: Iterable[str] = self._conversation.fresh
        held = [phase for phase in fresh if connection.holds(phase)]
        if connection.begin("open"):
            self.send("open", mailbox=self._state.mailbox)
            self.send("ping", ping=END_OF_REPLAY)
            fresh = self._state.own
            connection.earlier = any(own.sent for own in fresh.values())
        if connection.earlier and not connection.replayed:
            fresh = held = []
        for phase in fresh:
            own = self._state.own.get(phase)
            if own is not None and not own.sent and not connection.holds(phase):
                if not connection.replayed:
                    connection.found.add(phase)
                self._add(connection, phase)
        self._conversation.fresh[:] = held

    def _add(self, connection: ConnectionState, phase: str) -> None:
        own = self._state.own[phase]
        connection.added(phase, new=not own.sent)
        own.sent = True
        self.send("add", phase=phase, body=own.body)
