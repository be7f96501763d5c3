"""Before the records: whatever is said or cut there, the sides connect, or both have an error."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Final
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from client.transfer.sides import DIAL_ONLY, RECEIVER, SENDER, Side, exchange, somebody
from restante.client.errors import TransferError
from restante.client.transit import connecting
from restante.client.transit.hints import Hints, Relay
from restante.client.transit.records import GO, NEVERMIND, RELAY_READY, Role
from support.bounds import bounded
from support.effort import examples

AT_ONCE: Final = connecting.TRANSIT_SECONDS / 2
"""Seconds: the error does not wait for the time in which a connection may be made."""

RESET: Final = b"\1\0\0\0\0\0\0\0"
"""SO_LINGER with zero seconds: to close is to reset (socket(7))."""

LINES: Final = [SENDER.line, RECEIVER.line, GO, NEVERMIND, RELAY_READY, b"bad handshake\n", b"impatient\n"]
PIECES: Final = (
    st.sampled_from(LINES)
    | st.builds(lambda line, end: line[:end], st.sampled_from(LINES), st.integers(0, 89))
    | st.binary(max_size=100)
    | st.binary(min_size=70_000, max_size=70_000)
)
SPEECHES: Final = st.lists(PIECES, max_size=4)
ROLES: Final = st.sampled_from(list(Role))


def chosen_after(role: Role, by_relay: bool) -> bytes:
    """Return what a side of this role hears before it uses the connection. Only the peer knows it."""
    ready = RELAY_READY if by_relay else b""
    return ready + (RECEIVER.line if role is Role.SENDER else SENDER.line + GO)


class Speaker:
    """Somebody who says these pieces, one in each turn of the loop, and then leaves, or is silent."""

    def __init__(self, speech: list[bytes], end: str) -> None:
        self._speech, self._end = speech, end

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in self._speech:
            writer.write(piece)
            await writer.drain()
        if self._end == "reset":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        elif self._end == "silent":
            await reader.read(-1)


@examples(40)
@given(ROLES, st.sampled_from(["hint", "visitor", "relay"]), SPEECHES, st.sampled_from(["close", "reset", "silent"]))
def test_whatever_somebody_says_the_peer_is_met(role: Role, place: str, speech: list[bytes], end: str) -> None:
    assume(not b"".join(speech).startswith(chosen_after(role, place == "relay")))
    speaker = Speaker(speech, end)
    visits: list[asyncio.Task[None]] = []

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await speaker(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def meets() -> None:
        ours, theirs = Side(role), Side(role.peer)
        async with bounded("a connection"), somebody(speaker) as address, ours, theirs:
            direct = theirs.hints.direct
            hints = {
                "hint": Hints((address, *direct)),
                "visitor": Hints(direct),
                "relay": Hints(direct, (Relay((address,)),)),
            }
            meeting = asyncio.create_task(ours.meet(hints[place]))
            await asyncio.sleep(0)
            if place == "visitor":
                where = ours.hints.direct[0]
                with suppress(ConnectionError):
                    reader, writer = await asyncio.open_connection(where.host, where.port)
                    visits.append(asyncio.create_task(visit(reader, writer)))
            await exchange(*await asyncio.gather(meeting, theirs.meet(ours.hints)))
            await asyncio.gather(*visits)

    with patch.object(connecting, "RELAY_DELAY_SECONDS", 0.0):
        asyncio.run(meets())


@examples(40)
@given(ROLES, st.booleans(), SPEECHES, st.sampled_from(["close", "reset"]))
def test_who_speaks_in_place_of_the_peer_is_an_error(
    role: Role, by_relay: bool, speech: list[bytes], end: str
) -> None:
    assume(not b"".join(speech).startswith(chosen_after(role, by_relay)))

    async def fails() -> str:
        async with (
            bounded("an error", AT_ONCE),
            somebody(Speaker(speech, end)) as address,
            Side(role, DIAL_ONLY) as ours,
        ):
            hints = Hints((), (Relay((address,)),)) if by_relay else Hints((address,))
            with pytest.raises(TransferError) as failed:
                await ours.meet(hints)
        return str(failed.value)

    words = asyncio.run(fails())
    assert words.startswith("no connection to the other side (127.0.0.1:")
    assert words.isprintable()
