"""Asking over real RLPx: honest Mailservers, and others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from restante.common.dice import SystemDice
from restante.common.errors import Misuse
from restante.waku.client.actions import FetchReport, Timeouts
from restante.waku.client.fetch import RequestOptions, fetch
from restante.waku.client.outbound_connection import NodeUnavailableError, SilentError, connect
from restante.waku.client.probe import Outcome, _probe
from restante.waku.client.ranges import HistoryQuery
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keys import new_key
from restante.waku.envelope.mining import mine
from restante.waku.protocol import request
from restante.waku.protocol.interest import Interest
from restante.waku.protocol.request import Request
from support.ports import held_port
from support.waku.fake_node import SHARED, FakeNode, listening
from support.waku.fixed import KEY
from support.waku.letters import EPOCH, TOPIC, letter
from support.waku.mailservers import Honest, Refusing, Silent
from support.waku.virtual_time import in_virtual_time

QUERY = HistoryQuery(EPOCH, EPOCH + 500, frozenset([TOPIC]))
LETTERS = [letter(number, age=-number, size=300) for number in range(50)]
ENVELOPE = RequestOptions(to=SHARED)
PLAIN = RequestOptions(form="plain")
ONCE = Timeouts(tries=1)


def hashes(envelopes: list[Envelope]) -> list[bytes]:
    return sorted(each.hash for each in envelopes)


async def fetching(
    *mailservers: Any, options: RequestOptions = ENVELOPE, **arguments: Any
) -> tuple[FetchReport, list[Envelope], list[FakeNode]]:
    came: list[Envelope] = []
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(listening(each)) for each in mailservers]
        report = await fetch([enode for _, enode in nodes], QUERY, options, came.extend, **arguments)
    return report, came, [node for node, _ in nodes]


@pytest.fixture
def nobody() -> Iterator[Enode]:
    """Hold a port where nobody listens."""
    with held_port() as port:
        yield Enode(new_key(SystemDice()).public, "127.0.0.1", port)


@pytest.mark.parametrize(("options", "downward", "answer"), [(ENVELOPE, False, "string"), (PLAIN, True, "list")])
async def test_history_is_fetched_completely_and_once(options: RequestOptions, downward: bool, answer: Any) -> None:
    report, came, [node] = await fetching(Honest(LETTERS, downward, 20, answer), options=options)
    assert report.missing == []
    assert hashes(came) == hashes(LETTERS)
    assert report.counts == {"handed over": 50, "pages": 3}
    assert {each.form for each in node.asked} == {options.form}
    assert {each.topics for each in node.asked} == {frozenset([TOPIC])}
    assert len({each.id for each in node.asked}) == 3
    assert node.wrong == []


async def test_only_a_requester_with_a_key_is_recognised() -> None:
    with pytest.raises(Misuse, match="name the key"):
        RequestOptions()
    own = RequestOptions(to=SHARED, key=KEY)
    async with listening(Honest(LETTERS, size=30)) as (node, enode):
        for _ in range(2):
            await fetch([enode], QUERY, ENVELOPE, lambda _: None)
        signers = {request.signer for request in node.asked}
        assert (len(node.known), len(signers)) == (2, 4)
        assert not signers & node.known
        node.asked, node.known = [], set()
        for _ in range(2):
            await fetch([enode], QUERY, own, lambda _: None)
        assert (await _probe(enode, own, 60.0)).outcome is Outcome.WELL
    assert {request.signer for request in node.asked} == node.known == {KEY.public}


async def test_a_server_that_wants_too_much_work_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restante.waku.client.fetch.mine", partial(mine, budget=100))
    came: list[Envelope] = []
    async with listening(Honest(LETTERS), pow=1e3) as (hungry, first), listening(Honest(LETTERS)) as (_, second):
        report = await fetch([first, second], QUERY, ENVELOPE, came.extend, timeouts=ONCE)
        assert report.missing == []
        assert "the server requires more proof of work than we accept" in report.failures[0]
        assert (hungry.asked, hungry.wrong) == ([], [])
        report = await fetch([first], QUERY, PLAIN, lambda _: None, timeouts=ONCE)
        assert report.missing == []


@in_virtual_time
async def test_servers_that_are_silent_refuse_or_want_work_are_left_for_one_that_answers() -> None:
    with held_port() as port:
        nobody = Enode(new_key(SystemDice()).public, "127.0.0.1", port)
        came: list[Envelope] = []
        async with (
            listening(Silent()) as (_, silent),
            listening(Refusing()) as (_, refusing),
            listening(Honest(LETTERS), pow=1e-3) as (working, honest),
        ):
            servers = [nobody, silent, refusing, honest]
            report = await fetch(servers, QUERY, ENVELOPE, came.extend, timeouts=ONCE)
    assert (report.missing, hashes(came), working.wrong) == ([], hashes(LETTERS), [])
    assert report.failures == {
        0: f"cannot connect to 127.0.0.1:{port}: Connection refused",
        1: "it does not answer",
        2: "it says: rate limit exceeded",
    }


class Dying(Honest):
    """Answers one page, and then is no more."""

    node: FakeNode

    def packets(self, request: Any) -> Any:
        if not request.cursor:
            return super().packets(request)
        for connection in self.node.connections:
            connection.drop()
        return iter(())


async def test_a_server_that_dies_is_followed_by_another_from_what_is_known() -> None:
    came: list[Envelope] = []
    async with listening(Dying(LETTERS, size=20)) as (node, dying), listening(Honest(LETTERS)) as (other, enode):
        node.mailserver.node = node
        report = await fetch([dying, enode], QUERY, ENVELOPE, came.extend, timeouts=ONCE)
    assert report.missing == []
    assert hashes(came) == hashes(LETTERS)
    assert "it disconnected: " in report.failures[0]
    [asked] = other.asked
    assert (asked.lower, asked.cursor) == (EPOCH + 19, b"")


async def test_history_from_an_untrusted_peer_is_ignored() -> None:
    """A call to hand over envelopes trusts nobody."""
    async with (
        listening(Honest(LETTERS)) as (node, enode),
        connect(enode, new_key(SystemDice()), Interest.named([])) as connection,
    ):
        connection.request(
            request.write(Request(id=bytes(32), lower=EPOCH, upper=EPOCH + 1, topics=frozenset([TOPIC])))
        )
        response = await connection.offer([letter(99)])
        assert response.refusals == ()
        assert len(node.asked) == 1
        assert connection.node.violations is None


async def test_a_node_that_does_not_greet_is_distinguished_from_an_unreachable_one(nobody: Enode) -> None:
    with pytest.raises(NodeUnavailableError, match="Connection refused") as refused:
        async with connect(nobody, new_key(SystemDice()), Interest.named([])):
            pass
    assert not isinstance(refused.value, SilentError)
    async with listening(greets=False) as (_, enode):
        with pytest.raises(SilentError, match="the node disconnected: "):
            async with connect(enode, new_key(SystemDice()), Interest.named([])):
                pass


# ── probe ────────────────────────────────────────────────────────────────────────────────────────


PROBES: dict[str, tuple[dict[str, Any], Outcome, str]] = {
    "well": ({}, Outcome.WELL, "all is well: posted, and fetched in"),
    "well, unconfirmed": ({"says_so": False, "confirms": False}, Outcome.WELL, "all is well"),
    "does not greet": ({"greets": False}, Outcome.SILENT, "the node disconnected: "),
    "does not confirm": ({"confirms": False}, Outcome.UNCONFIRMED, "did not confirm the envelope within"),
    "refuses": ({"refuses": "full"}, Outcome.UNCONFIRMED, "refused the envelope: full"),
    "missing": ({"archives": False}, Outcome.MISSING, "the posted envelope is missing"),
    "no mailserver": ({"mailserver": None}, Outcome.UNANSWERED, "it does not answer"),
    "silent": ({"mailserver": Silent(), "archives": False}, Outcome.UNANSWERED, "it does not answer"),
    "error": (
        {"mailserver": Refusing("no"), "archives": False},
        Outcome.REFUSED,
        "it answers the request with an error: no",
    ),
}


@pytest.mark.parametrize(("options", "outcome", "words"), PROBES.values(), ids=PROBES)
def test_a_probe_reports_each_outcome(options: dict[str, Any], outcome: Outcome, words: str) -> None:
    @in_virtual_time
    async def probe() -> None:
        async with listening(**{"mailserver": Honest([]), **options}) as (_, enode):
            result = await _probe(enode, ENVELOPE, 60.0)
        assert result.outcome is outcome
        assert words in result.words

    probe()


class Tardy(Honest):
    """Has the envelope when it is asked a second time."""

    asked = 0

    def packets(self, request: Any) -> Iterator[Any]:
        self.asked += 1
        return super().packets(request) if self.asked > 1 else Honest([]).packets(request)


@in_virtual_time
async def test_a_probe_asks_again_if_the_envelope_is_not_archived_yet() -> None:
    tardy = Tardy([])
    async with listening(tardy) as (_, enode):
        found = await _probe(enode, ENVELOPE, 60.0)
    assert (found.outcome, tardy.asked) == (Outcome.WELL, 2)


async def test_a_probe_of_an_unreachable_node_reports_it(nobody: Enode) -> None:
    found = await _probe(nobody, ENVELOPE, 60.0)
    assert (found.outcome, "Connection refused" in found.words) == (Outcome.UNREACHABLE, True)
