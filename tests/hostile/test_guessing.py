"""Guessing nameplates: what the attacker gets, and what honest pairs notice of it."""

from __future__ import annotations

from typing import Any, Final

import pytest

from support.mailbox.raw_socket import RawSocket
from support.mailbox.siege import Siege

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLAIMS: Final = 40
NAMEPLATES: Final = 9
OPTIONS: Final = (
    *("--trust-proxy", "127.0.0.0/8"),
    *("--limit", f"address_claims_at_once={CLAIMS}", "--limit", f"address_nameplates={NAMEPLATES}"),
)
"""What one address may claim at once, and keep. Each test has attackers of its own, from addresses of their own."""

TOO_MANY_CLAIMS: Final = "too many different nameplates claimed from your address"
TOO_MANY_NAMEPLATES: Final = "too many nameplates from your address"


async def claim(siege: Siege, side: str, address: str, nameplate: str) -> tuple[RawSocket, dict[str, Any]]:
    client = await siege.bind(side, X_Forwarded_For=address)
    return client, await siege.call(client, type="claim", nameplate=nameplate)


async def sender(siege: Siege, number: int) -> tuple[RawSocket, str, str]:
    """An honest one, from an address of its own, who has a code and waits for the other side."""
    client = await siege.bind(f"sender-{number}", X_Forwarded_For=f"198.51.100.{number}")
    nameplate = (await siege.call(client, type="allocate"))["nameplate"]
    mailbox = (await siege.call(client, type="claim", nameplate=nameplate))["mailbox"]
    client.say(type="open", mailbox=mailbox)
    assert (await client.hear())["type"] == "ack"
    assert (await siege.call(client, type="add", phase="pake", body="00"))["side"] == f"sender-{number}"
    return client, nameplate, mailbox


async def receiver(siege: Siege, number: int, nameplate: str) -> dict[str, Any]:
    """Its other side, who was told the code; gives the answer to its claim, and closes what it got."""
    client, told = await claim(siege, f"receiver-{number}", f"203.0.113.{number}", nameplate)
    if told["type"] == "claimed":
        assert (await siege.call(client, type="open", mailbox=told["mailbox"]))["body"] == "00"
        assert (await siege.call(client, type="close", mailbox=told["mailbox"]))["type"] == "closed"
    return told


async def go(siege: Siege, senders: list[tuple[RawSocket, str, str]]) -> None:
    for client, _, mailbox in senders:
        client.say(type="close", mailbox=mailbox)
        while (await client.hear())["type"] != "closed":
            pass


async def test_a_client_that_hoards_nameplates_gets_few_and_others_get_longer_ones(siege: Siege) -> None:
    told = []
    for number in range(1, 2 * NAMEPLATES):
        _, answer = await claim(siege, f"hoarder-{number}", "192.0.2.1", str(number))
        told.append(answer.get("error", "claimed"))
    assert told == ["claimed"] * NAMEPLATES + [TOO_MANY_NAMEPLATES] * (NAMEPLATES - 1)
    async with siege.beside_the_pair("nameplates on stock", 5) as pair:
        pass
    assert {len(nameplate) for nameplate in pair.nameplates[-4:]} == {2}
    for number in range(1, NAMEPLATES + 1):
        client, answer = await claim(siege, f"hoarder-{number}", "192.0.2.1", str(number))
        assert (await siege.call(client, type="close", mailbox=answer["mailbox"]))["type"] == "closed"
        client.cut()


