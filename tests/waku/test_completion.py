"""P2P Request Complete: every form of it is read, and junk is the sender's error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.waku.envelope.rlp import RlpError
from restante.waku.protocol import completion
from restante.waku.protocol.completion import Completed, Failed
from support.effort import examples
from support.mutation import mutated
from support.vectors import load

VECTORS = load("completions")


@pytest.mark.parametrize("vector", VECTORS["read"], ids=lambda each: each["name"])
def test_every_form_of_an_end(vector: dict[str, Any]) -> None:
    payload = bytes.fromhex(vector["payload"])
    expected = Completed(**{name: bytes.fromhex(each) for name, each in vector["completed"].items()})
    assert completion.read(payload) == expected
    if vector["ours"] is not None:
        assert completion.complete(expected.id, expected.last, expected.cursor, vector["ours"]) == payload


@pytest.mark.parametrize("vector", VECTORS["failed"], ids=lambda each: each["name"])
def test_a_refusal(vector: dict[str, Any]) -> None:
    payload = bytes.fromhex(vector["payload"])
    expected = Failed(bytes.fromhex(vector["id"]), vector["words"])
    assert completion.read(payload) == completion.read(payload, {b"\x55" * 32}) == expected
    if vector["ours"]:
        assert completion.failure(expected.id, expected.words) == payload


@pytest.mark.parametrize("vector", VECTORS["junk"], ids=lambda each: each["name"])
def test_junk(vector: dict[str, str]) -> None:
    with pytest.raises(RlpError, match=vector["words"]):
        completion.read(bytes.fromhex(vector["payload"]))


def test_the_requester_recognises_an_id_that_begins_like_a_refusal() -> None:
    asked = b"ERROR=".ljust(32, b"?")
    payload = completion.complete(asked, b"\3" * 32)
    assert completion.read(payload, {asked}) == Completed(asked, b"\3" * 32)
    assert isinstance(completion.read(payload), Failed)


def test_the_words_of_a_refusal_are_cut() -> None:
    found = completion.read(completion.failure(bytes(32), "x" * 100_000))
    assert isinstance(found, Failed)
    assert len(found.words) == completion.MAX_WORDS_BYTES


HASHES = st.binary(min_size=32, max_size=32)


@given(HASHES, HASHES, st.just(b"") | st.binary(min_size=36, max_size=36), st.sampled_from(["string", "list"]))
@examples(100)
def test_a_written_completion_is_read_back(id_: bytes, last: bytes, cursor: bytes, answer: Any) -> None:
    assert completion.read(completion.complete(id_, last, cursor, answer), {id_}) == Completed(id_, last, cursor)


@given(HASHES, st.text(alphabet=st.characters(categories=["L", "N"]), max_size=90))
@examples(100)
def test_a_written_refusal_is_read_back(id_: bytes, words: str) -> None:
    assert completion.read(completion.failure(id_, words)) == Failed(id_, words)


KNOWN = [bytes.fromhex(each["payload"]) for each in VECTORS["read"] + VECTORS["failed"]]


@given(st.binary(max_size=120) | mutated(st.sampled_from(KNOWN)))
@examples(400)
def test_any_bytes_are_read_or_raise_a_peer_error(payload: bytes) -> None:
    try:
        found = completion.read(payload)
    except RlpError:
        return
    assert len(found.id) == 32
