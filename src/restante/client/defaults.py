"""Which servers are used if none are named."""

from __future__ import annotations

from typing import Final

DEFAULT_SERVER: Final = "wss://relay.magic-wormhole.io/v1"
"""The public server of Magic Wormhole, which shipped clients use too (magic-wormhole: cli/public_relay.py)."""

DEFAULT_APP_ID: Final = "lothar.com/wormhole/text-or-file-xfer"
"""The application id of `wormhole send` and `wormhole receive`."""

DEFAULT_TRANSIT_RELAY: Final = "tcp:transit.magic-wormhole.io:4001"
"""The public relay for files, which shipped clients use too (magic-wormhole: cli/public_relay.py)."""

DEFAULT_WORDS: Final = 2
"""Words of a new code: 16 bits, as in every shipped client. Whoever guesses has one attempt."""

MAX_WORDS: Final = 32
"""Words of a new code, at most: the session key has no more bits."""
