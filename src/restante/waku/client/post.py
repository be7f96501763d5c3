"""`restante waku post`: encrypts a text, does the proof of work, and sends the envelope to a node."""

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
"""Seconds within which the node must confirm."""


class RefusedError(RestanteError):
    """The node refused the envelope. The text says why."""


class UnconfirmedError(NodeUnavailableError):
    """The node confirms envelopes but has not confirmed this one. It may have it."""


class Letter(msgspec.Struct, frozen=True):
    """A text to post, and how to encrypt it."""

    text: bytes
    topic: bytes
    to: SymmetricKey | bytes
    """A symmetric key that both sides have, or the recipient's public key."""
    sign: Key | None = None
    ttl: int = 50
    """Seconds that the envelope lives. status-go sends with 50 (waku/common/const.go, DefaultTTL)."""


class Posted(msgspec.Struct, frozen=True):
    """An envelope that was sent to the node."""

    envelope: Envelope
    confirmed: bool
    """Whether the node has confirmed the envelope. False: the node never confirms."""


def post(node: Enode, letter: Letter, timeout: float = CONFIRM_TIMEOUT) -> Posted:
    """Post a letter and return its envelope. The node has `timeout` seconds to confirm.

    Raises NodeUnavailableError, RefusedError, and NotMined if the node demands more work than we do.
    """
    return asyncio.run(_post(node, letter, timeout))


async def _post(node: Enode, letter: Letter, seconds: float) -> Posted:
    async with connect(node, SystemDice().key(), Interest.named([])) as connection:
        return await hand_in(connection, letter, seconds)


async def hand_in(connection: OutboundConnection, letter: Letter, seconds: float) -> Posted:
    """Encrypt a letter, do the work, and send it. Raises what `post` raises, and UnconfirmedError after `seconds`."""
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
        raise UnconfirmedError(
            f"the node did not confirm the envelope within {seconds:g} s; it may have it"
        ) from None
    for refusal in response.refusals:
        raise RefusedError(f"the node refused the envelope: {refusal.words}")
    return Posted(envelope, confirmed=True)
