"""Sealing, mining and checking with the operating system's randomness, the present time and the usual policy.

The pure modules require these as arguments. Here they are optional, for programs that use the library.
"""

from __future__ import annotations

import time
from typing import Final

from restante.common.dice import Dice, SystemDice
from restante.waku.envelope import envelope as envelopes
from restante.waku.envelope import keys, mining
from restante.waku.envelope import payload as payloads
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keys import Key
from restante.waku.envelope.mining import EXTRA_TTL_SECONDS, MAX_HASHES
from restante.waku.envelope.payload import SymmetricKey
from restante.waku.protocol.acceptance import Policy, RefusalReason, judge
from restante.waku.protocol.policy import TTL_SECONDS

POLICY: Final = Policy()
"""What a node accepts that was not configured otherwise."""

_START_BYTES: Final = 8
"""Size of a nonce in bytes. The search begins at a random one."""

_SYSTEM_DICE: Final = SystemDice()


def new_key(*, dice: Dice = _SYSTEM_DICE) -> Key:
    """Return a new random key."""
    return keys.new_key(dice)


def seal(
    payload: bytes,
    *,
    to: SymmetricKey | bytes,
    sign: Key | None = None,
    padding: bytes | None = None,
    dice: Dice = _SYSTEM_DICE,
) -> bytes:
    """Return a sealed payload, the data of an envelope.

    `to` is a symmetric key, or the receiver's public key of 64 bytes. `sign` is the sender's key; only the receiver
    can read the signature. Random padding extends the payload to a multiple of 256 bytes. `padding` replaces the
    random bytes; with b"" nothing is added. Raises Misuse for a payload of 16 MiB or more, and for an invalid
    public key.
    """
    return payloads.seal(payload, to=to, dice=dice, sign=sign, padding=padding)


def make_envelope(topic: bytes, data: bytes, *, ttl: int = TTL_SECONDS, sent: int | None = None) -> Envelope:
    """Return an envelope without proof of work. Use `mine` before it is posted.

    `topic` has 4 bytes, `data` is sealed. The envelope lives for `ttl` seconds from `sent` on, which is in seconds
    since 1970 and by default the present. Raises Misuse if a field does not fit.
    """
    sent = int(time.time()) if sent is None else sent
    return envelopes.make(sent + ttl, ttl, topic, data)


def mine(
    envelope: Envelope,
    least: float = POLICY.min_pow,
    *,
    start: int | None = None,
    budget: int = MAX_HASHES,
    late: int = EXTRA_TTL_SECONDS,
) -> Envelope:
    """Return the envelope with a nonce that shows work of at least `least`, by default what most nodes require.

    Work is 2^(leading zero bits of the hash) / bytes / seconds. It is computed for a ttl that is `late` seconds
    longer, so that a node whose clock is behind also accepts the envelope. Nonces are tried from `start` on, by
    default a random number. Raises NotMined after `budget` hashes of about 1 µs each.
    """
    if start is None:
        start = int.from_bytes(_SYSTEM_DICE.draw(_START_BYTES))
    return mining.mine(envelope, least, start=start, budget=budget, late=late)


def refusal(envelope: Envelope, *, policy: Policy = POLICY, now: float | None = None) -> RefusalReason | None:
    """Return why a node with this policy would refuse the envelope, or None if it would accept it.

    `now` is in seconds since 1970, by default the present.
    """
    return judge(envelope, int(time.time() if now is None else now), policy).refusal
