"""Who a node is: keys and what they sign, ECIES and Keccak, the key file, and enode URLs."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from Crypto.Hash import keccak as oracle
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import Misuse, PeerError
from restante.waku import key_file
from restante.waku.devp2p import enode
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope import ecies, keys
from restante.waku.envelope.keccak import keccak, running_keccak
from restante.waku.envelope.keys import Key, new_key
from support.dice import Fixed
from support.mutation import mutated
from support.vectors import load
from support.waku.letters import KEY

VECTORS = load("ecies")
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
"""Of the curve's group (SEC 2, section 2.4.1)."""

secrets = st.integers(1, ORDER - 1).map(lambda number: number.to_bytes(32, "big"))


def test_public_keys_shared_secrets_and_plain_texts_are_those_of_the_vectors() -> None:
    for vector in VECTORS["public"]:
        assert Key(bytes.fromhex(vector["secret"])).public.hex() == vector["public"]
    for vector in VECTORS["agree"]:
        shared = Key(bytes.fromhex(vector["secret"])).agree(bytes.fromhex(vector["public"]))
        assert shared.hex() == vector["shared"]
    for vector in VECTORS["decrypt"]:  # sealed by other programs
        key = Key(bytes.fromhex(vector["secret"]))
        assert ecies.decrypt(key, bytes.fromhex(vector["data"])) == vector["plain"].encode()


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


@given(st.binary(max_size=70) | st.binary(min_size=64, max_size=64).map(lambda half: half + b"\1"))
def test_recovering_raises_nothing_but_peer_errors(signature: bytes) -> None:
    with suppress(PeerError):
        assert len(keys.recover(b"\7" * 32, signature)) == keys.PUBLIC_BYTES


def test_an_invalid_private_key_is_refused_or_drawn_again() -> None:
    for secret in (bytes(32), ORDER.to_bytes(32, "big"), b"", b"\1" * 31, b"\0" + b"\1" * 32):
        with pytest.raises(ValueError):
            Key(secret)
    assert new_key(Fixed([bytes(32), b"\xff" * 32, KEY.secret])).public == KEY.public


US = Key(b"\1" * 32)
SEALED = ecies.encrypt(US.public, b"plain", ephemeral=Key(b"\2" * 32), iv=bytes(16), authenticated=b"size")


def test_a_public_key_off_the_curve_is_the_peer_s_fault() -> None:
    for public in (bytes(64), b"\xff" * 64, b"", b"\1" * 65, b"\2" * 32):
        for use in (keys.check, US.agree, lambda key: ecies.encrypt(key, b"plain", ephemeral=US, iv=bytes(16))):
            with pytest.raises(PeerError, match="not on the curve"):
                use(public)


@given(st.binary(max_size=300), st.binary(max_size=8), st.binary(min_size=16, max_size=16))
def test_a_ciphertext_is_decrypted_by_its_key_alone(plain: bytes, authenticated: bytes, iv: bytes) -> None:
    sealed = ecies.encrypt(US.public, plain, ephemeral=Key(b"\2" * 32), iv=iv, authenticated=authenticated)
    assert len(sealed) == len(plain) + ecies.OVERHEAD_BYTES
    assert ecies.decrypt(US, sealed, authenticated) == plain
    for key, other in ((Key(b"\3" * 32), authenticated), (US, authenticated + b"x")):
        with pytest.raises(PeerError, match="altered"):
            ecies.decrypt(key, sealed, other)


