"""Seeds: a secret that two sides share after a wormhole, from which both derive the code of their next one.

No shipped client has them. The derivations are those of magic-wormhole-protocols' pull request 17, but the nameplate
is a decimal number: the reference server takes no other (magic-wormhole-mailbox-server 0.8.0: server.py:11).
"""

from __future__ import annotations

from typing import Final

from restante.client.protocol.hkdf import hkdf
from restante.client.protocol.keys import KEY_BYTES

SEED_BYTES: Final = KEY_BYTES

NAMEPLATE_BYTES: Final = 16
"""Bytes that become the nameplate: at most 39 digits, so that two pairs never have the same by chance."""


def seed_of(key: bytes) -> bytes:
    """Return the seed of two sides that have agreed on a session key."""
    return hkdf(key, b"wormhole:seed", SEED_BYTES)


MAILBOX_BYTES: Final = 16
"""Bytes that become the mailbox, likewise."""


def seed_code(seed: bytes) -> str:
    """Return the code of a seed, for `BaseWormhole.set_code`. It is the same at both sides, and each time.

    Args:
        seed: what `BaseWormhole.seed` returned in an earlier wormhole of the two sides.

    Raises:
        ValueError: the seed has not 32 bytes.

    """
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
    nameplate = int.from_bytes(hkdf(seed, b"wormhole:seed:nameplate", NAMEPLATE_BYTES))
    return f"{nameplate}-{hkdf(seed, b'wormhole:seed:password', KEY_BYTES).hex()}"


def seed_mailbox(seed: bytes) -> str:
    """Return the mailbox of a seed, for sides that claim no nameplate. It is the same each time."""
    return hkdf(seed, b"wormhole:seed:mailbox", MAILBOX_BYTES).hex()
