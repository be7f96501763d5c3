"""The core: lists of nameplates, what takes room, its last tenth, permission, rates, memory, what commands cost."""

from __future__ import annotations

import itertools
import json
from collections.abc import Hashable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from restante.client.connection.work import search_stamps, stamp_prefix
from restante.common.errors import PeerError
from restante.common.memory_holders import LONG_HOLD_SECONDS, SPARED_BYTES, MemoryHolders
from restante.mailbox.core import model
from restante.mailbox.core.admission import FALL_INTERVAL_SECONDS, MAX_STEPS, RISE_INTERVAL_SECONDS, LoadLevel
from restante.mailbox.core.dispatcher import (
    FRAME_WEIGHT,
    MAX_DEPARTING_CHARACTERS,
    MAX_DEPARTING_COMMANDS,
    MAX_SUBSCRIBERS,
    MESSAGE_GONE_WEIGHT,
    Dispatcher,
)
from restante.mailbox.core.fair_queue import MAX_BATCH_WEIGHT
from restante.mailbox.core.limits import (
    KIB,
    MIB,
    RESERVED_FOR_ADDRESSES,
    RESERVED_SHARE,
    SMALL_MAILBOX_BYTES,
    UNLIMITED,
    Limits,
    RateLimiter,
)
from restante.mailbox.core.model import Mailbox, MailboxSide, Nameplate, Now, Policy
from restante.mailbox.core.quotas import ABUSE_SCORE_TOLERATED, CONNECTION_ABUSE_SCORE, AddressQuota
from restante.mailbox.core.state import State
from restante.mailbox.protocol.hashcash import MAX_BITS, MAX_STAMP_CHARACTERS, Demand, offer, problem, zero_bits
from restante.mailbox.protocol.refusals import SERVER_FULL, TOO_MANY_CLAIMS
from support.dice import FakeDice
from support.effort import examples
from support.mailbox.givens import EPOCH, Inbox

NAMES = st.sampled_from([*"0123456789", "007", "12", "13", "100"])
STRANGE_NAMES = st.text(min_size=1) | st.sampled_from(['1","2', '","', '"', "\\", ","])


@given(st.lists(STRANGE_NAMES, unique=True) | st.lists(NAMES, unique=True), st.data())
@examples(60)
def test_a_listing_has_all_live_names_sorted(names: list[str], data: st.DataObject) -> None:
    state = State()
    state.put_mailbox(Mailbox(1, "app", "m", True, 2.5, [], crowded=False))
    plates = [Nameplate(key, "app", name, "m", []) for key, name in enumerate(names, 2)]
    for plate in plates:
        state.put_nameplate(plate)
    gone = data.draw(st.lists(st.sampled_from(plates), unique_by=id) if plates else st.just([]))
    for plate in gone:
        state.fold(model.NameplateGone(plate))
    left = sorted(plate.name for plate in plates if plate not in gone)
    assert json.loads(state.apps["app"].listing()) == [{"id": name} for name in left]


class BoundPeer:
    def __init__(self, dispatcher: Dispatcher, side: str, quota: AddressQuota | None = None) -> None:
        self.dispatcher = dispatcher
        self.inbox = Inbox()
        self.connection = self.inbox.connection
        self.connection.address_quotas = (quota or AddressQuota(),)
        self.weight = 0
        dispatcher.add_connection(self.connection)
        self.say(type="bind", appid="x", side=side)

    def say(self, **message: Any) -> list[dict[str, Any]]:
        text = json.dumps(message)
        self.weight = self.dispatcher.handle(self.connection, text, len(text), Now(EPOCH, 0.0))
        frames = [json.loads(body + b"}") for body in self.connection.outbox]
        self.dispatcher.end_batch()
        self.connection.outbox = []
        return frames[1:]


STORED = 80 * MIB
"""So that 64 addresses that fill all but the reserve hold more than a small holder does."""
LIMITS = Limits(stored_bytes=STORED, address_bytes=4 * MIB, commands=0.0, bytes=0.0)


