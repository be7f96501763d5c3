"""The clock of the machine is set back and forward while people talk: the order is kept, and nothing is lost."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Final

from support.mailbox.raw_socket import RawSocket
from support.mailbox.siege import Siege, besieged

DAY: Final = 86400

CLOCKMAKER: Final = (sys.executable, "-m", "support.mailbox.clockmaker")
OPTIONS: Final = ("--prune-every", "1", "--prune-after", "600")


async def set_clock(siege: Siege, looker: RawSocket, days: int) -> None:
    """Set the server's clock so many days off, and wait until its stamps show it."""
    number = {0: signal.SIGUSR1, 1: signal.SIGUSR2, -1: signal.SIGWINCH}[days]
    siege.server.send(number)
    told: float = 0
    while abs(told - time.time() - days * DAY) > DAY / 2:
        told = (await siege.call(looker, type="ping", ping=1))["server_tx"]


async def test_a_clock_that_jumps_a_day_loses_nothing_and_keeps_the_order(tmp_path: Path) -> None:
    async with besieged(tmp_path / "data", OPTIONS, CLOCKMAKER) as siege:
        for again in ("", "ab"):
            async with siege.beside_the_pair("a clock that jumps") as pair:
                looker = await siege.bind("looker")
                session = pair.session()
                days = 0
                async for step in session.steps():
                    days = {0: 1, 1: -1, -1: 0}[days]
                    await set_clock(siege, looker, days)
                    if not step.endswith("closed"):
                        for side in again:
                            async with session.away(getattr(session, side)):
                                pass
                    await pair.plays(1)  # whole sessions at every time of day
                assert session.delays
