"""Post: seal a payload, do the proof of work, and send the envelope to a node (`restante waku post`)."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from restante.common.errors import RestanteError
from restante.waku.client.outbound_connection import NodeUnavailableError, OutboundConnection, connect
from restante.waku.defaults import TTL_SECONDS, make_envelope, mine, seal
from restante.waku.devp2p import enode
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keys import Key
from restante.waku.envelope.payload import SymmetricKey

CONFIRM_TIMEOUT: Final = 30.0
"""Seconds within which the node must confirm."""


class RefusedError(RestanteError):
    """The node refused the envelope, or has not archived it. The text names the envelope's hash and says why."""


class UnconfirmedError(NodeUnavailableError):
    """The node confirms envelopes but has not confirmed this one. It may have it."""


class Posted(msgspec.Struct, frozen=True):
    """An envelope that was sent to the node."""

    envelope: Envelope
    confirmed: bool
    """Whether the node has confirmed the envelope. False: the node never confirms. What Restante's Mailserver has
    confirmed is archived. Other nodes confirm what they have read."""


async def post(
    node: Enode | str,
    payload: bytes,
    *,
    topic: bytes,
    to: SymmetricKey | bytes,
    sign: Key | None = None,
    ttl: int = TTL_SECONDS,
    key: Key | None = None,
    timeout: float = CONFIRM_TIMEOUT,  # noqa: ASYNC109 - a node that does not confirm is an error with its own words
) -> Posted:
    """Seal a payload, do the work that the node demands, and post the envelope to the node. Return the envelope.

    `topic` has 4 bytes. `to` is a symmetric key, or the receiver's public key of 64 bytes; `sign` is the sender's
    key. The envelope lives for `ttl` seconds. `key` identifies this program to the node; by default it is a new key.
    The node has `timeout` seconds to confirm.

    Raises NodeUnavailableError, UnconfirmedError if the node does not confirm in time, RefusedError, NotMined if the
    node demands too much work, and Misuse.
    """
    async with connect(enode.as_enode(node), key) as connection:
        draft = make_envelope(topic, seal(payload, to=to, sign=sign), ttl=ttl)
        return await mine_and_post(connection, draft, timeout)


async def post_envelope(
    node: Enode | str,
    envelope: Envelope,
    *,
    key: Key | None = None,
    timeout: float = CONFIRM_TIMEOUT,  # noqa: ASYNC109 - the same
) -> Posted:
    """Post an envelope to a node as it is. Raises what `post` raises, except for NotMined."""
    async with connect(enode.as_enode(node), key) as connection:
        return await _offer(connection, envelope, timeout)


async def mine_and_post(connection: OutboundConnection, draft: Envelope, seconds: float) -> Posted:
    """Do the work that the node demands, and post the envelope. Raises what `post` raises.

    UnconfirmedError is raised after `seconds`.
    """
    return await _offer(connection, await asyncio.to_thread(mine, draft, connection.peer.pow), seconds)


async def _offer(connection: OutboundConnection, envelope: Envelope, seconds: float) -> Posted:
    if not connection.peer.confirms:
        connection.send_envelopes([envelope])
        return Posted(envelope, confirmed=False)
    try:
        async with asyncio.timeout(seconds):
            response = await connection.offer([envelope])
    except TimeoutError:
        raise UnconfirmedError(
            f"the node did not confirm the envelope within {seconds:g} s; it may have it"
        ) from None
    for refusal in response.refusals:
        raise RefusedError(f"the node refused the envelope {envelope.hash.hex()}: {refusal.text}")
    return Posted(envelope, confirmed=True)
