"""Connecting the two sides of a transfer: both listen, both dial, and the sender chooses one connection.

Both write their line at once, whichever of them has dialled. The sender, when it has read the receiver's, writes
`go` on one connection and `nevermind` on the others (mw transit.py:146-194).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from restante.client.arguments import check_seconds
from restante.client.connection.dialling import dial, dial_through
from restante.client.connection.server import check_proxy_url
from restante.client.defaults import DEFAULT_TRANSIT_RELAY
from restante.client.errors import TransferError
from restante.client.tasks import until_done
from restante.client.transit.hints import MAX_HINTS, Address, Hints, Relay, parse_relay
from restante.client.transit.pipe import STALL_SECONDS, RecordPipe
from restante.client.transit.records import GO, NEVERMIND, RELAY_READY, Role, TransitKeys
from restante.common.dice import Dice
from restante.common.errors import AddressInUse, Misuse, plain
from restante.common.texts import in_one_line, redacted_url

# ── The addresses of this computer ────────────────────────────────────────────────────────────────


_SIOCGIFADDR: Final = 0x8915
"""Linux: the IPv4 address of an interface (netdevice(7))."""

_IPV6_ADDRESSES: Final = Path("/proc/net/if_inet6")
"""Linux: a line for each IPv6 address, which begins with it in hex (proc(5))."""


def own_addresses() -> list[tuple[socket.AddressFamily, str]]:
    """Return the addresses of this computer's interfaces. Loopback addresses are returned if there are no others."""
    addresses = {(socket.AF_INET, ipaddress.ip_address(text)) for text in _ipv4_addresses()}
    addresses |= {(socket.AF_INET6, ipaddress.ip_address(text)) for text in _ipv6_addresses()}
    loopback = {(family, address) for family, address in addresses if address.is_loopback}
    usable = {(family, address) for family, address in addresses - loopback if not address.is_link_local}
    return sorted((family, str(address)) for family, address in usable or loopback)


def _ipv4_addresses() -> list[str]:
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                addresses.append(socket.inet_ntoa(answer[20:24]))
    return addresses


def _ipv6_addresses() -> list[str]:
    try:
        lines = _IPV6_ADDRESSES.read_text().splitlines()
    except OSError:  # no IPv6
        return []
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])) for line in lines]


# ── The connection ────────────────────────────────────────────────────────────────────────────────


TRANSIT_SECONDS: Final = 120.0
"""Seconds within which the sides must be connected, as in the Python client (mw transit.py:776-846). A peer that has
lost its connection to the server learns up to 61 s later that the transfer begins."""

DIAL_SECONDS: Final = 20.0
"""Seconds for one address to answer, and then for the peer to send its line there."""

VISITOR_SECONDS: Final = 10.0
"""Seconds for somebody who connects to show that they are the peer, and for a sender to choose the connection."""

RELAY_DELAY_SECONDS: Final = 2.0
"""Seconds by which relays are dialled later than direct addresses, which are faster (mw transit.py:776-846)."""

MAX_VISITORS: Final = 64
"""Connections from outside that have not shown the peer's line yet. One more takes the place of the oldest: anybody
may connect to the port, and the peer shows its line at once."""

MAX_RESOLVED: Final = 4
"""Addresses of one host name that are dialled, one after the other."""

NO_WAY: Final = "the other side names no address, this computer does not listen, and there is no relay"
"""Why there is no connection, if there was nothing to dial."""

RELAY_SIDE_BYTES: Final = 8

MAX_PORT: Final = 0xFFFF


