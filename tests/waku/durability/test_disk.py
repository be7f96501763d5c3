"""A commit means disk: no confirmation leaves the machine before what it confirms is flushed.

The node runs under a tracer, which sees every write to the log, every flush and every send in the kernel's order.
What is sent is encrypted; so each sender has nothing under way but one packet, and the next thing that the node sends
to it is the packet's confirmation.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from restante.waku.envelope.envelope import make
from restante.waku.protocol.packets import Options
from support.effort import rounds
from support.processes import traced
from support.tracer import WAL, Call, read_notes
from support.waku.processes import WAKU, NodeProcess, altered, node_process
from support.waku.raw_peer import RawPeer

PACKETS: Final = rounds(10, 25)
SENDERS: Final = 3

WANTS_NOTHING: Final = Options(pow=0.0, confirmations=True, topics=frozenset())

UNWRITTEN: Final = "confirmed, and not written"
UNFLUSHED: Final = "confirmed, and not flushed"
EARLY: Final = {UNWRITTEN, UNFLUSHED}


class Talk(NamedTuple):
    """What one sender posted."""

    socket: str
    """The node's, as the tracer calls it."""
    tokens: list[bytes]
    """In the envelopes of each packet, in order."""


async def talk(node: NodeProcess, number: int) -> Talk:
    """Post packets, each when the one before is confirmed."""
    peer = await node.greet(WANTS_NOTHING)
    tokens = [f"<sender {number} packet {packet}>".encode() for packet in range(PACKETS)]
    for token in tokens:
        await peer.post(*(make(int(time.time()) + 50, 50, b"\1\2\3\4", token + bytes([each])) for each in range(3)))
    return Talk(f"socket:[{_inode(node.port, peer)}]", tokens)


def _inode(port: int, peer: RawPeer) -> int:
    """Find the node's end of a connection (man 5 proc_net, tcp: local and remote address, and the inode)."""
    other = peer.writer.get_extra_info("sockname")[1]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if (fields[1], fields[2]) == (f"0100007F:{port:04X}", f"0100007F:{other:04X}"):
            return int(fields[9])
    raise AssertionError("no such connection")


async def audited(folder: Path, program: tuple[str, ...] = WAKU) -> list[str]:
    """Run the load on a traced node; gives what is wrong."""
    notes = folder / "notes"
    async with node_process(folder / "data", program=traced(notes, program)) as node:
        talks = await asyncio.gather(*(talk(node, number) for number in range(SENDERS)))
        await node.serving.stop()
    calls = read_notes(notes)
    return [wrong for each in talks for wrong in audit(calls, each)]


def audit(calls: list[Call], talk: Talk) -> list[str]:
    """Find confirmations that left before a flush that began after what they confirm was written."""
    found = []
    flushes = [call for call in calls if call.kind == "sync" and call.file.endswith(WAL)]
    sends = [call for call in calls if call.kind == "send" and call.file == talk.socket]
    confirmations = sends[-PACKETS - 1 : -1]  # the last is the goodbye
    for token, send in zip(talk.tokens, confirmations, strict=True):
        written = [each for each in calls if each.kind == "write" and token in each.data and each.end < send.begin]
        if not written:
            found.append(UNWRITTEN)
        elif not any(written[0].end < flush.begin and flush.end < send.begin for flush in flushes):
            found.append(UNFLUSHED)
    return found


async def test_no_confirmation_leaves_before_its_commit_is_on_disk(tmp_path: Path) -> None:
    assert await audited(tmp_path) == []


@pytest.mark.parametrize(
    ("how", "wrong"),
    [
        pytest.param("never-flushes", {UNFLUSHED}, id="never-flushes"),
        pytest.param("confirms-first", EARLY, id="confirms-first", marks=pytest.mark.thorough),
        pytest.param("confirms-meanwhile", EARLY, id="confirms-meanwhile", marks=pytest.mark.thorough),
    ],
)
async def test_the_test_notices_a_node_that_confirms_before_the_flush(
    tmp_path: Path, how: str, wrong: set[str]
) -> None:
    found = set(await audited(tmp_path, altered(how)))
    assert found
    assert found <= wrong
