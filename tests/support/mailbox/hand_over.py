"""A hand-over within one process: another server gets copies of the descriptors, as if the first was replaced."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from restante.common.listening import parse_listen_address
from restante.mailbox.server.commit_loop import CommitLoop
from restante.mailbox.server.handover import Body, ConnectionRecord, enter, enter_sockets, leave
from restante.mailbox.server.server import Server
from support.bounds import bounded


def copied(record: ConnectionRecord) -> ConnectionRecord:
    """Return a record with a descriptor of its own."""
    if record.socket is None:
        return record
    return replace(record, socket=replace(record.socket, descriptor=os.dup(record.socket.descriptor)))


async def hand_over(
    server: Server, open_commit_loop: Callable[[float], Awaitable[CommitLoop]], *, running: bool = True
) -> Server:
    """Return the server that goes on. Its commit loop does not run yet.

    `open_commit_loop` reads the store again, for a service time. `running`: whether the commit loop runs.
    """
    closed = 0
    if running:
        async with bounded("the end of the batch"):
            closed = await server.hold(60.0)
    else:
        for socket in server.sockets():
            socket.hold()
    body = leave(server, closed=closed)
    body = replace(body, connections=[copied(record) for record in body.connections])
    listening = {text: [os.dup(each) for each in sockets] for text, sockets in server.listeners.descriptors().items()}
    body = msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=Body)
    for socket in server.sockets():
        transport = socket._underlying
        assert transport is not None
        transport.set_protocol(asyncio.Protocol())
        transport.abort()
        if socket._timer is not None:
            socket._timer.cancel()
    server.listeners.close(0)
    commit_loop = await open_commit_loop(body.commit_loop.service)
    admission = type(server.admission)(server.admission.terms, server.admission._secret)
    options, descriptors = server.welcome_options, server.listeners._descriptors
    successor = Server(commit_loop, server.clock, options, admission, descriptors=descriptors)
    successor.framing, successor.cleanup_seconds = server.framing, server.cleanup_seconds
    await enter_sockets(successor, body, enter(successor, body))
    for text, sockets in listening.items():
        await successor.listeners.listen(parse_listen_address(text, "--listen"), sockets)
    return successor
