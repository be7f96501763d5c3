"""`restante ARGS...` whose wall clock is set from outside: SIGUSR1 right, SIGUSR2 a day fast, SIGWINCH a day slow."""

import signal
import time

from restante.cli.main import main
from restante.mailbox.server.system import SystemClock

DAYS = {signal.SIGUSR1: 0, signal.SIGUSR2: 1, signal.SIGWINCH: -1}


class JumpingClock:
    days = 0

    def set(self, number: int, _frame: object) -> None:
        self.days = DAYS[signal.Signals(number)]

    def wall(self) -> float:
        return time.time() + self.days * 86400


if __name__ == "__main__":
    clock = JumpingClock()
    SystemClock.wall = staticmethod(clock.wall)
    for number in DAYS:
        signal.signal(number, clock.set)
    main()
