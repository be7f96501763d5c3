"""Every conversation with the transit relay: on its pure core, on a relay with sockets, and on the reference's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

from support.loops import on_uvloop
from support.relay.conversation import Mismatch, Script, ScriptReplay, read_scripts
from support.relay.live import LiveRelay, LiveWorld
from support.relay.worlds import CoreWorld, Fence, ReferenceWorld, SocketWorld, World, reference_relay

every_script = pytest.mark.parametrize("script", read_scripts(), ids=lambda script: script.name)


@every_script
async def test_on_the_core(script: Script) -> None:
    await ScriptReplay(script, CoreWorld(script.limits, script.blur)).run()


WEBSOCKETS: Final[dict[str, Callable[[list[str]], list[str]]]] = {
    "by TCP": lambda _: [],
    "by WebSockets": lambda names: names,
    "by a WebSocket first": lambda names: names[::2],
    "by TCP first": lambda names: names[1::2],
}
"""Who speaks by a WebSocket, of those of a conversation in the order in which they connect."""


def _names(script: Script) -> list[str]:
    return [name for line in script.lines if line.kind == "connect" for name in line.parts[0].split(", ")]


def _is_for_websockets(script: Script) -> bool:
    """Return whether all begin with a line, which can be the first message."""
    first: dict[str, str] = {}
    for line in script.lines:
        if line.kind == "says":
            first.setdefault(*line.parts)
    return all(text.count(r"\n") == 1 and text.endswith(r"\n") for text in first.values())


@pytest.mark.parametrize(
    ("script", "who"),
    [
        pytest.param(script, who, id=f"{script.name} {who}")
        for script in read_scripts()
        if script.name != "drain"  # who connects then finds no port
        for who in WEBSOCKETS
        if who == "by TCP" or _is_for_websockets(script)
    ],
)
@on_uvloop
async def test_on_a_relay_with_sockets(script: Script, who: str, tmp_path: Path) -> None:
    async with LiveRelay(tmp_path, limits=script.limits, blur=script.blur).serving() as live:
        named_port = await live.listen("proxy:127.0.0.1:0")
        world = LiveWorld(live, named_port, frozenset(WEBSOCKETS[who](_names(script))))
        try:
            await ScriptReplay(script, world).run()
        finally:
            world.close()


@every_script
async def test_on_the_code_of_the_reference(script: Script) -> None:
    """It passes, or the script says why it does not; a reason that no longer holds is a failure, too."""
    await _replay(script, ReferenceWorld(script.blur))


async def test_at_a_reference_relay(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """The same in real time, over sockets."""
    scripts = [script for script in read_scripts() if not script.reference_differs or script.reference_fails_at]
    for blur, group in groupby(sorted(scripts, key=_blur), _blur):
        flags = (f"--blur-usage={blur}",) if blur else ()
        async with reference_relay(tmp_path, *flags) as (port, read_usage), Fence.at(port) as fence:
            for script in group:
                world = SocketWorld(port, fence, read_usage, blur)
                with subtests.test(script.name):
                    await _replay(script, world)
                world.close()


def _blur(script: Script) -> int:
    return script.blur


async def _replay(script: Script, world: World) -> None:
    replay = ScriptReplay(script, world, script.reference_fails_at)
    if script.reference_fails_at is None:
        await replay.run()
        return
    with pytest.raises(Mismatch) as mismatch:
        await replay.run()
    assert mismatch.value.line == script.reference_fails_at