def test_what_sides_and_moods_take_is_counted_until_they_are_gone() -> None:
    """A mailbox of short names held 6 KB of sides and moods and was counted with 2 KB."""
    state = State()
    mailbox = Mailbox(1, "app", "m", True, 2.5, [MailboxSide("a", 1.5)], crowded=False)
    state.put_mailbox(mailbox)
    before = state.stored
    state.fold(model.MailboxSideSet(mailbox, MailboxSide("\N{PILE OF POO}" * 500, 1.5, mood="\N{PILE OF POO}" * 400)))
    assert state.stored == before + 4 * 900 - 1  # a second side of one letter was assumed
    state.fold(model.MailboxSideGone(mailbox, "\N{PILE OF POO}" * 500))
    assert state.stored == before
    state.fold(model.MailboxGone(mailbox))
    assert state.stored == 0


def test_names_count_by_the_memory_that_they_take() -> None:
    dispatcher = Dispatcher(State(), FakeDice(), Policy(limits=LIMITS))
    BoundPeer(dispatcher, "a").say(type="open", mailbox="m")
    short = dispatcher.state.stored
    long = "\U0001f4ec" * 500
    peer = BoundPeer(dispatcher, long)
    peer.say(type="open", mailbox=long)
    quota = peer.connection.address_quotas[0]
    assert dispatcher.state.stored - short == quota.stored > 3 * 4 * 500
    peer.say(type="close", mood="happy")
    assert (dispatcher.state.stored, quota.stored) == (short, 0)


def fill(peer: BoundPeer, mailbox: str, size: int) -> int:
    peer.say(type="open", mailbox=mailbox)
    for number in itertools.count():
        [answer] = peer.say(type="add", phase=str(number), body="0" * size) or [{"type": "error"}]
        if answer["type"] == "error":
            peer.say(type="close")
            return number
    raise AssertionError("everything was taken")


