"""The bytes of a connection, beside those of the Python client."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.secret import SecretBox
from wormhole import transit as python_client

from restante.client import Wormhole
from restante.client.errors import PeerMessageError, TransferError
from restante.client.transfer.messages import acknowledgement_of, answer_of, offer_of
from restante.client.transit.records import (
    LENGTH_BYTES,
    RecordOpener,
    RecordSealer,
    Role,
    TransitKeys,
    length_of,
)

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


# ── whatever a peer sends ──────────────────────────────────────────────────────────────────────────


KEYS = st.sampled_from(
    ["transit", "offer", "answer", "error", "message", "file", "directory", "filename", "filesize", "file_ack"]
    + ["message_ack", "mode", "dirname", "zipsize", "numbytes", "numfiles", "ack", "sha256"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=5), inner, max_size=4),
)
BYTES = st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode())


class Said:
    """A wormhole whose peer says these messages, and then nothing."""

    def __init__(self, messages: list[bytes]) -> None:
        self._left = [*messages, b'{"error":"end"}']

    async def receive(self) -> bytes:
        return self._left.pop(0)


@given(st.lists(BYTES, max_size=4), BYTES, st.sampled_from([offer_of, answer_of]))
def test_any_messages_are_read_or_refused(messages: list[bytes], record: bytes, read: Any) -> None:
    with suppress(PeerMessageError, TransferError):
        said, _ = asyncio.run(read(cast("Wormhole", Said(messages))))
        assert any(key in b"".join(messages) for key in (b'"offer"', b'"answer"')), said
    with suppress(PeerMessageError):
        acknowledgement_of(record)
