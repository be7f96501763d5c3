"""Codes, URIs, keys, and the bytes of a connection, beside those of the Python client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from unittest.mock import AsyncMock, Mock

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_core_ed25519_sub, crypto_scalarmult_ed25519_base_noclamp
from spake2 import SPAKE2_Symmetric
from wormhole._wordlist import PGPWordList, byte_to_even_word, byte_to_odd_word  # in no public module

from restante.client import Address, Hints, Relay, word_list
from restante.client.errors import PeerMessageError, TransferError
from restante.client.protocol import code, keys, uri
from restante.client.protocol.code import MAX_NAMEPLATE_DIGITS, CodeError, nameplate_of
from restante.client.protocol.hkdf import MAX_DERIVED_BYTES, hkdf
from restante.client.protocol.seeds import SEED_BYTES, seed_code
from restante.client.protocol.spake2 import BLINDING_POINT, RANDOM_BYTES, SYMMETRIC, BadMessageError, Spake2
from restante.client.protocol.uri import TransferUri, UriError
from restante.client.transfer.messages import parse_acknowledgement, wait_for_answer, wait_for_offer
from restante.client.transit.hints import MAX_HINTS, MAX_RELAY_ADDRESSES, parse_hints, parse_relay, transit_message
from restante.client.transit.records import LENGTH_BYTES, RecordOpener, RecordSealer, Role, TransitKeys
from support.effort import examples


def test_the_password_is_the_whole_code_in_one_spelling() -> None:
    assert code.password_of("4-caf\N{LATIN SMALL LETTER E WITH ACUTE}") == code.password_of("4-cafe\u0301")
    assert nameplate_of(f"{'9' * 40}-\N{SNOWMAN}") == "9" * 40
    assert code.password_of("4-purple-sausages") == b"4-purple-sausages"


def test_words_come_from_both_lists_of_the_python_client_in_turn() -> None:
    for position, peer_transit in enumerate([byte_to_odd_word, byte_to_even_word] * 2):
        assert list(word_list(position)) == [peer_transit[bytes([byte])].lower() for byte in range(256)]
    assert code.random_words(bytes((255, 255, 0))) == "yucatan-zulu-adroitness"


@given(st.text("abcdefghijklmnopqrstuvwxyz-", max_size=12), st.integers(1, 4))
def test_words_are_completed_as_the_python_client_does(typed: str, length: int) -> None:
    expected = PGPWordList().get_completions(typed, length) if typed.count("-") < length else set()
    assert code.completions(f"7-{typed}", [], length) == sorted(f"7-{words}" for words in expected)


def test_the_documented_uris_are_read_and_written() -> None:
    assert str(TransferUri("4-hurricane-equipment")) == "wormhole-transfer:4-hurricane-equipment"
    assert uri.parse_uri("wormhole-transfer:4-hurricane-equipment?version=0") == TransferUri("4-hurricane-equipment")
    named = "wormhole-transfer:8-%F0%9F%8D%8C?rendezvous=wss%3A%2F%2Fmailbox.example%2F&role=leader"
    assert str(TransferUri("8-\N{BANANA}", "wss://mailbox.example/", "leader")) == named
    assert uri.parse_uri(named) == TransferUri("8-\N{BANANA}", "wss://mailbox.example/", "leader")


NO_CODES: Final = [
    *((text, "begins with a number") for text in ("", "purple-7-sausages", "-purple-sausages")),
    *((text, "begins with a number") for text in ("٣-purple-sausages", f"{'9' * 41}-purple")),
    *((text, "words after its number") for text in ("7", "7-")),
    *((text, "no spaces") for text in ("7 purple sausages", "7-purple-sausages\n")),
    ("7-\udcff", "UTF-8"),
]
NO_URIS: Final = [
    ("https://example.com/4-a", "begins with wormhole-transfer:"),
    ("wormhole-transfer://4-a", "neither a host"),
    ("wormhole-transfer:4-a#b", "nor a fragment"),
    ("wormhole-transfer:a", "begins with a number"),
    ("wormhole-transfer:4-%FF", "not encoded correctly"),
    ("wormhole-transfer:4-a?rendezvous", "not encoded correctly"),
    ("wormhole-transfer:4-a?" + "&".join(f"x{number}=1" for number in range(20)), "not encoded correctly"),
    ("wormhole-transfer:4-a?role=leader&role=leader", "twice"),
    ("wormhole-transfer:4-a?version=1", "later version"),
    ("wormhole-transfer:4-a?colour=red", "an unknown field: 'colour'"),
    ("wormhole-transfer:4-a?role=king", "role is follower or leader"),
    ("wormhole-transfer:4-a?rendezvous=https%3A%2F%2Fx", "ws:// or wss://"),
    ("wormhole-transfer:4-a?rendezvous=ws%3A%2F%2F%5B", "ws:// or wss://"),
    ("wormhole-transfer://[4-a", "not encoded correctly"),
]


@pytest.mark.parametrize(
    ("read", "error", "text", "message"),
    [*((nameplate_of, CodeError, *row) for row in NO_CODES), *((uri.parse_uri, UriError, *row) for row in NO_URIS)],
)
def test_a_text_that_is_no_code_or_uri_is_refused(
    read: Callable[[str], object], error: type[Exception], text: str, message: str
) -> None:
    with pytest.raises(error, match=message):
        read(text)


@given(st.text(max_size=60))
def test_any_text_is_a_uri_or_refused(text: str) -> None:
    for written in (text, f"wormhole-transfer:{text}", f"wormhole-transfer:4-a?{text}"):
        with suppress(UriError):
            assert uri.parse_uri(str(uri.parse_uri(written))) == uri.parse_uri(written)


def test_the_code_of_a_seed_is_one_that_every_server_takes() -> None:
    for last in range(50):
        nameplate = nameplate_of(seed_code(bytes(SEED_BYTES - 1) + bytes([last])))
        assert nameplate.isdigit()
        assert len(nameplate) < MAX_NAMEPLATE_DIGITS


VECTOR: Final[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vectors" / "wormhole_keys.json").read_text())
PASSWORD: Final = VECTOR["password"].encode()
APP_ID: Final = VECTOR["app_id"].encode()
KEY: Final = bytes.fromhex(VECTOR["key"])

SCALAR_A: Final = bytes.fromhex(VECTOR["scalar_a"])[::-1]
RANDOM: Final = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES).filter(any)


def side(scalar: str) -> Spake2:
    return Spake2(PASSWORD, APP_ID, int(scalar, 16).to_bytes(RANDOM_BYTES, "little"))


def test_both_sides_agree_on_the_published_key_and_derive_the_published_keys_of_it() -> None:
    alice, bob = side(VECTOR["scalar_a"]), side(VECTOR["scalar_b"])
    assert alice.message.hex() == VECTOR["message_a"]
    assert bob.message.hex() == VECTOR["message_b"]
    assert alice.finish(bob.message) == bob.finish(alice.message) == KEY
    assert keys.verifier(KEY).hex() == VECTOR["verifier"]
    for who, phase, expected in VECTOR["phase_keys"]:
        assert keys.MessageKeys(KEY).key(who, phase).hex() == expected
    for purpose, size, expected in VECTOR["application_keys"]:
        assert hkdf(KEY, purpose.encode(), size).hex() == expected


@examples(20)
@given(password=st.binary(), identity=st.binary(), random=RANDOM)
def test_the_python_library_agrees_on_the_same_key(password: bytes, identity: bytes, random: bytes) -> None:
    ours, peer_transit = Spake2(password, identity, random), SPAKE2_Symmetric(password, idSymmetric=identity)
    message = peer_transit.start()
    assert ours.finish(message) == peer_transit.finish(ours.message)


@given(key=st.binary(max_size=200), purpose=st.binary(max_size=100), size=st.integers(1, MAX_DERIVED_BYTES))
def test_openssl_derives_the_same_keys(key: bytes, purpose: bytes, size: int) -> None:
    assert hkdf(key, purpose, size) == HKDF(SHA256(), size, None, purpose).derive(key)


@given(st.binary(max_size=120))
def test_bytes_that_were_not_sealed_with_the_key_are_refused(sealed: bytes) -> None:
    with pytest.raises(ValueError, match="sealed"):
        keys.open_sealed(KEY, sealed)


SMALL_ORDER: Final = {
    "the identity": (1).to_bytes(32, "little"),
    "order 2": (2**255 - 20).to_bytes(32, "little"),
    "order 4": bytes(32),
    "order 8": bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
    "not reduced": (2**255 - 18).to_bytes(32, "little"),
    "beside the curve": (2).to_bytes(32, "little"),
}


@pytest.mark.parametrize("point", SMALL_ORDER.values(), ids=SMALL_ORDER)
def test_a_point_that_would_fix_the_key_is_refused(point: bytes) -> None:
    with pytest.raises(BadMessageError, match="not a point of the group"):
        side(VECTOR["scalar_a"]).finish(SYMMETRIC + point)


def test_our_own_message_and_the_blinding_are_refused() -> None:
    alice = side(VECTOR["scalar_a"])
    with pytest.raises(BadMessageError, match="our own message"):
        alice.finish(alice.message)
    blinding = crypto_core_ed25519_sub(alice.message[1:], crypto_scalarmult_ed25519_base_noclamp(SCALAR_A))
    with pytest.raises(BadMessageError, match="fixes the key"):
        alice.finish(SYMMETRIC + blinding)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_message_or_refused(message: bytes) -> None:
    alice = side(VECTOR["scalar_a"])
    for received in (message, SYMMETRIC + message, SYMMETRIC + BLINDING_POINT + message):
        with suppress(BadMessageError):
            assert len(alice.finish(received)) == 32


TRANSIT_KEY = bytes(range(32))
SENDER, RECEIVER = TransitKeys.derive(TRANSIT_KEY, Role.SENDER), TransitKeys.derive(TRANSIT_KEY, Role.RECEIVER)


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


@given(st.lists(BYTES, max_size=4), BYTES, st.sampled_from([wait_for_offer, wait_for_answer]))
def test_any_messages_are_read_or_refused(messages: list[bytes], record: bytes, read: Any) -> None:
    wormhole = Mock(receive=AsyncMock(side_effect=[*messages, b'{"error":"end"}']))
    with suppress(PeerMessageError, TransferError):
        asyncio.run(read(wormhole))
        assert any(key in b"".join(messages) for key in (b'"offer"', b'"answer"'))
    with suppress(PeerMessageError):
        parse_acknowledgement(record)


HERE = Address("192.0.2.7", 4001)


def direct(**fields: Any) -> dict[str, Any]:
    return {"type": "direct-tcp-v1", "priority": 0.0, "hostname": "192.0.2.7", "port": 4001, **fields}


def test_hints_are_told_as_by_the_python_client_and_rust_s_are_read_without_the_ways_that_are_not_tcp() -> None:
    assert transit_message(Hints((HERE,), (Relay((HERE,)),))) == {
        "abilities-v1": [{"type": "direct-tcp-v1"}, {"type": "relay-v1"}],
        "hints-v1": [direct(), {"type": "relay-v1", "hints": [direct()]}],
    }
    relay = {"type": "relay-v1", "name": "a", "hints": [{"type": "websocket-v1", "url": "wss://a"}, direct()]}
    message = {"abilities-v1": [{"type": "noise-crypto-v1"}], "hints-v1": [relay, {"type": "tor-tcp-v1", "port": 1}]}
    assert parse_hints(message) == Hints((), (Relay((HERE,)),))


@pytest.mark.parametrize(
    "hint",
    [
        *(direct(port=port) for port in (0, 65536, "4001", True)),
        *(direct(hostname=host) for host in ("", None, "a\n", "fe80::1%eth0", "a" * 256)),
        *({"type": "relay-v1", "hints": hints} for hints in ([], [direct(port=0)], direct())),
        *([], None, direct(type=["direct-tcp-v1"])),
    ],
)
def test_a_hint_that_cannot_be_used_is_left_out(hint: Any) -> None:
    assert parse_hints({"hints-v1": [hint, direct()]}) == Hints((HERE,))


def test_of_many_hints_the_first_are_used() -> None:
    many = [direct(port=port) for port in range(1, 10_000)]
    relays = [{"type": "relay-v1", "hints": many}, *({"type": "relay-v1", "hints": [hint]} for hint in many)]
    hints = parse_hints({"hints-v1": [*many, *relays]})
    assert [address.port for address in hints.direct] == list(range(1, MAX_HINTS + 1))
    assert len(hints.relays) == MAX_HINTS
    assert len(hints.relays[0].addresses) == MAX_RELAY_ADDRESSES


HINT = st.dictionaries(st.sampled_from(["type", "hostname", "port", "hints"]), st.just("direct-tcp-v1") | JSON)


@examples(40)
@given(JSON | st.dictionaries(st.just("hints-v1"), st.lists(HINT | JSON)))
def test_any_json_is_read(message: Any) -> None:
    for address in parse_hints(message).direct:
        assert 1 <= address.port <= 65535
        assert address.host.isascii()


def test_a_relay_is_named_as_for_the_python_client() -> None:
    assert parse_relay("tcp://relay.example.com:4001") == Relay((Address("relay.example.com", 4001),))
    for address in (Address("relay.example.com", 4001), Address("2001:db8::7", 4001)):
        assert parse_relay(f"tcp:{address}") == Relay((address,))
    assert str(Address("2001:db8::7", 4001)) == "[2001:db8::7]:4001"
