"""The listening sockets of the server. While file descriptors are short, new connections wait in the kernel."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from restante.common import listening
from restante.common.descriptors import (
    MIN_FREE_DESCRIPTORS,
    RESERVED_DESCRIPTORS,
    free_descriptors,
    open_descriptors,
    required_descriptors,
    too_few_descriptors,
)
from restante.common.errors import Misuse
from restante.common.listening import ListenAddress
from restante.common.logs import log

ACCEPT_BACKLOG: Final = 128
"""Maximum number of connections that wait in the kernel. uvloop 0.23, with libuv 1.52, accepts one in each turn
of the loop: 0.2 ms. A client that finds no place tries again after a second (tcp(7), tcp_abort_on_overflow)."""


SocketOption = tuple[int, int, int]
"""The level, the name and the value of an option of a socket."""


class Listeners:
    """All listening sockets."""

    def __init__(
        self,
        connected: Callable[[ListenAddress], asyncio.BaseProtocol],
        descriptors: int,
        options: Sequence[SocketOption],
    ) -> None:
        """Prepare. `connected` makes the protocol of a connection that came to an address.

        `options` are those of all connections: accepted sockets inherit them. Those of TCP do not apply to Unix
        sockets.
        """
        self._connected = connected
        self._options = options
        self._descriptors = descriptors
        self.max_descriptor = descriptors - descriptors // 10 - RESERVED_DESCRIPTORS
        """The descriptor from which on new connections wait. Each connection gets the lowest free descriptor."""
        self._enough_free = RESERVED_DESCRIPTORS
        """Free descriptors at which waiting connections are accepted again."""
        self._accepting: list[asyncio.Server] = []
        self._held = False
        """Whether no connection is accepted because another process may go on."""
        self._sockets: list[tuple[socket.socket, ListenAddress, os.stat_result | None]] = []
        """Duplicates of the listening sockets. While one is open, the kernel goes on queueing connections."""

    async def listen(self, address: ListenAddress, descriptors: Sequence[int] | None = None) -> list[str]:
        """Listen, and return the addresses of the sockets. Raises Misuse if the address cannot be used.

        Then the others are closed, so that no path of a Unix socket is left. `descriptors`: sockets that listen there
        already, because the process before this one has left them. None: there was none before this one, so there
        must be free descriptors for connections.
        """
        try:
            return await self._listen(address, descriptors)
        except Misuse:
            self.close(0)
            raise

    async def _listen(self, address: ListenAddress, descriptors: Sequence[int] | None) -> list[str]:
        if descriptors:
            sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
            bound = listening.status_of(address.path)
            self._accepting += [await self._accept(listening_socket, address) for listening_socket in sockets]
        else:
            listener, sockets, bound = await listening.open_listener(
                address, partial(self._connected, address), backlog=ACCEPT_BACKLOG, flag="--listen"
            )
            self._accepting.append(listener)
        for listening_socket in sockets:
            for level, name, value in self._options:
                if level != socket.IPPROTO_TCP or listening_socket.family != socket.AF_UNIX:
                    listening_socket.setsockopt(level, name, value)
            self._sockets.append((listening_socket, address, bound))
        free = self._free_descriptors(2 * RESERVED_DESCRIPTORS)
        if descriptors is None and free < RESERVED_DESCRIPTORS:
            raise too_few_descriptors(self._descriptors, required_descriptors(open_descriptors()))
        self._enough_free = max(free, RESERVED_DESCRIPTORS) // 2
        return [listening.shown_address(listening_socket) for listening_socket in sockets]

    def note_descriptor(self, descriptor: int, connections: int) -> None:
        """Stop accepting if the descriptor of a new connection shows that they are short."""
        if descriptor >= self.max_descriptor and self._accepting:
            self.stop_accepting(connections)

    def stop_accepting(self, connections: int) -> None:
        """Leave new connections in the kernel's queue for now. As we keep the sockets open, none is refused."""
        if self._accepting and self._sockets:
            log.warning("file descriptors are short: new connections wait (ulimit -n)", connections=connections)
        self._stop_accepting()

    def _stop_accepting(self) -> None:
        accepting, self._accepting = self._accepting, []
        for server in accepting:
            server.close()

    async def check_descriptors(self, connections: int) -> None:
        """Stop accepting while descriptors are short, and start again. Call this once a second.

        `note_descriptor` does not suffice, because connections before their handshake take descriptors, too.
        """
        if self._held or not self._sockets:
            return
        free = self._free_descriptors(MIN_FREE_DESCRIPTORS if self._accepting else self._enough_free)
        if free < MIN_FREE_DESCRIPTORS:
            self.stop_accepting(connections)
        elif not self._accepting and free == self._enough_free:
            log.info("new connections are accepted again", connections=connections)
            await self._accept_again()

    async def _accept_again(self) -> None:
        self._accepting = [
            await self._accept(listening_socket, address) for listening_socket, address, _ in self._sockets
        ]

    async def _accept(self, listening_socket: socket.socket, address: ListenAddress) -> asyncio.Server:
        protocol = partial(self._connected, address)
        return await listening.serve_socket(listening_socket.dup(), protocol, backlog=ACCEPT_BACKLOG)

    def hold(self) -> None:
        """Leave new connections in the kernel's queue until `release`."""
        self._held = True
        self._stop_accepting()

    async def release(self) -> None:
        """Accept connections again."""
        self._held = False
        if not self._accepting:
            await self._accept_again()

    def descriptors(self) -> dict[str, list[int]]:
        """Return the descriptors of the sockets that this process has opened, by the text of their address."""
        descriptors: dict[str, list[int]] = {}
        for listening_socket, address, _ in self._sockets:
            if address.descriptor < 0:
                descriptors.setdefault(address.text, []).append(listening_socket.fileno())
        return descriptors

    def close(self, connections: int) -> None:
        """Refuse new connections from now on."""
        sockets, self._sockets = self._sockets, []
        self.stop_accepting(connections)
        for listening_socket, address, bound in sockets:
            listening.remove_path(address, bound)
            listening_socket.close()

    def _free_descriptors(self, at_most: int) -> int:
        return free_descriptors(self._sockets[0][0].fileno(), self.max_descriptor, at_most)
