"""Chance: the system's, which nobody can guess."""

from __future__ import annotations

import os

from restante.waku.envelope.keys import SECRET_BYTES, Key


class SystemDice:
    """What the cores are handed."""

    draw = staticmethod(os.urandom)

    def key(self) -> Key:
        """Make a key that nobody has had."""
        while True:
            try:
                return Key(self.draw(SECRET_BYTES))
            except ValueError:  # once in 2^128: no key of the curve
                continue
