"""Chance: the system's."""

from __future__ import annotations

import secrets

from restante.waku.keys import SECRET, Key


def fresh_key() -> Key:
    """Make a private key that nobody can guess."""
    while True:
        try:
            return Key(secrets.token_bytes(SECRET))
        except ValueError:  # once in 2^128: no key of the curve
            continue
