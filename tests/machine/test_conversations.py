"""The server does what the plain model does, wherever it is. `--effort N` looks N times as hard (effort.py)."""

from functools import partial
from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test

from machine.machine import BLUNDERS, MOTD, BatchedConversation, Conversation, RestartedConversation
from support.effort import examples
from support.mailbox.databases import PostgresDatabase
from support.mailbox.givens import Options
from support.mailbox.shells import CommitLoopWorld, HandedOverWorld, SocketWorld
from support.mailbox.worlds import CoreWorld, StoreWorld, World
from support.postgres import Cluster


class CommitLoopMachine(BatchedConversation):
    kind = CommitLoopWorld


def run(machine: type[Conversation], world: type[World] | partial[Any], number: int, steps: int) -> None:
    class WorldMachine(machine):  # type: ignore[misc, valid-type]
        kind = world

    run_state_machine_as_test(WorldMachine, settings=examples(number, steps))


@pytest.mark.examples
@pytest.mark.parametrize(
    ("world", "machine", "number", "steps"),
    [
        (CoreWorld, Conversation, 60, 50),
        (StoreWorld, BatchedConversation, 40, 50),
        (CommitLoopWorld, BatchedConversation, 16, 50),
        (CommitLoopWorld, RestartedConversation, 6, 30),
        (SocketWorld, BatchedConversation, 4, 30),
        (HandedOverWorld, Conversation, 4, 30),
        (HandedOverWorld, BatchedConversation, 4, 30),
    ],
    ids=["core", "store, batches", "commit loop, batches", "commit loop, restarted at every command"]
    + ["socket, batches", "handed over at every command", "handed over, batches"],
)
def test_the_server_does_what_the_model_does(
    world: type[World], machine: type[Conversation], number: int, steps: int
) -> None:
    run(machine, world, number, steps)


@pytest.mark.examples
@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize(
    ("machine", "number", "steps"),
    [(BatchedConversation, 4, 50), (RestartedConversation, 2, 25)],
    ids=["batches", "taken over at every command"],
)
def test_a_server_on_postgresql_does_what_the_model_does(
    postgres: Cluster, machine: type[Conversation], number: int, steps: int
) -> None:
    """Another server takes over in place of a restart."""
    run(machine, partial(CommitLoopWorld, begin=partial(PostgresDatabase.begin, postgres.url)), number, steps)


def test_any_value_in_any_field_is_answered_as_the_model_says() -> None:
    state = Conversation()
    state.begin(options=Options(motd=MOTD), seed=0, stubborn=False)
    for before in ("connected", "bound", "opened"):
        for blunder in BLUNDERS:
            state.lose(slot=0)
            if before == "opened":
                state.name(slot=0, pick=0, kind="open", mood=None)
            state.blunder(slot=0, text=blunder, bound=before != "connected")
    state.teardown()


def test_a_connection_is_lost_in_the_batch_of_its_commands_however_much_is_said() -> None:
    state = CommitLoopMachine()
    state.begin(options=Options(motd=MOTD), seed=0, stubborn=False)
    for _ in range(5):
        state.take_the_digits(slot=0, most=6)
    state.take_the_digits(slot=1, most=6)
    for _ in range(5):
        state.name(slot=1, kind="list", mood="happy", pick=0)
    state.lose(slot=1)
    state.teardown()


def test_a_refused_batch_does_not_change_who_was_told_of_a_name_that_is_used_again() -> None:
    state = CommitLoopMachine()
    state.begin(options=Options(motd=MOTD, prune_after=30.0), seed=0, stubborn=True)
    state.wait(seconds=60.0)
    state.allocate(slot=0)
    state.flush()
    state.name(slot=0, kind="release", mood=None, pick=0)
    state.allocate_twice(first=2, lost=True, refused=True)
    state.teardown()