class TransitOptions(msgspec.Struct, frozen=True):
    """How the two sides of a transfer may be connected."""

    relays: tuple[str, ...] = (DEFAULT_TRANSIT_RELAY,)
    """Relays as `tcp:HOST:PORT`. They are dialled if no direct connection is made, and so are the peer's."""
    listen: bool = True
    """Whether this computer listens for the peer, and tells it its addresses. It dials the peer in any case."""
    proxy: str | None = None
    """URL of a proxy for all connections, with `socks5://`, `socks4://` or `http://`. Then nothing listens here, and
    the peer learns the proxy's address only."""
    connect_seconds: float = TRANSIT_SECONDS
    """Seconds after which a transfer ends with TransferError if the two sides are not connected."""
    stall_seconds: float = STALL_SECONDS
    """Seconds after which a transfer ends with PeerStalledError if the peer has not sent or taken a byte. A sender
    waits five times as long for a receiver whose system, or whose relay, answers that its buffer is full, and for the
    confirmation, there also a second more for each 1,000 bytes, but at most a day. By five times as long a peer may
    fall behind 1,000 bytes a second."""
    port: int = 0
    """TCP port on which this computer listens, for example one that a firewall lets through. 0: any free port."""

    def __post_init__(self) -> None:
        """Raise Misuse if a relay, the proxy, a time or the port cannot be used."""
        for relay in self.relays:
            parse_relay(relay)
        if self.proxy is not None:
            check_proxy_url(self.proxy)
        check_seconds("connect_seconds", self.connect_seconds)
        check_seconds("stall_seconds", self.stall_seconds)
        if type(self.port) is not int or not 0 <= self.port <= MAX_PORT:
            raise Misuse(f"`port` is a number from 0 to {MAX_PORT:,}, not {self.port!r:.80}")

    def __repr__(self) -> str:
        """Return its fields, without the proxy's user and password: a program may log it."""
        fields = msgspec.structs.asdict(self)
        if self.proxy is not None:
            fields["proxy"] = redacted_url(self.proxy)
        return f"TransitOptions({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


DEFAULT_TRANSIT: Final = TransitOptions()


class Transit:
    """Where one side can be reached. It listens while its context is entered."""

    def __init__(self, options: TransitOptions, dice: Dice) -> None:
        self._options = options
        self._side = dice.draw(RELAY_SIDE_BYTES)
        self._relays = tuple(map(parse_relay, options.relays))
        self._listeners: list[socket.socket] = []
        self.hints = Hints(relays=self._relays)
        """The addresses and relays that the peer is sent."""

    def __enter__(self) -> Self:
        """Listen. Raises Misuse if the port that was chosen is not free."""
        if self._options.listen and self._options.proxy is None:
            addresses = own_addresses()
            self._listeners = _listen(self._options.port)
            ports = {listener.family: listener.getsockname()[1] for listener in self._listeners}
            direct = [Address(address, ports[family]) for family, address in addresses if family in ports]
            self.hints = Hints(tuple(direct[:MAX_HINTS]), self._relays)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def connect(
        self, keys: TransitKeys, role: Role, peer_hints: Hints, given_up: asyncio.Future[TransferError] | None = None
    ) -> RecordPipe:
        """Connect to the peer, whose hints these are. Then nothing listens any more.

        Raises TransferError if that fails, or what `given_up` says if the peer gives up before.
        """
        attempts = _Attempts(keys, role, self._side, self._options.proxy)
        given_up = given_up or asyncio.get_running_loop().create_future()
        given_up.add_done_callback(attempts.give_up)
        try:
            async with asyncio.timeout(self._options.connect_seconds):
                chosen = await attempts.chosen(self._listeners, peer_hints, self._relays)
        except TimeoutError:
            raise _unconnected(f" within {self._options.connect_seconds:.0f} s", attempts.reasons) from None
        finally:
            given_up.remove_done_callback(attempts.give_up)
            self._close()
        if chosen is None:
            raise given_up.result() if given_up.done() else _unconnected("", attempts.reasons or NO_WAY)
        return RecordPipe(chosen, keys, self._options.stall_seconds)


