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

from restante.waku.envelope.envelope import make
from restante.waku.protocol.packets import Options
from support.processes import traced
from support.tracer import WAL, Call, read_notes
from support.waku.processes import WAKU, NodeProcess, node_process
from support.waku.raw_peer import RawPeer

PACKETS: Final = 10
SENDERS: Final = 3
WANTS_NOTHING: Final = Options(pow=0.0, confirmations=True, topics=frozenset())


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
        now = int(time.time())
        await peer.post(*(make(now + 50, 50, b"\1\2\3\4", token + bytes([number])) for number in range(3)))
    return Talk(f"socket:[{inode(node.port, peer)}]", tokens)


def inode(port: int, peer: RawPeer) -> int:
    """Find the node's end of a connection (man 5 proc_net, tcp: local and remote address, and the inode)."""
    other = peer.writer.get_extra_info("sockname")[1]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if (fields[1], fields[2]) == (f"0100007F:{port:04X}", f"0100007F:{other:04X}"):
            return int(fields[9])
    raise AssertionError("no such connection")


def check(calls: list[Call], talk: Talk) -> None:
    """Each confirmation left after a flush that began after what it confirms was written."""
    flushes = [call for call in calls if call.kind == "sync" and call.file.endswith(WAL)]
    sends = [call for call in calls if call.kind == "send" and call.file == talk.socket]
    confirmations = sends[-PACKETS - 1 : -1]  # the last is the goodbye
    for token, send in zip(talk.tokens, confirmations, strict=True):
        written = [call for call in calls if call.kind == "write" and token in call.data and call.end < send.begin]
        assert written, "confirmed, and not written"
        assert any(written[0].end < flush.begin and flush.end < send.begin for flush in flushes)


async def test_no_confirmation_leaves_before_its_commit_is_on_disk(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with node_process(tmp_path / "data", program=traced(notes, WAKU)) as node:
        talks = await asyncio.gather(*(talk(node, number) for number in range(SENDERS)))
        await node.serving.stop()
    calls = read_notes(notes)
    for sender in talks:
        check(calls, sender)