def filled() -> tuple[Dispatcher, AddressQuota]:
    """Let 64 addresses use as much as they are allowed: large mailboxes, then small ones. Return the quota of one."""
    dispatcher = Dispatcher(State(), FakeDice(), Policy(limits=LIMITS))
    peers = [BoundPeer(dispatcher, f"filler {number}") for number in range(64)]
    most = int(STORED * (1 - RESERVED_SHARE) / len(peers))
    for number, peer in enumerate(peers):
        peer.say(type="open", mailbox=f"large {number}")
        for phase in range(6):
            peer.say(type="add", phase=str(phase), body="0" * (most // 6))
    quotas = [peer.connection.address_quotas[0] for peer in peers]
    for number, quota in enumerate(quotas):
        for more in range(5):
            fill(BoundPeer(dispatcher, f"filler {number}", quota), f"small {number} {more}", 30 * KIB)
    return dispatcher, quotas[0]


def fill_reserve(dispatcher: Dispatcher, number: int) -> int:
    """Let an address create as many small mailboxes as it can, with the longest side; return its bytes."""
    quota = AddressQuota()
    for more in itertools.count():
        peer = BoundPeer(dispatcher, f"{number} {more}".rjust(500, "\U0001f4ec"), quota)
        if peer.say(type="open", mailbox=f"small {number} {more}"):
            return quota.stored
        phases = map(str, itertools.count())
        while peer.say(type="add", phase=next(phases), body="0" * 3 * KIB)[-1]["type"] == "message":
            pass
    raise AssertionError("everything was taken")


def complete_a_pair(dispatcher: Dispatcher) -> None:
    for name in ("1", "2"):
        pair = BoundPeer(dispatcher, "a"), BoundPeer(dispatcher, "b")
        for peer in pair:
            [claimed] = peer.say(type="claim", nameplate=name)
            peer.say(type="open", mailbox=claimed["mailbox"])
        for number in range(10):
            for peer in pair:
                assert peer.say(type="add", phase=str(number), body="00" * 300)[-1]["type"] == "message"
        for peer in pair:
            assert peer.say(type="release")[-1]["type"] == "released"
            assert peer.say(type="close", mood="happy")[-1]["type"] == "closed"


def test_beside_64_full_addresses_a_fresh_pair_completes_and_a_mailbox_stays_small() -> None:
    """Large phases and ids do not bypass the reserve."""
    dispatcher, _ = filled()
    assert dispatcher.state.nearly_full(LIMITS)
    peer = BoundPeer(dispatcher, "a")
    peer.say(type="open", mailbox="mine")
    large = "0" * SMALL_MAILBOX_BYTES
    for message in ({"phase": large, "body": ""}, {"phase": "p", "body": "", "id": large}):
        assert peer.say(type="add", **message)[-1]["error"] == SERVER_FULL.message
    [refused] = peer.say(type="add", phase="p", body=large)
    assert refused["hint"] == "the remaining room is reserved for mailboxes of up to 42 KiB; try again later"
    size = 10 * KIB
    taken = fill(BoundPeer(dispatcher, "b"), "yours", size)
    assert LIMITS.small_mailbox_bytes - 2 * size < taken * size < LIMITS.small_mailbox_bytes
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
    default = Limits().stored_bytes
    for stored, *bounds in ((MIB, 16 * KIB, 16 * KIB), (default, 64 * KIB, MIB), (100 * default, 64 * KIB, MIB)):
        limits = Limits(stored_bytes=stored)
        assert [limits.small_mailbox_bytes, limits.small_holder_bytes] == bounds


def test_an_address_that_holds_much_may_join_and_end_mailboxes_but_not_create_any() -> None:
    dispatcher, rich = filled()
    [claimed] = BoundPeer(dispatcher, "a").say(type="claim", nameplate="7")
    hint = "the remaining room is reserved for addresses that hold less than 81 KiB; try again later"
    for command in ({"type": "allocate"}, {"type": "claim", "nameplate": "8"}, {"type": "open", "mailbox": "new"}):
        [refused] = BoundPeer(dispatcher, "b", rich).say(**command)
        assert (refused["error"], refused["hint"]) == ("the server is full", hint)
    joining = BoundPeer(dispatcher, "b", rich)
    assert joining.say(type="claim", nameplate="7")[-1] == {**claimed, "id": None}
    assert joining.say(type="open", mailbox=claimed["mailbox"]) == []
    [refused] = joining.say(type="add", phase="p", body="")
    assert refused["error"] == "the server is full"
    assert joining.say(type="close")[-1]["type"] == "closed"


def test_in_the_reserve_claims_are_charged_whether_or_not_the_nameplate_exists() -> None:
    """What is refused for want of room would tell for nothing which nameplates live."""
    dispatcher, rich = filled()
    dispatcher.policy.limits = replace(LIMITS, address_claims=1.0, address_claims_at_once=10)
    BoundPeer(dispatcher, "a").say(type="claim", nameplate="7")
    answers = [BoundPeer(dispatcher, "b", rich).say(type="claim", nameplate=str(name))[-1] for name in range(1, 21)]
    full = SERVER_FULL.message
    assert [answer.get("error") for answer in answers[:10]] == [*6 * [full], None, *3 * [full]]
    assert {answer["error"] for answer in answers[10:]} == {TOO_MANY_CLAIMS.message}


SAMPLE = "1:6:210723:resource-string::NmZNF4eIbk87mqYz:000003n"
"""The stamp that spec 002 shows; made by `hashcash -b 6 -m resource-string`."""

OURS = Demand(6, "resource-string")


def mint(demand: Demand, date: str, random: str) -> str:
    prefix = stamp_prefix(demand.bits, demand.resource, date, random)
    return next(filter(None, search_stamps(prefix, demand.bits, 0, 1)))


def test_the_sample_of_the_specification_is_good_and_the_date_of_a_stamp_may_be_anything() -> None:
    """The shipped Rust client writes base64 of YYYYMMDD."""
    assert zero_bits(SAMPLE) >= 6
    assert problem(OURS, "hashcash", SAMPLE) is None
    assert problem(OURS, "hashcash", mint(OURS, date="MjAyNjExMjE=", random="r")) is None


@pytest.mark.parametrize(
    ("method", "stamp", "hint"),
    [
        ("none", SAMPLE, "method"),
        ("hashcash", None, "string"),
        ("hashcash", SAMPLE + "0" * MAX_STAMP_CHARACTERS, "string"),
        ("hashcash", "", "form"),
        ("hashcash", SAMPLE + ":", "form"),
        ("hashcash", "0" + SAMPLE[1:], "form"),
        ("hashcash", SAMPLE.replace("resource-string", "another"), "resource"),
        ("hashcash", SAMPLE.replace(":6:", ":5:"), "claim at least 6 bits"),
        ("hashcash", SAMPLE.replace(":6:", ":٦:"), "claim"),
        ("hashcash", SAMPLE.replace(":6:", ":" + "9" * 400 + ":"), "claim"),
        ("hashcash", SAMPLE.replace("000003n", "000003o"), "6 zero bits"),
        ("hashcash", SAMPLE.replace("000003n", "\ud800"), "6 zero bits"),
    ],
)
def test_an_invalid_submission_is_explained(method: object, stamp: object, hint: str) -> None:
    """scripts/mailbox/permission_denied.txt has others."""
    assert hint in (problem(OURS, method, stamp) or "")


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


RATES = replace(UNLIMITED, commands=10.0, commands_at_once=5, bytes=1000.0, bytes_at_once=5000)


def test_an_expensive_command_is_executed_and_the_next_ones_wait() -> None:
    limiter = RateLimiter()
    limiter.charge(0.0, RATES.rates, 20_000)
    assert limiter.refresh(0.0, RATES.rates) == pytest.approx(15.0)
    assert limiter.refresh(15.01, RATES.rates) == 0


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 3000)), min_size=1, max_size=50))
def test_a_connection_that_keeps_its_waits_never_exceeds_the_limits(sent: list[tuple[float, int]]) -> None:
    limiter, now, commands, size = RateLimiter(), 0.0, 0, 0
    for passed, cost in sent:
        now += passed
        now += limiter.refresh(now, RATES.rates)
        assert commands <= RATES.commands_at_once + now * RATES.commands + 1e-6
        assert size <= RATES.bytes_at_once + now * RATES.bytes + 3000
        limiter.charge(now, RATES.rates, cost)
        commands, size = commands + 1, size + cost


