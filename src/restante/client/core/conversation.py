"""The messages of two sides: the halves of the key, then sealed messages, delivered in order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from restante.client.core.outputs import MessageReceived, Output
from restante.client.core.state import Abilities, OwnMessage, WormholeState, is_number
from restante.client.errors import OldCheckpointError, PeerMessageError, WrongPasswordError
from restante.client.events import KeyAgreed, MessageDelivered, MessageStored, PeerConfirmed
from restante.client.protocol import keys
from restante.client.protocol.code import password_of
from restante.client.protocol.keys import OVERHEAD_BYTES
from restante.client.protocol.spake2 import BadMessageError, Spake2

# ── Unstored messages ─────────────────────────────────────────────────────────────────────────────


class UnstoredMessages:
    """The number and the bytes of the application's messages that no server has stored."""

    def __init__(self, state: WormholeState) -> None:
        """Count those of a state."""
        sealed = [own.body for phase, own in state.own.items() if is_number(phase) and not own.stored]
        self.messages = len(state.unsealed) + len(sealed)
        self.bytes = sum(len(plaintext) // 2 for plaintext in state.unsealed) + sum(map(_plaintext_bytes, sealed))

    def add(self, plaintext: bytes) -> None:
        """Count a new message."""
        self.messages += 1
        self.bytes += len(plaintext)

    def remove(self, body: str) -> None:
        """Count a message no longer: the server has stored it, sealed and in hex."""
        self.messages -= 1
        self.bytes -= _plaintext_bytes(body)


def _plaintext_bytes(body: str) -> int:
    return len(body) // 2 - OVERHEAD_BYTES


# ── The conversation ──────────────────────────────────────────────────────────────────────────────


PAKE: Final = "pake"
VERSION: Final = "version"
RECEIPT: Final = "receipt-"
"""Prefix of the phase of a receipt. After it comes the number of the first message that was not processed yet."""

MAX_EARLY_MESSAGES: Final = 1000
"""Messages of the peer that are kept until the ones before them come. A server delivers a mailbox in order, so that
more are a mistake or an attack, and the wormhole fails."""

MAX_EARLY_CHARACTERS: Final = 64 * 1024 * 1024
"""Characters of such messages, as they are on the wire, likewise."""

OLD_CHECKPOINT: Final = "are not in the checkpoint, because it is an older copy: agree on a new code"

DIGEST_CHARACTERS: Final = 32
"""Characters of a digest of messages. It shows a mistake, and protects from nobody: a receipt is sealed."""


def digest_with(digest: str | None, body: str | None) -> str | None:
    """Return the digest of messages and of the body of one more. None: it is not known."""
    if digest is None or body is None:
        return None
    return hashlib.sha256((digest + body).encode()).hexdigest()[:DIGEST_CHARACTERS]


class Conversation:
    """The conversation with the peer. `receive` raises a `WormholeError` if it cannot succeed."""

    def __init__(
        self, state: WormholeState, draw: Callable[[int], bytes], emit: Callable[[Output], None], *, lasting: bool
    ) -> None:
        self._state, self._lasting = state, lasting
        self._draw = draw
        self._emit = emit
        self._spake: Spake2 | None = None
        self._keys: keys.MessageKeys | None = None
        self._next_delivered = state.next_peer
        self._early_messages = len(state.inbox)
        self._early_characters = sum(map(len, state.inbox.values()))
        self.fresh: list[str] = []
        """Phases of our messages since the caller last looked."""
        self.unstored = UnstoredMessages(state)

    def add_pake(self) -> None:
        """Add our half of the key to our messages. The code is known."""
        half = msgspec.json.encode({"pake_v1": self._exchange().message.hex()})
        self._put(PAKE, half)

    def resume(self) -> None:
        """Deliver again what was delivered in an earlier process and not processed there."""
        if self._state.key is not None:
            self._deliver()

    def send(self, plaintext: bytes) -> int:
        """Add a message of the application to our messages, sealed if the key is known. Return its number."""
        number = self._state.next_own
        self._state.next_own += 1
        self.unstored.add(plaintext)
        if self._state.key is None:
            self._state.unsealed.append(plaintext.hex())
        else:
            self._seal(str(number), plaintext)
        return number

    def receive(self, phase: str, body: str, new: AbstractSet[str]) -> None:
        """Handle a message of the peer, and deliver what is next.

        `new` are the phases of this side that no earlier connection has added, and that have not come back on this
        one. A server sends a message back before it sends a receipt for it, so that no receipt can be for them.
        """
        state = self._state
        if phase == PAKE:
            if state.key is None:
                self._agree(body)
        elif phase.startswith(RECEIPT):
            if state.peer_versions is not None:
                self._receive_receipt(phase, body, new)
        elif (phase == VERSION or is_number(phase)) and self._is_new(phase):
            state.inbox[phase] = body
            self._early_messages += 1
            self._early_characters += len(body)
        if state.key is not None:
            self._deliver()
        if self._early_messages > MAX_EARLY_MESSAGES or self._early_characters > MAX_EARLY_CHARACTERS:
            raise PeerMessageError("the peer's messages came, but not the ones before them")

    def echoed(self, phase: str, body: str) -> None:
        """Handle a message of this side that the server has stored.

        Raises OldCheckpointError if this state has not sent it. The peer reads the first message of each number, so
        that a later one with the same number would be lost.
        """
        if is_number(phase):
            own = self._state.own.get(phase)
            if int(phase) >= self._state.next_own if own is None else own.body != body:
                raise OldCheckpointError(f"the server has messages of this side that {OLD_CHECKPOINT}")
        self.stored(phase)

    def stored(self, phase: str) -> None:
        """Note that the server has stored a message of this side."""
        own = self._state.own.get(phase)
        if own is None or own.stored:
            return
        own.stored = True
        if is_number(phase):
            self.unstored.remove(own.body)
            self._emit(MessageStored(int(phase)))
            if not self.keeps_until_receipt:
                del self._state.own[phase]

    def processed(self, number: int) -> None:
        """Note that the application has processed the peer's messages up to this number. Raises ValueError."""
        state = self._state
        if not state.next_peer <= number < self._next_delivered:
            raise ValueError(f"message {number} is not one that waits to be processed")
        for processed in range(state.next_peer, number + 1):
            state.peer_digest = digest_with(state.peer_digest, state.inbox.pop(str(processed)))
        state.next_peer = number + 1
        if state.peer_abilities.wants_receipts:
            if state.receipt is not None:
                state.own.pop(state.receipt, None)
            state.receipt = f"{RECEIPT}{state.next_peer}"
            self._seal(state.receipt, (state.peer_digest or "").encode())

    def _is_new(self, phase: str) -> bool:
        if phase in self._state.inbox:
            return False
        return self._state.peer_versions is None if phase == VERSION else int(phase) >= self._next_delivered

    def _exchange(self) -> Spake2:
        if self._spake is None:
            assert self._state.code is not None
            password, identity = password_of(self._state.code), self._state.app_id.encode()
            self._spake = Spake2(password, identity, bytes.fromhex(self._state.secret))
        return self._spake

    def _agree(self, body: str) -> None:
        state = self._state
        try:
            half = bytes.fromhex(_decode_pake(bytes.fromhex(body)).pake_v1)
            key = self._exchange().finish(half)
        except BadMessageError as error:
            raise WrongPasswordError(f"the peer's half of the key is not valid: {error}") from error
        except (ValueError, msgspec.DecodeError) as error:
            raise WrongPasswordError("the peer's half of the key is not valid: it cannot be read") from error
        state.key = key.hex()
        self._emit(KeyAgreed())
        self._seal(VERSION, msgspec.json.encode(_Versions(state.app_versions, state.abilities)))
        for number, plaintext in enumerate(state.unsealed, state.next_own - len(state.unsealed)):
            self._seal(str(number), bytes.fromhex(plaintext))
        state.unsealed = []

    def _deliver(self) -> None:
        """Open the next messages that have come, and report them."""
        state = self._state
        if state.peer_versions is None and not self._receive_versions():
            return
        while (body := state.inbox.get(str(self._next_delivered))) is not None:
            self._emit(MessageReceived(self._next_delivered, self._opened(str(self._next_delivered), body)))
            self._next_delivered += 1

    def _receive_versions(self) -> bool:
        state = self._state
        body = state.inbox.pop(VERSION, None)
        if body is None:
            return False
        plaintext = self._opened(VERSION, body)
        try:
            versions = _decode_versions(plaintext)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PeerMessageError("the peer's version message cannot be read") from error
        state.peer_versions, state.peer_abilities = versions.app_versions, versions.restante
        if not self.keeps_until_receipt:
            for phase in [phase for phase, own in state.own.items() if own.stored and is_number(phase)]:
                del state.own[phase]
        self._emit(PeerConfirmed(keys.verifier(bytes.fromhex(state.key or "")), versions.app_versions))
        return True

    @property
    def keeps_until_receipt(self) -> bool:
        """Whether a sent message is kept until the peer has processed it. Else it is kept until it is stored."""
        state = self._state
        unknown = state.peer_versions is None
        return state.abilities.wants_receipts and (unknown or state.peer_abilities.sends_receipts)

    def _receive_receipt(self, phase: str, body: str, new: AbstractSet[str]) -> None:
        state = self._state
        digits = phase.removeprefix(RECEIPT)
        if not is_number(digits) or not state.abilities.wants_receipts:
            return
        plaintext = self._open(phase, body)
        number = int(digits)
        possible = number <= state.next_own and self._may_be_received(str(number - 1), new)
        if not possible or not self._is_of_our_messages(number, plaintext):
            if self._lasting:
                raise OldCheckpointError(f"the peer has messages of this side that {OLD_CHECKPOINT}")
            raise PeerMessageError("the peer confirms a message that was not sent")
        while state.acknowledged < number:
            self.stored(str(state.acknowledged))
            own = state.own.pop(str(state.acknowledged), None)
            state.own_digest = digest_with(state.own_digest, None if own is None else own.body)
            self._emit(MessageDelivered(state.acknowledged))
            state.acknowledged += 1

    def _is_of_our_messages(self, number: int, plaintext: bytes) -> bool:
        """Return whether a receipt is for our messages before a number, as far as its digest shows it.

        A copy of an earlier checkpoint sends other messages with the same numbers, and the peer ignores them.
        """
        digest = self._state.own_digest
        for acknowledged in range(self._state.acknowledged, number):
            own = self._state.own.get(str(acknowledged))
            digest = digest_with(digest, None if own is None else own.body)
        unknown = number < self._state.acknowledged or digest is None or not plaintext
        return unknown or plaintext == str(digest).encode()

    def check_complete(self) -> None:
        """Raise OldCheckpointError if messages came, and the ones before them never will. All stored ones have come.

        A peer that wants receipts sends every message again that this side has not confirmed.
        """
        state = self._state
        keeps = self._lasting and state.peer_abilities.wants_receipts and state.mood is None
        if keeps and any(int(phase) >= self._next_delivered for phase in state.inbox):
            raise OldCheckpointError(f"messages of the peer, which this side has confirmed, {OLD_CHECKPOINT}")

    def _may_be_received(self, phase: str, new: AbstractSet[str]) -> bool:
        """Return whether the peer can have a message of this side, and so all before, which are added first."""
        own = self._state.own.get(phase)
        return own is None or own.stored or (own.sent and phase not in new)

    def _opened(self, phase: str, body: str) -> bytes:
        self._early_messages -= 1
        self._early_characters -= len(body)
        return self._open(phase, body)

    def _open(self, phase: str, body: str) -> bytes:
        try:
            return keys.open_sealed(self._key(self._state.peer_side or "", phase), bytes.fromhex(body))
        except ValueError as error:
            reason = "the peer used another code, or somebody guessed: agree on a new one"
            raise WrongPasswordError(reason) from error

    def _seal(self, phase: str, plaintext: bytes) -> None:
        self._put(phase, keys.seal(self._key(self._state.side, phase), plaintext, self._draw(keys.NONCE_BYTES)))

    def _put(self, phase: str, body: bytes) -> None:
        self._state.own[phase] = OwnMessage(body.hex())
        self.fresh.append(phase)

    def _key(self, side: str, phase: str) -> bytes:
        if self._keys is None:
            assert self._state.key is not None
            self._keys = keys.MessageKeys(bytes.fromhex(self._state.key))
        return self._keys.key(side, phase)


class _Pake(msgspec.Struct):
    pake_v1: str


class _Versions(msgspec.Struct, omit_defaults=True):
    app_versions: dict[str, Any] = msgspec.field(default_factory=lambda: {})  # noqa: PIE807 - see below
    """With `dict` itself it would be left out where it is empty, and then magic-wormhole.rs 0.8.1 ends: it takes what
    is missing for a null, which is no `AppVersion` (core/key.rs:117, transfer.rs:176)."""
    restante: Abilities = Abilities()


_decode_pake: Final = msgspec.json.Decoder(_Pake).decode
_decode_versions: Final = msgspec.json.Decoder(_Versions).decode