async def test_a_client_that_claims_busy_nameplates_is_refused_and_then_blocked(siege: Siege) -> None:
    """Both sides are there: a guess gets nothing at all, and the pairs go on."""
    senders = [await sender(siege, number) for number in range(1, 6)]
    there = []
    for number, (_, nameplate, mailbox) in enumerate(senders, 1):
        client, told = await claim(siege, f"receiver-{number}", f"203.0.113.{number}", nameplate)
        assert told["mailbox"] == mailbox
        assert (await siege.call(client, type="open", mailbox=mailbox))["body"] == "00"
        there.append(client)
    guesses = [(await claim(siege, "guesser", "192.0.2.2", nameplate))[1] for _, nameplate, _ in senders]
    assert [each["error"] for each in guesses] == ["crowded"] * 5
    answers = [(await claim(siege, "guesser", "192.0.2.2", str(10**9 + each)))[1] for each in range(CLAIMS)]
    errors = [each.get("error", "claimed") for each in answers]
    left = CLAIMS - len(guesses)
    assert errors[:left] == ["claimed"] * NAMEPLATES + [TOO_MANY_NAMEPLATES] * (left - NAMEPLATES)
    assert errors[left:] == [TOO_MANY_CLAIMS] * len(guesses)
    for client, other in zip([each for each, _, _ in senders], there, strict=True):
        client.say(type="add", phase="0", body="11")
        assert (await other.hear())["body"] == "11"
    for number, other in enumerate(there, 1):
        assert (await siege.call(other, type="close", mailbox=senders[number - 1][2]))["type"] == "closed"
    await go(siege, senders)
    for each in range(NAMEPLATES):
        client = await siege.bind("guesser")
        assert (await siege.call(client, type="close", mailbox=answers[each]["mailbox"]))["type"] == "closed"
    siege.everybody_goes()


@pytest.mark.parametrize("speaks", [False, True], ids=["and leaves", "and speaks"])
async def test_a_client_that_claims_waiting_nameplates_gets_one_guess_each_up_to_its_quota(
    siege: Siege, *, speaks: bool
) -> None:
    """One side waits: the guesser is its other side, if it is the first to come. That is the protocol; there are as
    many words in the code as it takes. A guesser who leaves without a word makes room for the right one.
    """
    count = CLAIMS + 10
    senders = [await sender(siege, number) for number in range(1, count + 1)]
    address = "192.0.2.3" if speaks else "192.0.2.4"
    guesser = f"guesser at {address}"
    guesses = []
    for _, nameplate, mailbox in senders:
        client, told = await claim(siege, guesser, address, nameplate)
        guesses.append(told.get("error", "claimed"))
        if told["type"] == "claimed":
            assert (await siege.call(client, type="open", mailbox=mailbox))["body"] == "00"
            if speaks:
                assert (await siege.call(client, type="add", phase="pake", body="66"))["side"] == guesser
        client.cut()
    assert guesses == ["claimed"] * CLAIMS + [TOO_MANY_CLAIMS] * 10
    await siege.fence()
    async with siege.beside_the_pair("a guesser"):
        answers = [await receiver(siege, number, each[1]) for number, each in enumerate(senders, 1)]
    errors = [each.get("error", "claimed") for each in answers]
    assert errors == (["crowded"] * CLAIMS if speaks else ["claimed"] * CLAIMS) + ["claimed"] * 10
    if speaks:
        for _, _, mailbox in senders[:CLAIMS]:
            client = await siege.bind(guesser)
            assert (await siege.call(client, type="close", mailbox=mailbox))["type"] == "closed"
    for number, (_, _, mailbox) in enumerate(senders, 1):  # what other tests claim is free again
        client = await siege.bind(f"sender-{number}", X_Forwarded_For=f"198.51.100.{number}")
        assert (await siege.call(client, type="close", mailbox=mailbox))["type"] == "closed"


async def test_a_name_counts_as_a_new_guess_after_its_nameplate_has_ended(siege: Siege) -> None:
    """Else whoever had some names once could ask for ever, and unseen, whether somebody else has them."""
    address, told = "192.0.2.9", []
    for number in range(CLAIMS + 1):
        client, answer = await claim(siege, f"asker-{number}", address, "70")
        told.append(answer.get("error", "claimed"))
        if answer["type"] == "claimed":
            assert (await siege.call(client, type="close", mailbox=answer["mailbox"]))["type"] == "closed"
        client.cut()
    assert told == ["claimed"] * CLAIMS + [TOO_MANY_CLAIMS]
