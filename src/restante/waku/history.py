"""`restante waku request`: history from Mailservers, into a file or onto standard output."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from restante.errors import Misuse
from restante.ops.progress import progress
from restante.waku import statefile
from restante.waku.ask import How, ask
from restante.waku.enode import Enode
from restante.waku.envelope import Envelope
from restante.waku.errand import Budgets, Report
from restante.waku.gaps import Query, State
from restante.waku.results import results
from restante.waku.sealing import SymmetricKey


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Where history goes, and what is known of it."""

    file: Path | None = None
    """None: standard output."""
    key: SymmetricKey | None = None
    """Opens what is sealed, for lines to say it."""
    state: Path | None = None


def fetch(servers: Sequence[Enode], query: Query, how: How, where: Where, budgets: Budgets) -> Report:
    """Fetch what is not known yet. Raises Misuse, and StoreError where it cannot be written.

    The state is saved when what it tells of is written: page by page onto standard output; when the file is complete
    otherwise, since before it is not there.
    """
    state = State() if where.state is None else statefile.load(where.state)
    last = state

    def keep(found: State) -> None:
        nonlocal last
        if where.state is not None and where.file is None and found != last:
            statefile.save(where.state, found)
        last = found

    with results(where.file, where.key) as take, progress("request") as advance:

        def subscriber(envelopes: list[Envelope]) -> None:
            take(envelopes)
            advance(len(envelopes))

        report = asyncio.run(ask(servers, query, how, subscriber, state=state, keep=keep, budgets=budgets))
    if where.state is not None:
        statefile.save(where.state, last)
    return report


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
