"""The WebSocket shell: frames in, frames out, keep-alive, drain.

RFC 6455 section 5 is picows' business as far as single frames go: opcodes, masks, sizes, control frames. What it
leaves to us is reserved bits, text that is not UTF-8, and fragments: their order and what they add up to.
"""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import secrets
import struct
import sys
import termios
import time
from base64 import b32encode
from typing import Any, Final

import msgspec
from picows import (
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,
)

from restante.config import unusable
from restante.errors import PeerError
from restante.mailbox import messages
from restante.mailbox.desk import Connection
from restante.mailbox.office import Clock, Office
from restante.ops.logs import log, where

MAX_MESSAGE: Final = 10 * 1024 * 1024
"""Bytes in a message, fragments together. The reference has no limit; the largest messages of shipped clients
are texts, sent whole and in hex by `wormhole send --text`."""

PING_EVERY: Final = 60
DROP_AFTER: Final = 600
"""Seconds: as the reference (server_websocket.py:392, 0.8.0), so that NAT bindings live and the dead are noticed."""

DRAIN: Final = 5.0
"""Seconds to wait for what was said to reach the clients."""

CLOSING: Final = 2.0
"""Seconds that a client has to answer our close."""

MAX_REASON: Final = 123
"""Bytes of a close frame's reason (RFC 6455 section 5.5)."""

READ_BUFFER: Final = 2048
"""Bytes a connection reads into at first; grows with its frames. Most of a connection's memory (bench/README.md)."""

GREETING: Final = b"Wormhole Relay\n"
"""What `GET /` answers: the reference's words, which monitors look for (web.py:10, 0.8.0)."""


class SystemClock:
    """The real one."""

    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


class SystemDice:
    """Unguessable ones."""

    def below(self, bound: int) -> int:
        return secrets.randbelow(bound)

    def mailbox_id(self) -> str:
        """Give 64 random bits as 13 letters and digits, as the reference does (server.py:4, 0.8.0)."""
        return b32encode(secrets.token_bytes(8)).decode().strip("=").lower()


class Manners(msgspec.Struct, frozen=True):
    """How the server greets and speaks."""

    motd: str | None = None
    current_cli_version: str | None = None
    error: str | None = None
    binary: bool = False
    """Send binary frames, as the letter of spec 000 has it; every shipped client was built against text."""

    def welcome(self, peer: tuple[Any, ...]) -> bytes:
        """Encode the welcome for a client at this address."""
        said = {"motd": self.motd, "current_cli_version": self.current_cli_version, "error": self.error}
        welcome: dict[str, Any] = {key: value for key, value in said.items() if value is not None}
        welcome["your-address"] = your_address(peer)
        return messages.encode(messages.Welcome(welcome))


def your_address(peer: tuple[Any, ...]) -> dict[str, Any]:
    """Tell a client how it looks from here: hole-punching needs it (server_websocket.py:145, 0.8.0)."""
    if ":" not in peer[0]:
        return {"ipv4": peer[0], "port": peer[1]}
    address = ipaddress.ip_address(peer[0].partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return {f"ipv{address.version}": str(address), "port": peer[1]}


class Silence:
    """Stands in for picows' logger, which would write addresses and make one logger per connection.

    What it keeps is that a callback of ours raised: picows catches that, and closes the connection.
    """

    def isEnabledFor(self, _level: int) -> bool:  # noqa: N802 - logging's name
        return False

    def _drop(self, *_args: object, **_kwargs: object) -> None:
        pass

    def exception(self, *_args: object) -> None:
        log.error("a callback failed; its connection is closed", fault=where(sys.exception()))

    debug = info = warning = error = log = _drop


class Socket(WSListener):
    """The socket's end of a connection."""

    __slots__ = ("_connection", "_fragments", "_server", "_size", "_transport", "bucket", "deaf", "heard")

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection = Connection(self)
        self._transport: WSTransport | None = None
        self._fragments: list[bytes] | None = None
        self._size = 0
        self.heard = self.bucket = server.second
        """The second in which it was heard last, and the one of its pings."""
        self.deaf = False
        """Nothing more is taken in but a close."""

    # ── picows calls these ───────────────────────────────────────────────────────────────────────

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        server = self._server
        server.buckets[self.bucket % PING_EVERY].add(self)
        server.office.desk.meet(self._connection)
        peer = transport.underlying_transport.get_extra_info("peername")
        self.send([server.manners.welcome(peer)], messages.stamp(server.clock.wall()))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        self.heard = self._server.second
        kind = frame.msg_type
        if self.deaf and kind != WSMsgType.CLOSE:
            return
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._receive(PeerError(1002, "reserved bits without an extension"))
        elif kind == WSMsgType.TEXT or kind == WSMsgType.BINARY:  # noqa: PLR1714 - one lookup less
            if self._fragments is not None:
                self._receive(PeerError(1002, "a message began inside another"))
            elif frame.fin:
                self._decode(frame.get_payload_as_bytes())
            else:
                self._fragments, self._size = [], 0
                self._gather(frame)
        elif kind == WSMsgType.CONTINUATION:
            if self._fragments is None:
                self._receive(PeerError(1002, "a continuation of nothing"))
            else:
                self._gather(frame)
        elif kind == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code() or WSCloseCode.OK)  # nothing, if we sent ours
            transport.disconnect()

    def on_ws_disconnected(self, _transport: WSTransport) -> None:
        self._transport = None
        self._fragments = None
        self._server.buckets[self.bucket % PING_EVERY].discard(self)
        self._server.office.lose(self._connection)

    # ── frames → text ────────────────────────────────────────────────────────────────────────────

    def _gather(self, frame: WSFrame) -> None:
        assert self._fragments is not None
        self._fragments.append(frame.get_payload_as_bytes())
        self._size += frame.payload_size
        if self._size > MAX_MESSAGE:
            self._receive(PeerError(1009, f"a message has at most {MAX_MESSAGE} bytes"))
        elif frame.fin:
            whole, self._fragments = b"".join(self._fragments), None
            self._decode(whole)

    def _decode(self, payload: bytes) -> None:
        try:
            self._receive(payload.decode())
        except UnicodeDecodeError:
            self._receive(PeerError(1007, "not UTF-8"))

    def _receive(self, said: str | PeerError) -> None:
        if isinstance(said, PeerError):
            self._fragments, self.deaf = None, True
        self._server.office.receive(self._connection, said)

    # ── the desk's line to the client ────────────────────────────────────────────────────────────

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_close_frame_sent:
            return
        if len(bodies) == 1:
            transport.send(self._server.kind, bodies[0] + stamp)
            return
        first = 0x80 | self._server.kind.value
        parts: list[bytes] = []
        for body in bodies:
            parts += (_header(first, len(body) + len(stamp)), body, stamp)
        transport.underlying_transport.write(b"".join(parts))

    def hang_up(self, code: int, reason: str) -> None:
        transport = self._transport
        if transport is None or transport.is_close_frame_sent:
            return
        transport.send_close(WSCloseCode(code), reason.encode()[:MAX_REASON].decode(errors="ignore").encode())
        # The client answers with its own close, and then we disconnect. To close the socket at once would be to
        # reset the connection where it is still sending, and to lose what it has not read yet.
        asyncio.get_running_loop().call_later(CLOSING, transport.disconnect, False)

    def ping(self) -> None:
        if self._transport is not None:
            self._transport.send_ping()

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.disconnect(graceful=False)

    def unsent(self) -> int:
        """Give the bytes that the client's kernel has not acknowledged, ours and our kernel's."""
        if self._transport is None:
            return 0
        under = self._transport.underlying_transport
        try:
            queued = fcntl.ioctl(under.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))  # man 7 tcp
        except OSError:  # it is gone already
            return 0
        waiting: int = struct.unpack("i", queued)[0]
        return under.get_write_buffer_size() + waiting


