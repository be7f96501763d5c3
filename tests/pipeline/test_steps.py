"""How far a run is, in lines and on a terminal."""

import itertools
import sys

import pytest

from restante.pipeline.steps import Steps
from support.processes import on_a_terminal


def test_without_a_terminal_a_step_is_one_line_when_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps("build", itertools.count().__next__)
    with steps.step("outcomes", lambda: pytest.fail("nobody looks at tasks")) as step:
        assert capsys.readouterr().err == ""
        step.so_far("31 of 365 days")
        step.done("365 days")
    assert capsys.readouterr() == ("", "build: outcomes: 31 of 365 days, 1.0 s\nbuild: outcomes: 365 days, 2.0 s\n")
    with pytest.raises(KeyError), Steps("build").step("outcomes"):
        raise KeyError
    assert capsys.readouterr().err == "", "a step that fails is not done"


CODE = """
import threading
from restante.pipeline.steps import Steps
steps = Steps("build")
shown = threading.Event()
def work(name, tasks):
    with steps.step(name, lambda: tasks) as step:
        if name == "outcomes":
            input()
            step.so_far("31 of 365 days")
            input()
            shown.set()
        shown.wait()
        step.done("a day")
other = threading.Thread(target=work, args=("durations", (1, 9)))
other.start()
work("outcomes", (3, 8))
other.join()
"""


def test_a_terminal_shows_the_running_steps_and_their_tasks() -> None:
    first = ("outcomes \u00b7 task 3 of 8", "durations \u00b7 task 1 of 9")
    second = ("outcomes \u00b7 31 of 365 days \u00b7 task 3 of 8",)
    shown = on_a_terminal(sys.executable, "-c", CODE, streams=["stderr"], steps=(first, second))
    for line in ("build: outcomes: a day, ", "build: durations: a day, "):
        assert shown.count(line) == 1
