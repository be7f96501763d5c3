"""Permission: what a stamp must be, and how much an adaptive server demands."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.mailbox.core.adaptive import FALL_INTERVAL_SECONDS, MAX_STEPS, RISE_INTERVAL_SECONDS, LoadLevel
from restante.mailbox.protocol.hashcash import MAX_BITS, MAX_STAMP_CHARACTERS, Demand, offer, problem, zero_bits
from support.mailbox.stamps import mint

SAMPLE = "1:6:210723:resource-string::NmZNF4eIbk87mqYz:000003n"
"""The stamp that spec 002 shows; made by `hashcash -b 6 -m resource-string`."""

OURS = Demand(6, "resource-string")


def test_the_sample_of_the_specification_is_good_and_the_date_of_a_stamp_may_be_anything() -> None:
    """The shipped Rust client writes base64 of YYYYMMDD."""
    assert zero_bits(SAMPLE) >= 6
    assert problem(OURS, "hashcash", SAMPLE) is None
    assert problem(OURS, "hashcash", mint(OURS, date="MjAyNjExMjE=", random="r")) is None


@pytest.mark.parametrize(
    ("method", "stamp", "words"),
    [
        ("none", SAMPLE, "method"),
        ("hashcash", None, "string"),
        ("hashcash", SAMPLE + "0" * MAX_STAMP_CHARACTERS, "string"),
        ("hashcash", "", "form"),
        ("hashcash", SAMPLE + ":", "form"),
        ("hashcash", "0" + SAMPLE[1:], "form"),
        ("hashcash", SAMPLE.replace("resource-string", "another"), "resource"),
        ("hashcash", SAMPLE.replace(":6:", ":5:"), "claim at least 6 bits"),
        ("hashcash", SAMPLE.replace(":6:", ":-6:"), "claim"),
        ("hashcash", SAMPLE.replace(":6:", ":six:"), "claim"),
        ("hashcash", SAMPLE.replace(":6:", ":٦:"), "claim"),
        ("hashcash", SAMPLE.replace(":6:", ":" + "9" * 400 + ":"), "claim"),
        ("hashcash", SAMPLE.replace("000003n", "000003o"), "6 zero bits"),
        ("hashcash", SAMPLE.replace("000003n", "\ud800"), "6 zero bits"),
    ],
)
def test_an_invalid_submission_is_explained(method: object, stamp: object, words: str) -> None:
    """scripts/mailbox/permission_denied.txt has others."""
    assert words in (problem(OURS, method, stamp) or "")


@given(st.integers(0, 10), st.text("abcdef0123456789", min_size=1, max_size=24), st.text("xyz", max_size=5))
def test_a_minted_stamp_is_valid_for_its_demand_only(bits: int, resource: str, random: str) -> None:
    demand = Demand(bits, resource)
    stamp = mint(demand, date="261121", random=random)
    assert problem(demand, "hashcash", stamp) is None
    assert problem(Demand(bits, resource + "0"), "hashcash", stamp) is not None
    assert problem(Demand(zero_bits(stamp) + 1, resource), "hashcash", stamp) is not None


def test_an_offer_always_has_the_key_none() -> None:
    assert offer(None) == {"none": {}}
    assert msgspec.json.encode(offer(Demand(20, "r"))) == b'{"none":null,"hashcash":{"bits":20,"resource":"r"}}'


# ── the load ─────────────────────────────────────────────────────────────────────────────────────


def passing(load_level: LoadLevel, seconds: int, connections: int) -> list[int | None]:
    """Let seconds go by; gives what was demanded of everybody after each change."""
    return [load_level.bits(20) for _ in range(seconds) if load_level.tick(connections, 100.0)]


def test_without_load_or_with_that_of_a_second_no_work_is_demanded() -> None:
    load_level = LoadLevel()
    assert [passing(load_level, *load) for load in ((1, 900), (60, 0), (3600, 100))] == [[], [], []]


def test_under_attack_the_work_rises_bit_by_bit_to_a_maximum_and_falls_again_more_slowly() -> None:
    load_level = LoadLevel()
    rising = passing(load_level, RISE_INTERVAL_SECONDS * 20, 1000)
    assert rising == [20, 21, 22, 23, 24, 25, 26, 27, 28]
    assert len(rising) == MAX_STEPS
    assert load_level.bits(39) == MAX_BITS
    falling = passing(load_level, FALL_INTERVAL_SECONDS * 20, 0)
    assert falling == [27, 26, 25, 24, 23, 22, 21, 20, None]
    assert load_level.changes == 2 * MAX_STEPS


def test_between_half_the_load_and_the_load_the_demand_stays() -> None:
    load_level = LoadLevel()
    passing(load_level, RISE_INTERVAL_SECONDS, 1000)
    passing(load_level, 30, 60)  # until the average is there
    steps = load_level.steps
    assert steps > 0
    assert passing(load_level, 3600, 60) == []
    assert load_level.steps == steps
