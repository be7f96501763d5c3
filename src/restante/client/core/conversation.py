"""What two sides say to one another: the halves of the key, then sealed messages, delivered in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from restante.client.core.outputs import KeyAgreed, MessageReceived, Output, PeerConfirmed
from restante.client.core.state import OwnMessage, State
from restante.client.errors import PeerMessageError, WrongPasswordError
from restante.client.protocol import keys
from restante.client.protocol.code import password_of
from restante.client.protocol.spake2 import BadMessageError, Spake2

PAKE: Final = "pake"
VERSION: Final = "version"

MAX_EARLY_MESSAGES: Final = 1000
MAX_EARLY_BYTES: Final = 64 * 1024 * 1024
"""Messages of the peer, and bytes of them, that are kept until the ones before them come. A server delivers a mailbox
in order, so that many early messages are a mistake or an attack."""

MAX_NUMBER_DIGITS: Final = 18
"""Digits of a message's number. More do not fit into 64 bits."""


class Conversation:
    """The conversation with the peer. Methods that hear the peer raise a `WormholeError` if it cannot succeed."""

    def __init__(self, state: State, draw: Callable[[int], bytes], tell: Callable[[Output], None]) -> None:
        self._state = state
        self._draw = draw
        self._tell = tell
        self._spake: Spake2 | None = None

    def begin(self) -> None:
        """Add our half of the key to our messages. The code is known."""
        half = msgspec.json.encode({"pake_v1": self._exchange().message.hex()})
        self._state.own.append(OwnMessage(PAKE, half.hex()))

    def send(self, plaintext: bytes) -> int:
        """Add a message of the application to our messages, sealed if the key is known. Return its number."""
        number = self._state.next_own
        self._state.next_own += 1
        self._state.unsealed.append(plaintext.hex())
        self._seal()
        return number

    def hear(self, phase: str, body: str) -> None:
        """Handle a message of the peer, and deliver what is next."""
        state = self._state
        if phase == PAKE:
            if state.key is None:
                self._agree(body)
        elif (phase == VERSION or is_number(phase)) and self._is_new(phase):
            state.early[phase] = body
            if len(state.early) > MAX_EARLY_MESSAGES or sum(map(len, state.early.values())) > MAX_EARLY_BYTES:
                raise PeerMessageError("the peer's messages come without the ones before them")
        if state.key is not None:
            self._deliver()

    def _is_new(self, phase: str) -> bool:
        if phase in self._state.early:
            return False
        return self._state.peer_versions is None if phase == VERSION else int(phase) >= self._state.next_peer

    def _exchange(self) -> Spake2:
        if self._spake is None:
            assert self._state.code is not None
            password, identity = password_of(self._state.code), self._state.app_id.encode()
            self._spake = Spake2(password, identity, bytes.fromhex(self._state.secret))
        return self._spake

    def _agree(self, body: str) -> None:
        try:
            half = bytes.fromhex(_decode_pake(bytes.fromhex(body)).pake_v1)
            key = self._exchange().finish(half)
        except (ValueError, msgspec.DecodeError, BadMessageError) as error:
            raise WrongPasswordError(f"the peer's half of the key is not valid: {error}") from error
        self._state.key = key.hex()
        self._tell(KeyAgreed())
        self._add(VERSION, msgspec.json.encode({"app_versions": self._state.app_versions}))
        self._seal()

    def _deliver(self) -> None:
        """Open what is next, as far as it is there."""
        state = self._state
        if state.peer_versions is None:
            versions = self._opened(VERSION)
            if versions is None:
                return
            try:
                said = _decode_versions(versions)
            except msgspec.DecodeError as error:
                raise PeerMessageError("the peer's version message cannot be read") from error
            state.peer_versions = said.app_versions
            self._tell(PeerConfirmed(keys.verifier(bytes.fromhex(state.key or "")), said.app_versions))
        while (plaintext := self._opened(str(state.next_peer))) is not None:
            self._tell(MessageReceived(state.next_peer, plaintext))
            state.next_peer += 1

    def _opened(self, phase: str) -> bytes | None:
        body = self._state.early.pop(phase, None)
        if body is None:
            return None
        try:
            return keys.open_sealed(self._key(self._state.peer_side or "", phase), bytes.fromhex(body))
        except ValueError as error:
            words = "the peer used another code, or somebody guessed: agree on a new one"
            raise WrongPasswordError(words) from error

    def _seal(self) -> None:
        """Seal the application's messages that waited for the key."""
        if self._state.key is not None:
            first = self._state.next_own - len(self._state.unsealed)
            for number, plaintext in enumerate(self._state.unsealed, first):
                self._add(str(number), bytes.fromhex(plaintext))
            self._state.unsealed = []

    def _add(self, phase: str, plaintext: bytes) -> None:
        sealed = keys.seal(self._key(self._state.side, phase), plaintext, self._draw(keys.NONCE_BYTES))
        self._state.own.append(OwnMessage(phase, sealed.hex()))

    def _key(self, side: str, phase: str) -> bytes:
        assert self._state.key is not None
        return keys.phase_key(bytes.fromhex(self._state.key), side, phase)


def is_number(phase: str) -> bool:
    """Return whether a phase is the number of an application message."""
    return phase.isascii() and phase.isdigit() and len(phase) <= MAX_NUMBER_DIGITS and str(int(phase)) == phase


class _Pake(msgspec.Struct):
    pake_v1: str


class _Versions(msgspec.Struct):
    app_versions: dict[str, Any] = {}


_decode_pake: Final = msgspec.json.Decoder(_Pake).decode
_decode_versions: Final = msgspec.json.Decoder(_Versions).decode