def _unconnected(when: str, reasons: str) -> TransferError:
    reason = "no connection to the other side"
    # The peer chose the addresses. What answers there may be in a network that it cannot reach.
    return TransferError(f"{reason}{when}{f' ({reasons})' if reasons else ''}").with_peer_text(f"{reason}{when}")


class _Attempts:
    """All attempts to connect, of which one is chosen."""

    def __init__(self, keys: TransitKeys, role: Role, side: bytes, proxy: str | None) -> None:
        self._keys, self._role, self._side, self._proxy = keys, role, side, proxy
        self._loop = asyncio.get_running_loop()
        self._attempts: set[asyncio.Task[None]] = set()
        self._listeners: list[socket.socket] = []
        self._visitors: dict[socket.socket, asyncio.Task[None]] = {}
        self._open: set[socket.socket] = set()
        self._chosen: asyncio.Future[socket.socket | None] = self._loop.create_future()
        self._reasons: dict[str, str] = {}

    @property
    def reasons(self) -> str:
        """Why addresses that were dialled did not do."""
        return ", ".join(f"{address}: {reason}" for address, reason in self._reasons.items())

    async def chosen(
        self, listeners: list[socket.socket], peer_hints: Hints, relays: tuple[Relay, ...]
    ) -> socket.socket | None:
        """Return the connection that both sides use; None if all attempts have failed, or after `give_up`."""
        self._listeners = listeners
        self._listen()
        for address in peer_hints.direct:
            self._start(self._dial(address))
        all_relays = (*relays, *peer_hints.relays)
        for address in dict.fromkeys(address for relay in all_relays for address in relay.addresses):
            self._start(self._dial_relay(address, RELAY_DELAY_SECONDS if peer_hints.direct or listeners else 0))
        self._give_up_without_attempts()
        chosen = None
        try:
            chosen = await self._chosen
        finally:
            self._stop_listening()
            try:
                await until_done(asyncio.create_task(self._end_attempts()))
            except asyncio.CancelledError:
                chosen = None
                raise
            finally:
                for connection in self._open - {chosen}:
                    connection.close()
        return chosen

    async def _end_attempts(self) -> None:
        for attempt in self._attempts:
            attempt.cancel()
        await asyncio.gather(*self._attempts, return_exceptions=True)

    def _start(self, attempt: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(attempt)
        self._attempts.add(task)
        task.add_done_callback(self._end_attempt)
        return task

    def _end_attempt(self, attempt: asyncio.Task[None]) -> None:
        self._attempts.discard(attempt)
        self._give_up_without_attempts()

    def _give_up_without_attempts(self) -> None:
        if not self._attempts and not self._listeners:
            self.give_up()

    def give_up(self, _cause: object = None) -> None:
        """End without a connection, unless there is one."""
        if not self._chosen.done():
            self._chosen.set_result(None)

    def _listen(self) -> None:
        for listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener)
        self._listeners = []

    def _accept(self, listener: socket.socket) -> None:
        try:
            visitor, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # too few descriptors: dialling goes on
            self._stop_listening()
            self._give_up_without_attempts()
            return
        self._open.add(visitor)
        if len(self._visitors) == MAX_VISITORS:
            oldest = next(iter(self._visitors))
            negotiation = self._visitors.pop(oldest)
            negotiation.cancel()
            negotiation.add_done_callback(lambda _: self._close(oldest))  # one that did not begin does not close it
        self._visitors[visitor] = self._start(self._receive(visitor))

    async def _receive(self, visitor: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError, TimeoutError, _NotThePeerError):
                async with asyncio.timeout(VISITOR_SECONDS):
                    await self._negotiate(visitor)
        finally:
            self._visitors.pop(visitor, None)

    async def _dial(self, address: Address) -> None:
        with self._reason_recorded(address):
            async with asyncio.timeout(DIAL_SECONDS):
                await self._negotiate(await self._open_connection(address))

    async def _dial_relay(self, address: Address, delay: float) -> None:
        """Dial a relay. It answers when the peer is there, too."""
        await asyncio.sleep(delay)
        with self._reason_recorded(address):
            async with asyncio.timeout(DIAL_SECONDS):
                connected = await self._open_connection(address)
            await self._negotiate(connected, self._keys.relay_line(self._side))

    @contextlib.contextmanager
    def _reason_recorded(self, address: Address) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            self._reasons[str(address)] = "no answer"
        except OSError as error:
            self._reasons[str(address)] = plain(error)
        except (_NotThePeerError, UnicodeError) as error:
            self._reasons[str(address)] = str(error)

    async def _open_connection(self, address: Address) -> socket.socket:
        """Return a connection to an address."""
        if self._proxy is not None:
            proxied = await _proxied(self._proxy, address)
            self._open.add(proxied)
            return proxied
        dialled = await dial(address.host, address.port, MAX_RESOLVED)
        self._open.add(dialled)
        return dialled

    async def _negotiate(self, connected: socket.socket, relay_line: bytes | None = None) -> None:
        """Send our line, expect the peer's, and let the sender choose. Closes a connection that is not chosen."""
        try:
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if relay_line is not None:
                await self._loop.sock_sendall(connected, relay_line)
                await _expect(connected, RELAY_READY, "the relay refused the connection")
            await self._loop.sock_sendall(connected, self._keys.line)
            await _expect(connected, self._keys.peer_line)
            self._visitors.pop(connected, None)
            if self._role is Role.RECEIVER:
                await _expect(connected, GO)
            if self._chosen.done():
                connected.send(NEVERMIND)
                self._close(connected)
                return
            if self._role is Role.SENDER:
                connected.send(GO)
            self._chosen.set_result(connected)
        except BaseException:
            self._close(connected)
            raise

    def _close(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        connection.close()


class _NotThePeerError(Exception):
    """The other end is not the peer, or chose another connection."""


async def _proxied(proxy: str, address: Address) -> socket.socket:
    """Return a connection through a proxy. Raises _NotThePeerError if the proxy makes none."""
    from python_socks import ProxyError  # only a connection through a proxy needs it

    try:
        return await dial_through(proxy, address.host, address.port)
    except ProxyError as error:
        raise _NotThePeerError(in_one_line(str(error))) from error
    except OSError as error:
        raise _NotThePeerError(f"the proxy cannot be used: {plain(error)}") from error


async def _expect(
    connected: socket.socket, line: bytes, otherwise: str = "not the other side of this transfer"
) -> None:
    """Read a line, and not a byte behind it. Raises _NotThePeerError, with the text `otherwise`, if it is another."""
    loop, received = asyncio.get_running_loop(), b""
    while received != line:
        data = await loop.sock_recv(connected, len(line) - len(received))
        received += data
        if not data:
            raise _NotThePeerError("the connection was closed")
        if not line.startswith(received):
            raise _NotThePeerError(otherwise)


def _listen(port: int) -> list[socket.socket]:
    """Listen at all addresses, for each version of IP that there is: on a port, or on free ones if that is 0.

    Raises Misuse if another program has the port, or this user may not have it.
    """
    listeners: list[socket.socket] = []
    for family, wildcard in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
            listeners.append(listener)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if port:  # connections of an earlier transfer may still have it (tcp(7), TIME_WAIT)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((wildcard, port))
            listener.listen()
            listener.setblocking(False)
        except OSError as error:
            if port and error.errno in {errno.EADDRINUSE, errno.EACCES}:
                for listener in listeners:
                    listener.close()
                reason = f"cannot listen on port {port}: {plain(error)}"
                refusal = Misuse(reason)
                if error.errno == errno.EADDRINUSE:
                    refusal = AddressInUse(f"{reason}: stop the program that listens there, or choose another port")
                raise refusal.with_peer_text("it cannot listen on its port") from error
            if listeners and listeners[-1].family == family:
                listeners.pop().close()
    return listeners
