"""The sides of a pair after `ok`: a plain socket, a TLS connection, a WebSocket."""

from __future__ import annotations

import asyncio

from picows import WSFrame, WSTransport


class PlainSocket:
    """A TCP or Unix socket without TLS, which no transport owns. It is spliced if the other side is one, too."""

    def __init__(self, descriptor: int) -> None:
        """Own a non-blocking descriptor, and let TCP find out if the other end is gone."""

    @classmethod
    def taken_from(cls, transport: asyncio.Transport) -> PlainSocket:
        """Take the socket out of a transport of asyncio or uvloop, which is closed; its protocol is not called again.

        Nothing may be waiting in its write buffer. Call it in the turn in which `Pair` is made.

        Raises:
            OSError: there is no free descriptor, or the transport is closed already. The transport is unchanged.

        """
        raise NotImplementedError


class TlsStream(asyncio.BufferedProtocol):
    """A connection of which a transport encrypts the bytes (`TlsTransport`). It becomes the transport's protocol."""

    def __init__(self, transport: asyncio.Transport) -> None:
        """Become the protocol of the transport, and pause reading until the pair begins."""


class WebSocketStream:
    """A WebSocket, plain or over TLS. Its listener calls the four methods below from `ok` on."""

    def __init__(self, transport: WSTransport, underlying: asyncio.Transport) -> None:
        """Pause reading until the pair begins. `underlying` is the transport of uvloop, or the TlsTransport."""

    def frame_received(self, frame: WSFrame) -> None:
        """Pass on a frame of any kind."""

    def disconnected(self) -> None:
        """Note that the connection is gone."""

    def pause_writing(self) -> None:
        """Note that the socket takes no more."""

    def resume_writing(self) -> None:
        """Note that everything is written."""


Stream = PlainSocket | TlsStream | WebSocketStream
