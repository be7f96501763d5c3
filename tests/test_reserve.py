"""The last tenth of the store is for small mailboxes of addresses that hold little."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from restante.mailbox.core.address_quotas import AddressQuota
from restante.mailbox.core.dispatcher import Dispatcher
from restante.mailbox.core.limits import KIB, MIB, RESERVED_FOR_ADDRESSES, RESERVED_SHARE, SMALL_MAILBOX_BYTES, Limits
from restante.mailbox.core.model import Policy
from restante.mailbox.core.quotas import TOO_MANY_CLAIMS
from restante.mailbox.core.rules import SERVER_FULL
from restante.mailbox.core.state import State
from support.dice import FakeDice
from support.mailbox.givens import Peer

STORED = 80 * MIB
"""So that 64 addresses that fill all but the reserve hold more than a small holder does."""
LIMITS = Limits(stored_bytes=STORED, address_bytes=4 * MIB, commands=0.0, bytes=0.0)


def fill(peer: Peer, mailbox: str, size: int) -> int:
    """Add messages of this size until one is refused; return how many were taken."""
    peer.say(type="open", mailbox=mailbox)
    for number in itertools.count():
        [answer] = peer.say(type="add", phase=str(number), body="0" * size) or [{"type": "error"}]
        if answer["type"] == "error":
            peer.say(type="close")
            return number
    raise AssertionError("everything was taken")


def filled() -> tuple[Dispatcher, list[Peer]]:
    """Let 64 addresses use as much as they are allowed: large mailboxes first, then small ones."""
    dispatcher = Dispatcher(State(), FakeDice(), Policy(limits=LIMITS))
    peers = [Peer(dispatcher, f"filler {number}") for number in range(64)]
    most = int(STORED * (1 - RESERVED_SHARE) / len(peers))
    for number, peer in enumerate(peers):
        peer.say(type="open", mailbox=f"large {number}")
        for phase in range(6):
            peer.say(type="add", phase=str(phase), body="0" * (most // 6))
    for number, peer in enumerate(peers):
        for more in range(5):
            fill(
                Peer(dispatcher, f"filler {number}", peer.connection.address_quotas[0]),
                f"small {number} {more}",
                30 * KIB,
            )
    return dispatcher, peers


def fill_reserve(dispatcher: Dispatcher, number: int) -> int:
    """Let an address create as many small mailboxes as it can, with the longest side; return its bytes."""
    quota = AddressQuota()
    for more in itertools.count():
        peer = Peer(dispatcher, f"{number} {more}".rjust(500, "\U0001f4ec"), quota)
        if peer.say(type="open", mailbox=f"small {number} {more}"):
            return quota.stored
        phases = map(str, itertools.count())
        while peer.say(type="add", phase=next(phases), body="0" * 3 * KIB)[-1]["type"] == "message":
            pass
    raise AssertionError("everything was taken")


def complete_a_pair(dispatcher: Dispatcher) -> None:
    for name in ("1", "2"):
        a, b = Peer(dispatcher, "a"), Peer(dispatcher, "b")
        for each in (a, b):
            [claimed] = each.say(type="claim", nameplate=name)
            each.say(type="open", mailbox=claimed["mailbox"])
        for number in range(10):
            for each in (a, b):
                assert each.say(type="add", phase=str(number), body="00" * 300)[-1]["type"] == "message"
        for each in (a, b):
            assert each.say(type="release")[-1]["type"] == "released"
            assert each.say(type="close", mood="happy")[-1]["type"] == "closed"


def test_beside_64_full_addresses_a_fresh_pair_completes() -> None:
    dispatcher, _ = filled()
    assert dispatcher.state.nearly_full(LIMITS)
    complete_a_pair(dispatcher)
    assert dispatcher.state.stored < STORED


@pytest.mark.parametrize(
    "stored",
    [24 * MIB, *(pytest.param(size, marks=pytest.mark.thorough) for size in (128 * MIB, Limits().stored_bytes))],
    ids=["24 MiB", "128 MiB", "default"],
)
def test_64_addresses_do_not_use_up_the_reserve(stored: int) -> None:
    """With 128 MiB, thirteen addresses did: each could hold a megabyte, whatever the size of the reserve."""
    limits = Limits(stored_bytes=stored, commands=0.0, bytes=0.0)
    dispatcher = Dispatcher(State(), FakeDice(), Policy(limits=limits))
    dispatcher.state.stored = int(stored * (1 - RESERVED_SHARE))  # large mailboxes
    for number in range(RESERVED_FOR_ADDRESSES):
        assert limits.small_holder_bytes <= fill_reserve(dispatcher, number) <= stored // 10 // RESERVED_FOR_ADDRESSES
    complete_a_pair(dispatcher)
    assert dispatcher.state.stored < stored


def test_the_reserve_for_an_address_has_bounds() -> None:
    for stored, mailbox, holder in (
        (MIB, 16 * KIB, 16 * KIB),
        (Limits().stored_bytes, 64 * KIB, MIB),
        (100 * Limits().stored_bytes, 64 * KIB, MIB),
    ):
        limits = Limits(stored_bytes=stored)
        assert (limits.small_mailbox_bytes, limits.small_holder_bytes) == (mailbox, holder)


def test_an_address_that_holds_much_may_join_and_end_mailboxes_but_not_create_any() -> None:
    dispatcher, peers = filled()
    rich, fresh = peers[0].connection.address_quotas[0], Peer(dispatcher, "a")
    [claimed] = fresh.say(type="claim", nameplate="7")
    for command in ({"type": "allocate"}, {"type": "claim", "nameplate": "8"}, {"type": "open", "mailbox": "new"}):
        [refused] = Peer(dispatcher, "b", rich).say(**command)
        assert refused["error"] == "the server is full"
        assert (
            refused["hint"]
            == "the remaining room is reserved for addresses that hold less than 81 KiB; try again later"
        )
    joining = Peer(dispatcher, "b", rich)
    assert joining.say(type="claim", nameplate="7")[-1] == {**claimed, "id": None}
    assert joining.say(type="open", mailbox=claimed["mailbox"]) == []
    [refused] = joining.say(type="add", phase="p", body="")
    assert refused["error"] == "the server is full"
    assert joining.say(type="close")[-1]["type"] == "closed"


def test_in_the_reserve_claims_are_charged_whether_or_not_the_nameplate_exists() -> None:
    """What is refused for want of room would tell for nothing which nameplates live."""
    dispatcher, peers = filled()
    dispatcher.policy = replace(
        dispatcher.policy, limits=replace(LIMITS, address_claims=1.0, address_claims_at_once=10)
    )
    Peer(dispatcher, "a").say(type="claim", nameplate="7")
    rich = peers[0].connection.address_quotas[0]
    answers = [Peer(dispatcher, "b", rich).say(type="claim", nameplate=str(name))[-1] for name in range(1, 21)]
    assert [answer.get("error") for answer in answers[:10]] == [*6 * [SERVER_FULL], None, *3 * [SERVER_FULL]]
    assert {answer["error"] for answer in answers[10:]} == {TOO_MANY_CLAIMS}


def test_large_phases_and_ids_do_not_bypass_the_reserve() -> None:
    dispatcher, _ = filled()
    peer = Peer(dispatcher, "a")
    peer.say(type="open", mailbox="mine")
    large = "0" * SMALL_MAILBOX_BYTES
    for message in ({"phase": large, "body": ""}, {"phase": "p", "body": "", "id": large}):
        assert peer.say(type="add", **message)[-1]["error"] == SERVER_FULL


def test_a_mailbox_in_the_reserve_stays_small() -> None:
    dispatcher, _ = filled()
    size = 10 * KIB
    taken = fill(Peer(dispatcher, "a"), "mine", size)
    assert LIMITS.small_mailbox_bytes - 2 * size < taken * size < LIMITS.small_mailbox_bytes
    too_large = Peer(dispatcher, "b")
    too_large.say(type="open", mailbox="yours")
    [refused] = too_large.say(type="add", phase="p", body="0" * SMALL_MAILBOX_BYTES)
    assert refused["hint"] == "the remaining room is reserved for mailboxes of up to 42 KiB; try again later"


def test_names_count_by_the_memory_that_they_take() -> None:
    dispatcher = Dispatcher(State(), FakeDice(), Policy(limits=LIMITS))
    Peer(dispatcher, "a").say(type="open", mailbox="m")
    short = dispatcher.state.stored
    long = "\U0001f4ec" * 500
    peer = Peer(dispatcher, long)
    peer.say(type="open", mailbox=long)
    quota = peer.connection.address_quotas[0]
    assert dispatcher.state.stored - short == quota.stored > 3 * 4 * 500
    peer.say(type="close", mood="happy")
    assert (dispatcher.state.stored, quota.stored) == (short, 0)
