"""What comes before a request at the mailbox server: TLS, its certificates, and PROXY headers."""

from __future__ import annotations

import asyncio
import datetime as dt
import hmac
import ipaddress
import itertools
import math
import re
import shutil
import signal
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from operator import sub
from pathlib import Path
from typing import Final

import pytest
import structlog
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from client.live import meet, read, wormhole
from restante.common import proxy_header, tls_handshake
from restante.common.certificate import ServerCertificate, expiry_time, host_names
from restante.common.errors import Misuse
from restante.common.listening import parse_listen_address
from restante.common.newcomers import PENDING_BYTES
from restante.common.proxy_header import LOCAL, MAX_LINE_BYTES, PROXY, SHORTEST_BYTES, SIGNATURE, SocketPeer
from restante.common.tls_transport import MAX_RECORDS_WITHOUT_DATA, RECORDS_AT_ONCE
from restante.mailbox.core.limits import UNLIMITED, Limits
from restante.mailbox.protocol.refusals import NO_PROXY_HEADER, NO_ROOM_FOR_REQUESTS, TOO_MANY_HANDSHAKES
from restante.mailbox.server import status_pages
from support.bounds import bounded
from support.certificates import Certificate
from support.effort import examples
from support.loops import in_every_turn, on_uvloop, until
from support.mailbox.live import LiveServer, open_live
from support.mailbox.raw_socket import PING, RawSocket, frame, handshake
from support.proc import resident
from support.processes import serving
from support.proxy_headers import UNIX, UNKNOWN, header, line
from test_serve import welcome

HALF_A_HELLO = bytes.fromhex("16 0301 0200 01 0001fc")
"""The header of a record and that of a ClientHello."""


class Secure:
    def __init__(self, live: LiveServer, certificate: Certificate, port: int) -> None:
        self.live = live
        self.certificate = certificate
        self.port = port

    async def connect(self, tls: ssl.SSLContext | None = None) -> RawSocket:
        socket = await RawSocket.connect(self.port, ssl=tls)
        self.live.clients.append(socket)  # it is cut in the end
        return socket

    async def failed(self, times: int) -> None:
        """Wait until so many handshakes have failed. Nothing of them is left."""
        await until("a failed handshake", lambda: self.live.server.failed_handshakes >= times)
        assert (self.live.server.failed_handshakes, self.live.server.reading_bytes) == (times, 0)

    async def holds(self, size: int) -> None:
        await until(f"{size} bytes", lambda: self.live.server.reading_bytes == size)


@asynccontextmanager
async def secure(folder: Path, limits: Limits = UNLIMITED) -> AsyncIterator[Secure]:
    certificate = Certificate(folder)
    async with open_live(folder / "data", limits=limits) as live:
        live.server.certificate = ServerCertificate(certificate.path, certificate.path)
        [at] = await live.server.listeners.listen(parse_listen_address("127.0.0.1:0", "--listen"))
        yield Secure(live, certificate, int(at.rpartition(":")[2]))


@on_uvloop
async def test_failed_handshakes_are_counted_and_leave_nothing_behind(tmp_path: Path) -> None:
    async with secure(tmp_path) as here:
        leaver = await here.connect()
        leaver.write(HALF_A_HELLO)
        await here.holds(PENDING_BYTES + tls_handshake.TLS_BYTES)
        leaver.cut()
        await here.failed(1)
        old = here.certificate.client
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(OSError):
            await here.connect(old)
        await here.failed(2)
        shown = (await status_pages.StatusPages(here.live.server).varz({}))["tls"]
        assert shown["handshakes_failed"] == 2
        assert 0 < shown["certificate_expires"] - time.time() <= 86_400


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@on_uvloop
async def test_a_session_over_tls_is_as_without(tmp_path: Path, version: ssl.TLSVersion) -> None:
    async with secure(tmp_path) as here:
        context = here.certificate.client
        context.minimum_version = context.maximum_version = version
        url = f"wss://127.0.0.1:{here.port}/v1"
        alice, bob = (wormhole(url, ssl=context) for _ in range(2))
        async with alice, bob:
            await meet(alice, bob)
            await alice.send(bytes(300_000))
            assert await read(bob, 1) == [bytes(300_000)]
        socket = await here.connect(context)
        socket.write(handshake())
        await socket.head()
        tls = socket.writer.get_extra_info("ssl_object")
        assert tls.version() == version.name.replace("_", ".")
        assert not (tls.version() == "TLSv1.3" and tls.session.has_ticket), "a client gets no tickets"


