"""Whatever bytes a peer sends, they are used or refused with an error of the peer."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.client import Wormhole
from restante.client.errors import PeerMessageError, TransferError
from restante.client.transfer.messages import acknowledgement_of, answer_of, offer_of
from restante.client.transit.records import MAX_RECORD_BYTES, RecordOpener, length_of

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


@given(st.lists(BYTES, max_size=4), st.sampled_from([offer_of, answer_of]))
def test_any_messages_are_read_or_refused(messages: list[bytes], read: Any) -> None:
    with suppress(PeerMessageError, TransferError):
        said, _ = asyncio.run(read(cast("Wormhole", Said(messages))))
        assert any(key in b"".join(messages) for key in (b'"offer"', b'"answer"')), said


@given(BYTES)
def test_any_acknowledgement_is_read_or_refused(record: bytes) -> None:
    with suppress(PeerMessageError):
        acknowledgement_of(record)


@given(st.binary(min_size=40, max_size=300), st.booleans())
def test_no_record_without_the_key_is_opened(record: bytes, numbered: bool) -> None:
    with pytest.raises(PeerMessageError):
        RecordOpener(bytes(range(32))).open(bytes(24) + record[24:] if numbered else record)


@given(st.binary(min_size=4, max_size=4))
def test_any_length_is_bounded(header: bytes) -> None:
    with suppress(PeerMessageError):
        assert 40 <= length_of(header) <= MAX_RECORD_BYTES
