"""The WebSocket to a mailbox server. The driver imports this module, and picows with it, at the first connection."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Final
from urllib.parse import urljoin, urlsplit

from picows import (
    WSAutoPingStrategy,
    WSCloseCode,
    WSError,
    WSFrame,
    WSHandshakeError,
    WSListener,
    WSMsgType,
    WSTransport,
    ws_connect,
)
from picows.url import WSParsedURL
from python_socks import ProxyError

from restante.client.connection.dialling import dial, dial_through
from restante.client.connection.server import SCHEMES, WEBSOCKET_SCHEMES, ServerEndpoint
from restante.client.errors import BusyServerError, ServerError, ServerGoneError, WormholeError
from restante.client.protocol.server_messages import CONNECTION_LIMIT_PREFIX
from restante.client.tasks import until_done
from restante.common.errors import StoreError, plain
from restante.common.texts import in_one_line, redacted_url

MAX_UNSENT_BYTES: Final = 1024 * 1024
"""Bytes that wait to be sent, beyond which the server's pings are not answered: a server that reads nothing could
otherwise make us keep any number of answers."""

CLOSE_SECONDS: Final = 1.0
"""Seconds for the closing handshake. Nothing depends on it."""


class Connection(WSListener):
    """An open WebSocket. Each message is handed to a function, on the event loop."""

    def __init__(
        self, server: ServerEndpoint, opened: Callable[[Connection], None], receive: Callable[[bytes], None]
    ) -> None:
        self._url, self._opened, self._receive = server.url, opened, receive
        self._max_bytes = server.options.max_received_bytes
        self._transport: WSTransport | None = None
        self._fragments: bytearray | None = None
        self._paused = False
        self.ended: asyncio.Future[WormholeError | StoreError] = asyncio.get_running_loop().create_future()
        """Why it ended. ServerError: the server sent what no server sends. StoreError: our state cannot be saved."""

    def send(self, text: bytes) -> None:
        """Send a text. It is lost if the connection is."""
        if self._transport is not None and not self._transport.is_close_frame_sent:
            self._transport.send(WSMsgType.TEXT, text)

    @property
    def opened(self) -> bool:
        """Whether the WebSocket has ever been open."""
        return self._transport is not None

    def pause(self) -> None:
        """Stop reading until `resume`."""
        self._paused = True
        if self._transport is not None:
            self._transport.underlying_transport.pause_reading()
            self._transport.notify_user_specific_pong_received()  # it would not be read

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        if self._transport is not None:
            self._transport.underlying_transport.resume_reading()

    def end(self, reason: WormholeError | StoreError, code: WSCloseCode = WSCloseCode.OK) -> None:
        """Close the connection for a reason."""
        if not self.ended.done():
            self.ended.set_result(reason)
        if self._transport is not None and not self._transport.is_close_frame_sent:
            self._transport.send_close(code)
            if code != WSCloseCode.OK:
                self._transport.disconnect()  # read no more of it

    def abandon(self) -> None:
        """Drop the connection, or drop it as soon as it is open: a cancelled `ws_connect` leaves it behind."""
        if not self.ended.done():
            self.ended.set_result(ServerGoneError("nobody waits for the connection"))
        if self._transport is not None:
            self._transport.disconnect(graceful=False)

    # ── what picows calls ──────────────────────────────────────────────────────────────────────

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        if self.ended.done():
            self.abandon()
            return
        self._opened(self)  # here, because the first frame may come with the answer to the request

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if self.ended.done():
            return
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            reason = "the server uses an extension of WebSocket that was not agreed on"
            self.end(ServerError(reason), WSCloseCode.PROTOCOL_ERROR)
        elif kind in _MESSAGE_TYPES and frame.fin and self._fragments is None:
            self._receive(frame.get_payload_as_bytes())
        elif kind in _MESSAGE_TYPES or kind == WSMsgType.CONTINUATION:
            self._join(frame)
        elif kind == WSMsgType.PING:
            if transport.underlying_transport.get_write_buffer_size() < MAX_UNSENT_BYTES:
                transport.send_pong(frame.get_payload_as_bytes())
        elif kind == WSMsgType.CLOSE:
            self.end(self._reason_of(frame))
            transport.disconnect()

    def send_user_specific_ping(self, transport: WSTransport) -> None:
        transport.send_ping()
        if self._paused:  # the answer is not read. picows waits for it after this call.
            asyncio.get_running_loop().call_soon(transport.notify_user_specific_pong_received)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if not self.ended.done():
            ours = transport.close_handshake.sent if transport.close_handshake else None
            if ours is not None and ours.code in _PROTOCOL_ERRORS:
                self.ended.set_result(ServerError(f"the server broke the rules of WebSocket: {ours.reason}"))
            else:
                self.ended.set_result(ServerGoneError(f"the connection to {self._url} was lost"))

    def pause_writing(self) -> None:
        pass  # `send` waits for the server before it accepts too many messages

    def resume_writing(self) -> None:
        pass

    def _reason_of(self, close: WSFrame) -> WormholeError:
        reason = (close.get_close_message() or b"").decode(errors="replace")
        code = close.get_close_code()
        if code == WSCloseCode.MESSAGE_TOO_BIG:
            return ServerError(f"the server refused a message because of its size: {reason!r}")
        refused = code == WSCloseCode.POLICY_VIOLATION and reason.startswith(CONNECTION_LIMIT_PREFIX)
        busy = refused or code in _TRY_AGAIN
        kind = BusyServerError if busy else ServerGoneError
        return kind(f"{self._url} closed the connection" + (f": {reason!r}" if reason else ""))

    def _join(self, frame: WSFrame) -> None:
        """Join the fragments of a message (RFC 6455 section 5.4)."""
        is_first = frame.msg_type in _MESSAGE_TYPES
        if is_first == (self._fragments is not None):
            self.end(ServerError("the server sent fragments of no message"), WSCloseCode.PROTOCOL_ERROR)
            return
        if self._fragments is None:
            self._fragments = bytearray()
        self._fragments += frame.get_payload_as_memoryview()
        if len(self._fragments) > self._max_bytes:
            reason = f"the server sent a message of more than {self._max_bytes} bytes"
            self.end(ServerError(reason), WSCloseCode.MESSAGE_TOO_BIG)
        elif frame.fin:
            text, self._fragments = bytes(self._fragments), None
            self._receive(text)


_MESSAGE_TYPES: Final = {WSMsgType.TEXT, WSMsgType.BINARY}
"""Types of a message's first frame. Shipped servers send text; the specification says binary."""

