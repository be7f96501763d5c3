"""A commit that has not ended confirms nobody, and holds up no relaying."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from restante.waku.node import node
from restante.waku.node.archiving import Archiving
from restante.waku.protocol import packets
from support.mailbox.inside import Gate, Gated
from support.waku.altered import ConfirmsFirst, ConfirmsMeanwhile
from support.waku.inside import Inside, inside
from support.waku.letters import letter
from support.waku.raw_peer import RawPeer


@asynccontextmanager
async def gated(data: Path, archiving: type[Archiving] = Archiving) -> AsyncIterator[tuple[Inside, Gate]]:
    """Run a node whose commits go through a gate."""
    with patch("sqlite3.connect", partial(Gated)), patch.object(node, "Archiving", archiving):
        manager = inside(data)
        here = await manager.__aenter__()
    assert isinstance(here.archive.database, Gated)
    gate = here.archive.database.gate = Gate()
    try:
        yield here, gate
    finally:
        gate.open()
        await manager.__aexit__(None, None, None)


async def codes(*peers: RawPeer) -> list[list[int]]:
    """Return what each has been told since it was asked last, when all that was said has come."""
    for _ in range(4):
        for peer in peers:
            await peer.fence()
    told = [[code for code, _ in peer.inbox] for peer in peers]
    for peer in peers:
        peer.inbox = []
    return told


CONFIRMED = [packets.MESSAGE_RESPONSE, packets.BATCH_ACK]


async def told_while_held(data: Path, archiving: type[Archiving]) -> list[list[int]]:
    """Post an envelope whose commit is held; gives what the poster, a copy's poster and a reader are told."""
    async with gated(data, archiving) as (here, gate):
        poster, other, reader = await here.greet(), await here.greet(), await here.greet()
        gate.shut()
        poster.offer([letter(1)])
        await gate.reached()
        other.offer([letter(1)])
        return await codes(poster, other, reader)


async def test_a_held_commit_delays_confirmations_and_not_relaying(tmp_path: Path) -> None:
    assert await told_while_held(tmp_path, Archiving) == [[], [packets.MESSAGES], [packets.MESSAGES]]


async def test_the_test_notices_a_node_that_confirms_before_the_commit(tmp_path: Path) -> None:
    poster, _, _ = await told_while_held(tmp_path, ConfirmsFirst)
    assert poster == CONFIRMED


async def test_the_test_notices_a_node_that_confirms_during_the_commit(tmp_path: Path) -> None:
    poster, _, _ = await told_while_held(tmp_path, ConfirmsMeanwhile)
    assert poster == CONFIRMED


async def test_envelopes_after_a_held_commit_are_confirmed_after_their_own_commit(tmp_path: Path) -> None:
    async with gated(tmp_path) as (here, gate):
        poster, other, reader = await here.greet(), await here.greet(), await here.greet()
        gate.shut()
        first = poster.offer([letter(1)])
        await gate.reached()
        copy = other.offer([letter(1)])
        behind = other.offer([letter(1), letter(2)])
        nothing = reader.offer([letter(3, age=1000)])  # refused: no disk has a say in it
        assert await codes(poster, other, reader) == [
            [packets.MESSAGES],
            [packets.MESSAGES],
            [packets.MESSAGES, *CONFIRMED, packets.MESSAGES],
        ]
        assert nothing

        gate.let_one_through()
        await gate.reached()
        await poster.confirmed(first)
        await other.confirmed(copy)
        assert await codes(poster, other, reader) == [[], [], []]

        gate.open()
        await other.confirmed(behind)
        assert await codes(poster, other, reader) == [[], [], []]
        newcomer = await here.greet()
        assert len(await newcomer.relayed(2)) == 2
