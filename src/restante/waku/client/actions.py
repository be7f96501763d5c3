"""What a requester may cost its Mailservers, the actions that it wants to be done, and how it ended."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import msgspec
from msgspec import Meta

from restante.waku.client.ranges import FetchState, Range
from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol.request import MAX_PAGE_ENVELOPES, Request

PositiveInt = Annotated[int, Meta(ge=1)]


class Budgets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each server may cost us."""

    pages: PositiveInt = 1_000
    envelopes: PositiveInt = 200_000
    """Whatever they are."""
    bytes: PositiveInt = 256 << 20
    """Of envelopes."""
    seconds: Annotated[float, Meta(gt=0, le=1e9)] = 600.0
    """In which it is connected to, asked, or left alone since it failed."""
    size: PositiveInt = 1 << 20
    """Of an envelope that is handed over, in bytes."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait, in seconds."""

    connect: float = 20.0
    answer: float = 30.0
    """Without anything that was asked for (status-go waits as long: protocol/messenger_mailserver.go)."""
    back_off: float = 2.0
    """Until a server that failed is tried again; doubled with each failure in a row."""
    tries: int = 3
    """Failures in a row, after which it is not tried again."""
    overlap: float = 80.0
    """What is younger than this is asked for again: 50 s that envelopes live, 20 in which they are taken after that,
    10 for clocks that differ."""
    limit: int = MAX_PAGE_ENVELOPES
    """Envelopes of a page."""


# ── what is to be done ───────────────────────────────────────────────────────────────────────────


class Connect(msgspec.Struct, frozen=True):
    """Connect to a server, trust it, and call `connected` or `lost`."""

    server: int


class SendRequest(msgspec.Struct, frozen=True):
    """Send this to a server, under an id of your own, and call `request_sent` before anything of the answer."""

    server: int
    request: Request


class Leave(msgspec.Struct, frozen=True):
    """Disconnect from a server; nothing is to be told."""

    server: int


class HandOver(msgspec.Struct, frozen=True):
    """Hand these to the subscriber."""

    envelopes: list[Envelope]


class Save(msgspec.Struct, frozen=True):
    """Keep this, now that the subscriber has what was handed over before."""

    state: FetchState


class FetchReport(msgspec.Struct, frozen=True):
    """What became of a query."""

    missing: list[Range]
    """What no server answered for; nothing: the query is complete."""
    counts: Counter[str]
    """Of envelopes: `handed over`, `known`, and what they were that were not asked for. And `pages`."""
    failures: dict[int, str]
    """Why servers are not asked any more, or failed last."""


class Finished(msgspec.Struct, frozen=True):
    """It is over: nothing more is to be told, and nothing comes after this."""

    report: FetchReport


Action = Connect | SendRequest | Leave | HandOver | Save | Finished
