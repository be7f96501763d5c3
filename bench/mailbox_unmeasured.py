"""Run `restante` with a mailbox server that measures nothing, as the peer of mailbox_metrics.py.

python bench/mailbox_unmeasured.py ARGUMENTS-OF-RESTANTE

What is replaced is what the metrics do for each command and each batch, but for the times of the `add`s: to note them
takes 0.03 % of a session. Where it is a line of a longer function, the whole function is here without the line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from restante.cli.main import main
from restante.mailbox.core.dispatcher import Dispatcher
from restante.mailbox.core.model import size_of
from restante.mailbox.server.measurements import Measurements

if TYPE_CHECKING:
    from restante.mailbox.core.connection_state import ConnectionState
    from restante.mailbox.core.model import Now
    from restante.mailbox.protocol.frame_text import FrameText


def _handle(self: Dispatcher, connection: ConnectionState, text: FrameText, now: Now) -> None:
    self.weight = self.cost = size_of(text)
    if connection.verdict is not None:
        self._answer_departing(connection, text, now)
    elif not connection.lost:
        self.last_message = None
        self._handle(connection, text, now)


def _nothing(*_: Any) -> None:
    pass


def measure_nothing() -> None:
    """Replace what the metrics do, in this process."""
    Dispatcher.handle = _handle  # type: ignore[method-assign]
    Measurements.committed = _nothing  # type: ignore[assignment, method-assign]
    Measurements.answered = _nothing  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    measure_nothing()
    main()
