"""What a commit to the lake says of itself."""

from __future__ import annotations

import msgspec


class Mark(msgspec.Struct, frozen=True):
    """Where reading a part of a source stopped."""

    last: int
    """The greatest id that was read, or known to have been given."""
    last_digest: str
    """Of its row; "" where it had none any more."""
    first: int
    """The least id that had a row; 0 where none had."""
    first_digest: str
    """Of its row, likewise."""
