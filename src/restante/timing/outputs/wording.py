"""What several outputs say in the same words: where the time went, what is known of a clock, delays. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from restante.common.units import duration, percent
from restante.timing.model import elapsed, phases
from restante.timing.model.timeline import ROLES, Client, Delay, Role, Timeline

NO_TRACE: Final = "Without a trace of the server, its queue and its commits cannot be told apart"


MAIN_SHARE: Final = 0.5
"""Share of a client's time from which on one cause alone is named."""

MEANWHILE_SHARE: Final = 0.2
"""Share of a wait from which on a second thing that the other client did is named."""

NETWORK: Final = "network"

GROUPS: Final[Mapping[str, str]] = {
    phases.NETWORK_OUT: NETWORK,
    phases.NETWORK_IN: NETWORK,
    phases.QUEUE: phases.SERVER,
    phases.COMMIT: phases.SERVER,
    phases.QUEUE_AND_COMMIT: phases.SERVER,
    phases.ANSWER: phases.SERVER,
}
"""Causes that count together in the answer."""

CLAUSES: Final[Mapping[str, str]] = {
    phases.HUMAN: "waited for its user",
    elapsed.PEER: "waited for {other}",
    phases.TRANSFER: "transferred data",
    phases.TRANSIT_CONNECT: "connected to {other}",
    phases.CRYPTO: "computed keys",
    elapsed.CONNECT: "connected to the server",
    NETWORK: "waited for the network to and from the server",
    phases.SERVER: "waited for the server",
    phases.ROUND_TRIP: "waited for the server's answers",
    elapsed.PROGRAM: "started, computed or ended",
    elapsed.NOT_RUNNING: "was not running",
}
"""What a client did in time of each cause."""


def answer(client: Client, timeline: Timeline) -> str:
    """Return two or three sentences: how long a client ran, and what took most of its time.

    A second cause is named if the first took less than MAIN_SHARE.
    """
    whole, other = client.stop_us - client.start_us, named(opposite(client.role), timeline)
    if whole <= 0:
        return f"The {client.role}'s log has no duration."
    sentences = [f"The {client.role} ran for {duration(whole)}."]
    causes = _grouped({spent.cause: spent.us for spent in client.spent})
    meanwhile = next((spent.peer for spent in client.spent if spent.cause == elapsed.PEER and spent.peer), {})
    for number, (cause, us) in enumerate(causes[: 1 if causes and causes[0][1] >= MAIN_SHARE * whole else 2]):
        sentence = f"For {'another ' if number else ''}{duration(us)} ({percent(us, whole)}) it "
        sentence += CLAUSES[cause].format(other=other)
        if cause == elapsed.PEER and meanwhile:
            sentence += ", which " + " and ".join(_meanwhile(meanwhile, us, f"the {client.role}"))
        sentences.append(f"{sentence}.")
    return " ".join(sentences)


def _grouped(spent: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the microseconds of each cause or group, the longest first."""
    sums: dict[str, int] = {}
    for cause, us in spent.items():
        group = GROUPS.get(cause, cause)
        sums[group] = sums.get(group, 0) + us
    return sorted(sums.items(), key=lambda item: -item[1])


def _meanwhile(spent: Mapping[str, int], whole: int, other: str) -> Iterator[str]:
    """Yield what the other client did during a wait: one thing, and a second one that took MEANWHILE_SHARE of it."""
    for number, (cause, us) in enumerate(_grouped(spent)[:2]):
        if number == 0 or us >= MEANWHILE_SHARE * whole:
            yield f"{CLAUSES[cause].format(other=other)} for {duration(us)}"


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
