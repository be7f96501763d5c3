"""`restante waku post`: seals a text, does the work, and hands the envelope to a node."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec

from restante.errors import RestanteError
from restante.waku.caller import CallError, call
from restante.waku.dice import SystemDice
from restante.waku.enode import Enode
from restante.waku.envelope import Envelope, make
from restante.waku.interest import Interest
from restante.waku.keys import Key
from restante.waku.mining import mine
from restante.waku.sealing import SymmetricKey, seal

PATIENCE: Final = 30.0
"""Seconds for the node to confirm."""


class RefusedError(RestanteError):
    """The node did not take the envelope; says why."""


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


def post(node: Enode, letter: Letter, patience: float = PATIENCE) -> Posted:
    """Post a letter; the node has `patience` seconds to confirm.

    Raises CallError, RefusedError, and NotMined where the node wants more work than we do.
    """
    return asyncio.run(_post(node, letter, patience))


async def _post(node: Enode, letter: Letter, patience: float) -> Posted:
    dice = SystemDice()
    async with call(node, dice.key(), Interest.named([])) as caller:
        data = seal(letter.text, to=letter.to, sign=letter.sign, dice=dice)
        draft = make(int(time.time()) + letter.ttl, letter.ttl, letter.topic, data)
        start = int.from_bytes(dice.draw(4), "big")
        envelope = await asyncio.to_thread(mine, draft, caller.node.pow, start=start)
        if not caller.node.confirms:
            caller.hand_over([envelope])
            return Posted(envelope, confirmed=False)
        try:
            response = await asyncio.wait_for(caller.offer([envelope]), patience)
        except TimeoutError:
            raise CallError(
                f"{node.address} did not confirm within {patience:g} s; it may have the envelope"
            ) from None
        for refusal in response.refusals:
            raise RefusedError(f"the node refused the envelope: {refusal.words}")
        return Posted(envelope, confirmed=True)