def test_no_default_contradicts_another() -> None:
    limits = Limits()
    assert limits.message_bytes <= limits.mailbox_bytes <= limits.stored_bytes
    assert limits.message_bytes <= limits.bytes_at_once
    assert limits.mailbox_bytes <= limits.address_bytes < limits.stored_bytes
    assert limits.mailbox_bytes < limits.held_bytes
    # The limits' own reasons are no trouble to an adaptive server: an office after an outage, a class of thirty.
    assert limits.address_connects_at_once * CONNECTION_ABUSE_SCORE < ABUSE_SCORE_TOLERATED
    assert 30 + limits.address_claims_at_once * CONNECTION_ABUSE_SCORE < ABUSE_SCORE_TOLERATED


class Holder:
    def __init__(self, *addresses: Hashable, held_bytes: int) -> None:
        self.addresses, self.held_bytes = addresses, held_bytes

    def give_up(self) -> None:
        self.held_bytes = 0


def closed(excess: int, *came: tuple[Holder, int], now: int) -> set[Holder]:
    """Return which are closed to free so many bytes, of clients that came in their seconds."""
    memory_holders = MemoryHolders()
    for client, second in came:
        memory_holders.note(client, second)
    memory_holders.close(excess, now)
    return {client for client, _ in came if not client.held_bytes}


def test_an_address_that_holds_much_is_closed_before_those_that_hold_a_little_for_long() -> None:
    idle = [(Holder(f"honest {number}", held_bytes=18 * KIB), 0) for number in range(10)]
    attackers = [(Holder("attacker", held_bytes=4 * MIB), 3600) for _ in range(66)]
    gone = closed(100 * MIB, *idle, *attackers, now=3600)
    assert gone <= {client for client, _ in attackers}
    assert len(gone) == 25


