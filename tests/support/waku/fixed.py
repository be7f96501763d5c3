"""What the tests of envelopes share."""

from __future__ import annotations

from restante.waku.envelope.keys import Key

KEY = Key(bytes(range(1, 33)))
OTHER_KEY = Key(bytes(range(2, 34)))
