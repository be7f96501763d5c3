"""How far a run is, in lines and on a terminal."""

import itertools
import sys

import pytest

from restante.pipeline.steps import Steps
from support.processes import on_a_terminal

CODE = """
from restante.pipeline.steps import Steps
steps = Steps("build")
with steps.step("outcomes", lambda: (3, 8)) as step:
    input()
    step.so_far("31 of 365 days")
    input()
    step.done("365 days")
"""


def test_without_a_terminal_a_step_is_one_line_when_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps("build", itertools.count().__next__)
    with steps.step("outcomes", lambda: pytest.fail("nobody looks at tasks")) as step:
        assert capsys.readouterr().err == ""
        step.so_far("31 of 365 days")
        step.done("365 days")
    assert capsys.readouterr() == ("", "build: outcomes: 31 of 365 days, 1.0 s\nbuild: outcomes: 365 days, 2.0 s\n")


def test_a_step_that_fails_is_not_shown_as_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), Steps("build").step("outcomes"):
        raise KeyError
    assert capsys.readouterr().err == ""


def shown(code: str, *steps: tuple[str, ...]) -> str:
    return on_a_terminal(sys.executable, "-c", code, streams=["stderr"], steps=steps)


def test_a_terminal_shows_the_running_step_and_its_tasks() -> None:
    said = shown(CODE, ("outcomes \u00b7 task 3 of 8",), ("outcomes \u00b7 31 of 365 days \u00b7 task 3 of 8",))
    assert "build: outcomes: 365 days, " in said


TWO = """
import threading
from restante.pipeline.steps import Steps
steps = Steps("build")
shown = threading.Event()
def work(name, tasks):
    with steps.step(name, lambda: tasks) as step:
        if name == "outcomes":
            input()
            shown.set()
        shown.wait()
        step.done("a day")
other = threading.Thread(target=work, args=("durations", (1, 9)))
other.start()
work("outcomes", (3, 8))
other.join()
"""


def test_a_terminal_shows_parallel_steps() -> None:
    said = shown(TWO, ("outcomes \u00b7 task 3 of 8", "durations \u00b7 task 1 of 9"))
    for words in ("build: outcomes: a day, ", "build: durations: a day, "):
        assert said.count(words) == 1