@pytest.mark.parametrize("named", [0, 1], ids=["one address", "one of two addresses"])
def test_many_small_connections_that_share_an_address_count_together(named: int) -> None:
    names = (("attacker", *[f"named {number}"] * named) for number in range(100))
    attackers = [(Holder(*addresses, held_bytes=SPARED_BYTES // 2), 0) for addresses in names]
    large = Holder("honest", held_bytes=2 * MIB)
    assert large not in closed(MIB, *attackers, (large, 20), now=20)


def test_a_new_holder_is_spared_while_others_hold_as_much_for_longer() -> None:
    attackers = [(Holder(f"attacker {number}", held_bytes=4 * MIB), 0) for number in range(64)]
    newcomer = Holder("honest", held_bytes=4 * MIB)
    assert newcomer not in closed(32 * MIB, (newcomer, LONG_HOLD_SECONDS), *attackers, now=LONG_HOLD_SECONDS)


def test_a_connection_that_held_nothing_in_between_counts_from_then_on() -> None:
    memory_holders, first, second = MemoryHolders(), Holder(1, held_bytes=MIB), Holder(2, held_bytes=MIB)
    memory_holders.note(first, 0)
    memory_holders.note(second, 5)
    memory_holders.note(first, 9, anew=True)
    memory_holders.close(MIB, 9)
    assert (first.held_bytes, second.held_bytes) == (MIB, 0)
    memory_holders.note(second, 9)
    first.held_bytes = 0
    memory_holders.close(MIB, 9)
    assert len(memory_holders) == 0


@pytest.fixture
def dispatcher() -> Dispatcher:
    return Dispatcher(State(), FakeDice(), Policy())


def weight(peer: BoundPeer, **message: Any) -> int:
    peer.say(**message)
    return peer.weight


def test_an_add_weighs_and_costs_as_much_as_its_deliveries_and_a_list_as_nameplates(dispatcher: Dispatcher) -> None:
    subscribers = [BoundPeer(dispatcher, "a") for _ in range(20)]
    for subscriber in subscribers:
        subscriber.say(type="open", mailbox="m")
    assert weight(subscribers[0], type="add", phase="1", body="0" * 2000) > 20 * (FRAME_WEIGHT + 2000)
    assert dispatcher.cost > 20 * 2000
    for number in range(200):
        BoundPeer(dispatcher, "a").say(type="claim", nameplate=str(number))
    BoundPeer(dispatcher, "b").say(type="list")
    assert dispatcher.cost > 200 * len('{"id":"7"}')


def test_a_replay_and_the_last_close_weigh_and_cost_as_much_as_their_messages(dispatcher: Dispatcher) -> None:
    """Two replays of as many messages as a mailbox may have are two batches."""
    writer = BoundPeer(dispatcher, "a")
    writer.say(type="open", mailbox="m")
    for number in range(5000):
        writer.say(type="add", phase=str(number), body="00")
    assert weight(BoundPeer(dispatcher, "a"), type="open", mailbox="m") > MAX_BATCH_WEIGHT
    assert dispatcher.cost > 5000 * len('{"type":"message"}')
    assert weight(writer, type="close", mailbox="m") > 5000 * MESSAGE_GONE_WEIGHT


def test_a_close_weighs_the_names_that_its_row_has(dispatcher: Dispatcher) -> None:
    """Rows of 400 mailboxes with long names and moods took 10 to 16 ms to make."""
    name = "\N{GRINNING FACE}" * 490
    for side in ("a" + name, "b" + name):
        BoundPeer(dispatcher, side).say(type="open", mailbox=name)
    closing = BoundPeer(dispatcher, "a" + name)
    alone = len(json.dumps({"type": "close", "mailbox": name}))
    assert weight(closing, type="close", mailbox=name) > alone + 3 * 4 * 490


def test_a_text_weighs_its_bytes_not_its_characters_and_an_error_repeats_it(dispatcher: Dispatcher) -> None:
    peer = BoundPeer(dispatcher, "a")
    text = '{"type" :  "claim", "x": 1e400, "y": "%s"}' % ("\N{GRINNING FACE}" * 10_000)
    assert dispatcher.handle(peer.connection, text, len(text), Now(1e9, 0.0)) > 40_000
    assert dispatcher.cost > 40_000
    assert b'"orig":' + text.encode() in peer.connection.outbox[-1]


def test_one_mailbox_has_a_limit_of_connections(dispatcher: Dispatcher) -> None:
    first, *others = [BoundPeer(dispatcher, "a") for _ in range(MAX_SUBSCRIBERS)]
    for peer in (first, *others):
        assert peer.say(type="open", mailbox="m") == []
    late = BoundPeer(dispatcher, "a")
    [refused] = late.say(type="open", mailbox="m")
    assert (refused["error"], refused["hint"]) == ("the mailbox is full", "32 connections have it open already")
    dispatcher.lose(first.connection, Now(EPOCH, 0.0))
    assert late.say(type="open", mailbox="m") == []


def test_a_refused_client_may_clean_up_but_not_go_on_nor_send_long_messages(dispatcher: Dispatcher) -> None:
    peer = BoundPeer(dispatcher, "a")
    peer.connection.verdict = PeerError(1008, "too many connections from your address")
    for _ in range(MAX_DEPARTING_COMMANDS):
        assert not peer.inbox.ignored
        assert [answer["type"] for answer in peer.say(type="release", nameplate="1")] == ["released"]
    assert peer.say(type="release", nameplate="1") == []
    assert peer.inbox.ignored
    peer = BoundPeer(dispatcher, "a")
    peer.connection.verdict = PeerError(1013, "the server has no room for more connections")
    assert peer.say(type="ping", ping="x" * MAX_DEPARTING_CHARACTERS) == []
    assert peer.inbox.ignored
