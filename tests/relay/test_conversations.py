"""Every conversation with the transit relay: on its pure core, on the reference's code, and at a reference's port."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from support.relay.conversation import Mismatch, Script, ScriptReplay, read_scripts
from support.relay.worlds import CoreWorld, Fence, ReferenceWorld, SocketWorld, World, reference_relay

every_script = pytest.mark.parametrize("script", read_scripts(), ids=lambda script: script.name)


@every_script
async def test_on_the_core(script: Script) -> None:
    await ScriptReplay(script, CoreWorld(script.limits, script.blur)).run()


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
