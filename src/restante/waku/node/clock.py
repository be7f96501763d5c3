"""The clock of a node, passed as an argument."""

from __future__ import annotations

import asyncio
import time


class NodeClock:
    """The system's clock: seconds since 1970, those of a clock that is never set back, and a wait."""

    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    pause = staticmethod(asyncio.sleep)
