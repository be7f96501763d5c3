"""Codes, their completion, and the URIs that carry them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wormhole._wordlist import PGPWordList, byte_to_even_word, byte_to_odd_word

from restante.client import word_list
from restante.client.protocol import code, uri
from restante.client.protocol.code import MAX_NAMEPLATE_DIGITS, CodeError, nameplate_of
from restante.client.protocol.seeds import SEED_BYTES, seed_code
from restante.client.protocol.uri import DEFAULT_RENDEZVOUS, TransferUri, UriError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with a number"),
        ("purple-7-sausages", "begins with a number"),
        ("-purple-sausages", "begins with a number"),
        ("٣-purple-sausages", "begins with a number"),
        (f"{'9' * 41}-purple", "begins with a number"),
        ("7", "words after its number"),
        ("7-", "words after its number"),
        ("7 purple sausages", "no spaces"),
        ("7-purple-sausages\n", "no spaces"),
        ("7-\udcff", "UTF-8"),
    ],
)
def test_a_text_that_is_no_code_is_refused(text: str, message: str) -> None:
    with pytest.raises(CodeError, match=message):
        code.nameplate_of(text)


def test_the_password_is_the_whole_code_in_one_spelling() -> None:
    assert code.password_of("4-caf\N{LATIN SMALL LETTER E WITH ACUTE}") == code.password_of("4-cafe\u0301")
    assert code.nameplate_of(f"{'9' * 40}-\N{SNOWMAN}") == "9" * 40
    assert code.password_of("4-purple-sausages") == b"4-purple-sausages"


def test_words_come_from_both_lists_in_turn() -> None:
    assert code.words(b"\0\0") == "adroitness-aardvark"
    assert code.words(bytes((255, 255, 0))) == "yucatan-zulu-adroitness"


def test_the_word_list_is_that_of_the_python_client() -> None:
    both = {0: byte_to_odd_word, 1: byte_to_even_word}
    for position, theirs in both.items():
        assert list(word_list(position)) == [theirs[bytes([byte])].lower() for byte in range(256)]
    assert word_list(2) == word_list(0)
    assert word_list(3) == word_list(1)


def test_nameplates_are_completed_shortest_first() -> None:
    assert code.completions("", ["12", "3", "1"]) == ["1-", "3-", "12-"]
    assert code.completions("1", ["12", "3", "1"]) == ["1-", "12-"]
    assert code.completions("5", ["12", "3", "1"]) == []


@given(st.text("abcdefghijklmnopqrstuvwxyz-", max_size=12), st.integers(1, 4))
def test_words_are_completed_as_the_python_client_does(typed: str, length: int) -> None:
    expected = PGPWordList().get_completions(typed, length) if typed.count("-") < length else set()
    assert code.completions(f"7-{typed}", [], length) == sorted(f"7-{each}" for each in expected)


CODES = st.builds(lambda number, words: f"{number}-{words}", st.integers(0), st.text(min_size=1)).filter(
    lambda text: not any(each.isspace() for each in text) and len(text) < 40
)


@given(CODES, st.sampled_from([DEFAULT_RENDEZVOUS, "wss://example.com/path?a=b&c", "ws://[::1]:4000"]), st.booleans())
def test_a_uri_says_what_it_was_made_from(text: str, rendezvous: str, leads: bool) -> None:
    made = TransferUri(text, rendezvous, "leader" if leads else "follower")
    assert uri.parse(str(made)) == made


def test_the_documented_uris_are_read_and_written() -> None:
    assert str(TransferUri("4-hurricane-equipment")) == "wormhole-transfer:4-hurricane-equipment"
    assert uri.parse("wormhole-transfer:4-hurricane-equipment?version=0") == TransferUri("4-hurricane-equipment")
    named = "wormhole-transfer:8-%F0%9F%8D%8C?rendezvous=wss%3A%2F%2Fmailbox.example%2F&role=leader"
    assert str(TransferUri("8-\N{BANANA}", "wss://mailbox.example/", "leader")) == named
    assert uri.parse(named) == TransferUri("8-\N{BANANA}", "wss://mailbox.example/", "leader")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("https://example.com/4-a", "begins with wormhole-transfer:"),
        ("4-hurricane-equipment", "begins with wormhole-transfer:"),
        ("wormhole-transfer://4-a", "neither a host"),
        ("wormhole-transfer:4-a#b", "nor a fragment"),
        ("wormhole-transfer:a", "begins with a number"),
        ("wormhole-transfer:4-%FF", "not encoded correctly"),
        ("wormhole-transfer:4-a?rendezvous", "not encoded correctly"),
        ("wormhole-transfer:4-a?" + "&".join(f"x{each}=1" for each in range(20)), "not encoded correctly"),
        ("wormhole-transfer:4-a?role=leader&role=leader", "twice"),
        ("wormhole-transfer:4-a?version=1", "later version"),
        ("wormhole-transfer:4-a?colour=red", "an unknown field: 'colour'"),
        ("wormhole-transfer:4-a?role=king", "role is follower or leader"),
        ("wormhole-transfer:4-a?rendezvous=https%3A%2F%2Fx", "ws:// or wss://"),
        ("wormhole-transfer:4-a?rendezvous=ws%3A%2F%2F%5B", "ws:// or wss://"),
        ("wormhole-transfer://[4-a", "not encoded correctly"),
    ],
)
def test_a_uri_that_cannot_be_followed_is_refused(text: str, message: str) -> None:
    with pytest.raises(UriError, match=message):
        uri.parse(text)


@given(st.text(max_size=60))
def test_any_text_is_a_uri_or_refused(text: str) -> None:
    for each in (text, f"wormhole-transfer:{text}", f"wormhole-transfer:4-a?{text}"):
        try:
            assert uri.parse(str(uri.parse(each))) == uri.parse(each)
        except UriError:
            continue


def test_the_code_of_a_seed_is_one_that_every_server_takes() -> None:
    for last in range(50):
        code = seed_code(bytes(SEED_BYTES - 1) + bytes([last]))
        nameplate = nameplate_of(code)
        assert nameplate.isdigit()
        assert len(nameplate) < MAX_NAMEPLATE_DIGITS
    with pytest.raises(ValueError, match="32 bytes"):
        seed_code(b"short")
