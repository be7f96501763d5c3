"""The operating system's source of random bytes."""

from __future__ import annotations

import os

from restante.waku.envelope.keys import SECRET_BYTES, Key


class SystemDice:
    """The source of randomness that the cores receive."""

    draw = staticmethod(os.urandom)

    def key(self) -> Key:
        """Return a new random key."""
        while True:
            try:
                return Key(self.draw(SECRET_BYTES))
            except ValueError:  # with probability 2^-128: not a key of the curve
                continue
