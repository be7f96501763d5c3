"""A commit that has not ended confirms nobody, and holds up no relaying."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from unittest.mock import patch

from restante.waku.protocol import packets
from support.mailbox.inside import Gate, Gated
from support.waku.inside import inside
from support.waku.letters import letter
from support.waku.raw_peer import RawPeer

CONFIRMED = [packets.MESSAGE_RESPONSE, packets.BATCH_ACK]


async def codes(*peers: RawPeer) -> list[list[int]]:
    """Return what each has been told since it was asked last, when all that was said has come."""
    for _ in range(4):
        for peer in peers:
            await peer.fence()
    told = [[code for code, _ in peer.inbox] for peer in peers]
    for peer in peers:
        peer.inbox = []
    return told


async def test_envelopes_are_relayed_during_a_commit_and_confirmed_after_their_own(tmp_path: Path) -> None:
    with patch("sqlite3.connect", partial(Gated)):
        manager = inside(tmp_path)
        here = await manager.__aenter__()
    assert isinstance(here.archive.database, Gated)
    gate = here.archive.database.gate = Gate()
    poster, other, reader = await here.greet(), await here.greet(), await here.greet()
    gate.shut()
    first = poster.offer([letter(1)])
    await gate.reached()
    copy = other.offer([letter(1)])
    behind = other.offer([letter(1), letter(2)])
    reader.offer([letter(3, age=1000)])  # refused: no disk has a say in it
    assert await codes(poster, other, reader) == [
        [packets.MESSAGES],
        [packets.MESSAGES],
        [packets.MESSAGES, *CONFIRMED, packets.MESSAGES],
    ]

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
    await manager.__aexit__(None, None, None)
