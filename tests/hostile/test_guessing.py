"""Guessing nameplates: what the attacker gets, and what honest pairs notice. No rate refills: the clock stands."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import replace

from restante.common.net import networks
from restante.mailbox.core.admission import Admission, AdmissionTerms
from restante.mailbox.core.limits import Limits
from restante.mailbox.core.quotas import TOO_MANY_CLAIMS
from restante.mailbox.server.system import system_secret
from support.mailbox.raw_socket import RawSocket
from support.mailbox.siege import LiveSiege

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLAIMS: Final = 12
NAMEPLATES: Final = 9
LIMITS: Final = replace(Limits(), address_claims_at_once=CLAIMS, address_nameplates=NAMEPLATES)
"""What one address may claim at once, and keep. Each test has attackers of its own, from addresses of their own."""

TOO_MANY_NAMEPLATES: Final = "too many nameplates from your address"


def ADMISSION() -> Admission:  # noqa: N802 - as LIMITS, for the fixture
    return Admission(AdmissionTerms(trusted=networks(["127.0.0.0/8"], "--trust-proxy")), system_secret)


async def claim(siege: LiveSiege, side: str, address: str, nameplate: str) -> tuple[RawSocket, dict[str, Any]]:
    client = await siege.bind(side, X_Forwarded_For=address)
    return client, await siege.call(client, type="claim", nameplate=nameplate)


async def sender(siege: LiveSiege, number: int) -> tuple[RawSocket, str, str]:
    """An honest one, from an address of its own, who has a code and waits for the other side."""
    client = await siege.bind(f"sender-{number}", X_Forwarded_For=f"198.51.100.{number}")
    nameplate = (await siege.call(client, type="allocate"))["nameplate"]
    mailbox = (await siege.call(client, type="claim", nameplate=nameplate))["mailbox"]
    client.say(type="open", mailbox=mailbox)
    assert (await client.hear())["type"] == "ack"
    assert (await siege.call(client, type="add", phase="pake", body="00"))["side"] == f"sender-{number}"
    return client, nameplate, mailbox


async def test_a_client_that_hoards_nameplates_gets_few_and_others_get_longer_ones(siege: LiveSiege) -> None:
    outcomes = []
    for number in range(1, 2 * NAMEPLATES):
        _, answer = await claim(siege, f"hoarder-{number}", "192.0.2.1", str(number))
        outcomes.append(answer.get("error", "claimed"))
    refusals = [TOO_MANY_NAMEPLATES] * (CLAIMS - NAMEPLATES) + [TOO_MANY_CLAIMS] * (2 * NAMEPLATES - 1 - CLAIMS)
    assert outcomes == ["claimed"] * NAMEPLATES + refusals
    async with siege.beside_the_pair("nameplates on stock", 5) as pair:
        pass
    assert {len(nameplate) for nameplate in pair.nameplates[-4:]} == {2}
    for number in range(1, NAMEPLATES + 1):
        client, answer = await claim(siege, f"hoarder-{number}", f"192.0.2.{100 + number}", str(number))
        await siege.close(client, answer["mailbox"])
    siege.everybody_goes()


@pytest.mark.parametrize("speaks", [False, True], ids=["and leaves", "and speaks"])
async def test_a_client_that_claims_waiting_nameplates_gets_one_guess_each_up_to_its_quota(
    siege: LiveSiege, *, speaks: bool
) -> None:
    """One side waits: the guesser is its other side, if it is the first to come. That is the protocol; there are as
    many words in the code as it takes. A guesser who leaves without a word makes room for the right one.
    """
    siege.live.clock.now += 3600
    senders = [await sender(siege, number) for number in range(1, CLAIMS + 4)]
    address = "192.0.2.3" if speaks else "192.0.2.4"
    guesser = f"guesser at {address}"
    guesses = []
    for _, nameplate, mailbox in senders:
        client, answer = await claim(siege, guesser, address, nameplate)
        guesses.append(answer.get("error", "claimed"))
        if answer["type"] == "claimed":
            assert (await siege.call(client, type="open", mailbox=mailbox))["body"] == "00"
            if speaks:
                assert (await siege.call(client, type="add", phase="pake", body="66"))["side"] == guesser
        client.cut()
    assert guesses == ["claimed"] * CLAIMS + [TOO_MANY_CLAIMS] * 3
    await siege.fence()
    outcomes = []
    async with siege.beside_the_pair("a guesser"):
        for number, (_, nameplate, mailbox) in enumerate(senders, 1):
            client, answer = await claim(siege, f"receiver-{number}", f"203.0.113.{number}", nameplate)
            outcomes.append(answer.get("error", "claimed"))
            if answer["type"] == "claimed":
                assert (await siege.call(client, type="open", mailbox=mailbox))["body"] == "00"
                await siege.close(client, mailbox)
    assert outcomes == (["crowded"] if speaks else ["claimed"]) * CLAIMS + ["claimed"] * 3
    for number, (_, _, mailbox) in enumerate(senders, 1):  # what other tests claim is free again
        for side in (f"sender-{number}", guesser):
            await siege.close(await siege.bind(side, X_Forwarded_For=f"198.51.100.{number}"), mailbox)
    siege.everybody_goes()


async def test_a_guess_at_a_busy_nameplate_gets_nothing_and_counts(siege: LiveSiege) -> None:
    client, nameplate, mailbox = await sender(siege, 99)
    receiver, answer = await claim(siege, "receiver-99", "203.0.113.99", nameplate)
    assert answer["mailbox"] == mailbox
    assert (await siege.call(receiver, type="open", mailbox=mailbox))["body"] == "00"
    names = [nameplate, *(str(10**9 + number) for number in range(CLAIMS))]
    answers = [(await claim(siege, "guesser", "192.0.2.2", name))[1] for name in names]
    assert [answer.get("error", "claimed") for answer in answers] == [
        "crowded",
        *["claimed"] * NAMEPLATES,
        *[TOO_MANY_NAMEPLATES] * (CLAIMS - 1 - NAMEPLATES),
        TOO_MANY_CLAIMS,
    ]
    client.say(type="add", phase="0", body="11")
    assert (await receiver.hear())["body"] == "11"
    for side in ("sender-99", "receiver-99"):
        await siege.close(await siege.bind(side), mailbox)
    for answer in answers[1 : NAMEPLATES + 1]:
        await siege.close(await siege.bind("guesser"), answer["mailbox"])
    siege.everybody_goes()
