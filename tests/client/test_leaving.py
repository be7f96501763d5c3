"""Wormholes that are closed while much is under way."""

from __future__ import annotations

from client.programs import APP_ID, CODE
from restante.client import Wormhole
from restante.client.unread import MAX_UNREAD_MESSAGES
from support.bounds import bounded
from support.mailbox.days import ServerOfDays


async def test_what_was_sent_is_stored_by_a_close_though_the_peer_s_messages_were_not_read(
    server: ServerOfDays,
) -> None:
    async with bounded("the close"), Wormhole.create(APP_ID, server=server.url) as peer:
        await peer.set_code(CODE)
        async with Wormhole.create(APP_ID, server=server.url) as wormhole:
            await wormhole.set_code(CODE)
            await wormhole.versions()
            for _ in range(2 * MAX_UNREAD_MESSAGES):
                await peer.send(b"unread")
            await peer.flush()
            await wormhole.send(b"the last word")
        assert await peer.receive() == b"the last word"
