"""SPAKE2 over Ed25519 in its symmetric form: two sides that know a password agree on a key.

The bytes are those of Python's `spake2` 0.9, which every wormhole client speaks, and not those of RFC 9382.
"""

from __future__ import annotations

import hashlib
from typing import Final

from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_is_valid_point,
    crypto_core_ed25519_scalar_reduce,
    crypto_core_ed25519_sub,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
)

from restante.client.protocol.hkdf import hkdf

ORDER: Final = 2**252 + 27742317777372353535851937790883648493
"""The order of the group that the base point of Ed25519 generates (RFC 8032 section 5.1)."""

BLINDING_POINT: Final = bytes.fromhex("6f00dae87c1be1a73b5922ef431cd8f57879569c222d22b1cd71e8546ab8e6f1")
"""The point S of the symmetric form, of which nobody knows the logarithm (spake2: ed25519_group.py,
`arbitrary_element(b"symmetric")`)."""

SYMMETRIC: Final = b"S"
"""The first byte of a message. It names the symmetric form (spake2.py, `SideSymmetric`)."""

POINT_BYTES: Final = 32
MESSAGE_BYTES: Final = len(SYMMETRIC) + POINT_BYTES

RANDOM_BYTES: Final = 64
"""Random bytes for a secret number. Twice as many as it has, so that its remainder is uniform."""

_PASSWORD_SCALAR_BYTES: Final = 48
"""Bytes that are derived from a password, for the same reason (spake2: groups.py, `expand_password`)."""


class BadMessageError(ValueError):
    """The other side's SPAKE2 message is not a message, or would reveal or fix the key."""


class Spake2:
    """One side of an exchange. It can be made again from the same password and random bytes."""

    def __init__(self, password: bytes, identity: bytes, random: bytes) -> None:
        """Prepare the exchange. `identity` is the app id; `random` is secret and used for nothing else.

        Raises:
            ValueError: `random` has not `RANDOM_BYTES` bytes, or makes the number zero.

        """
        if len(random) != RANDOM_BYTES:
            raise ValueError(f"a secret number is made of {RANDOM_BYTES} random bytes, not {len(random)}")
        self._secret = crypto_core_ed25519_scalar_reduce(random)
        if not any(self._secret):
            raise ValueError("a secret number of zero")
        self._password_hash = hashlib.sha256(password).digest()
        self._identity_hash = hashlib.sha256(identity).digest()
        self._blinding = crypto_scalarmult_ed25519_noclamp(_password_scalar(password), BLINDING_POINT)
        self._point = crypto_core_ed25519_add(crypto_scalarmult_ed25519_base_noclamp(self._secret), self._blinding)
        self.message = SYMMETRIC + self._point
        """What the other side has to receive."""

    def finish(self, message: bytes) -> bytes:
        """Return the key of 32 bytes. It is the other side's only if both used the same password and identity.

        Raises:
            BadMessageError: the message has another form, is our own sent back, or is a point of small order, which
                would make the key independent of the password.

        """
        point = message.removeprefix(SYMMETRIC)
        if len(message) != MESSAGE_BYTES or len(point) != POINT_BYTES:
            raise BadMessageError("not a message of symmetric SPAKE2")
        if point == self._point:
            raise BadMessageError("our own message came back")
        if not crypto_core_ed25519_is_valid_point(point):
            raise BadMessageError("not a point of the group")
        unblinded = crypto_core_ed25519_sub(point, self._blinding)
        try:
            shared = crypto_scalarmult_ed25519_noclamp(self._secret, unblinded)
        except RuntimeError as error:  # the identity: a message that is the blinding itself
            raise BadMessageError("a point that fixes the key") from error
        points = b"".join(sorted((self._point, point)))
        return hashlib.sha256(self._password_hash + self._identity_hash + points + shared).digest()


def _password_scalar(password: bytes) -> bytes:
    derived = hkdf(password, b"SPAKE2 pw", _PASSWORD_SCALAR_BYTES)
    return (int.from_bytes(derived, "big") % ORDER).to_bytes(POINT_BYTES, "little")