@given(st.binary(max_size=300) | mutated(st.just(SEALED)))
def test_decrypting_raises_nothing_but_peer_errors(data: bytes) -> None:
    with suppress(PeerError):
        assert ecies.decrypt(US, data, b"size") == b"plain"
        assert data == SEALED


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_a_hash_is_what_another_library_says_and_a_running_one_may_be_copied(parts: list[bytes]) -> None:
    hasher, absorbed = running_keccak(b"seed"), b"seed"
    for part in parts:
        hasher.copy().update(b"of the copy")
        hasher.update(part)
        absorbed += part
        expected = oracle.new(digest_bits=256, data=absorbed).digest()
        assert keccak(absorbed) == hasher.digest() == hasher.copy().digest() == expected
    # The code hash of an account without code (yellow paper, section 4.1); SHA-3 has a7ffc6f8…
    assert keccak(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"


DIGITS = "ab" * 32


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_missing_key_is_created_readable_by_its_owner_only_and_then_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "node.key"
    umask = os.umask(0)
    try:
        key = key_file.load_or_make(path)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == key.secret.hex() + "\n"
    assert list(path.parent.iterdir()) == [path], "the draft is gone"
    # Who runs the tests may be root, whom no mode stops.
    monkeypatch.setattr(tempfile, "mkstemp", Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
    assert key_file.load_or_make(path).secret == key_file.load_key(path).secret == key.secret
    with pytest.raises(Misuse, match=r"cannot write .*another: Read-only file system \(--key\)"):
        key_file.load_or_make(tmp_path / "another")


def test_files_of_a_killed_start_do_not_hinder_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as end:
        end.setattr(os, "link", killed)
        end.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            key_file.load_or_make(tmp_path / "node.key")
    [draft] = tmp_path.iterdir()
    assert stat.S_IMODE(draft.stat().st_mode) == 0o600
    assert key_file.load_or_make(tmp_path / "node.key").secret == key_file.load_key(tmp_path / "node.key").secret


def test_of_two_processes_the_faster_one_creates_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "node.key", os.link

    def late(draft: str, to: Path) -> None:
        written(path, DIGITS)
        link(draft, to)

    monkeypatch.setattr(os, "link", late)
    assert key_file.load_or_make(path).secret == bytes.fromhex(DIGITS)
    assert list(tmp_path.iterdir()) == [path]


def test_keys_are_read_as_geth_writes_them_and_nothing_else_is(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    for text in (DIGITS, f"0x{DIGITS}", f"  {DIGITS.upper()}\n\n"):
        assert key_file.load_key(written(path, text)).secret == bytes.fromhex(DIGITS)
    for text in ("", "zz" * 32, "00" * 32, "ff" * 32, DIGITS + "ab"):
        with pytest.raises(Misuse, match="64 hexadecimal digits") as refused:
            key_file.load_key(written(path, text))
        assert not text or text not in str(refused.value), "a key is not printed"
    for mode in (0o640, 0o604, 0o610, 0o602):
        written(path, DIGITS, mode)
        for read in (key_file.load_key, key_file.load_or_make):
            with pytest.raises(Misuse, match=f"chmod 600 {path}"):
                read(path)


def test_an_unreadable_key_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff" * 40)
    with pytest.raises(Misuse, match=r"No such file or directory \(--sign\)"):
        key_file.load_key(tmp_path / "missing", "--sign")
    with pytest.raises(Misuse, match="cannot read the key file"):
        key_file.load_key(tmp_path / "binary")
    for path in (tmp_path, tmp_path / "binary" / "node.key"):
        with pytest.raises(Misuse, match=r"a directory.*--key"):
            key_file.load_or_make(path)


HEX = US.public.hex()


def test_an_enode_is_read_and_written() -> None:
    for address, host, port, discport in (
        ("10.3.58.6:30303?discport=30301", "10.3.58.6", 30303, 30301),
        ("[2001:db8::7]:65535?discport=1", "2001:db8::7", 65535, 1),
        ("mail-01.do-ams3.eth.prod.example:443", "mail-01.do-ams3.eth.prod.example", 443, None),
        ("a_b.4you.example:443", "a_b.4you.example", 443, None),
    ):
        parsed = enode.parse(f"enode://{HEX}@{address}")
        assert parsed == Enode(US.public, host, port, discport)
        assert str(parsed) == f"enode://{HEX}@{address}"


def test_one_enode_may_be_written_in_many_ways() -> None:
    usual = f"enode://{HEX}@127.0.0.1:30303"
    upper = usual.replace(HEX, HEX.upper())
    for url in (f"  {usual}\n", upper, f"ENODE{usual[5:]}", f"{usual}/", f"{usual}?other=1"):
        assert str(enode.parse(url)) == usual
    assert str(enode.parse(f"enode://{HEX}@127.0.0.1:030303?discport=30303")) == usual


WRONG_URLS = {
    f"http://{HEX}@127.0.0.1:30303": "does not begin with enode://",
    "enode://127.0.0.1:30303": "128 hex digits before the @",
    f"enode://04{HEX}@127.0.0.1:30303": "128 hex digits",
    f"enode://{HEX[:-1]}g@127.0.0.1:30303": "128 hex digits",
    f"enode://{'00' * 64}@127.0.0.1:30303": "not on the curve",
    f"enode://{HEX}@127.0.0.1:30303/path": "more than a key",
    f"enode://{HEX}@127.0.0.1": "has no port",
    f"enode://{HEX}@127.0.0.1:0": "has no port",
    f"enode://{HEX}@127.0.0.1:65536": "Port",
    f"enode://{HEX}@1.2.3.400:30303": "no host",
    f"enode://{HEX}@{'a' * 64}.example:30303": "no host",
    f"enode://{HEX}@{'a.' * 127}example:30303": "no host",
    f"enode://{HEX}@[::1:30303": "IPv6",
    f"enode://{HEX}@127.0.0.1:30303?discport=": "not a port",
    f"enode://{HEX}@127.0.0.1:30303?discport=65536": "not a port",
}


def test_the_error_for_an_enode_says_what_is_wrong() -> None:
    for url, text in WRONG_URLS.items():
        with pytest.raises(Misuse, match=text):
            enode.parse(url)


@given(st.text().flatmap(lambda text: st.sampled_from([text, f"enode://{text}", f"enode://{HEX}@{text}"])))
def test_any_text_is_an_enode_or_misuse(url: str) -> None:
    try:
        parsed = enode.parse(url)
    except Misuse:
        return
    assert enode.parse(str(parsed)) == parsed
