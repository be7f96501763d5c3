"""`restante waku probe`: posts an envelope for a random topic and fetches it again, to check a Mailserver."""

from __future__ import annotations

import asyncio
import time
from enum import IntEnum
from typing import Final

import msgspec

from restante.common.dice import SystemDice
from restante.waku.client.fetch import RequestOptions, fetch
from restante.waku.client.outbound_connection import NodeUnavailableError, SilentError, connect
from restante.waku.client.post import Message, RefusedError, UnconfirmedError, seal_and_post
from restante.waku.client.ranges import HistoryQuery
from restante.waku.client.requester import REFUSAL_PREFIX, Timeouts
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import TOPIC, Envelope
from restante.waku.envelope.keys import new_key
from restante.waku.envelope.payload import SymmetricKey
from restante.waku.protocol.interest import Interest

FETCH_TRIES: Final = 3
"""Times that an envelope is requested while it is missing. A node that does not confirm may archive it later."""
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


class Found(msgspec.Struct, frozen=True):
    """The outcome of a probe, with an explanation."""

    outcome: Outcome
    words: str


async def probe(node: Enode, options: RequestOptions, seconds: float) -> Found:
    """Probe a Mailserver and return the outcome. Each of its answers may take `seconds`. Raises NotMined."""
    dice = SystemDice()
    message = Message(dice.draw(16), dice.draw(TOPIC), SymmetricKey(dice.draw(32)))
    try:
        async with connect(node, options.key or new_key(dice), Interest.named([]), seconds) as connection:
            posted = await seal_and_post(connection, message, seconds)
    except SilentError as error:
        return Found(Outcome.SILENT, str(error))
    except (RefusedError, UnconfirmedError) as error:
        return Found(Outcome.UNCONFIRMED, str(error))
    except NodeUnavailableError as error:
        return Found(Outcome.UNREACHABLE, str(error))
    unsure = "" if posted.confirmed else "; it confirms no envelopes, so it may not have received this one"
    for attempt in range(FETCH_TRIES):
        if attempt:
            await asyncio.sleep(RETRY_DELAY)
        found = await _fetch(node, posted.envelope, options, seconds)
        if found.outcome is not Outcome.MISSING:
            return found
    return Found(Outcome.MISSING, f"it answers, but the posted envelope is missing{unsure}")


async def _fetch(node: Enode, envelope: Envelope, options: RequestOptions, seconds: float) -> Found:
    began = time.monotonic()
    came: list[Envelope] = []
    query = HistoryQuery(envelope.sent, envelope.sent, frozenset([envelope.topic]))
    report = await fetch([node], query, options, came.extend, timeouts=Timeouts(answer=seconds, tries=1))
    if envelope in came:
        milliseconds = (time.monotonic() - began) * 1000
        return Found(Outcome.WELL, f"all is well: posted, and fetched in {milliseconds:.0f} ms")
    words = report.failures.get(0)
    if words is None:
        return Found(Outcome.MISSING, "")
    said = words.removeprefix(REFUSAL_PREFIX)
    if said != words:
        return Found(Outcome.REFUSED, f"it answers the request with an error: {said}")
    return Found(Outcome.UNANSWERED, f"it does not answer the request: {words}")
