"""Stamps, as clients find them."""

from __future__ import annotations

from hashlib import sha1
from itertools import count

from restante.mailbox.protocol.hashcash import Demand


def mint(demand: Demand, *, date: str, random: str) -> str:
    """Find and return a valid stamp. `date` is YYMMDD, `random` is any string without a colon.

    It takes about 2**bits hashes: roughly a second for 20 bits.
    """
    start = f"1:{demand.bits}:{date}:{demand.resource}::{random}:"
    hashed = sha1(start.encode(), usedforsecurity=False)
    below = 1 << (160 - demand.bits)
    for number in count():
        counter = b"%x" % number
        attempt = hashed.copy()
        attempt.update(counter)
        if int.from_bytes(attempt.digest()) < below:
            return start + counter.decode()
    raise AssertionError("count() is infinite")
