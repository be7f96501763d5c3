"""ECIES as go-ethereum implements it (crypto/ecies, AES-128 and SHA-256), for RLPx handshakes and sealed payloads.

    R(65, 04 ‖ X ‖ Y) ‖ IV(16) ‖ AES-128-CTR(ke, IV, plain) ‖ HMAC-SHA256(km, IV ‖ cipher ‖ authenticated)

    z = X of ECDH(r, public);  K = SHA256(00000001 ‖ z);  ke = K[:16];  km = SHA256(K[16:])

`authenticated` is the size prefix of a handshake packet. For payloads it is empty.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from restante.common.errors import PeerError
from restante.waku.envelope.keys import PUBLIC_BYTES, Key
from restante.waku.envelope.rlp import BREACH

IV_BYTES: Final = 16
_POINT_BYTES: Final = 1 + PUBLIC_BYTES
_MAC_BYTES: Final = 32
OVERHEAD_BYTES: Final = _POINT_BYTES + IV_BYTES + _MAC_BYTES
"""Bytes that encryption adds: 113."""


def encrypt(public: bytes, plain: bytes, *, ephemeral: Key, iv: bytes, authenticated: bytes = b"") -> bytes:
    """Encrypt to a public key. Raises PeerError if the public key is invalid.

    `ephemeral` and `iv` must be random and must never be reused.
    """
    cipher_key, mac_key = _keys(ephemeral.agree(public))
    sealed = iv + _ctr(cipher_key, iv, plain)
    return b"\4" + ephemeral.public + sealed + _mac(mac_key, sealed, authenticated)


def decrypt(key: Key, data: bytes, authenticated: bytes = b"") -> bytes:
    """Decrypt data that was encrypted to our key. Raises PeerError if it was not, or if it was altered."""
    if len(data) < OVERHEAD_BYTES or data[0] != 4:
        raise PeerError(BREACH, "a ciphertext does not begin with a public key")
    cipher_key, mac_key = _keys(key.agree(data[1:_POINT_BYTES]))
    sealed, mac = data[_POINT_BYTES:-_MAC_BYTES], data[-_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(mac_key, sealed, authenticated)):
        raise PeerError(BREACH, "a ciphertext is for another key, or was altered")
    return _ctr(cipher_key, sealed[:IV_BYTES], sealed[IV_BYTES:])


def _keys(shared: bytes) -> tuple[bytes, bytes]:
    derived = hashlib.sha256(b"\0\0\0\1" + shared).digest()
    return derived[:16], hashlib.sha256(derived[16:]).digest()


def _ctr(key: bytes, iv: bytes, data: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.CTR(iv)).encryptor().update(data)


def _mac(key: bytes, sealed: bytes, authenticated: bytes) -> bytes:
    return hmac.digest(key, sealed + authenticated, "sha256")
