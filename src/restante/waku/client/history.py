"""`restante waku request`: writes history from Mailservers, and live envelopes, to a file or to standard output."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from restante.common.progress import progress
from restante.common.settings import convert, limits_given
from restante.common.signals import cleaning_up
from restante.waku.client import state_file
from restante.waku.client.fetch import Keep, RequestOptions, Subscriber
from restante.waku.client.ranges import FetchState, HistoryQuery
from restante.waku.client.requester import Budgets, FetchReport
from restante.waku.client.results import results
from restante.waku.client.streams import (
    EnvelopeStream,
    IncompleteError,
    Subscription,
    fetch_query,
    subscribe_query,
)
from restante.waku.client.subscribe import OnFailure
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keys import Key
from restante.waku.envelope.payload import SymmetricKey

R = TypeVar("R")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where history is written, and the file that keeps the state of the fetch."""

    file: Path | None = None
    """None: standard output."""
    keys: tuple[SymmetricKey | Key, ...] = ()
    """Keys that decrypt payloads, so that lines of JSON contain them."""
    state: Path | None = None
    text: bool = False
    """Whether standard output gets times and texts, in place of lines of JSON."""


def run_fetch(
    servers: Sequence[Enode], query: HistoryQuery, options: RequestOptions, destination: Destination, budgets: Budgets
) -> FetchReport:
    """Fetch what is not known yet and return a report. Raises Misuse, and StoreError if writing fails."""

    async def run(subscriber: Subscriber, state: FetchState, keep: Keep) -> FetchReport:
        return await take_all(
            fetch_query(servers, query, options, state=state, keep=keep, budgets=budgets), subscriber
        )

    return carry_out(run, destination)


def run_subscribe(
    servers: Sequence[Enode],
    query: HistoryQuery,
    options: RequestOptions,
    destination: Destination,
    budgets: Budgets,
    on_failure: OnFailure,
    seconds: float | None,
) -> FetchReport:
    """Fetch what is not known yet, then receive live envelopes, until SIGINT or SIGTERM or for `seconds`.

    Raises Misuse, and StoreError if writing fails.
    """

    async def run(subscriber: Subscriber, state: FetchState, keep: Keep) -> FetchReport:
        stream = subscribe_query(
            servers, query, options, state=state, keep=keep, on_failure=on_failure, budgets=budgets
        )
        with _stopping(stream):
            if seconds is not None:
                asyncio.get_running_loop().call_later(seconds, stream.stop)
            return await take_all(stream, subscriber)

    return carry_out(run, destination)


async def take_all(stream: EnvelopeStream, subscriber: Subscriber) -> FetchReport:
    """Hand a stream's envelopes to a subscriber and return the report, which says what is missing."""
    with suppress(IncompleteError):
        async with stream:
            async for page in stream.pages():
                subscriber(page)
    assert stream.report is not None
    return stream.report


def carry_out(run: Callable[[Subscriber, FetchState, Keep], Coroutine[Any, Any, R]], destination: Destination) -> R:
    """Run what fetches envelopes and writes them to the destination, save its state, and return its result.

    The state is saved only when the envelopes that it covers are written: after each page on standard output, and
    otherwise when the file is complete, because the file does not exist before.
    """
    with cleaning_up(), nullcontext() if destination.state is None else state_file.held(destination.state):
        return _write(run, destination)


def _write(run: Callable[[Subscriber, FetchState, Keep], Coroutine[Any, Any, R]], destination: Destination) -> R:
    state = FetchState() if destination.state is None else state_file.load(destination.state)
    last = state

    def keep(found: FetchState) -> None:
        nonlocal last
        if destination.state is not None and destination.file is None and found != last:
            state_file.save(destination.state, found)
        last = found

    # On a terminal, the lines themselves show the progress, and a progress bar would be mixed with them.
    lines_only = destination.file is None and sys.stdout.isatty()
    shown = nullcontext(lambda _: None) if lines_only else progress("request")
    with results(destination.file, destination.keys, text=destination.text) as take, shown as advance:

        def subscriber(envelopes: list[Envelope]) -> None:
            take(envelopes)
            advance(len(envelopes))

        result = asyncio.run(run(subscriber, state, keep))
    if destination.state is not None:
        state_file.save(destination.state, last)
    return result


@contextmanager
def _stopping(stream: Subscription) -> Iterator[None]:
    """Stop the stream at the first SIGINT or SIGTERM. Later signals raise KeyboardInterrupt.

    That holds after the block, too. `loop.add_signal_handler` is not used: when the loop closes, it would also remove
    the handlers that end the process.
    """
    loop = asyncio.get_running_loop()

    def reset_signals() -> None:
        for each in SIGNALS:
            signal.signal(each, signal.default_int_handler)

    def stop(_number: int, _frame: object) -> None:
        reset_signals()
        loop.call_soon_threadsafe(stream.stop)

    for each in SIGNALS:
        signal.signal(each, stop)
    try:
        yield
    finally:
        reset_signals()


def budgets(limits: Sequence[str]) -> Budgets:
    """Parse the limits of what a Mailserver may cost, each NAME=NUMBER. Raises Misuse."""
    types = {field.name: field.type for field in msgspec.structs.fields(Budgets)}
    given = dict(limits_given(Budgets, limits))
    return Budgets(**{name: convert(number, types[name], f"--limit {name}") for name, number in given.items()})
