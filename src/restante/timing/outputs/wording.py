"""What several outputs say in the same words: who is meant, what is known of a clock, and a row of delays. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from restante.common.units import duration
from restante.timing.model.timeline import ROLES, Client, Delay, Role, Timeline

NO_TRACE: Final = "Without a trace of the server, its queue and its commits cannot be told apart"


def opposite(role: Role) -> Role:
    """Return the other role."""
    return next(each for each in ROLES if each != role)


def named(role: Role, timeline: Timeline) -> str:
    """Return what a client is called. Only those whose log was given are called by their role."""
    return f"the {role}" if role in (client.role for client in timeline.clients) else "the other client"


def clock(client: Client, error: str) -> str:
    """Return what is known of a client's clock, as a sentence without its full stop.

    `error` is the form of its error, with {} for the duration.
    """
    name = f"The {client.role}'s clock"
    if client.offset_us is None or client.error_us is None:
        return f"{name} could not be compared with the server's: its times are as it wrote them"
    way = "ahead of" if client.offset_us >= 0 else "behind"
    words = f"{name} was {duration(abs(client.offset_us))} {way} the server's"
    if client.given:
        return f"{words}, as --skew says"
    words += error.format(duration(client.error_us))
    return f"{words}; it moved by {duration(client.moved_us)} or more" if client.moved_us else words


def delay_cells(delay: Delay) -> Iterable[str]:
    """Return the number, the median, the maximum and the sum of a delay, as a table shows them."""
    count = f"{delay.count:,}" + (f" of {delay.count + delay.unknown:,}" if delay.unknown else "")
    times = (delay.median_us, delay.max_us, delay.sum_us if delay.count else None)
    return [count, *("?" if each is None else duration(each) for each in times)]