_TRY_AGAIN: Final = {WSCloseCode.SERVICE_RESTART, WSCloseCode.TRY_AGAIN_LATER}
"""Close codes of a server that cannot store anything now, or has no room (docs/mailbox/protocol.md, "Errors")."""

_PROTOCOL_ERRORS: Final = {
    WSCloseCode.PROTOCOL_ERROR,
    WSCloseCode.UNSUPPORTED_DATA,
    WSCloseCode.INVALID_TEXT,
    WSCloseCode.MESSAGE_TOO_BIG,
}
"""Codes with which picows closes a connection whose server breaks the rules."""


_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])\b")

_TEMPORARY: Final = {
    *(HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.INTERNAL_SERVER_ERROR),
    *(HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT),
    *range(520, 531),
}
"""HTTP statuses that a later attempt may change (RFC 9110 section 15, RFC 6585 section 4; from 520: Cloudflare)."""

_NO_UPGRADE: Final = {HTTPStatus.BAD_REQUEST, HTTPStatus.UPGRADE_REQUIRED}
"""What a server answers to a request without the headers of a WebSocket (RFC 6455 section 4.2.1 and RFC 9110 section
15.5.22)."""

_ADVICE: Final[dict[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "it demands a login, which no mailbox client sends: ask its operator for another URL",
    HTTPStatus.FORBIDDEN: "it refuses this client: ask its operator, or use another server",
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: "a proxy on the way demands a login: name it as the proxy, like "
    "http://USER:PASSWORD@HOST:PORT",
}
"""What to do about other answers."""

_REDIRECTIONS: Final = range(300, 400)

_LOCATION: Final = re.compile(rb"\r\nlocation:[ \t]*([^\r\n]*)", re.IGNORECASE)

_NOT_TLS: Final = "WRONG_VERSION_NUMBER"
"""What OpenSSL says of an answer that is not TLS."""

_NEEDS_TLS: Final = re.compile(rb"HTTPS|wss://")
"""What nginx, Go and the server of this project say to a request without TLS."""

_MAX_CLOSING_TURNS: Final = 100
"""Turns of the event loop in which it closes a socket that the server has closed. It needs about three."""

_MAX_SHOWN: Final = 200
"""Characters of a text of the server that an error shows."""


@asynccontextmanager
async def connect(
    server: ServerEndpoint, opened: Callable[[Connection], None], receive: Callable[[bytes], None]
) -> AsyncIterator[Connection]:
    """Open a WebSocket, and close it at the end. `opened` is called first, then `receive` with each message.

    Raises:
        ServerGoneError: it cannot be opened.
        BusyServerError: the server says that it cannot serve now.

    """
    connection = Connection(server, opened, receive)
    failure = f"cannot connect to {server.url}" + (
        f" through the proxy {redacted_url(server.proxy)}" if server.proxy is not None else ""
    )
    try:
        async with asyncio.timeout(server.options.connect_seconds):
            transport = await _open(server, connection)
    except TimeoutError:
        raise server.no_answer(opened=False) from None
    except ProxyError as error:
        raise ServerGoneError(f"{failure}: {in_one_line(str(error), _MAX_SHOWN)}{_login_advice(error)}") from None
    except WSError as error:
        raise _refusal(server, error) from None
    except ssl.SSLError as error:
        raise ServerGoneError(f"{failure} securely: {_tls_fault(server, error)}") from None
    except (OSError, ValueError) as error:
        raise ServerGoneError(f"{failure}{_cause(server, error)}") from None
    if not connection.opened:
        raise ServerGoneError(f"{server.url} closed the connection without an answer in HTTP: {server.advice}")
    try:
        yield connection
    finally:
        connection.end(ServerGoneError("closed here"))
        try:
            with suppress(TimeoutError, WSError):  # `connection.ended` says it
                async with asyncio.timeout(CLOSE_SECONDS):
                    await transport.wait_disconnected()
        finally:
            transport.disconnect(graceful=False)  # even if this task is cancelled


async def _open(server: ServerEndpoint, connection: Connection) -> WSTransport:
    """Connect, and send the request for a WebSocket. If this is cancelled or fails, the socket is closed.

    A cancelled `ws_connect` would leave a socket open on which the server does not answer.
    """
    dialled: list[socket.socket] = []
    options = server.options
    # Of a SOCKS proxy that hangs up on a given socket, picows 2.3.1 raises a private error of python_socks.
    socks = server.proxy if urlsplit(server.proxy or "").scheme.startswith("socks") else None

    async def dial_once(url: WSParsedURL) -> socket.socket:
        opened = dial(url.host, url.port) if socks is None else dial_through(socks, url.host, url.port)
        dialled.append(await opened)
        return dialled[0]

    try:
        transport, _ = await ws_connect(
            lambda: connection,
            server.url,
            ssl_context=(server.ssl or _system_tls()) if server.is_secure else None,
            proxy=server.proxy if socks is None else None,
            socket_factory=dial_once,
            websocket_handshake_timeout=options.connect_seconds,
            enable_auto_ping=True,
            auto_ping_idle_timeout=options.ping_seconds,
            auto_ping_reply_timeout=options.ping_seconds,
            auto_ping_strategy=WSAutoPingStrategy.PING_WHEN_IDLE,
            enable_auto_pong=False,
            max_frame_size=options.max_received_bytes,
            max_redirects=0,
            logger_name=logging.LoggerAdapter(options.logger),  # of a plain one picows makes a child each time
            extra_headers={"User-Agent": options.user_agent} if options.user_agent is not None else None,
            use_aiofastnet=False if _needs_asyncio_tls(server) else None,
        )
    except BaseException:
        connection.abandon()
        if dialled:
            await until_done(asyncio.create_task(_close(dialled[0])))
        raise
    return transport


@functools.cache
def _system_tls() -> ssl.SSLContext:
    """Return the TLS of the system's certificates. To read them takes 60 ms, in which the event loop stands still."""
    return ssl.create_default_context()


async def _close(dialled: socket.socket) -> None:
    """Let the event loop close a socket that it may use, as if the server had hung up."""
    with suppress(OSError):  # it is closed already
        dialled.shutdown(socket.SHUT_RDWR)
    for _ in range(_MAX_CLOSING_TURNS):
        if dialled.fileno() < 0:
            return
        await asyncio.sleep(0)
    dialled.close()


def _needs_asyncio_tls(server: ServerEndpoint) -> bool:
    """Return whether TLS has to be asyncio's: aiofastnet 1.2.0 logs a traceback if a handshake is cut off.

    TLS within the TLS of a proxy fails with a TypeError there before 3.11.8 and 3.12.2 (python/cpython#113214).
    """
    if server.is_secure and server.has_secure_proxy:
        return sys.version_info >= (3, 12, 2) or (3, 11, 8) <= sys.version_info < (3, 12)
    return server.is_secure or server.has_secure_proxy


def _login_advice(error: ProxyError) -> str:
    """Return what to write if a proxy demands a login (HTTP status 407; RFC 1928 section 3)."""
    demanded = re.search(r"\b407\b|authentication", str(error))
    return ": write the right USER:PASSWORD@ before its host" if demanded else ""


def _refusal(server: ServerEndpoint, error: WSError) -> ServerGoneError:
    """Return the error for an answer other than a WebSocket, with what to write instead."""
    header, body = (error.raw_header or b"", error.raw_body) if isinstance(error, WSHandshakeError) else (b"", b"")
    match = _STATUS.match(header)  # picows reads no numbers that http.HTTPStatus lacks, like Cloudflare's 521
    status = int(match[1]) if match else 0
    answer = f"{server.url} answered with HTTP status {status}"
    if status in _TEMPORARY:
        return BusyServerError(answer)
    if status in _REDIRECTIONS:
        return ServerGoneError(f"{answer}, which redirects{_target(server, header)}")
    if status == HTTPStatus.BAD_REQUEST and _NEEDS_TLS.search(body or b""):
        return ServerGoneError(f"{answer}: it expects TLS: write {server.with_scheme('wss')}")
    if status in _NO_UPGRADE:
        tls = "" if server.is_secure else f"write {server.with_scheme('wss')} if it has TLS, or "
        operator = "ask its operator whether a proxy before it passes on the headers Upgrade and Connection"
        return ServerGoneError(f"{answer}, and opens no WebSocket: {tls}{operator}")
    if status in _ADVICE:
        return ServerGoneError(f"{answer}: {_ADVICE[status]}")
    if not HTTPStatus.OK <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
        fault = in_one_line(str(error), _MAX_SHOWN)
        return ServerGoneError(f"{server.url} is not a mailbox server ({fault}): check its host and port")
    usual = server.with_path("/v1")
    advice = "check its host and port" if usual == server.url else f"write {usual}"
    return ServerGoneError(f"{server.url} is not a mailbox server (HTTP status {status}): {advice}")


def _target(server: ServerEndpoint, header: bytes) -> str:
    """Return where a server redirects to, and what to write instead."""
    match = _LOCATION.search(header)
    location = match[1].decode("latin-1") if match else ""
    with suppress(ValueError):
        target = urlsplit(urljoin(server.url, location))
        scheme = WEBSOCKET_SCHEMES.get(target.scheme, target.scheme)
        netloc = target.netloc.rpartition("@")[2]
        url = target._replace(scheme=scheme, netloc=netloc, query="", fragment="").geturl()
        if scheme in SCHEMES and target.hostname and url != server.url:
            return f": write {in_one_line(url, _MAX_SHOWN)}"
    return ", but to no other mailbox server: check its host and port"


def _tls_fault(server: ServerEndpoint, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid ({error.verify_message})"
    fault = f"TLS failed ({error.reason or error})"
    if error.reason == _NOT_TLS and not server.has_secure_proxy:
        fault += f": it has no TLS: write {server.with_scheme('ws')}"
    return fault


def _cause(server: ServerEndpoint, error: OSError | ValueError) -> str:
    reason = plain(error) if isinstance(error, OSError) else str(error)
    if not reason or (isinstance(error, ConnectionResetError) and server.is_secure and server.proxy is None):
        # asyncio has no reason for a server that hangs up during the TLS handshake.
        return f" securely: the connection was closed during the TLS handshake: {server.advice}"
    return f": {reason}"