def _header(first: int, size: int) -> bytes:
    """Give the header of an unmasked frame (RFC 6455 section 5.2)."""
    if size < 126:
        return bytes((first, size))
    if size < 1 << 16:
        return _HEADER_16(first, 126, size)
    return _HEADER_64(first, 127, size)


_HEADER_16: Final = struct.Struct(">BBH").pack
_HEADER_64: Final = struct.Struct(">BBQ").pack


class Server:
    """Listens, keeps connections alive, and lets them go."""

    def __init__(self, office: Office, clock: Clock, manners: Manners) -> None:
        self.office = office
        self.clock = clock
        self.manners = manners
        self.kind = WSMsgType.BINARY if manners.binary else WSMsgType.TEXT
        self.second = 0
        """Counts `tick`s: all the time that keep-alive needs."""
        self.buckets: list[set[Socket]] = [set() for _ in range(PING_EVERY)]
        """All sockets, by the second of the minute in which they are pinged."""
        self._listener: asyncio.Server | None = None

    async def listen(self, host: str | None, port: int) -> list[tuple[str, int]]:
        """Listen; gives the addresses. Raises Misuse where that cannot be done."""
        try:
            self._listener = await ws_create_server(
                self._answer,
                host,
                port,
                logger_name=Silence(),  # type: ignore[arg-type]
                max_frame_size=MAX_MESSAGE,
                read_buffer_init_size=READ_BUFFER,
                use_aiofastnet=False,  # 5 KiB a connection less, the same speed (bench/README.md)
                backlog=1024,
            )
        except OSError as error:
            raise unusable(host, port, "--listen", error) from error
        return [listener.getsockname()[:2] for listener in self._listener.sockets]

    def _answer(self, request: WSUpgradeRequest) -> Socket | WSUpgradeResponseWithListener | None:
        path = request.path.partition(b"?")[0]
        if path == b"/":
            return WSUpgradeResponseWithListener(WSUpgradeResponse.create_ok_response(GREETING), None)
        if path == b"/v1" or path.startswith(b"/v1/"):
            return Socket(self)
        return None  # 404

    def sockets(self) -> list[Socket]:
        return [each for bucket in self.buckets for each in bucket]

    def tick(self) -> None:
        """Ping this second's sockets, and drop those that have been silent for too long."""
        self.second += 1
        for each in list(self.buckets[self.second % PING_EVERY]):
            if self.second - each.heard > DROP_AFTER:
                each.drop()
            else:
                each.ping()

    async def drain(self, office: asyncio.Task[None]) -> None:
        """Stop accepting and reading, answer what was read, and say goodbye."""
        if self._listener is not None:
            self._listener.close()
        for each in self.sockets():
            each.deaf = True  # and not paused: what lies unread when a socket is closed resets the connection
        self.office.stop()
        await office
        for each in self.sockets():
            each.hang_up(WSCloseCode.GOING_AWAY.value, "server restarts")
        deadline = self.clock.monotonic() + DRAIN
        while any(each.unsent() for each in self.sockets()) and self.clock.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # the kernel has no event for it
        for each in self.sockets():
            each.drop()
