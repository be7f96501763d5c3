"""`restante waku probe`: posts an envelope for a random topic and fetches it again, to check a Mailserver."""

from __future__ import annotations

import asyncio
import time
from enum import IntEnum
from typing import Final

import msgspec

from restante.common.dice import SystemDice
from restante.waku.client.fetch import RequestOptions, fetch
from restante.waku.client.options import ConnectionOptions
from restante.waku.client.outbound_connection import NodeUnavailableError, SilentError
from restante.waku.client.post import Poster, RefusedError, UnconfirmedError
from restante.waku.client.ranges import HistoryQuery
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import TOPIC, Envelope
from restante.waku.envelope.payload import SymmetricKey

FETCH_TRIES: Final = 3
"""Requests for an envelope while it is missing. A node that does not confirm may archive it later."""
RETRY_DELAY: Final = 1.0
"""Seconds between two requests."""


class Outcome(IntEnum):
    """The outcome of a probe. The number is the exit code of the command."""

    WELL = 0
    UNREACHABLE = 3
    SILENT = 4
    UNCONFIRMED = 5
    UNANSWERED = 6
    REFUSED = 7
    MISSING = 8


class ProbeResult(msgspec.Struct, frozen=True):
    """The outcome of a probe, with an explanation."""

    outcome: Outcome
    explanation: str


async def probe(node: Enode, options: RequestOptions, seconds: float) -> ProbeResult:
    """Probe a Mailserver and return the outcome. Each of its answers may take `seconds`. Raises NotMined."""
    dice = SystemDice()
    patience = ConnectionOptions(connect_seconds=seconds, answer_seconds=seconds, max_failures=1)
    options = msgspec.structs.replace(options, connection=patience)
    try:
        async with Poster(node, key=options.key, options=patience) as poster:
            posted = await poster.post(dice.draw(16), topic=dice.draw(TOPIC), to=SymmetricKey(dice.draw(32)))
    except SilentError as error:
        return ProbeResult(Outcome.SILENT, str(error))
    except (RefusedError, UnconfirmedError) as error:
        return ProbeResult(Outcome.UNCONFIRMED, str(error))
    except NodeUnavailableError as error:
        return ProbeResult(Outcome.UNREACHABLE, str(error))
    unsure = "" if posted.confirmed else "; it confirms no envelopes, so it may not have received this one"
    for attempt in range(FETCH_TRIES):
        if attempt:
            await asyncio.sleep(RETRY_DELAY)
        result = await _fetch(node, posted.envelope, options)
        if result.outcome is not Outcome.MISSING:
            return result
    return ProbeResult(Outcome.MISSING, f"it answers, but the posted envelope is missing{unsure}")


async def _fetch(node: Enode, envelope: Envelope, options: RequestOptions) -> ProbeResult:
    start = time.monotonic()
    envelopes: list[Envelope] = []
    query = HistoryQuery(envelope.sent, envelope.sent, frozenset([envelope.topic]))
    report = await fetch([node], query, options, envelopes.extend)
    if envelope in envelopes:
        milliseconds = (time.monotonic() - start) * 1000
        return ProbeResult(Outcome.WELL, f"all is well: posted, and fetched in {milliseconds:.0f} ms")
    if 0 in report.refusals:
        return ProbeResult(Outcome.REFUSED, f"it answers the request with an error: {report.refusals[0]}")
    if 0 in report.failures:
        return ProbeResult(Outcome.UNANSWERED, f"it does not answer the request: {report.failures[0]}")
    return ProbeResult(Outcome.MISSING, "")
