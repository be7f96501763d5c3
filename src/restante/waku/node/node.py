"""The node: it accepts connections, keeps static peers connected, and passes packets to what handles them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Final

from restante.common import listening
from restante.common.dice import SystemDice
from restante.common.errors import PeerError, plain
from restante.common.listening import ListenAddress
from restante.common.logs import log
from restante.common.net import Network
from restante.common.proxy_header import THIS_MACHINE, ProxyHeaderReader, SocketPeer, is_trusted
from restante.waku.archive.sqlite import Archive
from restante.waku.connection.peer_connection import ConnectionHandler, PeerConnection
from restante.waku.connection.read_pacing import (
    INTEREST_CHANGE_COST,
    PAUSED_BY_DRAIN,
    PAUSED_BY_LARGE_PACKET,
    REFUSAL_COST,
)
from restante.waku.devp2p import session
from restante.waku.devp2p.enode import Enode
from restante.waku.devp2p.hello import CLIENT, Capability, Hello, Reason
from restante.waku.devp2p.rlpx import Rlpx, max_frame_bytes
from restante.waku.devp2p.session import Devp2p
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keccak import keccak
from restante.waku.envelope.keys import Key, node_id
from restante.waku.limits import Limits
from restante.waku.node.admission import Admission, ConnectionCount, PeerLimits
from restante.waku.node.archiving import Archiving
from restante.waku.node.clock import NodeClock
from restante.waku.node.history_requests import HistoryRequests, HistoryTerms
from restante.waku.node.mailserver import EnvelopeCount, Mailserver, OfferedPacket
from restante.waku.node.relay import EnvelopeRelay
from restante.waku.node.save_schedule import SAVE_INTERVAL
from restante.waku.protocol import packets
from restante.waku.protocol.interest import WANTS_NOTHING
from restante.waku.protocol.peer import Changed, Greeted, Offered, OfferedLarge, PeerEvent, Requested, Violation

RECEIVE_BUFFER_BYTES: Final = 64 * 1024
"""Bytes that the kernel buffers for a peer (it doubles this), and so what one peer can send in a turn of the loop."""

UNSENT_BYTES: Final = 128 * 1024
"""Bytes that the kernel takes for a peer beyond those that are on their way. By itself it takes megabytes, and a
confirmation waits behind them."""

DRAIN_SECONDS: Final = 5.0
"""Seconds to wait until everything that was sent has reached the peers."""

ENVELOPES_PER_SLICE: Final = 250
"""Envelopes of a large packet that are handled at a time, which takes some milliseconds."""

REJECTION_LABELS: Final = {
    packets.MESSAGES: "invalid_data",
    packets.MESSAGE_RESPONSE: "invalid_data",
    packets.BATCH_ACK: "invalid_data",
    packets.STATUS_UPDATE: "invalid_settings_changed",
}
"""What status-go's metrics call a packet that cannot be read (waku/v1/peer.go). status-go does not count bad Batch
Acks."""

DAMAGED: Final = "the archive is damaged"
"""Why the node is not ready after a request found damage."""

HEADER_SECONDS: Final = 5.0
"""Seconds within which a proxy must send the PROXY header of a connection."""

REDIAL_DELAY: Final = 1.0
"""Seconds until a lost static peer is dialled again. Each attempt doubles them, up to `MAX_REDIAL_DELAY`."""

MAX_REDIAL_DELAY: Final = 60.0

DIAL_TIMEOUT: Final = 10.0
"""Seconds to connect to a static peer. Its handshake and its greeting have their own timeouts."""


class Node(ConnectionHandler):
    """Keeps connections, and connects them with the archive, the relay and the history requests."""

    def __init__(
        self,
        key: Key,
        mailserver: Mailserver,
        archive: Archive,
        peer_limits: PeerLimits,
        limits: Limits,
        history: HistoryTerms | None = None,
        *,
        client: str = CLIENT,
        clock: NodeClock | None = None,
        save_interval: float = SAVE_INTERVAL,
    ) -> None:
        self.key = key
        self.limits = limits
        self.peer_limits = peer_limits
        self.mailserver = mailserver
        self.archive = archive
        self.clock = clock or NodeClock()
        self.loop = asyncio.get_running_loop()
        terms = history or HistoryTerms()
        self.history_requests = HistoryRequests(archive, terms, limits, self.clock)
        self.relay = EnvelopeRelay(mailserver, self.loop)
        self.counts: Counter[ConnectionCount] = Counter()
        self.lost: Counter[Reason | None] = Counter()
        """Closed connections, by the reason of the Disconnect. None: the connection was lost without one."""
        self.rejected: Counter[str] = Counter()
        """Packets that could not be read, by their name in status-go's metrics."""
        self.admission = Admission(node_id(key.public), peer_limits, limits, self.counts, self.loop)
        self.admission.protected |= terms.allow or set()
        self.connections, self.peers = self.admission.connections, self.admission.peers
        self.archiving = Archiving(mailserver, archive, limits, self.clock, self._confirm_packets, save_interval)
        self._dice = SystemDice()
        self._session_limits = session.SessionLimits(packet=limits.packet_bytes)
        self._max_frame_bytes = max_frame_bytes(limits.packet_bytes)
        self._hello = Hello(client, (Capability(*packets.CAPABILITY),), 0, key.public)
        self._status = packets.write_options(
            packets.Options(
                pow=mailserver.policy.min_pow,
                bloom=bloom.ALL_BITS,
                light=False,
                confirmations=True,
                packets=(0, 0, 0),
                bytes=(0, 0, 0),
            )
        )
        self._large_packets: set[asyncio.Task[None]] = set()
        """The tasks that handle large packets."""
        self._unflushed: set[PeerConnection] = set()
        self._listeners: list[tuple[asyncio.Server, ListenAddress, os.stat_result | None]] = []

    def ready(self) -> str:
        """Return why load balancers should not send clients here, or an empty text."""
        if self.archiving.stopping:
            return "draining"
        outage = self.archiving.outage
        if outage is not None and self.mailserver.store_refuses(self.now()):
            return outage.state  # later, the next envelope shows whether the archive works: it must be sent here
        return DAMAGED if self.history_requests.damaged else ""

    def now(self) -> int:
        """Return the time of the wall clock, in whole seconds since 1970."""
        return int(self.clock.wall())

    # ── connections ──────────────────────────────────────────────────────────────────────────────

    async def listen(self, address: ListenAddress, proxies: Sequence[Network] = ()) -> list[str]:
        """Listen, and return the addresses of the sockets. Raises Misuse if the address cannot be used.

        `proxies` are those whose PROXY headers count, if the address demands one.
        """
        protocol = partial(self._new_protocol, address, proxies)
        listener, sockets, bound = await listening.open_listener(address, protocol, backlog=1024, flag="--listen")
        for listening_socket in sockets:
            # Accepted connections inherit it.
            listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            if listening_socket.family != socket.AF_UNIX:
                listening_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._listeners.append((listener, address, bound))
        addresses = [listening.shown_address(listening_socket) for listening_socket in sockets]
        for listening_socket in sockets:
            listening_socket.close()
        return addresses

    def _new_protocol(self, address: ListenAddress, proxies: Sequence[Network]) -> asyncio.BaseProtocol:
        """Return the protocol of a connection to a listening socket."""
        if address.proxied:
            return ProxyHeaderReader(
                lambda peer: is_trusted(peer, proxies), HEADER_SECONDS, self._accept, self._refuse_proxy
            )
        return self._accept(THIS_MACHINE if address.is_unix else None)

    def _accept(self, peer: SocketPeer | None) -> PeerConnection:
        """Return the protocol of a connection that a peer made. None: its socket knows the address."""
        rlpx = Rlpx.recipient(self.key, self._dice, cap=self._max_frame_bytes)
        return self._new_connection(rlpx, dialled=False, address=peer.host if peer else "")

    def _refuse_proxy(self, _proxy: SocketPeer) -> None:
        """Count a connection that had to begin with a PROXY header of a proxy, and did not."""
        self.counts[ConnectionCount.NO_PROXY_HEADER] += 1

    def _new_connection(self, rlpx: Rlpx, *, dialled: bool, address: str = "") -> PeerConnection:
        devp2p = Devp2p(rlpx, self._hello, self.loop.time(), self._session_limits)
        return PeerConnection(self, devp2p, dialled=dialled, address=address)

    async def dial(self, enode: Enode) -> PeerConnection:
        """Connect to a node. Raises OSError, and PeerError if its public key is invalid."""
        rlpx = Rlpx.initiator(self.key, enode.public, self._dice, cap=self._max_frame_bytes)
        _, connection = await self.loop.create_connection(
            lambda: self._new_connection(rlpx, dialled=True), enode.host, enode.port
        )
        return connection

    def admit(self, connection: PeerConnection) -> bool:
        return self.admission.admit(connection)

    def reduce_incomplete(self) -> None:
        """Disconnect the peer with the largest incomplete packet."""
        self.admission.disconnect_largest()

    def receive_hello(self, connection: PeerConnection, public: bytes) -> None:
        self.admission.identify(connection, public)

    def status_body(self) -> bytes:
        return self._status

    def connection_closed(self, connection: PeerConnection, reason: Reason | None, _text: str) -> None:
        """Forget a closed connection."""
        self._unflushed.discard(connection)
        self.admission.forget(connection)
        self.archiving.forget(connection)
        self.relay.forget(connection)
        self.history_requests.forget(connection)
        self.lost[reason] += 1

    async def stay_connected(self, enode: Enode) -> None:
        """Keep a static peer connected: dial it, and again when it is lost. Never returns."""
        wait, peer_id = REDIAL_DELAY, node_id(enode.public)
        self.admission.protected.add(peer_id)
        while True:
            if peer_id in self.peers:  # the peer has dialled us
                await asyncio.sleep(REDIAL_DELAY)
                continue
            try:
                async with asyncio.timeout(DIAL_TIMEOUT):
                    connection = await self.dial(enode)
            except TimeoutError:
                reason = "the peer did not answer in time"
            except OSError as error:
                reason = plain(error)
            except PeerError as error:
                reason = error.text
            else:
                if connection.closed is not None:
                    await connection.closed
                reason = connection.end_reason
                if connection.peer.greeted:
                    wait = REDIAL_DELAY
            log.info("a static peer is not connected", peer=enode.address, reason=reason, again_in=wait)
            await asyncio.sleep(wait)
            wait = min(2 * wait, MAX_REDIAL_DELAY)

    # ── packets ──────────────────────────────────────────────────────────────────────────────────

    def handle_event(self, connection: PeerConnection, event: PeerEvent, payload: bytes) -> None:
        if isinstance(event, Offered):
            self._offered(connection, event.envelopes, payload)
        elif isinstance(event, OfferedLarge):
            connection.reading.pause(PAUSED_BY_LARGE_PACKET)
            task = asyncio.create_task(self._offered_large(connection, payload))
            self._large_packets.add(task)
            task.add_done_callback(self._large_packets.discard)
        elif isinstance(event, Greeted):
            if connection.dialled:
                log.info("a static peer is connected", peer=connection.address)
            self.relay.interest_changed(connection, WANTS_NOTHING)
        elif isinstance(event, Changed):
            connection.charge(INTEREST_CHANGE_COST)
            self.relay.interest_changed(connection, event.before)
        elif isinstance(event, Requested):
            self.history_requests.receive(connection, event.payload)
        elif isinstance(event, Violation):
            self._count_violation(connection, event.code)

    def _offered(self, connection: PeerConnection, envelopes: list[Envelope], payload: bytes) -> None:
        packet = OfferedPacket(connection.node_id, keccak(payload))
        self._receive_envelopes(connection, packet, envelopes)
        self._finish(connection, packet)

    async def _offered_large(self, connection: PeerConnection, payload: bytes) -> None:
        """Handle a large packet in slices. All of it is parsed before any envelope counts.

        It is then parsed again, because its envelopes take thirty times the memory of the packet, and each connection
        may send one at the same time.
        """
        try:
            for count, _ in enumerate(packets.walk_envelopes(payload), 1):
                if count % ENVELOPES_PER_SLICE == 0:
                    await asyncio.sleep(0)
            packet = OfferedPacket(connection.node_id, keccak(payload))
            envelopes = packets.walk_envelopes(payload)
            while part := list(islice(envelopes, ENVELOPES_PER_SLICE)):
                self._receive_envelopes(connection, packet, part)
                await asyncio.sleep(0)
            self._finish(connection, packet)
        except PeerError:
            self._count_violation(connection, packets.MESSAGES)
        finally:
            connection.large_packet_handled()

    def _receive_envelopes(
        self, connection: PeerConnection, packet: OfferedPacket, envelopes: list[Envelope]
    ) -> None:
        mailserver = self.mailserver
        refused, new = mailserver.refused, mailserver.counts[EnvelopeCount.NEW]
        mailserver.receive(packet, envelopes, self.now())
        refused = mailserver.refused - refused
        if mailserver.counts[EnvelopeCount.NEW] > new:
            connection.active_at = self.loop.time()
        connection.charge(len(envelopes) + REFUSAL_COST * refused)
        if mailserver.unrelayed:
            self.relay.push_soon()
        if mailserver.gathered:
            self.archiving.envelopes_gathered(connection)

    def _finish(self, connection: PeerConnection, packet: OfferedPacket) -> None:
        response = self.mailserver.finish(packet)
        if response is not None:
            self._confirm(connection, response)
        else:
            self.archiving.limit_unsaved(connection)  # copies gather nothing, but their packet waits

    def _count_violation(self, connection: PeerConnection, code: int) -> None:
        connection.charge(REFUSAL_COST)
        self.admission.count_error(connection)
        self.counts[ConnectionCount.UNREADABLE] += 1
        self.rejected[REJECTION_LABELS[code]] += 1

    def _confirm(self, connection: PeerConnection, response: packets.Response) -> None:
        # status-go sends them in this order (waku/v1/peer.go, sendConfirmation). It reports the first answer about an
        # envelope to its user, and the ack alone would mean that all were accepted. It posts an envelope that the
        # response names again, at most twice (protocol/transport/envelopes_monitor.go, handleEnvelopeFailure).
        connection.pace.confirmed = self.clock.monotonic()
        connection.send(packets.MESSAGE_RESPONSE, packets.write_response(response))
        connection.send(packets.BATCH_ACK, packets.write_ack(response.packet))

    def _confirm_packets(self, answers: Iterable[tuple[bytes, packets.Response]]) -> None:
        """Confirm packets to the peers that sent them and are still connected."""
        for peer_id, response in answers:
            connection = self.peers.get(peer_id)
            if connection is not None:
                self._confirm(connection, response)

    def writing_resumed(self, connection: PeerConnection) -> None:
        """Send a peer that has read again what it has missed, and the rest of its backlog."""
        self.relay.catch_up(connection)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def flush_soon(self, connection: PeerConnection) -> None:
        """Flush the connection at the end of this turn of the loop, so that one write carries all its packets."""
        if not self._unflushed:
            self.loop.call_soon(self._flush)
        self._unflushed.add(connection)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, set()
        for connection in unflushed:
            connection.flush()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────

    def tick(self) -> None:
        """Forget expired envelopes. Call this once a second."""
        self.mailserver.pool.expire(self.now())

    async def drain(self, running: asyncio.Task[None]) -> None:
        """Stop listening and reading, archive and confirm what was read, and disconnect all peers."""
        for listener, address, bound in self._listeners:
            listening.remove_path(address, bound)
            listener.close()
        for connection in self.connections:
            connection.reading.pause(PAUSED_BY_DRAIN)
        if self._large_packets:
            await asyncio.wait(self._large_packets)
        self.archiving.stop()
        await running
        for connection in list(self.connections):
            connection.disconnect(Reason.CLIENT_QUITTING)
        deadline = self.loop.time() + DRAIN_SECONDS
        while self.connections and self.loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # transports have no event for it
        for connection in list(self.connections):
            connection.abort()
