"""The actions of a requester, the budgets and timeouts that limit it, and the report at its end."""

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
    """The most that each server may cost the requester."""

    pages: PositiveInt = 1_000
    envelopes: PositiveInt = 200_000
    """Envelopes that the server sends, wanted or not."""
    bytes: PositiveInt = 256 << 20
    """Bytes of the envelopes that the server sends."""
    seconds: Annotated[float, Meta(gt=0, le=1e9)] = 600.0
    """Seconds spent on the server: connecting, asking, and backing off after a failure."""
    size: PositiveInt = 1 << 20
    """Bytes of one envelope. Larger ones are not handed over."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long the requester waits, in seconds, unless a field says otherwise."""

    connect: float = 20.0
    answer: float = 30.0
    """Seconds without anything that was requested. status-go waits as long (protocol/messenger_mailserver.go)."""
    back_off: float = 2.0
    """Seconds until a server that failed is tried again. Each failure in a row doubles them."""
    tries: int = 3
    """Failures in a row after which a server is not tried again."""
    overlap: float = 80.0
    """Age in seconds below which envelopes are requested again in the next run. An envelope lives for 50 s, is still
    accepted for 20 s after that, and clocks may differ by 10 s."""
    limit: int = MAX_PAGE_ENVELOPES
    """Envelopes per page."""


# ── actions ──────────────────────────────────────────────────────────────────────────────────────


class Connect(msgspec.Struct, frozen=True):
    """Action: connect to a server, trust it, and call `connected` or `lost`."""

    server: int


class SendRequest(msgspec.Struct, frozen=True):
    """Action: send this request to a server, under an id that the caller chooses.

    Call `request_sent` with that id before any event of the answer.
    """

    server: int
    request: Request


class Leave(msgspec.Struct, frozen=True):
    """Action: disconnect from a server. The requester expects no event for this."""

    server: int


class HandOver(msgspec.Struct, frozen=True):
    """Action: hand these envelopes to the subscriber."""

    envelopes: list[Envelope]


class Save(msgspec.Struct, frozen=True):
    """Action: save this state. The subscriber has everything that was handed over before."""

    state: FetchState


class FetchReport(msgspec.Struct, frozen=True):
    """The result of a query."""

    missing: list[Range]
    """Times that no server answered for. If empty, the query is complete."""
    counts: Counter[str]
    """Numbers of envelopes: `handed over`, `known`, and why others were unwanted. Also `pages`."""
    failures: dict[int, str]
    """By server: why it is not asked any more, or its last failure."""


class Finished(msgspec.Struct, frozen=True):
    """Action: the query has ended. The requester expects no event and returns no action after this."""

    report: FetchReport


Action = Connect | SendRequest | Leave | HandOver | Save | Finished
