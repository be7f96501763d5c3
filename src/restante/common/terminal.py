"""What may be written to a stream besides plain lines: colours, and lines that are rewritten."""

from __future__ import annotations

import os
from typing import Final, TextIO

DUMB: Final = {"dumb", "unknown"}
"""Values of TERM of terminals that know no escape sequences (man 7 term)."""


def can_rewrite(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that can go back in a line, for progress bars."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") not in DUMB


def has_colours(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal with colours, and its user wants them (no-color.org)."""
    return can_rewrite(stream) and not os.environ.get("NO_COLOR")
