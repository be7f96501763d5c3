"""The server does what the plain model does, wherever it is. `--effort N` looks N times as hard (effort.py)."""

from hypothesis.stateful import run_state_machine_as_test

from machine.machine import MOTD, Conversation
from support.effort import examples
from support.mailbox.givens import Options
from support.mailbox.shells import CommitLoopWorld, SocketWorld
from support.mailbox.worlds import CoreWorld, StoreWorld


class Core(Conversation):
    kind = CoreWorld


class Stored(Conversation):
    kind = StoreWorld


class Batched(Conversation):
    kind = StoreWorld
    gathers = True


class CommitLoopMachine(Conversation):
    kind = CommitLoopWorld
    gathers = True


class Socket(Conversation):
    kind = SocketWorld


def test_the_core_does_what_the_model_does() -> None:
    run_state_machine_as_test(Core, settings=examples(60))


def test_the_store_keeps_what_the_model_keeps() -> None:
    run_state_machine_as_test(Stored, settings=examples(16))


def test_a_batch_means_what_its_commands_mean_one_after_the_other() -> None:
    run_state_machine_as_test(Batched, settings=examples(40))


def test_batches_of_the_commit_loop_do_not_change_its_answers() -> None:
    run_state_machine_as_test(CommitLoopMachine, settings=examples(16))


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


def test_real_clients_see_what_the_model_says() -> None:
    run_state_machine_as_test(Socket, settings=examples(4, steps=30))
