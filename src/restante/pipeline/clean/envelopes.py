"""Verifies envelopes: each one once, when it is read for the lake.

An envelope must be canonical RLP with the structure of an envelope, must agree with the values that are stored beside
it, above all its hash, and must have a plausible time. Expired envelopes are valid: archives exist to keep them. The
proof of work is computed, but not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, Final, NamedTuple

import numpy as np

from restante.pipeline.clean.fields import Fields, Floats, Numbers, Truths
from restante.pipeline.clean.rules import SECONDS_PER_DAY
from restante.waku.archive.ids import BITS, PROBES
from restante.waku.envelope.envelope import U32, parse
from restante.waku.envelope.keccak import keccaks
from restante.waku.envelope.rlp import RlpError

NOT_AN_ENVELOPE: Final = "not an envelope"
OTHER_HASH: Final = "the hash does not match"
OTHER_TOPIC: Final = "the topic does not match"
TTL_TOO_LONG: Final = "the TTL begins before 1970"
SENT_TOO_EARLY: Final = "sent before the lake's first day"
SENT_TOO_LATE: Final = "sent after it arrived"

ENVELOPE_FAULTS: Final = ("", NOT_AN_ENVELOPE, OTHER_HASH, OTHER_TOPIC, TTL_TOO_LONG, SENT_TOO_EARLY, SENT_TOO_LATE)
"""The possible faults, in the order of the checks; an envelope gets the first that applies."""

MAX_CLOCK_SKEW_SECONDS: Final = 20
"""Seconds by which an envelope's own time may be after its arrival. A Mailserver accepts senders' clocks that are 10
s ahead of its own (restante.waku.protocol.acceptance), and its own clock may be set in the meantime."""


class StoredValues(NamedTuple):
    """The values that an archive or a file stores beside its envelopes."""

    latest: Numbers
    """When each envelope arrived, or the latest time at which it can have arrived; in seconds since 1970."""
    hashes: Sequence[bytes | None] | None = None
    topics: Numbers | None = None
    """-1 if it is not known."""
    ids: Numbers | None = None
    """The ids of an archive's rows, which contain the first bits of the hash (restante.waku.archive.ids)."""


class Verified(NamedTuple):
    """The values of envelopes, one column each. Of an envelope with a fault, only the fault has a meaning."""

    fault: np.ndarray[Any, np.dtype[np.int8]]
    """Index in ENVELOPE_FAULTS."""
    hash: list[bytes]
    topic: Numbers
    expiry: Numbers
    ttl: Numbers
    pow: Floats
    size: Numbers
    """In bytes. It also has a meaning for an envelope with a fault."""

    @property
    def sent(self) -> Numbers:
        """Return when each was sent, according to its sender."""
        return self.expiry - self.ttl


def verify(raws: Sequence[bytes], stored: StoredValues, first_day: date) -> Verified:
    """Verify envelopes. b"" is not an envelope."""
    verified = _read_envelopes(raws)
    sent = verified.sent
    for fault, wrong in (
        (OTHER_HASH, _other_hash(verified, stored)),
        (OTHER_TOPIC, _other_topic(verified, stored)),
        (TTL_TOO_LONG, sent < 0),
        (SENT_TOO_EARLY, sent < (first_day - date(1970, 1, 1)).days * SECONDS_PER_DAY),
        (SENT_TOO_LATE, sent > stored.latest + MAX_CLOCK_SKEW_SECONDS),
    ):
        verified.fault[wrong & (verified.fault == 0)] = ENVELOPE_FAULTS.index(fault)
    return verified


def _read_envelopes(raws: Sequence[bytes]) -> Verified:
    """Return the values of envelopes. An object that occurs many times, as in a hostile file, is read once."""
    distinct = {id(raw): raw for raw in raws}
    if len(distinct) < len(raws):
        index_of = {key: index for index, key in enumerate(distinct)}
        at = np.array([index_of[id(raw)] for raw in raws])
        read = _read_envelopes([*distinct.values()])
        hashes = [read.hash[index] for index in at]
        fault, topic, expiry, ttl = read.fault[at], read.topic[at], read.expiry[at], read.ttl[at]
        return Verified(fault, hashes, topic, expiry, ttl, read.pow[at], read.size[at])
    fields = Fields(raws)
    fault = np.where(fields.good, 0, ENVELOPE_FAULTS.index(NOT_AN_ENVELOPE)).astype(np.int8)
    topic, expiry, ttl = (column.astype(np.int64) for column in (fields.topic, fields.expiry, fields.ttl))
    verified = Verified(fault, keccaks(raws), topic, expiry, ttl, fields.compute_pow(), fields.size)
    for index in np.flatnonzero(~fields.good).tolist():  # rare: `parse` decides
        try:
            envelope = parse(raws[index])
        except RlpError:
            continue
        verified.fault[index] = 0
        verified.topic[index] = int.from_bytes(envelope.topic)
        verified.expiry[index], verified.ttl[index] = envelope.expiry, envelope.ttl
        verified.pow[index] = envelope.pow()
    return verified


def _other_hash(verified: Verified, stored: StoredValues) -> Truths:
    wrong = np.zeros(len(verified.hash), np.bool_)
    if stored.hashes is not None:
        others = [
            stored_hash not in (None, name) for stored_hash, name in zip(stored.hashes, verified.hash, strict=True)
        ]
        wrong |= np.array(others, np.bool_)
    if stored.ids is not None:
        starts = np.frombuffer(b"".join([name[:4] for name in verified.hash]), ">u4").astype(np.int64) >> 1
        sent = verified.sent & U32
        # If another envelope has its id, an envelope gets the next lower id that is free in its second
        # (archive/ids.py). Whether all ids between are taken is not checked: another envelope's id is that near by
        # chance once in a million.
        above = (sent << BITS | starts) - stored.ids
        wrong |= (above < 0) | (above >= PROBES) | (stored.ids >> BITS != sent)
    return wrong


def _other_topic(verified: Verified, stored: StoredValues) -> Truths:
    if stored.topics is None:
        return np.zeros(len(verified.hash), np.bool_)
    other: Truths = (stored.topics != verified.topic) & (stored.topics >= 0)
    return other
