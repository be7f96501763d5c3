"""Our RLPx and devp2p against those of @ethereumjs/devp2p, over a socket, in both roles.

It knows one byte of a message id and no more, so codes from 112 on (ids from 80 on) are only read from it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from restante.waku.devp2p.hello import Hello, Reason, Shared
from restante.waku.devp2p.session import Connected, Disconnected, Packet
from restante.waku.envelope import rlp
from support.bounds import bounded
from support.waku.ends import HELLO, KEY, Foreign, Ours

pytestmark = pytest.mark.thorough
"""It is installed from the network. tests/waku/test_rlpx.py, test_handshake.py, test_ecies.py, test_hello.py,
test_devp2p.py and test_snappy.py check the same parts against published vectors and by our own two ends."""

ROLES = ["initiator", "recipient"]
SHARED = (Shared("waku", 1, 16, 128),)

noise = Random(7).randbytes
PAYLOADS = [b"", b"\xc0", b"x" * 300, noise(300), bytes(1_000_000), noise(200_000)]
"""Empty, small, and large; some that compress and some that do not."""

WHOLE = [1, 55, 56, 58, 59, 254, 255, 256, 65_533, 65_534, 65_536, (1 << 20) - 3]
"""Bytes of a body: about where its head has another byte, and where, with it, another form of a literal would do."""


@asynccontextmanager
async def joined(role: str, command: tuple[Path, ...], hello: Hello = HELLO) -> AsyncIterator[tuple[Ours, Foreign]]:
    """Both ends; ours in the role that is named."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(bounded(f"what is waited for, ours the {role}"))
        if role == "initiator":
            foreign = await stack.enter_async_context(Foreign.run(*command, "listen"))
            listening = await foreign.said()
            ours = await Ours.dial(listening["listening"], bytes.fromhex(listening["public"]), hello)
        else:
            port, dialled = await stack.enter_async_context(Ours.listen(hello))
            foreign = await stack.enter_async_context(Foreign.run(*command, "dial", str(port), KEY.public.hex()))
            ours = await dialled
        stack.push_async_callback(ours.close)
        yield ours, foreign


async def greeted(ours: Ours, foreign: Foreign) -> dict[str, Any]:
    """What it says when both are connected."""
    assert isinstance(await ours.heard(), Connected)
    return await foreign.said()


@pytest.mark.parametrize("role", ROLES)
async def test_both_say_hello(role: str, ethereumjs: tuple[Path, ...]) -> None:
    async with joined(role, ethereumjs) as (ours, foreign):
        event = await ours.heard()
        assert isinstance(event, Connected)
        assert event.shared == SHARED
        assert (event.hello.client_id, event.hello.version) == ("foreign", 5)
        assert event.hello.public == ours.core.remote
        assert await foreign.said() == {"connected": "restante", "public": KEY.public.hex()}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("role", ROLES)
async def test_packets_go_both_ways_compressed_or_not(role: str, version: int, ethereumjs: tuple[Path, ...]) -> None:
    hello = msgspec.structs.replace(HELLO, version=version)
    async with joined(role, ethereumjs, hello) as (ours, foreign):
        await greeted(ours, foreign)
        for code, payload in zip((0, 1, 11, 22, 110, 111), PAYLOADS, strict=True):
            ours.send(code, payload)
            assert await foreign.said() == {"packet": [code, payload.hex()]}
        for code, payload in zip((0, 1, 111, 112, 126, 127), PAYLOADS, strict=True):
            foreign.do(send=[code, payload.hex()])
            assert await ours.heard() == Packet(code, payload)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("role", ROLES)
async def test_packets_said_whole_go_both_ways(role: str, version: int, ethereumjs: tuple[Path, ...]) -> None:
    hello = msgspec.structs.replace(HELLO, version=version)
    async with joined(role, ethereumjs, hello) as (ours, foreign):
        await greeted(ours, foreign)
        for body in map(noise, WHOLE):
            head = rlp.list_head(len(body))
            ours.send_whole(111, head, body)
            assert await foreign.said() == {"packet": [111, (head + body).hex()]}
            foreign.do(send=[127, (head + body).hex()])
            assert await ours.heard() == Packet(127, head + body)


@pytest.mark.parametrize("role", ROLES)
async def test_many_packets_cross_each_other(role: str, ethereumjs: tuple[Path, ...]) -> None:
    async with joined(role, ethereumjs) as (ours, foreign):
        await greeted(ours, foreign)
        payloads = [noise(size) for size in range(1, 301)]
        for payload in payloads:
            ours.core.send(1, payload)
            foreign.do(send=[2, payload.hex()])
        ours.flush()
        assert [await ours.heard() for _ in payloads] == [Packet(2, payload) for payload in payloads]
        assert [await foreign.said() for _ in payloads] == [{"packet": [1, payload.hex()]} for payload in payloads]


@pytest.mark.parametrize("role", ROLES)
async def test_its_ping_is_answered(role: str, ethereumjs: tuple[Path, ...]) -> None:
    async with joined(role, ethereumjs) as (ours, foreign):
        await greeted(ours, foreign)
        foreign.do(ping=True)
        async with ours.reading():
            assert await foreign.said() == {"pong": True}


@pytest.mark.parametrize("role", ROLES)
async def test_our_ping_is_answered(role: str, ethereumjs: tuple[Path, ...]) -> None:
    async with joined(role, ethereumjs) as (ours, foreign):
        await greeted(ours, foreign)
        ours.now = 16.0
        assert ours.core.handle_timeout(ours.now) == []
        assert ours.core.next_timeout() == 30.0
        ours.flush()
        while ours.core.next_timeout() == 30.0:
            await ours.read()
        assert ours.core.next_timeout() == 16.0 + 15.0


@pytest.mark.parametrize("reason", [Reason.TOO_MANY_PEERS, Reason.CLIENT_QUITTING, Reason.SUBPROTOCOL])
@pytest.mark.parametrize("role", ROLES)
async def test_our_disconnect_is_understood(role: str, reason: Reason, ethereumjs: tuple[Path, ...]) -> None:
    async with joined(role, ethereumjs) as (ours, foreign):
        await greeted(ours, foreign)
        ours.core.disconnect(reason)
        ours.flush()
        ours.hang_up()
        assert await foreign.said() == {"disconnected": reason.value, "byUs": False}


@pytest.mark.parametrize("reason", [Reason.TOO_MANY_PEERS, Reason.CLIENT_QUITTING, Reason.SUBPROTOCOL])
@pytest.mark.parametrize("role", ROLES)
async def test_its_disconnect_is_understood(role: str, reason: Reason, ethereumjs: tuple[Path, ...]) -> None:
    async with joined(role, ethereumjs) as (ours, foreign):
        await greeted(ours, foreign)
        foreign.do(disconnect=reason.value)
        assert await ours.heard() == Disconnected(reason, False, f"the peer said {reason.name}")
        assert ours.core.closed
