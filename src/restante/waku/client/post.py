"""Post: seal a payload, do the proof of work, and send the envelope to a node (`restante waku post`)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import msgspec

from restante.common.errors import Misuse, RestanteError
from restante.waku.client.options import DEFAULT_OPTIONS, ConnectionOptions, check_options
from restante.waku.client.outbound_connection import NodeUnavailableError, OutboundConnection, connect
from restante.waku.defaults import make_envelope, mine, seal
from restante.waku.devp2p import enode
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keys import Key
from restante.waku.envelope.payload import SymmetricKey
from restante.waku.protocol.policy import TTL_SECONDS


class RefusedError(RestanteError):
    """The node refused the envelope, or has not archived it. The text has the envelope's hash and the reason."""


class UnconfirmedError(NodeUnavailableError):
    """The node confirms envelopes, but has not confirmed this one in time. It may have the envelope."""


class Posted(msgspec.Struct, frozen=True):
    """An envelope that was sent to the node."""

    envelope: Envelope
    confirmed: bool
    """Whether the node has confirmed the envelope. False: the node never confirms. What Restante's Mailserver has
    confirmed is archived. Other nodes confirm what they have read."""


class Poster:
    """Posts envelopes to a node over one connection, which is made when the context is entered.

    If the connection is lost, the next post makes another one. Several tasks may post at a time.
    """

    def __init__(
        self, node: Enode | str, *, key: Key | None = None, options: ConnectionOptions = DEFAULT_OPTIONS
    ) -> None:
        """`key` identifies this program to the node; by default each connection has a new key.

        Raises Misuse for arguments that cannot be used.
        """
        check_options(options)
        self._enode = enode.as_enode(node)
        self._key = key
        self._options = options
        self._entered = False
        self._stack = AsyncExitStack()
        """Has the connection."""
        self._connection: OutboundConnection | None = None
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Connect. Raises NodeUnavailableError."""
        self._entered = True
        try:
            await self._connected()
        except BaseException:
            self._entered = False
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._connecting:
            self._entered = False
            await self._stack.aclose()

    async def post(
        self,
        payload: bytes,
        *,
        topic: bytes,
        to: SymmetricKey | bytes,
        sign: Key | None = None,
        ttl: int = TTL_SECONDS,
    ) -> Posted:
        """Seal a payload, do the work that the node demands, and post the envelope to the node.

        `topic` has 4 bytes. `to` is a symmetric key, or the receiver's public key of 64 bytes; `sign` is the sender's
        key. The envelope lives for `ttl` seconds.

        Raises NodeUnavailableError, UnconfirmedError if the node does not confirm in time, RefusedError, NotMined if
        the node demands too much work, and Misuse.
        """
        draft = make_envelope(topic, seal(payload, to=to, sign=sign), ttl=ttl)
        connection = await self._connected()
        return await self.post_envelope(await asyncio.to_thread(mine, draft, connection.peer.pow))

    async def post_envelope(self, envelope: Envelope) -> Posted:
        """Post an envelope as it is. Raises what `post` raises, except for NotMined."""
        connection = await self._connected()
        try:
            response = await connection.offer(envelope)
        except TimeoutError:
            seconds = f"{self._options.answer_seconds:g} s"
            raise UnconfirmedError(
                f"the node did not confirm the envelope within {seconds}; it may have it"
            ) from None
        for refusal in () if response is None else response.refusals:
            raise RefusedError(f"the node refused the envelope {envelope.hash.hex()}: {refusal.text}")
        return Posted(envelope, confirmed=response is not None)

    async def _connected(self) -> OutboundConnection:
        """Return the connection, a new one if the last was lost. Raises NodeUnavailableError and Misuse."""
        async with self._connecting:
            if not self._entered:
                raise Misuse("a Poster posts within its context: async with Poster(node) as poster")
            if self._connection is None or not self._connection.connection.ready:
                await self._stack.aclose()
                connecting = connect(self._enode, self._key, options=self._options)
                self._connection = await self._stack.enter_async_context(connecting)
            return self._connection


async def post(
    node: Enode | str,
    payload: bytes,
    *,
    topic: bytes,
    to: SymmetricKey | bytes,
    sign: Key | None = None,
    ttl: int = TTL_SECONDS,
    key: Key | None = None,
    options: ConnectionOptions = DEFAULT_OPTIONS,
) -> Posted:
    """Post a payload over a new connection, and return the envelope. To post many, use a `Poster`.

    The arguments and errors are those of `Poster` and of `Poster.post`.
    """
    async with Poster(node, key=key, options=options) as poster:
        return await poster.post(payload, topic=topic, to=to, sign=sign, ttl=ttl)


async def post_envelope(
    node: Enode | str, envelope: Envelope, *, key: Key | None = None, options: ConnectionOptions = DEFAULT_OPTIONS
) -> Posted:
    """Post an envelope as it is over a new connection. Raises what `post` raises, except for NotMined."""
    async with Poster(node, key=key, options=options) as poster:
        return await poster.post_envelope(envelope)
