"""Enode URLs: read, written, and refused with a sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import Misuse
from restante.waku.devp2p import enode
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.keys import Key

PUBLIC = Key(b"\1" * 32).public
HEX = PUBLIC.hex()


@pytest.mark.parametrize(
    ("url", "host", "port", "discport"),
    [
        (f"enode://{HEX}@127.0.0.1:30303", "127.0.0.1", 30303, None),
        (f"enode://{HEX}@10.3.58.6:30303?discport=30301", "10.3.58.6", 30303, 30301),
        (f"enode://{HEX}@[::1]:443", "::1", 443, None),
        (f"enode://{HEX}@[2001:db8::7]:65535?discport=1", "2001:db8::7", 65535, 1),
        (f"enode://{HEX}@mail-01.do-ams3.eth.prod.example:443", "mail-01.do-ams3.eth.prod.example", 443, None),
        (f"enode://{HEX}@a_b.4you.example:443", "a_b.4you.example", 443, None),
    ],
)
def test_an_enode_is_read_and_written(url: str, host: str, port: int, discport: int | None) -> None:
    found = enode.parse(url)
    assert found == Enode(PUBLIC, host, port, discport)
    assert str(found) == url


def test_one_enode_may_be_written_in_many_ways() -> None:
    usual = f"enode://{HEX}@127.0.0.1:30303"
    for url in (
        f"  {usual}\n",
        usual.replace(HEX, HEX.upper()),
        f"ENODE{usual[5:]}",
        f"{usual}/",
        f"{usual}?other=1",
    ):
        assert str(enode.parse(url)) == usual
    assert str(enode.parse(f"enode://{HEX}@127.0.0.1:030303?discport=30303")) == usual


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "does not begin with enode://"),
        (f"http://{HEX}@127.0.0.1:30303", "does not begin with enode://"),
        ("enode://127.0.0.1:30303", "128 hex digits before the @"),
        (f"enode://04{HEX}@127.0.0.1:30303", "128 hex digits"),
        (f"enode://{HEX[:-1]}g@127.0.0.1:30303", "128 hex digits"),
        (f"enode://{'00' * 64}@127.0.0.1:30303", "not on the curve"),
        (f"enode://{HEX}:secret@127.0.0.1:30303", "more than a key"),
        (f"enode://{HEX}@127.0.0.1:30303/path", "more than a key"),
        (f"enode://{HEX}@127.0.0.1", "has no port"),
        (f"enode://{HEX}@127.0.0.1:0", "has no port"),
        (f"enode://{HEX}@127.0.0.1:65536", "Port"),
        (f"enode://{HEX}@127.0.0.1:http", "Port"),
        (f"enode://{HEX}@:30303", "no host"),
        (f"enode://{HEX}@1.2.3.400:30303", "no host"),
        (f"enode://{HEX}@a..example:30303", "no host"),
        (f"enode://{HEX}@{'a' * 64}.example:30303", "no host"),
        (f"enode://{HEX}@{'a.' * 127}example:30303", "no host"),
        (f"enode://{HEX}@two words:30303", "no host"),
        (f"enode://{HEX}@[::1:30303", "IPv6"),
        (f"enode://{HEX}@127.0.0.1:30303?discport=", "not a port"),
        (f"enode://{HEX}@127.0.0.1:30303?discport=65536", "not a port"),
    ],
)
def test_the_error_for_an_enode_says_what_is_wrong(url: str, words: str) -> None:
    with pytest.raises(Misuse, match=words):
        enode.parse(url)


@given(
    st.text() | st.text().map(lambda text: f"enode://{HEX}@{text}") | st.text().map(lambda text: f"enode://{text}")
)
def test_any_text_is_an_enode_or_misuse(url: str) -> None:
    try:
        found = enode.parse(url)
    except Misuse:
        return
    assert enode.parse(str(found)) == found
