"""Converts verified envelopes to rows of the lake."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from restante.pipeline.clean.envelopes import ENVELOPE_FAULTS, Numbers, StoredValues, Truths, verify
from restante.pipeline.clean.rules import MICROSECONDS_PER_SECOND, SECONDS_PER_DAY
from restante.pipeline.schemas import ARCHIVED
from restante.pipeline.sources import rows
from restante.pipeline.sources.source import DUPLICATE

T = TypeVar("T")

ARCHIVED_SCHEMA: Final = rows.arrow_schema(ARCHIVED)

BATCH_ENVELOPES: Final = 2000
BATCH_BYTES: Final = 8 << 20
"""Approximate number of envelopes, and their bytes, that are verified together: small enough for the processor's
caches."""

UNREADABLE_REST: Final = "the rest of the file cannot be read"
"""The fault of the part of a file from the first unreadable byte or row on."""

TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")


class Origin(NamedTuple):
    """The source of envelopes."""

    source: str
    source_kind: str
    file: str
    """Identifies the file, or the archive."""
    name: str
    """The file's name as the quarantine shows it; "" for an archive."""


class EnvelopeBatch(NamedTuple):
    """Envelopes as a source has them, as columns."""

    raws: list[bytes]
    """b"" if there is none."""
    arrivals: Numbers
    """Their arrival numbers; in a file, their positions from 0."""
    arrived: Numbers | None
    """When each arrived, in seconds since 1970; -1 if that is unknown."""
    stored: StoredValues
    positions: Sequence[int] | None = None
    """Their positions in the file, as byte offsets or row numbers; None if `arrivals` identifies them."""
    faults: Mapping[int, str] = {}
    """Index in these columns → the fault that reading them showed."""


def group_rows(rows: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield groups of rows; each group is verified together."""
    group: list[T] = []
    bytes_ = 0
    for row in rows:
        group.append(row)
        bytes_ += size(row)
        if len(group) == BATCH_ENVELOPES or bytes_ > BATCH_BYTES:
            yield group
            group, bytes_ = [], 0
    if group:
        yield group


def verify_batch(envelopes: EnvelopeBatch, origin: Origin, seen: set[bytes] | None = None) -> pa.RecordBatch:
    """Return the envelopes, verified, as columns. A row with a fault keeps no value of the envelope.

    `seen` has the hashes of the envelopes before, if duplicates are possible; the hashes of this batch are added.
    """
    verified = verify(envelopes.raws, envelopes.stored)
    faults = {index: ENVELOPE_FAULTS[verified.fault[index]] for index in np.flatnonzero(verified.fault).tolist()}
    faults |= envelopes.faults
    if seen is not None:
        for index, name in enumerate(verified.hash):
            if index not in faults and name in seen:
                faults[index] = DUPLICATE
            elif index not in faults:
                seen.add(name)
    count = len(envelopes.raws)
    bad = np.zeros(count, np.bool_)
    bad[list(faults)] = True
    positions = envelopes.arrivals if envelopes.positions is None else envelopes.positions
    prefix = f"{origin.name}:" if origin.name else ""
    digests = {raw: hashlib.sha256(raw).hexdigest() for raw in {envelopes.raws[index] for index in faults}}
    sent = verified.sent
    columns = {
        "hash": pa.array(verified.hash, pa.binary(), mask=bad),
        "topic": _topics(verified.topic, bad),
        "sent": _times(sent, bad),
        "expiry": _times(verified.expiry, bad),
        "ttl": pa.array(verified.ttl, mask=bad),
        "size": pa.array(verified.size.astype(np.int32), mask=bad),
        "pow": pa.array(verified.pow, mask=bad),
        "file": pa.repeat(origin.file, count),
        "arrival": pa.array(envelopes.arrivals),
        "arrived": pa.nulls(count, TIMESTAMP_TYPE)
        if envelopes.arrived is None
        else _times(envelopes.arrived, bad | (envelopes.arrived < 0)),
        "raw": pa.array(envelopes.raws, pa.binary(), mask=bad),
        "day": pa.array((sent // SECONDS_PER_DAY).astype(np.int32), pa.int32(), mask=bad).cast(pa.date32()),
        "source_kind": pa.repeat(origin.source_kind, count),
        "source": pa.repeat(origin.source, count),
        "fault": _sparse(count, faults),
        "identity": _sparse(count, {index: f"{prefix}{positions[index]}" for index in faults}),
        "digest": _sparse(count, {index: digests[envelopes.raws[index]] for index in faults}),
    }
    return pa.record_batch([columns[field.name] for field in ARCHIVED_SCHEMA], schema=ARCHIVED_SCHEMA)


def _sparse(count: int, texts: Mapping[int, str]) -> pa.Array:
    """Return a column in which few rows have a text."""
    if not texts:
        return pa.nulls(count, pa.string())
    return pa.array([texts.get(index) for index in range(count)], pa.string())


def _times(seconds: Numbers, unknown: Truths) -> pa.Array:
    return pa.array(seconds * MICROSECONDS_PER_SECOND, pa.int64(), mask=unknown).cast(TIMESTAMP_TYPE)


def _topics(topics: Numbers, unknown: Truths) -> pa.Array:
    """Return topics as text: 0x and eight digits."""
    digits = topics.astype(">u4").tobytes().hex()
    return pa.array([f"0x{digits[at : at + 8]}" for at in range(0, len(digits), 8)], pa.string(), mask=unknown)
