"""Envelopes are verified: each fault is found, and told apart from the others."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from restante.pipeline.clean.envelopes import ENVELOPE_FAULTS, MAX_CLOCK_SKEW_SECONDS, Stored, verify
from restante.pipeline.clean.rules import SECONDS_PER_DAY
from restante.waku.archive import ids
from restante.waku.envelope.envelope import Envelope, make, parse
from restante.waku.envelope.rlp import RlpError
from support.effort import examples
from support.mutation import mutated
from support.waku.strategies import envelopes

NOW = 1_700_000_000
FIRST_DAY = date(2020, 1, 1)
FIRST = (FIRST_DAY - date(1970, 1, 1)).days * SECONDS_PER_DAY


def letter(sent: int = NOW, ttl: int = 50) -> Envelope:
    return make(sent + ttl, ttl, b"abcd", b"sealed")


def stored(some: list[Envelope], latest: int = NOW, **changes: Any) -> Stored:
    """Return what an archive and a file have with the envelopes."""
    fields = {
        "latest": np.full(len(some), latest),
        "hashes": [each.hash for each in some],
        "topics": np.array([int.from_bytes(each.topic) for each in some], np.int64),
        "ids": np.array([ids.home(each) for each in some], np.int64),
    }
    return Stored(**{**fields, **changes})


def faults(raws: list[bytes], values: Stored) -> list[str]:
    return [ENVELOPE_FAULTS[fault] for fault in verify(raws, values, FIRST_DAY).fault.tolist()]


def fault(letter: Envelope, **changes: Any) -> str:
    [only] = faults([letter.raw], stored([letter], **changes))
    return only


HASH, TOPIC = "the hash does not match", "the topic does not match"


def test_the_time_of_sending_must_be_plausible() -> None:
    latest = NOW + MAX_CLOCK_SKEW_SECONDS
    for sent in (NOW, latest, FIRST):
        assert fault(letter(sent)) == ""
    assert fault(letter(latest + 1)) == "sent after it arrived"
    assert fault(letter(FIRST - 1)) == fault(letter(0)) == "sent before the lake's first day"
    assert [fault(letter(NOW, ttl)) for ttl in (0, 0xFFFFFFFF - NOW)] == ["", ""]


def test_the_stored_hash_topic_and_id_must_be_the_envelope_s_own() -> None:
    some = letter()
    assert fault(some, hashes=[bytes(32)]) == fault(some, hashes=[some.hash[:31] + b"\0"]) == HASH
    for topic in (int.from_bytes(b"abce"), 1 << 32):
        assert fault(some, topics=np.array([topic])) == TOPIC
    for more, words in ((1, HASH), (-1, ""), (1 - ids.PROBES, ""), (-ids.PROBES, HASH), (-(1 << 31), HASH)):
        assert fault(some, ids=np.array([ids.home(some) + more])) == words, "a collision makes an id lower"
    assert fault(some, ids=np.array([ids.home(some) ^ 1 << 30])) == HASH
    early = letter(FIRST - 1)
    assert fault(early, hashes=[bytes(32)], topics=np.array([0])) == HASH, "the first of several faults"
    assert faults([b"\xc0"], stored([early], hashes=[bytes(32)])) == ["not an envelope"]
    nothing, missing = Stored(np.array([NOW])), Stored(np.array([NOW]), [None], np.array([-1]))
    assert faults([some.raw], nothing) == faults([some.raw], missing) == [""]


def test_an_envelope_whose_length_takes_four_bytes_is_one_too() -> None:
    some = make(NOW + 50, 50, b"abcd", bytes(1 << 24), 7)
    found = verify([some.raw, b""], Stored(np.array([NOW, NOW])), FIRST_DAY)
    assert found.fault.tolist() == [0, ENVELOPE_FAULTS.index("not an envelope")]
    assert (found.pow[0], found.sent[0], found.topic[0]) == (some.pow(), NOW, int.from_bytes(b"abcd"))


@given(
    st.lists(mutated(st.builds(lambda sent, ttl: letter(sent, ttl).raw, st.integers(0, 2**31), st.integers(0, 99))))
)
@examples(100)
def test_a_changed_envelope_is_faulty_or_has_another_hash(raws: list[bytes]) -> None:
    first = letter()
    found = faults(raws, stored([first] * len(raws)))
    for raw, words in zip(raws, found, strict=True):
        assert words == ("the hash does not match" if is_envelope(raw) else "not an envelope") or raw == first.raw


def is_envelope(raw: bytes) -> bool:
    try:
        parse(raw)
    except RlpError:
        return False
    return True


@given(st.lists(envelopes, max_size=10))
@examples(80)
def test_the_computed_columns_are_those_of_the_envelopes(some: list[Envelope]) -> None:
    found = verify([each.raw for each in some], stored(some, 2**33), FIRST_DAY)
    assert found.hash == [each.hash for each in some]
    assert found.pow.tolist() == [each.pow() for each in some]
    assert [(e, t) for e, t in zip(found.expiry.tolist(), found.ttl.tolist(), strict=True)] == [
        (each.expiry, each.ttl) for each in some
    ]
