"""Keys: who a node is, what two of them agree on, and who signed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import PeerError
from restante.waku.envelope import keys
from restante.waku.envelope.keccak import keccak
from restante.waku.envelope.keys import Key, new_key
from support.dice import Fixed
from support.vectors import load
from support.waku.fixed import KEY

VECTORS = load("ecies")
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
"""Of the curve's group (SEC 2, section 2.4.1)."""

secrets = st.integers(1, ORDER - 1).map(lambda number: number.to_bytes(32, "big"))


def test_public_keys_and_shared_secrets_are_those_of_the_vectors() -> None:
    for vector in VECTORS["public"]:
        assert Key(bytes.fromhex(vector["secret"])).public.hex() == vector["public"]
    for vector in VECTORS["agree"]:
        shared = Key(bytes.fromhex(vector["secret"])).agree(bytes.fromhex(vector["public"]))
        assert shared.hex() == vector["shared"]


@given(secrets, secrets)
def test_both_sides_compute_the_same_secret(one: bytes, other: bytes) -> None:
    a, b = Key(one), Key(other)
    assert a.agree(b.public) == b.agree(a.public)
    assert len(a.agree(b.public)) == 32


@given(secrets, st.binary(min_size=32, max_size=32))
def test_the_signer_is_recovered_for_its_digest_only(secret: bytes, digest: bytes) -> None:
    key = Key(secret)
    signature = key.sign(digest)
    assert len(signature) == keys.SIGNATURE_BYTES
    assert signature[64] in {0, 1}
    assert keys.recover(digest, signature) == key.public
    assert keys.recover(keccak(digest), signature) != key.public
    assert key.sign(digest) == signature
    with pytest.raises(PeerError, match="0 or 1"):
        keys.recover(digest, signature[:64] + bytes([signature[64] + 27]))


def test_an_invalid_private_key_is_refused() -> None:
    for secret in (bytes(32), ORDER.to_bytes(32, "big"), b"", b"\1" * 31, b"\0" + b"\1" * 32):
        with pytest.raises(ValueError):
            Key(secret)


def test_a_public_key_off_the_curve_is_the_peer_s_fault() -> None:
    for public in (bytes(64), b"\xff" * 64, b"", b"\1" * 65, b"\2" * 32):
        for use in (keys.check, Key(b"\1" * 32).agree):
            with pytest.raises(PeerError, match="not on the curve"):
                use(public)


@given(st.binary(max_size=70) | st.binary(min_size=64, max_size=64).map(lambda half: half + b"\1"))
def test_recovering_raises_nothing_but_peer_errors(signature: bytes) -> None:
    with suppress(PeerError):
        assert len(keys.recover(b"\7" * 32, signature)) == keys.PUBLIC_BYTES


def test_a_node_is_known_by_the_hash_of_its_public_key() -> None:
    public = Key(b"\1" * 32).public
    assert keys.node_id(public) == keccak(public)


def test_what_is_no_key_is_drawn_again() -> None:
    assert new_key(Fixed([bytes(32), b"\xff" * 32, KEY.secret])).public == KEY.public
