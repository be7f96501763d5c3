"""The bytes of a connection: the lines with which it begins, then encrypted records (transit.md; mw transit.py).

Where the published text differs from all shipped clients, the clients count: a nonce is a big-endian counter, and a
record has 16 bytes more than its nonce and its plaintext (mw transit.py:226-249; wormhole-william
file_transport.go:133; magic-wormhole.rs transit/crypto.rs:428).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

# PyNaCl's public functions return new bytes, and with records take up to 1.4 times as long as libsodium itself.
from nacl._sodium import ffi, lib

from restante.client.errors import PeerMessageError
from restante.client.protocol.hkdf import hkdf
from restante.client.protocol.keys import KEY_BYTES, NONCE_BYTES, OVERHEAD_BYTES
from restante.common.texts import counted

PURPOSE: Final = "lothar.com/wormhole/text-or-file-xfer/transit-key"
"""What the key of a connection is derived for, whatever the application id is (mw cli/cmd_send.py:219-228)."""

LENGTH_BYTES: Final = 4
"""Bytes before a record, which say how long it is."""

_CIPHERTEXT: Final = LENGTH_BYTES + NONCE_BYTES
"""Bytes of a record, with its length, before its ciphertext."""

MAX_RECORD_BYTES: Final = 1024 * 1024
"""Bytes of a record, without its length. A longer one is refused before it is read. Shipped clients send 16 KiB."""

GO: Final = b"go\n"
"""What the sender writes on the one connection that is used."""

NEVERMIND: Final = b"nevermind\n"
"""What it writes on any other, before it closes it."""

RELAY_READY: Final = b"ok\n"
"""What a relay answers when both sides are there. The peer's line is next."""


class Role(StrEnum):
    """What a side of a transfer does."""

    SENDER = "sender"
    RECEIVER = "receiver"

    @property
    def peer(self) -> Role:
        """The role of the other side."""
        return Role.RECEIVER if self is Role.SENDER else Role.SENDER


class TransitKeys(msgspec.Struct, frozen=True):
    """What one side says and expects at the beginning, and the keys of both directions."""

    line: bytes
    """What this side writes first."""
    peer_line: bytes
    """What the peer has to write. Nobody else knows it."""
    relay_token: str
    """What both sides show a relay, in hex, so that it connects them."""
    sealing: bytes
    opening: bytes

    @classmethod
    def derive(cls, key: bytes, role: Role) -> TransitKeys:
        """Derive them from the key of the connection, which is `wormhole.derive_key(PURPOSE)`."""

        def derived(purpose: str) -> bytes:
            return hkdf(key, purpose.encode(), KEY_BYTES)

        def line(side: Role) -> bytes:
            return f"transit {side} {derived(f'transit_{side}').hex()} ready\n\n".encode()

        return cls(
            line=line(role),
            peer_line=line(role.peer),
            relay_token=derived("transit_relay_token").hex(),
            sealing=derived(f"transit_record_{role}_key"),
            opening=derived(f"transit_record_{role.peer}_key"),
        )

    def relay_line(self, side: bytes) -> bytes:
        """Return the line that a relay is sent. The two sides have different `side`s, of 8 bytes."""
        return f"please relay {self.relay_token} for side {side.hex()}\n".encode()


class RecordSealer:
    """Makes the records of one direction, all of them in one buffer."""

    def __init__(self, key: bytes) -> None:
        self._key, self._next = key, 0
        self._buffer = bytearray()

    def seal(self, plaintext: bytes) -> memoryview:
        """Return the next record, with its length before it. The next call overwrites it."""
        nonce = self._next.to_bytes(NONCE_BYTES, "big")
        self._next += 1
        length = len(plaintext) + OVERHEAD_BYTES
        size = LENGTH_BYTES + length
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        self._buffer[:_CIPHERTEXT] = length.to_bytes(LENGTH_BYTES, "big") + nonce
        sealed = ffi.from_buffer(self._buffer) + _CIPHERTEXT
        lib.crypto_secretbox_easy(sealed, ffi.from_buffer(plaintext), len(plaintext), nonce, self._key)
        return memoryview(self._buffer)[:size]


class RecordOpener:
    """Opens the records of one direction, in their order, all of them into one buffer."""

    def __init__(self, key: bytes) -> None:
        self._key, self._next = key, 0
        self._buffer = bytearray()

    def open(self, record: bytes | memoryview) -> memoryview:
        """Return the plaintext of the next record, of which `length_of` is the length. The next call overwrites it.

        Raises PeerMessageError if the record is not the next one, or was altered.
        """
        nonce = self._next.to_bytes(NONCE_BYTES, "big")
        if record[:NONCE_BYTES] != nonce:
            raise PeerMessageError("a record of the transfer is missing, or comes twice")
        self._next += 1
        size = len(record) - OVERHEAD_BYTES
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        sealed = ffi.from_buffer(record) + NONCE_BYTES
        length = len(record) - NONCE_BYTES
        if lib.crypto_secretbox_open_easy(ffi.from_buffer(self._buffer), sealed, length, nonce, self._key):
            raise PeerMessageError("a record of the transfer was sealed with another key, or altered")
        return memoryview(self._buffer)[:size]


def length_of(header: bytes) -> int:
    """Return the length of a record, from the bytes before it. Raises PeerMessageError if no record is that long."""
    length = int.from_bytes(header, "big")
    if not OVERHEAD_BYTES <= length <= MAX_RECORD_BYTES:
        raise PeerMessageError(f"the peer announces a record of {counted(length, 'byte')}, which nobody sends")
    return length
