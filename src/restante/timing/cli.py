"""`restante timing`: where the time of a transfer went. What a subcommand needs is imported when it runs."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections import Counter
from enum import Enum
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Self, assert_never

import typer
import typer.core

from restante.common.errors import Misuse, StoreError, plain
from restante.common.terminal import excerpt, has_colours, say

if TYPE_CHECKING:
    from restante.timing.comparison import Comparison
    from restante.timing.model.timeline import Role, Timeline

app = typer.Typer(name="timing", no_args_is_help=True)

FILE_WIDTH: Final = 100
"""Columns of a text that is not for a terminal."""

OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="File to write, instead of printing.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]

SEED: Final = 1
"""Of the draws of the rank test, so that the same logs give the same result."""


@app.callback()
def timing() -> None:
    """Show where the time of a transfer went."""


class Form(Enum):
    """What a timeline is written as."""

    PAGE = "page"
    TEXT = "text"
    JSON = "json"
    TRACE_EVENT = "trace-event"


@app.command()
def render(
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG [LOG]",
            show_default=False,
            help="Timing log of the sender, of the receiver, or of both (--dump-timing).",
        ),
    ],
    server: Annotated[
        Path | None, typer.Option(metavar="TRACE", help="Trace of the mailbox server (restante serve --trace).")
    ] = None,
    output: OutputOption = None,
    text: Annotated[bool, typer.Option("--text", help="Write tables and a diagram for a terminal.")] = False,
    json: JsonOption = False,
    trace_event: Annotated[
        bool, typer.Option("--trace-event", help="Write trace events, which ui.perfetto.dev opens.")
    ] = False,
    skew: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=SECONDS",
            help="How far the clock of the sender or receiver is ahead of the server's, instead of an estimate;"
            " repeatable.",
        ),
    ] = None,
) -> None:
    """Show the messages of a transfer and what took the time.

    With --output it writes an HTML page, unless another form is chosen. Otherwise it prints text.
    """
    from restante.timing.transfers import read_transfer

    form = _chosen_form(text=text, json=json, trace_event=trace_event, output=output)
    if len(logs) > 2:
        raise Misuse(f"{len(logs)} logs were given: a transfer has the sender's and the receiver's")
    _check_output(output, [*logs, *([] if server is None else [server])])
    timeline = read_transfer(logs, server, _parse_skews(skew or []), _remark)
    _write_result(_timeline_output(timeline, form, Screen.of(output)), output)


def _check_output(output: Path | None, inputs: list[Path]) -> None:
    """Raise Misuse if the output is a directory, or would replace an input."""
    if output is not None and output.is_dir():
        raise Misuse(f"{output} is a directory: name a file with --output")
    if output is not None and os.path.realpath(output) in map(os.path.realpath, inputs):
        raise Misuse(f"{output} is one of the files that are read: name another file with --output")


def _chosen_form(*, text: bool, json: bool, trace_event: bool, output: Path | None) -> Form:
    flags = {Form.TEXT: text, Form.JSON: json, Form.TRACE_EVENT: trace_event}
    forms = [form for form, is_set in flags.items() if is_set]
    if len(forms) > 1:
        raise Misuse(f"--{forms[0].value} and --{forms[1].value} exclude each other: run the command twice")
    if forms:
        return forms[0]
    return Form.TEXT if output is None else Form.PAGE


def _parse_skews(options: list[str]) -> dict[Role, float]:
    from restante.timing.model.timeline import ROLES
    from restante.timing.transfers import MAX_SKEW_SECONDS

    skews: dict[Role, float] = {}
    for option in options:
        name, _, number = option.partition("=")
        role = next((role for role in ROLES if role == name), None)
        try:
            seconds = float(number)
        except ValueError:
            seconds = math.nan
        if role is None or not abs(seconds) <= MAX_SKEW_SECONDS:
            raise Misuse(f"--skew {option}: write sender=SECONDS or receiver=SECONDS, like sender=-0.25")
        if role in skews:
            raise Misuse(f"--skew {role} was given twice")
        skews[role] = seconds
    return skews


def _timeline_output(timeline: Timeline, form: Form, screen: Screen) -> str:
    match form:
        case Form.PAGE:
            from restante.timing.outputs.page import timeline_page

            return timeline_page(timeline).decode()
        case Form.TRACE_EVENT:
            from restante.timing.outputs.trace_event import timeline_trace_events

            return timeline_trace_events(timeline).decode()
        case Form.JSON:
            return _json_text(timeline)
        case Form.TEXT:
            from restante.timing.outputs.text import timeline_text

            return timeline_text(timeline, screen.width, colour=screen.colour, unicode=screen.unicode)
        case _:
            assert_never(form)


def _json_text(result: Timeline | Comparison) -> str:
    import msgspec

    return msgspec.json.encode(result).decode() + "\n"


class Screen(NamedTuple):
    """What a text is written for."""

    width: int
    """Columns."""
    colour: bool
    unicode: bool

    @classmethod
    def of(cls, output: Path | None) -> Self:
        """Return what standard output can show or, if there is a file, what any program can."""
        if output is not None:
            return cls(FILE_WIDTH, colour=False, unicode=True)
        terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size((FILE_WIDTH, 24)).columns if terminal else FILE_WIDTH
        unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        return cls(width, has_colours(sys.stdout), unicode)


def _write_result(content: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(content)
        return
    from restante.common.atomic_file import write_output

    try:
        write_output(output, content.encode())
    except OSError as error:
        raise StoreError(f"cannot write {output}: {plain(error)}") from error


def _remark(sentence: str) -> None:
    say(f"restante: {excerpt(sentence)}")


# ── compare ──────────────────────────────────────────────────────────────────────────────────────


class _TwoGroups(typer.core.TyperCommand):
    """A command whose arguments are two groups with `--` between them. The second becomes the context's `obj`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        separator = args.index("--") if "--" in args else len(args)
        ctx.obj = [Path(path) for path in args[separator + 1 :]]
        return super().parse_args(ctx, args[:separator])


@app.command(cls=_TwoGroups)
def compare(
    context: typer.Context,
    old: Annotated[
        list[Path],
        typer.Argument(metavar="OLD... -- NEW...", show_default=False, help="Timing logs of runs before and after."),
    ],
    server: Annotated[
        Path | None, typer.Option(metavar="TRACE", help="Trace of the mailbox server that has all of the runs.")
    ] = None,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Show what got slower or faster between two groups of runs.

    It also shows whether the runs are enough to tell. Each log is one run of one client. Senders are compared with
    senders, and receivers with receivers. Options come before the logs.
    """
    from restante.timing.comparison import compare_runs
    from restante.timing.outputs.compare_text import comparison_text
    from restante.timing.transfers import read_transfer

    new: list[Path] = context.obj
    if not new:
        raise Misuse("there is no second group: write restante timing compare OLD... -- NEW...")
    repeated = [path for path, count in Counter(map(os.path.realpath, (*old, *new))).items() if count > 1]
    if repeated:
        raise Misuse(f"{repeated[0]} was given twice: each log is one run")
    _check_output(output, [*old, *new, *([] if server is None else [server])])
    before, after = ([read_transfer([path], server, {}, _remark) for path in group] for group in (old, new))
    try:
        comparison = compare_runs(before, after, Random(SEED))  # noqa: S311 - a test's draws are no secrets
    except ValueError as error:
        raise Misuse(f"these runs cannot be compared: {error}") from error
    screen = Screen.of(output)
    text = comparison_text(comparison, screen.width, colour=screen.colour, unicode=screen.unicode)
    _write_result(_json_text(comparison) if json else text, output)
