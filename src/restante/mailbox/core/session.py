"""The protocol state of one connection, and which messages it allows next.

`CHECKS` lists the conditions of each message type, in the order in which the reference server checks them
(server_websocket.py:200-330, 0.8.0). Each refuses with the reference's error. `step` applies the checks, and a
command's `after` returns the next session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from restante.common.refusals import Refusal
from restante.mailbox.core.model import Decision
from restante.mailbox.protocol import hashcash, messages, parsing
from restante.mailbox.protocol.messages import Received
from restante.mailbox.protocol.parsing import Malformed
from restante.mailbox.protocol.refusals import DENIED, MUST_BIND


class Session(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The protocol state of one connection.

    Fields change once and are not reset, except `mailbox_id` and `subscribed`.
    """

    demand: hashcash.Demand | None = None
    """The work that the welcome demanded, until the client has shown it."""
    address_id: str | None = None
    """The name of the client's address in logs and usage records, on the day of the connection."""
    app_id: str | None = None
    """The app of the bind; None before the bind."""
    side: str = ""
    allocated: str | None = None
    """The nameplate that the connection was allocated."""
    claimed: str | None = None
    """The nameplate that it claimed or tried to claim."""
    released: bool = False
    mailbox_id: str | None = None
    """The mailbox that it last opened or tried to open."""
    subscribed: int | None = None
    """The key of the mailbox whose messages it receives."""
    closed: bool = False


NEW_SESSION: Final = Session()

# ── commands: messages that passed the checks ────────────────────────────────────────────────────


class Command(msgspec.Struct, gc=False):
    """A message that passed the checks, with the connection's data that the rules need.

    It has methods instead of a `match`, because each case that does not match costs 0.1 µs: msgspec's classes are
    abstract base classes. With `match` in place of all tables a command took a sixth longer.
    """

    app_id: str
    side: str

    def after(self, session: Session, _decision: Decision) -> Session:
        """Return the session after the command. A command that the rules refused changes it too."""
        return session

    def response(self, _decision: Decision, _message_id: Raw, _wall: float) -> messages.Reply | None:
        """Return the direct response to a command that succeeded. `open` and `add` have none; they cause messages."""
        return None


class SubmitCommand(Command, gc=False):
    def after(self, session: Session, _decision: Decision) -> Session:
        return replace(session, demand=None) if session.demand else session


class BindCommand(Command, gc=False):
    client_version: object
    address_id: str | None

    def after(self, session: Session, _decision: Decision) -> Session:
        return replace(session, app_id=self.app_id, side=self.side)


class ListCommand(Command, gc=False):
    def response(self, decision: Decision, message_id: Raw, wall: float) -> messages.Reply:
        return messages.Nameplates(message_id, wall, Raw(decision.listing))


class AllocateCommand(Command, gc=False):
    def after(self, session: Session, decision: Decision) -> Session:
        return replace(session, allocated=decision.name)

    def response(self, decision: Decision, message_id: Raw, wall: float) -> messages.Reply:
        return messages.Allocated(message_id, wall, decision.name)


class ClaimCommand(Command, gc=False):
    nameplate: str

    def after(self, session: Session, _decision: Decision) -> Session:
        return replace(session, claimed=self.nameplate)

    def response(self, decision: Decision, message_id: Raw, wall: float) -> messages.Reply:
        return messages.Claimed(message_id, wall, decision.name)


class ReleaseCommand(Command, gc=False):
    nameplate: str

    def after(self, session: Session, _decision: Decision) -> Session:
        return replace(session, released=True)

    def response(self, _decision: Decision, message_id: Raw, wall: float) -> messages.Reply:
        return messages.Released(message_id, wall)


class OpenCommand(Command, gc=False):
    mailbox_id: str

    def after(self, session: Session, decision: Decision) -> Session:
        subscribed = None if decision.mailbox is None else decision.mailbox.key
        return replace(session, mailbox_id=self.mailbox_id, subscribed=subscribed)


class AddCommand(Command, gc=False):
    mailbox_id: str
    phase: Raw
    body: Raw
    id: Raw


class CloseCommand(Command, gc=False):
    mailbox_id: str
    mood: str | None

    def after(self, session: Session, _decision: Decision) -> Session:
        return replace(session, closed=True, subscribed=None)

    def response(self, _decision: Decision, message_id: Raw, wall: float) -> messages.Reply:
        return messages.Closed(message_id, wall)


class PingCommand(Command, gc=False):
    ping: Raw

    def response(self, _decision: Decision, message_id: Raw, wall: float) -> messages.Reply:
        return messages.Pong(message_id, wall, self.ping)


# ── checks ───────────────────────────────────────────────────────────────────────────────────────

_Check = Callable[[Session, Any], Refusal | None]


def _unless(holds: Callable[[Session], object], text: str) -> _Check:
    """Return a check that the connection is in a state."""
    refusal = Refusal(text)
    return lambda session, _: None if holds(session) else refusal


def _once(field: Callable[[Session], object], text: str) -> _Check:
    """Return a check that passes until the field is set: the message is allowed once."""
    refusal = Refusal(text)
    return lambda session, _: refusal if field(session) else None


def _same_name(key: str, field: Callable[[Session], str | None], text: str) -> _Check:
    """Return a check that the message's name, if it has one, is the one that the connection used before."""
    refusal = Refusal(text)
    return lambda session, message: (
        None if field(session) is None or getattr(message, key) in (UNSET, field(session)) else refusal
    )


def _has_name(key: str, field: Callable[[Session], str | None], text: str) -> _Check:
    """Return a check that the message has a name, or the connection used one before."""
    refusal = Refusal(text)
    return lambda session, message: refusal if getattr(message, key) is UNSET and field(session) is None else None


