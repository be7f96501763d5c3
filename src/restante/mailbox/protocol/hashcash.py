"""Permission: proof of work that a client shows before the server serves it.

A welcome may demand it. The server then answers only pings on that connection until a valid submission arrives. The
method is `hashcash`: the client finds a stamp whose SHA-1 begins with the demanded number of zero bits (spec 002
"Permission to Use the Server"; hashcash.org, format 1). Each extra bit doubles the client's work; the server checks a
stamp with one hash.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Any, Final, Literal

import msgspec

Mode = Literal["none", "hashcash", "adaptive"]

MAX_STAMP_CHARACTERS: Final = 1000
"""Maximum length of a stamp. Real stamps have about 60 characters. The server hashes the whole stamp, so the limit
bounds the work that an attacker can cause."""

MAX_BITS: Final = 40
"""Maximum difficulty in bits. A phone would need a month for more."""


class Demand(msgspec.Struct, frozen=True, gc=False):
    """The work that a welcome demands. Each connection has its own resource, so a stamp is valid only there."""

    bits: int
    resource: str
    """Any string without a colon."""


def offer(demand: Demand | None) -> dict[str, Any]:
    """Return the welcome's `permission-required`.

    The key `none` is always present (null: not offered), because the shipped Rust client cannot read the object
    without it.
    """
    if demand is None:
        return {"none": {}}
    return {"none": None, "hashcash": {"bits": demand.bits, "resource": demand.resource}}


def problem(demand: Demand, method: object, stamp: object) -> str | None:
    """Return why a submission is invalid, as a hint for the client, or None if it is valid."""
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
    # The date is not checked: the shipped Rust client writes it in its own format, and the resource is fresh anyway.
    if zero_bits(stamp) < demand.bits:
        return f"the stamp's SHA-1 must begin with {demand.bits} zero bits"
    return None


def zero_bits(stamp: str) -> int:
    """Return the number of leading zero bits of the stamp's SHA-1."""
    return 160 - int.from_bytes(_sha1(stamp.encode(errors="replace"))).bit_length()


def _sha1(data: bytes) -> bytes:
    return sha1(data, usedforsecurity=False).digest()
