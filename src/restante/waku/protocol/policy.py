"""What a node accepts and a program sends unless something else is configured.

The command line shows these values also without the extra that envelopes need, so nothing is imported here.
"""

from __future__ import annotations

from typing import Final

MIN_POW: Final = 2e-6
"""Minimum proof of work (Envelope.pow): that of a status-go mailserver (params/config.go)."""

MAX_ENVELOPE_SIZE: Final = 1 << 20
"""Maximum size of an envelope in bytes: that of a status-go mailserver."""

MAX_TTL_SECONDS: Final = 7 * 24 * 60 * 60

TTL_SECONDS: Final = 50
"""Seconds that an envelope lives: what status-go sends (waku/common/const.go, DefaultTTL)."""
