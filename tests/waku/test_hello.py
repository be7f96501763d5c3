"""Hello, capabilities and reasons."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import PeerError
from restante.waku.devp2p.hello import Capability, Hello, Reason, Shared, share
from restante.waku.envelope import rlp
from support.mutation import mutated
from support.vectors import load

PUBLIC = bytes(range(1, 65))


def test_a_hello_is_what_status_go_was_seen_to_send() -> None:
    hello = Hello("x" * 33, (Capability("waku", 0), Capability("waku", 1)), 0, PUBLIC)
    expected = "f87505a1" + "78" * 33 + "cec68477616b7580c68477616b750180b840" + PUBLIC.hex()
    assert hello.encode().hex() == expected
    assert Hello.parse(bytes.fromhex(expected)) == hello


def test_the_hello_of_eip_8_has_another_version_and_more_items() -> None:
    """The text says version 22; its bytes say 55."""
    hello = Hello.parse(bytes.fromhex(load("eip8")["hello of version 22 with more items"]))
    assert hello.version == 55
    assert hello.client_id == "kneth/v0.91/plan9"
    assert hello.capabilities == (Capability("eth", 61), Capability("mork", 22))
    assert hello.port == 9999
    assert hello.public.hex()[:8] == "fda1cff6"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
hellos = st.builds(
    Hello,
    texts,
    st.lists(st.builds(Capability, texts, st.integers(0, 2**64 - 1)), max_size=5).map(tuple),
    st.integers(0, 2**64 - 1),
    st.binary(min_size=64, max_size=64).filter(any),
    st.integers(0, 2**64 - 1),
)


@given(hellos)
def test_a_hello_is_read_as_it_is_written(hello: Hello) -> None:
    assert Hello.parse(hello.encode() + b"junk") == hello


@given(mutated(hellos.map(Hello.encode)) | st.binary(max_size=200))
def test_reading_a_hello_raises_nothing_but_peer_errors(payload: bytes) -> None:
    try:
        hello = Hello.parse(payload)
    except PeerError:
        return
    assert len(hello.public) == 64


@pytest.mark.parametrize("public", [b"", bytes(64), bytes(63), b"\1" * 63, b"\1" * 65])
def test_a_hello_without_a_key_is_one_without_identity(public: bytes) -> None:
    with pytest.raises(PeerError) as caught:
        Hello.parse(rlp.encode([5, b"x", [], 0, public]))
    assert caught.value.code is Reason.NULL_IDENTITY


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([5, b"x", [], 0], "at least five items, not 4"),
        ([b"\0", b"x", [], 0, PUBLIC], "leading zero"),
        ([b"\1" * 9, b"x", [], 0, PUBLIC], "64 bits"),
        ([5, b"x", b"", 0, PUBLIC], "list is expected"),
        ([5, b"x", [[b"waku", 1, 2]], 0, PUBLIC], "2 items"),
        ([5, b"x", [[b"waku", []]], 0, PUBLIC], "number is expected"),
        ([5, b"x", [], 0, []], "string is expected"),
    ],
)
def test_an_invalid_hello_is_refused(fields: list[rlp.Encodable], words: str) -> None:
    with pytest.raises(PeerError, match=words) as caught:
        Hello.parse(rlp.encode(fields))
    assert caught.value.code == Reason.BREACH


def test_a_client_name_that_is_no_utf_8_is_shown_escaped() -> None:
    assert Hello.parse(rlp.encode([5, b"\xffx", [[b"\xfe", 1]], 0, PUBLIC])).client_id == "\ufffdx"


LENGTHS = {"aaa": 8, "bbb": 17, "waku": 128}


def capabilities(text: str) -> list[Capability]:
    return [Capability(name, int(version)) for name, version in (one.split("/") for one in text.split())]


@pytest.mark.parametrize(
    ("ours", "theirs", "shared"),
    [
        ("waku/0 waku/1", "waku/0 waku/1", [("waku", 1, 16, 128)]),
        ("waku/1 waku/0", "waku/0", [("waku", 0, 16, 128)]),
        ("waku/1", "waku/0", []),
        ("waku/1", "shh/6 les/2 waku/1 eth/63", [("waku", 1, 16, 128)]),
        ("waku/1 aaa/3", "aaa/3 waku/1", [("aaa", 3, 16, 8), ("waku", 1, 24, 128)]),
        (
            "bbb/1 aaa/3 aaa/2 waku/1",
            "waku/1 aaa/2 bbb/1",
            [("aaa", 2, 16, 8), ("bbb", 1, 24, 17), ("waku", 1, 41, 128)],
        ),
        ("waku/1", "waku/1 waku/1", [("waku", 1, 16, 128)]),
        ("waku/1", "waku/10", []),
    ],
)
def test_message_ids_go_to_the_highest_shared_versions_by_name(
    ours: str, theirs: str, shared: list[tuple[str, int, int, int]]
) -> None:
    assert share(capabilities(ours), capabilities(theirs), LENGTHS) == tuple(Shared(*one) for one in shared)


def test_a_reason_is_read_in_every_form_and_written_as_a_list_or_bare() -> None:
    for reason in Reason:
        for form in (reason.listed(), reason.bare(), rlp.encode(reason.value)):
            assert Reason.read(form) is reason
    assert (Reason.USELESS_PEER.listed(), Reason.REQUESTED.listed()) == (b"\xc1\3", b"\xc1\x80")
    assert (Reason.USELESS_PEER.bare(), Reason.REQUESTED.bare()) == (b"\3", b"\0")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("10", Reason.SUBPROTOCOL),
        ("c100", Reason.REQUESTED),
        ("80", Reason.REQUESTED),
        ("c20405", Reason.TOO_MANY_PEERS),
        ("c2c104", Reason.TOO_MANY_PEERS),
        ("04ffff", Reason.TOO_MANY_PEERS),
        ("820004", Reason.TOO_MANY_PEERS),
        ("", Reason.REQUESTED),
        ("c1c0", Reason.REQUESTED),
        ("0c", Reason.REQUESTED),
        ("c3", Reason.REQUESTED),
        ("ffffffffffffffffff", Reason.REQUESTED),
    ],
)
def test_any_payload_has_a_reason(payload: str, reason: Reason) -> None:
    assert Reason.read(bytes.fromhex(payload)) is reason


@given(st.binary() | mutated(st.just(b"\xc1\x03")))
def test_reading_a_reason_raises_nothing(payload: bytes) -> None:
    assert Reason.read(payload) in Reason
