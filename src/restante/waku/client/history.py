"""`restante waku request`: history from Mailservers, and what comes live, into a file or onto standard output."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import msgspec

from restante.common.errors import Misuse
from restante.common.progress import progress
from restante.common.signals import cleaning_up
from restante.waku.client import state_file
from restante.waku.client.actions import Budgets, FetchReport
from restante.waku.client.fetch import Keep, RequestOptions, Subscriber, fetch
from restante.waku.client.ranges import FetchState, HistoryQuery
from restante.waku.client.results import results
from restante.waku.client.subscribe import OnFailure
from restante.waku.client.subscribe import subscribe as follow_topics
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keys import Key
from restante.waku.envelope.payload import SymmetricKey

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where history goes, and what is known of it."""

    file: Path | None = None
    """None: standard output."""
    keys: tuple[SymmetricKey | Key, ...] = ()
    """Open what is sealed, for lines to say it."""
    state: Path | None = None


def run_fetch(
    servers: Sequence[Enode], query: HistoryQuery, options: RequestOptions, destination: Destination, budgets: Budgets
) -> FetchReport:
    """Fetch what is not known yet. Raises Misuse, and StoreError where it cannot be written."""

    def run(subscriber: Subscriber, state: FetchState, keep: Keep) -> Coroutine[Any, Any, FetchReport]:
        return fetch(servers, query, options, subscriber, state=state, keep=keep, budgets=budgets)

    return _carry_out(run, destination)


def run_subscribe(
    servers: Sequence[Enode],
    query: HistoryQuery,
    options: RequestOptions,
    destination: Destination,
    budgets: Budgets,
    on_failure: OnFailure,
    seconds: float | None,
) -> FetchReport:
    """Fetch what is not known yet, and what comes from now on: until SIGINT or SIGTERM, or for so long.

    Raises Misuse, and StoreError where it cannot be written.
    """

    async def run(subscriber: Subscriber, state: FetchState, keep: Keep) -> FetchReport:
        with _told() as until:
            if seconds is not None:
                asyncio.get_running_loop().call_later(seconds, until.set)
            return await follow_topics(
                servers,
                query,
                options,
                subscriber,
                until,
                state=state,
                keep=keep,
                on_failure=on_failure,
                budgets=budgets,
            )

    return _carry_out(run, destination)


def _carry_out(
    run: Callable[[Subscriber, FetchState, Keep], Coroutine[Any, Any, FetchReport]], destination: Destination
) -> FetchReport:
    """Have envelopes written and the state kept.

    The state is saved when what it tells of is written: page by page onto standard output; when the file is complete
    otherwise, since before it is not there.
    """
    with cleaning_up(), nullcontext() if destination.state is None else state_file.held(destination.state):
        return _write(run, destination)


def _write(
    run: Callable[[Subscriber, FetchState, Keep], Coroutine[Any, Any, FetchReport]], destination: Destination
) -> FetchReport:
    state = FetchState() if destination.state is None else state_file.load(destination.state)
    last = state

    def keep(found: FetchState) -> None:
        nonlocal last
        if destination.state is not None and destination.file is None and found != last:
            state_file.save(destination.state, found)
        last = found

    # On a terminal, lines show how far it is, and a bar would be written among them.
    lines_only = destination.file is None and sys.stdout.isatty()
    shown = nullcontext(lambda _: None) if lines_only else progress("request")
    with results(destination.file, destination.keys) as take, shown as advance:

        def subscriber(envelopes: list[Envelope]) -> None:
            take(envelopes)
            advance(len(envelopes))

        report = asyncio.run(run(subscriber, state, keep))
    if destination.state is not None:
        state_file.save(destination.state, last)
    return report


@contextmanager
def _told() -> Iterator[asyncio.Event]:
    """Give the event that SIGINT and SIGTERM set; a second one, or one that comes afterwards, ends by an exception.

    Not by handlers of the loop: with them it takes away what is to end the process once it is closed.
    """
    loop, told = asyncio.get_running_loop(), asyncio.Event()

    def let_go() -> None:
        for each in SIGNALS:
            signal.signal(each, signal.default_int_handler)

    def stop(_number: int, _frame: object) -> None:
        let_go()
        loop.call_soon_threadsafe(told.set)

    for each in SIGNALS:
        signal.signal(each, stop)
    try:
        yield told
    finally:
        let_go()


def budgets(limits: Sequence[str]) -> Budgets:
    """Read what a Mailserver may cost, each NAME=NUMBER. Raises Misuse."""
    given = {}
    for each in limits:
        name, _, number = each.partition("=")
        given[name] = number
    try:
        return msgspec.convert(given, Budgets, strict=False)
    except msgspec.ValidationError as error:
        raise Misuse(f"--limit: {error}") from None
