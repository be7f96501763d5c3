"""Every conversation, in every world: one by one and as one batch."""

from __future__ import annotations

from contextlib import closing

import pytest

from support.mailbox.conversation import Mismatch, Replay, Script, read_scripts
from support.mailbox.reference_world import ReferenceWorld
from support.mailbox.shells import SocketWorld
from support.mailbox.worlds import CoreWorld, StoreWorld, World

every_script = pytest.mark.parametrize("script", read_scripts(), ids=lambda script: script.name)


@pytest.mark.parametrize("world", [CoreWorld, StoreWorld, SocketWorld])
@every_script
def test_here(script: Script, world: type[World]) -> None:
    """In a first world, each line is done before the next is said; in another one they are said in batches."""
    with closing(world(script.options)) as server:
        first = Replay(script, server)
        first.one_by_one()
    with closing(world(script.options)) as server:
        Replay(script, server, first.variables).as_batches()


@every_script
def test_against_the_reference_server(script: Script) -> None:
    """It passes, or the script says why it does not; a reason that no longer holds is a failure, too."""
    with closing(ReferenceWorld(script.options)) as world:
        replay = Replay(script, world)
        if script.reference_differs is None:
            replay.one_by_one()
        else:
            with pytest.raises(Mismatch) as mismatch:
                replay.one_by_one()
            assert mismatch.value.line == script.reference_fails_at
