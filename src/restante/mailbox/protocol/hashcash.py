"""Permission: proof of work that a connection shows before it is served.

A welcome may demand it; then nothing but pings is taken from that connection before a valid submission. Method
`hashcash`: find a stamp whose SHA-1 begins with so many zero bits (spec 002 "Permission to Use the Server";
hashcash.org, format 1). Each bit doubles the work of whoever asks, checking is one hash.
"""

from __future__ import annotations

from hashlib import sha1
from itertools import count
from typing import Any, Final, Literal

import msgspec

Mode = Literal["none", "hashcash", "adaptive"]

MAX_STAMP_CHARACTERS: Final = 1000
"""Characters of a stamp. Real ones have some 60; its hash is all that an attacker could make us work on."""

MAX_BITS: Final = 40
"""More would take a phone a month."""


class Demand(msgspec.Struct, frozen=True, gc=False):
    """What a welcome demanded of one connection; the resource is its own, so a stamp is good for it alone."""

    bits: int
    resource: str
    """Any string without a colon."""


def offer(demand: Demand | None) -> dict[str, Any]:
    """Give the welcome's `permission-required`.

    The key `none` is there in both cases: the shipped Rust client cannot read it otherwise (null: not offered).
    """
    if demand is None:
        return {"none": {}}
    return {"none": None, "hashcash": {"bits": demand.bits, "resource": demand.resource}}


def problem(demand: Demand, method: object, stamp: object) -> str | None:
    """Return what is wrong with a submission, in words for its sender; None: it is good."""
    if method != "hashcash":
        return "the method must be hashcash"
    if not isinstance(stamp, str) or len(stamp) > MAX_STAMP_CHARACTERS:
        return "the stamp must be a string, of the form 1:bits:date:resource:extension:random:counter"
    fields = stamp.split(":")
    if len(fields) != 7 or fields[0] != "1":
        return "the stamp must have the form 1:bits:date:resource:extension:random:counter"
    if fields[3] != demand.resource:
        return "the stamp must be for the resource that the welcome named"
    claimed = fields[1]
    if not (claimed.isascii() and claimed.isdigit() and len(claimed) <= 3 and int(claimed) >= demand.bits):
        return f"the stamp must claim at least {demand.bits} bits"
    # Its date is not looked at: the shipped Rust client writes it in a form of its own, and the resource is fresh.
    if zero_bits(stamp) < demand.bits:
        return f"the stamp's SHA-1 must begin with {demand.bits} zero bits"
    return None


def zero_bits(stamp: str) -> int:
    """Count the zero bits that the stamp's SHA-1 begins with."""
    return 160 - int.from_bytes(_sha1(stamp.encode(errors="replace"))).bit_length()


def mint(demand: Demand, *, date: str, random: str) -> str:
    """Find a stamp: about 2**bits hashes, a second or so for 20 bits. `date` is YYMMDD, `random` is anybody's."""
    start = f"1:{demand.bits}:{date}:{demand.resource}::{random}:"
    hashed = sha1(start.encode(), usedforsecurity=False)
    below = 1 << (160 - demand.bits)
    for number in count():
        counter = b"%x" % number
        attempt = hashed.copy()
        attempt.update(counter)
        if int.from_bytes(attempt.digest()) < below:
            return start + counter.decode()
    raise AssertionError("numbers do not end")


def _sha1(data: bytes) -> bytes:
    return sha1(data, usedforsecurity=False).digest()
