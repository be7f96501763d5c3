"""Every conversation, in every world: one by one and as one batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from support.mailbox.conversation import Mismatch, Replay, Script, read_scripts
from support.mailbox.reference_world import ReferenceWorld
from support.mailbox.shells import SocketWorld
from support.mailbox.worlds import CoreWorld, StoreWorld, World

every_script = pytest.mark.parametrize("script", read_scripts(), ids=lambda script: script.name)


def replay(script: Script, begin: Callable[[], World]) -> None:
    """Replay a script in two worlds: in the first, each line is done before the next is said; then in batches."""
    with closing(begin()) as world:
        first = Replay(script, world)
        first.one_by_one()
    with closing(begin()) as world:
        Replay(script, world, first.variables).as_batches()


@every_script
def test_on_the_core(script: Script) -> None:
    replay(script, lambda: CoreWorld(script.options))


@every_script
def test_on_the_store(script: Script) -> None:
    replay(script, lambda: StoreWorld(script.options))


@every_script
def test_over_a_live_socket(script: Script) -> None:
    replay(script, lambda: SocketWorld(script.options))


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
