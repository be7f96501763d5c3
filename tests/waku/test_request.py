"""P2P Requests and their ends: every form is read, and what cannot be served is said as shipped servers say it."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from restante.waku.envelope import bloom, rlp
from restante.waku.envelope.envelope import U32, Envelope, make
from restante.waku.envelope.mining import mine
from restante.waku.envelope.payload import SymmetricKey, open_sealed, seal
from restante.waku.envelope.rlp import RlpError
from restante.waku.protocol import completion, request
from restante.waku.protocol.completion import Completed, RequestRefused
from restante.waku.protocol.request import Demands, Request, RequestError
from support.dice import Seeded
from support.effort import examples
from support.mutation import mutated
from support.vectors import load
from support.waku.letters import KEY, OTHER_KEY

VECTORS = load("requests")
NOW: int = VECTORS["now"]
ID = b"\x11" * 32
SHARED = SymmetricKey(b"\5" * 32)
OPEN = Demands(keys=(SHARED,))
TOPIC = b"\1\2\3\4"


def enclosed(body: bytes, *, to: SymmetricKey | bytes = SHARED, sign: Any = KEY) -> Envelope:
    return make(NOW + 50, 50, bytes(4), seal(body, to=to, sign=sign, dice=Seeded(1)))


def wanted(vector: dict[str, Any], **others: Any) -> Request:
    values = {**vector, **others}
    if "id" in vector:
        values["id"] = bytes.fromhex(vector["id"])
    if vector["bloom"] is not None:
        values["bloom"] = bloom.parse(bytes.fromhex(vector["bloom"]))
    values["topics"] = frozenset(map(bytes.fromhex, vector["topics"]))
    values["cursor"] = bytes.fromhex(vector["cursor"])
    return Request(**values)


def vectors(*sections: str, of: dict[str, Any] = VECTORS) -> pytest.MarkDecorator:
    rows = [vector for section in sections for vector in of[section]]
    return pytest.mark.parametrize("vector", rows, ids=lambda vector: vector["name"])


def refused(payload: bytes, demands: Demands = OPEN) -> tuple[bytes | None, str]:
    with pytest.raises(RequestError) as error:
        request.parse(payload, demands, NOW)
    return error.value.id, error.value.text


@vectors("sealed")
@pytest.mark.parametrize("sign", [KEY, None], ids=["signed", "unsigned"])
def test_every_form_of_request_is_read_in_an_envelope(vector: dict[str, Any], sign: Any) -> None:
    envelope = enclosed(bytes.fromhex(vector["payload"]), sign=sign)
    signer = None if sign is None else KEY.public
    expected = wanted(vector["request"], id=envelope.hash, form="envelope", signer=signer)
    assert request.parse(envelope.raw, OPEN, NOW) == expected
    assert request.parse(envelope.raw + b"\0tail", OPEN, NOW) == expected


@vectors("plain")
def test_every_form_of_request_is_read_in_plain(vector: dict[str, Any]) -> None:
    assert request.parse(bytes.fromhex(vector["payload"]), Demands(), NOW) == wanted(vector["request"])


@vectors("refused", "refused, sealed only")
def test_an_invalid_request_is_answered_in_either_form(vector: dict[str, str]) -> None:
    if "plain" in vector:
        assert refused(bytes.fromhex(vector["plain"])) == (ID, vector["words"])
    envelope = enclosed(bytes.fromhex(vector["sealed"]))
    assert refused(envelope.raw) == (envelope.hash, vector.get("sealed words", vector["words"]))


@vectors("nobody to answer")
def test_a_packet_without_a_request_id_is_not_answered(vector: dict[str, str]) -> None:
    id_, text = refused(bytes.fromhex(vector["payload"]))
    assert id_ is None
    assert text.startswith(f"no request: {vector['words']}")


def test_a_request_has_at_most_a_thousand_topics_of_four_bytes_each() -> None:
    topics = frozenset(number.to_bytes(4) for number in range(1000))
    base = Request(id=ID, lower=1, upper=2, topics=topics)
    assert request.parse(request.encode(base), OPEN, NOW) == base
    one_more = msgspec.structs.replace(base, topics=topics | {TOPIC})
    for many in (request.encode(one_more), rlp.encode([ID, 1, 2, 0, b"", b"", [TOPIC] * 100_000])):
        assert refused(many) == (ID, "request is invalid: more than 1000 topics")
    for sizes in ((4, 3), (3, 4), (8,), (4, 8, 4), (3, 3, 6), (2, 5)):  # whatever all of them add up to
        wrong = frozenset(bytes([number] * size) for number, size in enumerate(sizes, 0x84))
        asked = msgspec.structs.replace(base, topics=wrong)
        assert refused(request.encode(asked)) == (ID, "request is invalid: a topic has 4 bytes")


PLAIN, SEALED = ([bytes.fromhex(vector["payload"]) for vector in VECTORS[form]] for form in ("plain", "sealed"))
BODY = SEALED[0]
SIGNED, UNSIGNED = enclosed(BODY), enclosed(BODY, sign=None)
UNREADABLE = make(NOW, 50, bytes(4), AESGCM(SHARED.secret).encrypt(bytes(12), b"\1\xff", None) + bytes(12))
NOT_DECRYPTED = "failed to decrypt p2p request"
WRONG_SIGNATURE = "check message signature failed: wrong signature of p2p request"


def test_each_key_is_tried_in_turn_and_a_signature_is_required_only_if_the_setting_says_so() -> None:
    for to in (SHARED, KEY.public):
        assert request.parse(enclosed(BODY, to=to).raw, Demands(keys=(KEY, SHARED)), NOW).topics == {TOPIC}
    strict = Demands(keys=(SHARED,), require_signature=True, min_pow=SIGNED.pow())
    assert request.parse(SIGNED.raw, strict, NOW).signer == KEY.public
    assert request.parse(PLAIN[0], strict, NOW).signer is None


@pytest.mark.parametrize(
    ("envelope", "demands", "text"),
    [
        (SIGNED, Demands(), NOT_DECRYPTED),
        (SIGNED, Demands(keys=(OTHER_KEY,)), NOT_DECRYPTED),
        (UNREADABLE, OPEN, NOT_DECRYPTED),
        (UNSIGNED, Demands(keys=(SHARED,), require_signature=True), WRONG_SIGNATURE),
        (SIGNED, Demands(min_pow=SIGNED.pow() * 1.01), "PoW too low"),  # it is checked first
        (SIGNED, Demands(keys=(SHARED,), forms=frozenset(["plain"])), "this server takes no requests in envelopes"),
        (None, Demands(forms=frozenset(["envelope"])), "this server takes no plain requests"),
    ],
    ids=itertools.count(),
)
def test_demands_that_are_not_met_are_answered_with_an_error(
    envelope: Envelope | None, demands: Demands, text: str
) -> None:
    assert refused(envelope.raw if envelope else PLAIN[0], demands) == (envelope.hash if envelope else ID, text)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    lower = draw(st.integers(0, U32))
    topics = draw(st.frozensets(st.binary(min_size=4, max_size=4), max_size=8))
    some_bloom = st.integers(0, bloom.ALL_BITS)
    return Request(
        id=draw(st.binary(min_size=32, max_size=32)),
        lower=lower,
        upper=draw(st.integers(max(lower, 1), U32)),
        bloom=draw(st.none() | some_bloom if topics else some_bloom),
        topics=topics,
        limit=draw(st.integers(1, request.MAX_PAGE_ENVELOPES)),
        cursor=draw(st.just(b"") | st.binary(min_size=36, max_size=36)),
    )


@given(requests(), st.booleans(), st.sampled_from([None, KEY]), st.booleans())
@examples(200)
def test_a_written_request_is_read_back(asked: Request, batch: bool, sign: Any, asymmetric: bool) -> None:
    assert request.parse(request.encode(asked), OPEN, NOW) == asked
    asked = msgspec.structs.replace(asked, batch=batch)
    to = OTHER_KEY.public if asymmetric else SHARED
    envelope = mine(request.seal_request(asked, to, now=NOW, dice=Seeded(2), sign=sign), 1e-6, start=0)
    signer = None if sign is None else KEY.public
    expected = msgspec.structs.replace(asked, id=envelope.hash, form="envelope", signer=signer)
    assert request.parse(envelope.raw, Demands(keys=(OTHER_KEY, SHARED), min_pow=1e-6), NOW) == expected


def test_our_request_equals_that_of_status_go() -> None:
    assert request.encode(request.parse(PLAIN[0], OPEN, NOW)) == PLAIN[0]
    again = request.seal_request(request.parse(SIGNED.raw, OPEN, NOW), SHARED, now=NOW, dice=Seeded(1))
    assert open_sealed(again.data, SHARED).payload == BODY
    assert len(again.data) == 284


@given(
    st.binary(max_size=200)
    | mutated(st.sampled_from(PLAIN))
    | (st.binary(max_size=200) | mutated(st.sampled_from(SEALED))).map(lambda body: enclosed(body, sign=None).raw)
    | mutated(st.just(SIGNED.raw))
)
@examples(600)
def test_any_bytes_are_a_request_or_a_typed_error(payload: bytes) -> None:
    try:
        asked = request.parse(payload, OPEN, NOW)
    except RequestError:
        return
    assert asked.lower <= asked.upper
    assert 1 <= asked.limit <= 1000
    assert asked.topics or asked.bloom is not None
    assert len(asked.topics) <= 1000
    assert {len(topic) for topic in asked.topics} <= {4}
    assert len(asked.cursor) in {0, 36}
    assert len(asked.id) == 32


ENDS = load("completions")


@vectors("read", of=ENDS)
def test_every_form_of_an_end(vector: dict[str, Any]) -> None:
    payload = bytes.fromhex(vector["payload"])
    expected = Completed(*map(bytes.fromhex, vector["completed"].values()))
    assert completion.parse(payload) == expected
    if vector["ours"] is not None:
        assert completion.encode(expected.id, expected.last_hash, expected.cursor, vector["ours"]) == payload


@vectors("failed", of=ENDS)
def test_a_refusal(vector: dict[str, Any]) -> None:
    payload = bytes.fromhex(vector["payload"])
    expected = RequestRefused(bytes.fromhex(vector["id"]), vector["words"])
    assert completion.parse(payload) == completion.parse(payload, {b"\x55" * 32}) == expected
    if vector["ours"]:
        assert completion.encode_refusal(expected.id, expected.reason) == payload


@vectors("junk", of=ENDS)
def test_junk(vector: dict[str, str]) -> None:
    with pytest.raises(RlpError, match=vector["words"]):
        completion.parse(bytes.fromhex(vector["payload"]))


def test_an_id_may_begin_like_a_refusal_and_the_words_of_one_are_cut() -> None:
    asked = b"ERROR=".ljust(32, b"?")
    payload = completion.encode(asked, b"\3" * 32)
    assert completion.parse(payload, {asked}) == Completed(asked, b"\3" * 32)
    assert isinstance(completion.parse(payload), RequestRefused)
    refusal = completion.parse(completion.encode_refusal(bytes(32), "x" * 100_000))
    assert isinstance(refusal, RequestRefused)
    assert len(refusal.reason) == completion.MAX_REASON_BYTES


HASHES = st.binary(min_size=32, max_size=32)


@given(HASHES, HASHES, st.just(b"") | st.binary(min_size=36, max_size=36), st.sampled_from(["string", "list"]))
@examples(100)
def test_a_written_completion_is_read_back(id_: bytes, last: bytes, cursor: bytes, answer: Any) -> None:
    assert completion.parse(completion.encode(id_, last, cursor, answer), {id_}) == Completed(id_, last, cursor)


KNOWN = [bytes.fromhex(vector["payload"]) for vector in ENDS["read"] + ENDS["failed"]]


@given(st.binary(max_size=120) | mutated(st.sampled_from(KNOWN)))
@examples(400)
def test_any_bytes_are_read_or_raise_a_peer_error(payload: bytes) -> None:
    try:
        end = completion.parse(payload)
    except RlpError:
        return
    assert len(end.id) == 32
