"""`restante waku post`: seals a text, does the work, and hands the envelope to a node."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec

from restante.common.errors import RestanteError
from restante.waku.client.outbound_connection import NodeUnavailableError, OutboundConnection, connect
from restante.waku.devp2p.enode import Enode
from restante.waku.dice import SystemDice
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keys import Key
from restante.waku.envelope.mining import mine
from restante.waku.envelope.payload import SymmetricKey, seal
from restante.waku.protocol.interest import Interest

CONFIRM_TIMEOUT: Final = 30.0
"""Seconds for the node to confirm."""


class RefusedError(RestanteError):
    """The node did not take the envelope; says why."""


class UnconfirmedError(NodeUnavailableError):
    """The node has said nothing of the envelope, though it says that it does; it may have it."""


class Letter(msgspec.Struct, frozen=True):
    """What is to be posted, and how."""

    text: bytes
    topic: bytes
    to: SymmetricKey | bytes
    """A key both have, or a public key."""
    sign: Key | None = None
    ttl: int = 50
    """Seconds. status-go sends with 50 (waku/common/const.go, DefaultTTL)."""


class Posted(msgspec.Struct, frozen=True):
    """An envelope that was handed over."""

    envelope: Envelope
    confirmed: bool
    """The node has said that it has it; False: it is one that never says."""


def post(node: Enode, letter: Letter, timeout: float = CONFIRM_TIMEOUT) -> Posted:
    """Post a letter; the node has `timeout` seconds to confirm.

    Raises NodeUnavailableError, RefusedError, and NotMined where the node wants more work than we do.
    """
    return asyncio.run(_post(node, letter, timeout))


async def _post(node: Enode, letter: Letter, seconds: float) -> Posted:
    async with connect(node, SystemDice().key(), Interest.named([])) as connection:
        return await hand_in(connection, letter, seconds)


async def hand_in(connection: OutboundConnection, letter: Letter, seconds: float) -> Posted:
    """Seal a letter, do the work, and hand it in. Raises as `post`; UnconfirmedError after so many seconds."""
    dice = SystemDice()
    data = seal(letter.text, to=letter.to, sign=letter.sign, dice=dice)
    draft = make(int(time.time()) + letter.ttl, letter.ttl, letter.topic, data)
    start = int.from_bytes(dice.draw(4), "big")
    envelope = await asyncio.to_thread(mine, draft, connection.node.pow, start=start)
    if not connection.node.confirms:
        connection.hand_over([envelope])
        return Posted(envelope, confirmed=False)
    try:
        response = await asyncio.wait_for(connection.offer([envelope]), seconds)
    except TimeoutError:
        raise UnconfirmedError(f"the node did not confirm within {seconds:g} s; it may have the envelope") from None
    for refusal in response.refusals:
        raise RefusedError(f"the node refused the envelope: {refusal.words}")
    return Posted(envelope, confirmed=True)
