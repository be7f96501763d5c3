"""The bytes of a connection and the hints that lead to one, beside those of the Python client."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.secret import SecretBox
from wormhole import transit as python_client

from restante.client.errors import PeerMessageError, TransferError
from restante.client.transfer.messages import acknowledgement_of, answer_of, offer_of
from restante.client.transit.hints import (
    MAX_HINTS,
    MAX_RELAY_ADDRESSES,
    Address,
    Hints,
    Relay,
    parse_hints,
    parse_relay,
    transit_message,
)
from restante.client.transit.records import (
    LENGTH_BYTES,
    RecordOpener,
    RecordSealer,
    Role,
    TransitKeys,
    length_of,
)
from support.effort import examples

KEY = bytes(range(32))
SENDER, RECEIVER = TransitKeys.of(KEY, Role.SENDER), TransitKeys.of(KEY, Role.RECEIVER)


def test_the_lines_are_the_python_client_s() -> None:
    assert SENDER.line == RECEIVER.peer_line == python_client.build_sender_handshake(KEY)
    assert RECEIVER.line == SENDER.peer_line == python_client.build_receiver_handshake(KEY)
    assert len(SENDER.line) == 87
    assert len(RECEIVER.line) == 89


def test_a_relay_is_told_what_the_python_client_tells_it() -> None:
    side = bytes(8)
    assert SENDER.relay_line(side) == python_client.build_sided_relay_handshake(KEY, side.hex())
    assert SENDER.relay_token == RECEIVER.relay_token


def python_connection(role: Role) -> tuple[Any, bytearray]:
    """Return a connection of the Python client, and what it writes."""
    owner = (python_client.TransitSender if role is Role.SENDER else python_client.TransitReceiver)(
        "", no_listen=True
    )
    owner.set_transit_key(KEY)
    connection = python_client.Connection(owner, None, 0, "")
    written = bytearray()
    connection.transport = SimpleNamespace(write=written.extend)
    connection.send_box = SecretBox(owner._sender_record_key())
    connection.receive_box = SecretBox(owner._receiver_record_key())
    connection.send_nonce = connection.next_receive_nonce = 0
    return connection, written


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4))
def test_the_python_client_s_records_are_opened(plaintexts: list[bytes]) -> None:
    connection, written = python_connection(Role.SENDER)
    opener = RecordOpener(RECEIVER.opening)
    for plaintext in plaintexts:
        connection.send_record(plaintext)
        assert length_of(bytes(written[:LENGTH_BYTES])) == len(written) - LENGTH_BYTES
        assert opener.open(bytes(written[LENGTH_BYTES:])) == plaintext
        written.clear()


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4))
def test_the_python_client_opens_our_records(plaintexts: list[bytes]) -> None:
    connection, _ = python_connection(Role.RECEIVER)
    sealer = RecordSealer(SENDER.sealing)
    for plaintext in plaintexts:
        assert connection._decrypt_record(bytes(sealer.seal(plaintext)[LENGTH_BYTES:])) == plaintext


@given(st.integers(0, 8 * 41 - 1))
def test_a_record_with_a_changed_bit_is_refused(bit: int) -> None:
    record = bytearray(RecordSealer(SENDER.sealing).seal(b"a")[LENGTH_BYTES:])
    record[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PeerMessageError):
        RecordOpener(RECEIVER.opening).open(bytes(record))


KEYS = st.sampled_from(
    ["transit", "offer", "answer", "error", "message", "file", "directory", "filename", "filesize", "file_ack"]
    + ["message_ack", "mode", "dirname", "zipsize", "numbytes", "numfiles", "ack", "sha256"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=5), inner, max_size=4),
)
BYTES = st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode())


@given(st.lists(BYTES, max_size=4), BYTES, st.sampled_from([offer_of, answer_of]))
def test_any_messages_are_read_or_refused(messages: list[bytes], record: bytes, read: Any) -> None:
    wormhole = Mock(receive=AsyncMock(side_effect=[*messages, b'{"error":"end"}']))
    with suppress(PeerMessageError, TransferError):
        asyncio.run(read(wormhole))
        assert any(key in b"".join(messages) for key in (b'"offer"', b'"answer"'))
    with suppress(PeerMessageError):
        acknowledgement_of(record)


HERE = Address("192.0.2.7", 4001)


def direct(**fields: Any) -> dict[str, Any]:
    return {"type": "direct-tcp-v1", "priority": 0.0, "hostname": "192.0.2.7", "port": 4001, **fields}


def test_hints_are_told_as_by_the_python_client() -> None:
    assert transit_message(Hints((HERE,), (Relay((HERE,)),))) == {
        "abilities-v1": [{"type": "direct-tcp-v1"}, {"type": "relay-v1"}],
        "hints-v1": [direct(), {"type": "relay-v1", "hints": [direct()]}],
    }


def test_rust_s_hints_are_read_without_the_ways_that_are_not_tcp() -> None:
    relay = {"type": "relay-v1", "name": "a", "hints": [{"type": "websocket-v1", "url": "wss://a"}, direct()]}
    message = {"abilities-v1": [{"type": "noise-crypto-v1"}], "hints-v1": [relay, {"type": "tor-tcp-v1", "port": 1}]}
    assert parse_hints(message) == Hints((), (Relay((HERE,)),))


@pytest.mark.parametrize(
    "hint",
    [
        direct(port=0),
        direct(port=65536),
        direct(port="4001"),
        direct(port=True),
        direct(hostname=""),
        direct(hostname=None),
        direct(hostname="a b"),
        direct(hostname="a\n"),
        direct(hostname="fe80::1%eth0"),
        direct(hostname="a" * 256),
        direct(type=["direct-tcp-v1"]),
        {"type": "relay-v1", "hints": []},
        {"type": "relay-v1", "hints": [direct(port=0)]},
        {"type": "relay-v1", "hints": direct()},
        [],
        None,
    ],
)
def test_a_hint_that_cannot_be_used_is_left_out(hint: Any) -> None:
    assert parse_hints({"hints-v1": [hint, direct()]}) == Hints((HERE,))


def test_of_many_hints_the_first_are_used() -> None:
    many = [direct(port=port) for port in range(1, 10_000)]
    relays = [{"type": "relay-v1", "hints": many}, *({"type": "relay-v1", "hints": [each]} for each in many)]
    hints = parse_hints({"hints-v1": [*many, *relays]})
    assert [each.port for each in hints.direct] == list(range(1, MAX_HINTS + 1))
    assert len(hints.relays) == MAX_HINTS
    assert len(hints.relays[0].addresses) == MAX_RELAY_ADDRESSES


HINT = st.dictionaries(st.sampled_from(["type", "hostname", "port", "hints"]), st.just("direct-tcp-v1") | JSON)


@examples(40)
@given(JSON | st.dictionaries(st.just("hints-v1"), st.lists(HINT | JSON)))
def test_any_json_is_read(message: Any) -> None:
    for address in parse_hints(message).direct:
        assert 1 <= address.port <= 65535
        assert address.host.isascii()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("tcp:relay.example.com:4001", Address("relay.example.com", 4001)),
        ("tcp://relay.example.com:4001", Address("relay.example.com", 4001)),
        ("tcp:[2001:db8::7]:4001", Address("2001:db8::7", 4001)),
    ],
)
def test_a_relay_is_named_as_for_the_python_client(url: str, address: Address) -> None:
    assert parse_relay(url) == Relay((address,))
    assert parse_relay(f"tcp:{address}") == Relay((address,))
