"""Stand-in until the real one is merged."""
from __future__ import annotations
import math
from typing import NamedTuple
import msgspec
from restante.waku.envelope import Envelope

class Policy(msgspec.Struct, frozen=True):
    min_pow: float = 2e-6
    max_size: int = 1 << 20
    max_ttl: int = 7*86400

class Flaw(NamedTuple):
    name: str
    code: int
    words: str

class Verdict(NamedTuple):
    flaw: Flaw | None
    pow: float

def judge(envelope: Envelope, now: int, policy: Policy) -> Verdict:
    sent = envelope.sent
    late = 0
    if sent > now:
        if sent - 10 > now:
            return Verdict(Flaw("future", 21, "from the future"), 0)
        late = sent - now + 1
    if envelope.expiry < now:
        if envelope.expiry + 20 < now:
            return Verdict(Flaw("old", 21, "very old"), 0)
        return Verdict(Flaw("expired", 21, ""), 0)
    if envelope.ttl > policy.max_ttl:
        return Verdict(Flaw("ttl", 22, "lives too long"), 0)
    pow = envelope.pow(late)
    if pow < policy.min_pow:
        return Verdict(Flaw("pow", 22, "too little work"), 0)
    return Verdict(None, pow)
