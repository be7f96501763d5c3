"""Sentences that several outputs have: what took the time, what is known of a clock, delays. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from restante.common.units import duration, percent
from restante.timing.model import elapsed, phases
from restante.timing.model.timeline import ROLES, Delay, Role, Timeline, TimelineClient

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


def answer_text(client: TimelineClient, timeline: Timeline) -> str:
    """Return two or three sentences: how long a client ran, and what took most of its time.

    A second cause is named if the first took less than MAIN_SHARE.
    """
    total, other = client.stop_us - client.start_us, client_name(other_role(client.role), timeline)
    if total <= 0:
        return f"The {client.role}'s log has no duration."
    sentences = [f"The {client.role} ran for {duration(total)}."]
    causes = _group_causes({spent.cause: spent.us for spent in client.spent})
    meanwhile = next((spent.peer for spent in client.spent if spent.cause == elapsed.PEER and spent.peer), {})
    for index, (cause, us) in enumerate(causes[: 1 if causes and causes[0][1] >= MAIN_SHARE * total else 2]):
        sentence = f"For {'another ' if index else ''}{duration(us)} ({percent(us, total)}) it "
        sentence += CLAUSES[cause].format(other=other)
        if cause == elapsed.PEER and meanwhile:
            sentence += ", which " + " and ".join(_peer_clauses(meanwhile, us, f"the {client.role}"))
        sentences.append(f"{sentence}.")
    return " ".join(sentences)


def _group_causes(spent: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the microseconds of each cause or group, the longest first."""
    sums: dict[str, int] = {}
    for cause, us in spent.items():
        group = GROUPS.get(cause, cause)
        sums[group] = sums.get(group, 0) + us
    return sorted(sums.items(), key=lambda item: -item[1])


def _peer_clauses(spent: Mapping[str, int], total: int, other: str) -> Iterator[str]:
    """Yield what the other client did during a wait: one thing, and a second one that took MEANWHILE_SHARE of it."""
    for index, (cause, us) in enumerate(_group_causes(spent)[:2]):
        if index == 0 or us >= MEANWHILE_SHARE * total:
            yield f"{CLAUSES[cause].format(other=other)} for {duration(us)}"


def other_role(role: Role) -> Role:
    """Return the other role."""
    return next(candidate for candidate in ROLES if candidate != role)


def message_label(message_type: str | None, phase: str | None) -> str:
    """Return what a command or a frame is called: its type and, for a message, its phase."""
    return " ".join(word for word in (message_type or "other", phase) if word)


def client_name(role: Role, timeline: Timeline) -> str:
    """Return what a client is called. Only those whose log was given are called by their role."""
    return f"the {role}" if role in (client.role for client in timeline.clients) else "the other client"


def clock_text(client: TimelineClient, error: str) -> str:
    """Return what is known of a client's clock, as a sentence without its full stop.

    `error` is the form of its error, with {} for the duration.
    """
    name = f"The {client.role}'s clock"
    if client.offset_us is None or client.error_us is None:
        return f"{name} could not be compared with the server's: its times are as it wrote them"
    direction = "ahead of" if client.offset_us >= 0 else "behind"
    sentence = f"{name} was {duration(abs(client.offset_us))} {direction} the server's"
    if client.given:
        return f"{sentence}, as --skew says"
    sentence += error.format(duration(client.error_us))
    return f"{sentence}; it moved by {duration(client.moved_us)} or more" if client.moved_us else sentence


def delay_cells(delay: Delay) -> Iterable[str]:
    """Return the number, the median, the maximum and the sum of a delay, as a table shows them."""
    count = f"{delay.count:,}" + (f" of {delay.count + delay.unknown:,}" if delay.unknown else "")
    times = (delay.median_us, delay.max_us, delay.sum_us if delay.count else None)
    return [count, *("?" if us is None else duration(us) for us in times)]