def _complete(_session: Session, message: Any) -> Refusal | None:
    return None if message.missing is None else Refusal(message.missing)


def _typed(_session: Session, message: Any) -> Refusal | None:
    return None if message.mistyped is None else Refusal(message.mistyped)


def _permitted(session: Session, message: Received | Malformed) -> Refusal | None:
    hint = None if session.demand is None else problem(session.demand, message)
    return None if hint is None else DENIED.refusal(hint)


_bound: Final = _unless(lambda s: s.app_id is not None, MUST_BIND.message)

_NAMEPLATE: Final = "nameplate"
_MAILBOX: Final = "mailbox"

CHECKS: Final[dict[str | None, tuple[_Check, ...]]] = {
    "ping": (_complete,),
    "submit-permissions": (_permitted,),
    "submit-permission": (_permitted,),
    "bind": (_permitted, _once(lambda s: s.app_id is not None, "already bound"), _complete, _typed),
    "list": (_permitted, _bound),
    "allocate": (_permitted, _bound, _once(lambda s: s.allocated, "you already allocated one, don't be greedy")),
    "claim": (_permitted, _bound, _complete, _once(lambda s: s.claimed, "only one claim per connection"), _typed),
    "release": (
        _permitted,
        _bound,
        _once(lambda s: s.released, "only one release per connection"),
        _same_name(_NAMEPLATE, lambda s: s.claimed, "release and claim must use same nameplate"),
        _has_name(_NAMEPLATE, lambda s: s.claimed, "release without nameplate must follow claim"),
        _typed,
    ),
    "open": (_permitted, _bound, _once(lambda s: s.subscribed, "only one open per connection"), _complete, _typed),
    "add": (
        _permitted,
        _bound,
        _unless(lambda s: s.subscribed is not None, "must open mailbox before adding"),
        _complete,
    ),
    "close": (
        _permitted,
        _bound,
        _once(lambda s: s.closed, "only one close per connection"),
        _same_name(_MAILBOX, lambda s: s.mailbox_id, "open and close must use same mailbox"),
        _has_name(_MAILBOX, lambda s: s.mailbox_id, "close without mailbox must follow open"),
        _typed,
    ),
    "": (_permitted, _bound, lambda *_: Refusal("unknown type")),
    None: (lambda *_: Refusal("missing 'type'"),),
}

_CHECKS_OF: Final = {
    messages.KINDS[kind]: tuple(check for check in checks if check not in {_complete, _typed})
    for kind, checks in CHECKS.items()
    if kind
}
"""The checks of a well-formed message, which is complete and has values of the right types."""

_CHECKS_OF_BOUND: Final = {
    kind: tuple(check for check in checks if check not in {_permitted, _bound}) for kind, checks in _CHECKS_OF.items()
}
"""Those of them that a connection which has bound and owes no work may fail."""


def step(session: Session, message: Received | Malformed) -> Command | Refusal:
    """Return the command for a message, or the refusal if the message is not allowed now."""
    if type(message) is Malformed:
        return _refuse_malformed(session, message)
    kind = type(message)
    checks = _CHECKS_OF if session.app_id is None or session.demand is not None else _CHECKS_OF_BOUND
    for check in checks[kind]:
        refusal = check(session, message)
        if refusal is not None:
            return refusal
    return _COMMANDS[kind](session, message)


def _refuse_malformed(session: Session, message: Malformed) -> Refusal:
    for check in CHECKS[message.kind]:
        refusal = check(session, message)
        if refusal is not None:
            return refusal
    # Every check passed, but the message was not decoded: a key is repeated, and its first value was of a wrong type.
    return Refusal(message.missing or message.mistyped or f"{message.kind}: keys must not be repeated")


def problem(demand: hashcash.Demand, message: Received | Malformed) -> str | None:
    """Return why a message does not meet a demand, as a hint for the client, or None if it does."""
    if not isinstance(message, messages.Submit):
        return f"proof of work is required: submit a hashcash stamp of {demand.bits} bits, or use a client that can"
    return hashcash.problem(demand, _value(message.method), _value(message.stamp))


def _nameplate_of(session: Session, m: messages.Release) -> str:
    return session.claimed or "" if m.nameplate is UNSET else m.nameplate


def _mailbox_of(session: Session, m: messages.Close) -> str:
    return session.mailbox_id or "" if m.mailbox is UNSET else m.mailbox


def _value(raw: Raw | UnsetType) -> object:
    """Return the decoded value, or None if it is absent, too long or cannot be decoded."""
    try:
        return None if raw is UNSET else parsing.value_of(raw)
    except ValueError:
        return None


_COMMANDS: Final[dict[type, Callable[[Session, Any], Command]]] = {
    messages.Submit: lambda *_: SubmitCommand("", ""),
    messages.SubmitOne: lambda *_: SubmitCommand("", ""),
    messages.Bind: lambda s, m: BindCommand(m.appid, m.side, _value(m.client_version), s.address_id),
    messages.List: lambda s, _: ListCommand(s.app_id or "", s.side),
    messages.Allocate: lambda s, _: AllocateCommand(s.app_id or "", s.side),
    messages.Claim: lambda s, m: ClaimCommand(s.app_id or "", s.side, m.nameplate),
    messages.Release: lambda s, m: ReleaseCommand(s.app_id or "", s.side, _nameplate_of(s, m)),
    messages.Open: lambda s, m: OpenCommand(s.app_id or "", s.side, m.mailbox),
    messages.Add: lambda s, m: AddCommand(s.app_id or "", s.side, s.mailbox_id or "", m.phase, m.body, m.id),
    messages.Close: lambda s, m: CloseCommand(s.app_id or "", s.side, _mailbox_of(s, m), m.mood),
    messages.Ping: lambda s, m: PingCommand(s.app_id or "", s.side, m.ping),
}