class ByHand:
    def __init__(self, context: ssl.SSLContext, socket: RawSocket) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")
        self._socket = socket

    async def hear(self) -> None:
        async with bounded("the server's part"):
            data = await self._socket.reader.read(1 << 16)
        assert data, "the server has closed the connection"
        self._incoming.write(data)

    def hello(self) -> bytes:
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._outgoing.read()

    async def finish(self) -> None:
        while True:
            await self.hear()
            with suppress(ssl.SSLWantReadError):
                self._tls.do_handshake()
                return

    def say(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self._outgoing.read()

    async def until(self, expected: bytes) -> None:
        data = b""
        while expected not in data:
            await self.hear()
            with suppress(ssl.SSLWantReadError):
                while True:
                    data += self._tls.read(1 << 16)


@pytest.mark.parametrize(("hello_size", "record_size"), [(1, 1000), (1000, 1), (1000, 7)])
@on_uvloop
async def test_a_hello_and_a_request_may_come_in_pieces(tmp_path: Path, hello_size: int, record_size: int) -> None:
    """With TLS 1.3 a client's Finished and its request come in one segment."""
    async with secure(tmp_path) as here:
        socket = await here.connect()
        client = ByHand(here.certificate.client, socket)
        hello, request = client.hello(), handshake()
        for start in range(0, len(hello), hello_size):
            socket.write(hello[start : start + hello_size])
            await socket.writer.drain()
            await asyncio.sleep(0)
        await client.finish()
        pieces = [request[start : start + record_size] for start in range(0, len(request), record_size)]
        socket.write(b"".join(map(client.say, pieces)))
        await client.until(b"101 Switching")


@on_uvloop
async def test_a_request_without_tls_is_told_what_is_missing(tmp_path: Path) -> None:
    async with secure(tmp_path) as here:
        socket = await here.connect()
        socket.write(handshake())
        async with bounded("the end"):
            status, _, body = (await socket.reader.read()).partition(b"\r\n")
        assert status == b"HTTP/1.1 400 Bad Request"
        assert body.endswith(b"\r\n\r\nthis port needs TLS: wss://\n")
        assert b"Content-Length: 28\r\n" in body


@on_uvloop
async def test_who_stops_before_halfway_or_after_the_handshake_is_closed_in_time(tmp_path: Path) -> None:
    """Who says nothing takes no memory for TLS, and is no failed handshake."""
    async with secure(tmp_path, replace(UNLIMITED, handshake=1.0)) as here:
        silent = await here.connect()
        await here.holds(PENDING_BYTES)
        assert await silent.ended()
        await here.failed(0)
        halfway = await here.connect()
        halfway.write(HALF_A_HELLO)
        await here.failed(1)
        requesting = await here.connect(here.certificate.client)
        requesting.write(handshake()[:30])
        await here.holds(PENDING_BYTES + tls_handshake.IDLE_TLS_BYTES + 30)
        for socket in (halfway, requesting):
            assert await socket.ended()
        await here.holds(0)


@on_uvloop
async def test_handshakes_are_given_up_when_memory_is_short(tmp_path: Path) -> None:
    one = PENDING_BYTES + tls_handshake.TLS_BYTES
    async with secure(tmp_path, replace(UNLIMITED, held_bytes=2 * one)) as here:
        for socket in [await here.connect() for _ in range(3)]:
            socket.write(HALF_A_HELLO)
        refusals = here.live.server.commit_loop.dispatcher.quotas.refusal_counts.since_start
        await until("a handshake that is given up", lambda: refusals[NO_ROOM_FOR_REQUESTS.reason] > 0)
        await here.holds(2 * one)


@on_uvloop
async def test_the_server_does_its_part_of_one_handshake_in_a_turn_of_the_loop(tmp_path: Path) -> None:
    async with secure(tmp_path) as here:
        sockets = [await here.connect() for _ in range(40)]
        hellos = [ByHand(here.certificate.client, socket).hello() for socket in sockets]
        for socket, hello in zip(sockets, hellos, strict=True):
            socket.write(hello[:20])  # so many have begun, and each could go on
        await asyncio.sleep(0)
        for socket, hello in zip(sockets, hellos, strict=True):
            socket.write(hello[20:])
        answers, reads = [0], [asyncio.create_task(socket.reader.read(1)) for socket in sockets]
        async with bounded("all answers"):
            while answers[-1] < len(sockets):
                await asyncio.sleep(0)
                answers.append(sum(read.done() for read in reads))
        assert max(map(sub, answers[1:], answers)) <= 2, "an answer may be read in the turn after"


@on_uvloop
async def test_a_long_hello_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    async with secure(tmp_path) as here:
        for size in (tls_handshake.MAX_HELLO_BYTES + 1, 0xFFFFFF):
            long = await here.connect()
            long.write(bytes.fromhex("16 0301 4000 01") + size.to_bytes(3))
            assert await long.rest() == b""
        parts = await here.connect()
        parts.write(bytes.fromhex("16 0301 0002 0100  16 0301 4000 ffff"))  # the length is in two records
        assert await parts.rest() == b""
        await here.failed(3)
        longest = await here.connect()
        longest.write(bytes.fromhex("16 0301 4000 01") + tls_handshake.MAX_HELLO_BYTES.to_bytes(3))
        await here.holds(PENDING_BYTES + tls_handshake.TLS_BYTES)


@on_uvloop
async def test_a_client_that_is_asked_for_another_hello_counts_for_more_until_it_has_said_it(tmp_path: Path) -> None:
    async with secure(tmp_path) as here:
        assert here.live.server.certificate is not None
        here.live.server.certificate.context.set_ecdh_curve("secp384r1")  # a client guesses x25519
        socket = await here.connect()
        client = ByHand(here.certificate.client, socket)
        socket.write(client.hello())
        await here.holds(PENDING_BYTES + tls_handshake.TLS_BYTES + tls_handshake.RETRY_BYTES)
        await client.hear()
        socket.write(client.hello())
        await client.finish()
        socket.write(client.say(handshake()))
        await client.until(b"101 Switching")
        await here.holds(0)


class Records:
    """Encrypts records of TLS 1.3 with TLS_AES_256_GCM_SHA384 (RFC 8446 sections 5.2, 5.3 and 7)."""

    def __init__(self, secret: bytes) -> None:
        self._begin(secret)

    def _begin(self, secret: bytes) -> None:
        self._secret, self._sent = secret, 0
        self._key, self._iv = AESGCM(self._expanded("key", 32)), self._expanded("iv", 12)

    def _expanded(self, label: str, size: int) -> bytes:
        """Return HKDF-Expand-Label without a context (section 7.1)."""
        name = b"tls13 " + label.encode()
        info = size.to_bytes(2) + bytes([len(name)]) + name + b"\0\1"
        return hmac.digest(self._secret, info, "sha384")[:size]

    def record(self, content: bytes, kind: int = 23) -> bytes:
        """Return a record; its kind is 23 for data, and 22 for messages of the handshake."""
        inner = content + bytes([kind])
        header = b"\x17\x03\x03" + (len(inner) + 16).to_bytes(2)
        nonce = int.from_bytes(self._iv) ^ self._sent
        self._sent += 1
        return header + self._key.encrypt(nonce.to_bytes(12), inner, header)

    def key_update(self) -> bytes:
        """Return a record that changes the key, and asks the other side for the same (section 4.6.3)."""
        update = self.record(bytes.fromhex("18 000001 01"), 22)
        self._begin(self._expanded("traffic upd", 48))
        return update


async def key_changer(here: Secure, keys: Path) -> tuple[RawSocket, ByHand, Records]:
    """Return a WebSocket over TLS, and what encrypts its records."""
    socket = await here.connect()
    tls = here.certificate.client
    tls.keylog_filename = str(keys)
    client = ByHand(tls, socket)
    socket.write(client.hello())
    await client.finish()
    socket.write(client.say(b""))
    # The client's first traffic secret, in a file of keys (draft-ietf-tls-keylogfile).
    lines = keys.read_text()  # noqa: ASYNC240
    [secret] = re.findall(r"^CLIENT_TRAFFIC_SECRET_0 \S+ (\S+)$", lines, re.MULTILINE)
    records = Records(bytes.fromhex(secret))
    socket.write(records.record(handshake()))
    await client.until(b"101 Switching")
    return socket, client, records


UPDATES: Final = MAX_RECORDS_WITHOUT_DATA - 3 - 1
"""Records without data that may follow the three of the handshake, if one whose data is not decrypted yet counts."""


@on_uvloop
async def test_a_client_may_change_its_key_some_times_and_few_changes_are_read_in_a_turn(tmp_path: Path) -> None:
    """Each KeyUpdate costs the server 15 µs, and no limit of commands or bytes counts it."""
    async with secure(tmp_path) as here:
        changers = [await key_changer(here, tmp_path / f"keys-{number}") for number in range(10)]
        updates = [b"".join([records.key_update() for _ in range(UPDATES)]) for _, _, records in changers]
        turns = itertools.count()
        async with in_every_turn(turns.__next__):
            for (socket, _, records), several in zip(changers, updates, strict=True):
                socket.write(several + records.record(frame(PING, b"still here")))
            for _, client, _ in changers:
                await client.until(b"still here")
        most_in_a_turn = 4 * RECORDS_AT_ONCE
        assert next(turns) >= len(changers) * UPDATES // most_in_a_turn
        socket.write(records.key_update() + records.key_update())
        await socket.rest()


READERS: Final = 20


@on_uvloop
async def test_memory_of_a_large_message_is_not_kept(tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    options = ("--tls-cert", str(certificate.path), "--tls-key", str(certificate.path))
    async with serving(tmp_path / "data", options=options) as server, AsyncExitStack() as stack:
        readers: list[RawSocket] = []
        for _ in range(READERS):
            readers.append(await RawSocket.connect(server.port, ssl=certificate.client))
            stack.callback(readers[-1].cut)
            readers[-1].write(handshake())
            await readers[-1].head()
            readers[-1].say(type="bind", appid="app", side="a")
            readers[-1].say(type="open", mailbox="m")
            for _ in range(3):
                await readers[-1].hear()
        before = resident(server.pid)
        body = "0" * 1_000_000
        readers[0].say(type="add", phase="0", body=body)
        for reader in readers:
            while (message := await reader.hear())["type"] != "message":
                pass
            assert message["body"] == body
        assert resident(server.pid) - before < READERS * 700_000, "what read and stored it takes eight millions"


async def accepted(port: int, certificate: Certificate) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=certificate.client)
    except ssl.SSLCertVerificationError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


@on_uvloop
async def test_a_new_certificate_is_used_soon_and_a_bad_one_never(tmp_path: Path) -> None:
    first, second = Certificate(tmp_path, name="first"), Certificate(tmp_path, name="second")
    used = tmp_path / "used.pem"
    shutil.copy(first.path, used)
    options = ("--tls-cert", str(used), "--tls-key", str(used))
    async with serving(tmp_path / "data", options=options) as server:
        assert server.url.startswith("wss://127.0.0.1:")
        assert await accepted(server.port, first)
        used.write_text("no certificate")
        bad = await server.logged("the new certificate is not used; the previous one stays in use")
        assert bad["error"] == f"{used} and {used} cannot be used: they are not in PEM form (--tls-cert, --tls-key)"
        assert await accepted(server.port, first)
        shutil.copy(second.path, used)
        await server.logged("the certificate was read again")
        assert await accepted(server.port, second)
        assert not await accepted(server.port, first)
        lines = len(server.log)
        server.send(signal.SIGHUP)
        await server.until("a read at SIGHUP", lambda: "certificate was read again" in str(server.log[lines:]))
        await server.stop()


async def test_a_certificate_is_read_again_when_its_files_are_not_being_written(tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    watched = ServerCertificate(certificate.path, certificate.path)
    before = watched.context
    await watched.check()
    assert watched.context is before
    certificate.path.write_bytes(certificate.path.read_bytes() + b"\n")
    await watched.check()  # it has changed, and may change again
    assert watched.context is before
    await watched.check()
    assert watched.context is not before
    before = watched.context
    watched.check_soon()
    watched.reload_soon()  # it follows the look
    await until("the reload", lambda: watched.context is not before)
    before = watched.context
    Certificate(tmp_path, days=-1)
    with structlog.testing.capture_logs() as logged:
        await watched.reload()
    assert watched.context is before, "an expired one replaces no valid one"
    assert [line["error"] for line in logged] == [f"{certificate.path} has expired (--tls-cert)"]
    with structlog.testing.capture_logs() as logged:
        watched = ServerCertificate(certificate.path, certificate.path)
    assert [(line["log_level"], line["event"]) for line in logged] == [
        ("warning", "the certificate has expired: clients refuse it")
    ]
    before = watched.context
    Certificate(tmp_path, days=-2)
    await watched.reload()
    assert watched.context is not before, "nothing is worse than an expired one"


@pytest.mark.parametrize(
    ("certificate", "key", "problem"),
    [
        ("nowhere.pem", "server.pem", "cannot read .*nowhere.pem: No such file or directory"),
        ("server.pem", "nowhere.pem", "cannot read .*nowhere.pem: No such file or directory"),
        ("server.pem", "other.pem", "they do not belong together"),
        ("server.pem", "rsa.pem", "they do not belong together"),
        ("text", "server.pem", "they are not in PEM form"),
        ("short.pem", "short.pem", "the key is too short: use RSA of 2048 bits or more, or P-256"),
        (".", "server.pem", "cannot read .*: Is a directory"),
        ("server.pem", "locked.pem", "locked.pem is encrypted: remove its password"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path, certificate: str, key: str, problem: str) -> None:
    Certificate(tmp_path)
    Certificate(tmp_path, name="other")
    Certificate(tmp_path, name="locked", password=b"secret")
    Certificate(tmp_path, name="rsa", rsa_bits=2048)
    Certificate(tmp_path, name="short", rsa_bits=1024)
    (tmp_path / "text").write_text("text")
    with pytest.raises(Misuse, match=problem):
        ServerCertificate(tmp_path / certificate, tmp_path / key)


LATEST: Final = int(dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC).timestamp())


@examples(50)
@given(seconds=st.integers(-284_000_000, LATEST))  # from 1961 on
def test_the_date_is_what_the_first_certificate_of_a_chain_says(tmp_path: Path, seconds: int) -> None:
    """Its file has the key before it."""
    first, second = (Certificate(tmp_path, name=name, expires=end) for name, end in (("a", seconds), ("b", LATEST)))
    chain = first.path.read_text() + second.path.read_text()
    assert (expiry_time(chain), host_names(chain)) == (seconds, ["localhost"])


@examples(50)
@given(size=st.integers(0, 150))
def test_what_is_cut_off_or_no_certificate_has_no_date(tmp_path: Path, size: int) -> None:
    _, _, text = Certificate(tmp_path).path.read_text().partition("-----END PRIVATE KEY-----\n")
    cut = ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(text)[:size])
    assert (math.isnan(expiry_time(cut)), host_names(cut)) == (True, [])
    for text in ("", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"):
        assert math.isnan(expiry_time(text))


PROXY_HOST = SocketPeer("10.0.0.9", 5)


def parsed(data: bytes) -> SocketPeer | None:
    """Parse the header with which the data begins, as it is read from a socket. None also if it is not complete."""
    size = SHORTEST_BYTES
    while missing := proxy_header.missing_bytes(data[:size]):
        size += missing
        if size > len(data):
            return None
    return None if missing is None else proxy_header.client_of_header(data[:size], PROXY_HOST)


WITHOUT_CLIENT = {
    "a health check": header(command=LOCAL),
    "a health check without addresses": SIGNATURE + bytes([LOCAL, UNKNOWN, 0, 0]),
    "a client over a Unix socket": SIGNATURE + bytes([PROXY, UNIX, 0, 216]) + bytes(216),
    "another protocol": SIGNATURE + bytes([PROXY, UNKNOWN, 0, 0]),
    "version 1, another protocol": b"PROXY UNKNOWN\r\n",
    "version 1, another protocol with addresses": b"PROXY UNKNOWN ::1 ::1 65535 65535\r\n",
    "version 1, the longest line": b"PROXY UNKNOWN ".ljust(MAX_LINE_BYTES - 2, b"\xff") + b"\r\n",
}


@pytest.mark.parametrize("data", WITHOUT_CLIENT.values(), ids=WITHOUT_CLIENT)
def test_a_header_without_a_client_names_the_proxy_itself(data: bytes) -> None:
    assert parsed(data) == PROXY_HOST


MALFORMED = {
    "a request": handshake(),
    "version 3": SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12),
    "an unknown command": SIGNATURE + b"\x22\x11\x00\x0c" + bytes(12),
    "fewer bytes than addresses take": SIGNATURE + b"\x21\x11\x00\x0b" + bytes(11),
    "no addresses": SIGNATURE + b"\x21\x21\x00\x00",
    "more than may follow": SIGNATURE + b"\x21\x11" + (proxy_header.MAX_REST_BYTES + 1).to_bytes(2) + bytes(12),
}

MALFORMED_LINES = {
    "another family": b"PROXY UDP4 203.0.113.7 127.0.0.1 4321 443\r\n",
    "a request in it": b"PROXY TCP4 / HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "two spaces": b"PROXY TCP4  203.0.113.7 127.0.0.1 4321 443\r\n",
    "one port": b"PROXY TCP4 203.0.113.7 127.0.0.1 4321\r\n",
    "a bare line feed": b"PROXY TCP4 203.0.113.7 127.0.0.1 4321 443\n\r\n",
    "a bare carriage return": b"PROXY TCP4 203.0.113.7 127.0.0.1 4321 443\r\r\n",
    "a bare line feed that is to be ignored": b"PROXY UNKNOWN \n \r\n",
    "a longer word": b"PROXY UNKNOWNS\r\n",
    "an address of IPv6 as one of IPv4": b"PROXY TCP4 2001:db8::1 127.0.0.1 4321 443\r\n",
    "an address of IPv4 as one of IPv6": b"PROXY TCP6 203.0.113.7 ::1 4321 443\r\n",
    "a leading zero in an address": b"PROXY TCP4 203.0.113.07 127.0.0.1 4321 443\r\n",
    "a zone": b"PROXY TCP6 fe80::1%1 ::1 4321 443\r\n",
    "two gaps": b"PROXY TCP6 2001::db8::1 ::1 4321 443\r\n",
    "a leading zero in a port": b"PROXY TCP4 203.0.113.7 127.0.0.1 04321 443\r\n",
    "other digits": "PROXY TCP4 203.0.113.7 127.0.0.1 ٤٣٢١ 443\r\n".encode(),
    "a port above 65535": b"PROXY TCP4 203.0.113.7 127.0.0.1 65536 443\r\n",
    "a destination port above 65535": b"PROXY TCP4 203.0.113.7 127.0.0.1 4321 99999\r\n",
    "a line of 108 bytes": b"PROXY UNKNOWN ".ljust(MAX_LINE_BYTES - 1, b"f") + b"\r\n",
    "a line without an end": b"PROXY UNKNOWN ".ljust(1000, b"f"),
}


@examples(200)
@given(st.ip_addresses(), st.integers(0, 65535), st.binary(max_size=100))
def test_every_address_and_port_is_read_as_it_was_written(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, more: bytes
) -> None:
    assert parsed(header(str(address), port, more=more)) == SocketPeer(str(address), port)
    assert parsed(line(str(address), port) + more) == SocketPeer(str(address), port)


@pytest.mark.parametrize("source", ["::ffff:203.0.113.7", "2001:DB8::A"])
def test_addresses_of_ipv6_have_several_forms(source: str) -> None:
    assert parsed(line(source, 0)) == SocketPeer(str(ipaddress.ip_address(source)), 0)


@examples(200)
@given(st.binary(min_size=SHORTEST_BYTES, max_size=300))
def test_no_bytes_raise_an_error(data: bytes) -> None:
    for beginning in (b"", SIGNATURE, b"PROXY UNKNOWN", b"PROXY TCP4 ", b"PROXY TCP6 "):
        peer = parsed(beginning + data + b"\r\n")
        assert peer is None or peer == PROXY_HOST or ipaddress.ip_address(peer.host)


@asynccontextmanager
async def behind(folder: Path, trusted: str, limits: Limits = UNLIMITED) -> AsyncIterator[tuple[LiveServer, int]]:
    async with open_live(folder, trusted=[trusted], limits=limits) as live:
        [at] = await live.server.listeners.listen(parse_listen_address("proxy:127.0.0.1:0", "--listen"))
        yield live, int(at.rpartition(":")[2])


@on_uvloop
async def test_the_client_is_whom_the_header_names_however_it_is_cut(tmp_path: Path) -> None:
    async with behind(tmp_path, "127.0.0.0/8") as (live, port):
        for whole in (header(more=b"\x04\x00\x03abc"), line()):
            for cut in range(len(whole)):
                greeting = await welcome(port, whole[:cut], whole[cut:])
                assert greeting["your-address"] == {"ipv4": "203.0.113.7", "port": 4321}, (whole, cut)
        assert (await welcome(port, b"PROXY UNKNOWN\r\n"))["your-address"]["ipv4"] == "127.0.0.1"
        assert live.server.commit_loop.dispatcher.quotas.refusal_counts.since_start == {}
        # A proxy of TCP passes on what the client has written.
        greeting = await welcome(port, header(), X_Forwarded_For="198.51.100.1", X_Real_IP="198.51.100.1")
        assert greeting["your-address"] == {"ipv4": "203.0.113.7", "port": 4321}
        # A trusted proxy of HTTP behind it names the client.
        greeting = await welcome(port, header("127.0.0.5"), X_Forwarded_For="198.51.100.1")
        assert greeting["your-address"] == {"ipv4": "198.51.100.1", "port": 0}


async def refused(live: LiveServer, port: int, data: bytes) -> None:
    """Send something that must close the connection and count once."""
    before = live.server.commit_loop.dispatcher.quotas.refusal_counts.since_start[NO_PROXY_HEADER.reason]
    socket = await RawSocket.connect(port)
    socket.write(data)
    assert await socket.rest() == b""
    assert live.server.commit_loop.dispatcher.quotas.refusal_counts.since_start[NO_PROXY_HEADER.reason] == before + 1


@on_uvloop
async def test_without_a_valid_header_the_connection_is_closed_and_counted(tmp_path: Path) -> None:
    async with behind(tmp_path, "127.0.0.0/8", replace(UNLIMITED, handshake=0.2)) as (live, port):
        for data in (*MALFORMED.values(), *MALFORMED_LINES.values()):
            assert parsed(data) is None
            await refused(live, port, data)
        for data in (b"", header()[:-1], line()[:-1], line()[:-2]):
            await refused(live, port, data)  # never completed
        assert live.server.admitted == set()
    async with behind(tmp_path / "other", "10.0.0.0/8") as (live, port):
        for data in (header(), line()):
            await refused(live, port, data)  # of somebody who is not trusted


@on_uvloop
async def test_limits_per_address_count_the_clients_that_headers_name(tmp_path: Path) -> None:
    limits = replace(UNLIMITED, address_connections=1)
    async with behind(tmp_path, "127.0.0.0/8", limits) as (live, port):
        first, second, other = [await RawSocket.connect(port) for _ in range(3)]
        first.write(header("203.0.113.7"), b"GET")
        await until("the first", lambda: live.server.reading_bytes)
        second.write(header("203.0.113.7"))
        assert await second.rest() == b""
        other.write(header("203.0.113.8"), handshake())
        assert b"101" in await other.head()
        for socket in (first, second, other):
            socket.cut()


@on_uvloop
async def test_tls_begins_after_the_header_and_an_address_has_a_limit_of_handshakes(tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    limits = replace(UNLIMITED, address_connects=1.0, address_connects_at_once=1)
    async with behind(tmp_path / "data", "127.0.0.0/8", limits) as (live, port):
        live.server.certificate = ServerCertificate(certificate.path, certificate.path)
        refusals = live.server.commit_loop.dispatcher.quotas.refusal_counts.since_start
        sockets = [await RawSocket.connect(port) for _ in range(3)]
        for socket in sockets[:2]:
            socket.write(header())
            await socket.writer.start_tls(certificate.client, server_hostname="127.0.0.1")
        sockets[0].write(handshake())
        await sockets[0].head()
        assert (await sockets[0].hear())["welcome"]["your-address"] == {"ipv4": "203.0.113.7", "port": 4321}
        assert refusals[TOO_MANY_HANDSHAKES.reason] == 0
        sockets[2].write(header(), HALF_A_HELLO)
        assert await sockets[2].rest() == b""
        for socket in sockets:
            socket.cut()
        assert refusals[TOO_MANY_HANDSHAKES.reason] == 1
