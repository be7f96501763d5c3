"""Who says too much is slowed, never refused; who guesses gets little; and the others notice nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from msgspec.structs import replace

from restante.common.net import networks
from restante.mailbox.core.admission import Admission, AdmissionTerms
from restante.mailbox.core.limits import MIB, Limits
from restante.mailbox.core.quotas import TOO_MANY_CLAIMS
from restante.mailbox.server.connection import Socket
from restante.mailbox.server.read_pauses import ReadPauses
from restante.mailbox.server.system import system_secret
from support.mailbox.raw_socket import CONTINUATION, PING, TEXT, RawSocket, frame
from support.mailbox.siege import Siege

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLAIMS: Final = 12
LIMITS: Final = replace(Limits(), commands_at_once=100, address_claims_at_once=CLAIMS)
"""The clock stands, so a connection may say this much, an address claim this many, and no more."""


def ADMISSION() -> Admission:  # noqa: N802 - as LIMITS, for the fixture
    return Admission(AdmissionTerms(trusted=networks(["127.0.0.0/8"], "--trust-proxy")), system_secret)


def text(**message: Any) -> bytes:
    return frame(TEXT, json.dumps(message).encode())


STREAMS: Final[dict[str, bytes]] = {
    "adds": text(type="add", phase="0", body="ab" * 100),
    "long unknown types": text(type="hello", body="ab" * 100_000),
    "pings of 2 MiB": text(type="ping", ping="x" * (Limits().message_bytes - 100)),
    "frames of ping": frame(PING, b"x" * 125),
    "empty fragments": frame(TEXT, b"{", fin=False) + frame(CONTINUATION, fin=False) * 1000,
}
"""What is said again and again, by somebody who is bound and has a mailbox open. Each way through the server once:
stored and fanned out, refused, answered by the transport, not answered."""


async def pour(flooder: RawSocket, stream: bytes) -> None:
    """Write this as fast as it is taken, and never stop."""
    piece = stream * max(1, (1 << 16) // len(stream))
    with contextlib.suppress(ConnectionError):
        while True:
            flooder.write(piece)
            await flooder.writer.drain()
            await asyncio.sleep(0)


async def swallow(flooder: RawSocket) -> None:
    """Read all that comes, and look at nothing."""
    with contextlib.suppress(ConnectionError):
        while await flooder.reader.read(1 << 18):
            pass


@asynccontextmanager
async def flooders(siege: Siege, count: int, stream: bytes) -> AsyncIterator[None]:
    """So many pour a stream, two into each mailbox; in the end they close what they left open."""
    clients = [await siege.bind(f"flooder-{number}", "floods") for number in range(count)]
    for number, client in enumerate(clients):
        client.say(type="open", mailbox=f"flood-{number // 2}")
        assert (await client.hear())["type"] == "ack"
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work) for client in clients for work in (pour(client, stream), swallow(client))]
        yield
        for task in running:
            task.cancel()
    siege.everybody_goes()
    for number in range(count):
        await siege.close(await siege.bind(f"flooder-{number}", "floods"), f"flood-{number // 2}")
    siege.everybody_goes()


def is_left_unread(socket: Socket) -> bool:
    return bool(socket.read_pauses.reasons & (ReadPauses.BACKLOG | ReadPauses.FRAME_RATE))


@pytest.mark.parametrize("stream", STREAMS)
async def test_a_flood_is_slowed_and_does_not_reach_the_pair(siege: Siege, stream: str) -> None:
    server = siege.live.server
    async with siege.beside_the_pair(f"4 who pour {stream}", 4), flooders(siege, 4, STREAMS[stream]):
        await siege.until("a flooder that is not read", lambda: any(map(is_left_unread, server.sockets())))
        # A connection has one text that waits, one that is being read, in a buffer of twice its size, and an answer.
        assert server.held < 4 * 12 * MIB


# ── guesses at nameplates ────────────────────────────────────────────────────────────────────────


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


@pytest.mark.parametrize("speaks", [False, True], ids=["and leaves", "and speaks"])
async def test_a_client_that_claims_nameplates_gets_one_guess_each_up_to_its_quota(
    siege: Siege, *, speaks: bool
) -> None:
    """The first nameplate has two sides: a guess at it gets nothing, and counts. At the others one side waits: the
    guesser is its other side, if it is the first to come. That is the protocol; there are as many words in the code
    as it takes. A guesser who leaves without a word makes room for the right one.
    """
    siege.live.clock.now += 3600
    busy, *senders = [await sender(siege, number) for number in range(CLAIMS + 3)]
    receiver, _ = await claim(siege, "receiver-0", "203.0.113.200", busy[1])
    assert (await siege.call(receiver, type="open", mailbox=busy[2]))["body"] == "00"
    address = "192.0.2.3" if speaks else "192.0.2.4"
    guesser = f"guesser at {address}"
    guesses = []
    for _, nameplate, mailbox in (busy, *senders):
        client, answer = await claim(siege, guesser, address, nameplate)
        guesses.append(answer.get("error", "claimed"))
        if answer["type"] == "claimed":
            assert (await siege.call(client, type="open", mailbox=mailbox))["body"] == "00"
            if speaks:
                assert (await siege.call(client, type="add", phase="pake", body="66"))["side"] == guesser
        client.cut()
    assert guesses == ["crowded", *["claimed"] * (CLAIMS - 1), *[TOO_MANY_CLAIMS] * 3]
    busy[0].say(type="add", phase="0", body="11")
    assert (await receiver.hear())["body"] == "11"
    await siege.fence()
    outcomes = []
    async with siege.beside_the_pair("a guesser"):
        for number, (_, nameplate, mailbox) in enumerate(senders, 1):
            client, answer = await claim(siege, f"receiver-{number}", f"203.0.113.{number}", nameplate)
            outcomes.append(answer.get("error", "claimed"))
            if answer["type"] == "claimed":
                assert (await siege.call(client, type="open", mailbox=mailbox))["body"] == "00"
                await siege.close(client, mailbox)
    assert outcomes == (["crowded"] if speaks else ["claimed"]) * (CLAIMS - 1) + ["claimed"] * 3
    for number, (_, _, mailbox) in enumerate((busy, *senders)):  # what the other case claims is free again
        for side in (f"sender-{number}", f"receiver-{number}", guesser):
            await siege.close(await siege.bind(side, X_Forwarded_For=f"198.51.100.{number}"), mailbox)
    siege.everybody_goes()
