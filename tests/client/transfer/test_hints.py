"""Where a side can be reached: what is told, and what is used of a peer's hints."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from restante.common.errors import Misuse
from support.effort import examples

HERE = Address("192.0.2.7", 4001)
HINTS = Hints((HERE, Address("2001:db8::7", 80)), (Relay((Address("relay.example.com", 4001),)),))


def direct(**fields: Any) -> dict[str, Any]:
    return {"type": "direct-tcp-v1", "priority": 0.0, "hostname": "192.0.2.7", "port": 4001, **fields}


def test_the_peer_reads_the_hints_that_we_tell() -> None:
    assert parse_hints(msgspec.json.decode(msgspec.json.encode(transit_message(HINTS)))) == HINTS


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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
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


@pytest.mark.parametrize(
    "url", ["", "relay.example.com:4001", "tcp:relay.example.com", "tcp:a:0", "tcp::1", "udp:a:1"]
)
def test_what_names_no_relay_is_misuse(url: str) -> None:
    with pytest.raises(Misuse, match="a relay is named by tcp:HOST:PORT"):
        parse_relay(url)
