"""What commands write on a terminal and read from it: colours, texts, questions, commands that a user may type."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from typing import TYPE_CHECKING, Final, TextIO

from restante.common.errors import RestanteError
from restante.common.texts import visible

if TYPE_CHECKING:
    import asyncio

DUMB: Final = {"dumb", "unknown"}
"""Values of TERM of terminals that know no escape sequences (man 7 term)."""


def can_rewrite(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that can go back in a line, for progress bars."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") not in DUMB


def has_colours(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal with colours, and its user wants them (no-color.org)."""
    return can_rewrite(stream) and not os.environ.get("NO_COLOR")


SHOW_CURSOR: Final = "\x1b[?25h"
"""A progress bar hides the cursor of the terminal (DECTCEM of xterm)."""


# ── texts, questions and answers ─────────────────────────────────────────────────────────────────

MAX_EXCERPT_CHARACTERS: Final = 2000
"""Characters of a server's or peer's text that are shown: about a screen. A server may send megabytes."""

MAX_LINE_BYTES: Final = 4096
"""Bytes of an answer. A terminal's line is no longer (man 3 termios)."""


def excerpt(text: str) -> str:
    """Return the beginning of a text that others wrote, as `visible` shows it."""
    return visible(text if len(text) <= MAX_EXCERPT_CHARACTERS else text[:MAX_EXCERPT_CHARACTERS] + " …")


def say(text: str, end: str = "\n") -> None:
    """Show a text on standard error. If it cannot be written, nobody reads them, and the transfer goes on."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(text, end=end, file=sys.stderr, flush=True)  # noqa: T201 - for the user of a command


async def answered_yes(question: str) -> bool | None:
    """Ask a question on standard error until the answer is yes or no. An empty answer is no.

    None: standard input has ended, and nobody answers.
    """
    standard_input = StandardInput()
    while True:
        say(f"{question} (yes/no): ", end="")
        answer = (await standard_input.line()).strip().lower()
        if answer in {"yes", "y"}:
            return True
        if standard_input.has_ended and not answer:
            return None
        if answer in {"no", "n", ""}:
            return False


class Declined(RestanteError):  # noqa: N818 - it is what the user decided
    """The user answered no."""


class StandardInput:
    """Lines of standard input. Waiting for one can be cancelled, and does not keep the process from its end."""

    _unread = b""  # of all instances, as there is one standard input
    has_ended = False
    """Whether it has ended, or is closed."""

    async def line(self) -> str:
        """Return the next line without its end. It is empty at the end of the input, and if that is closed."""
        if sys.stdin is None:
            self.has_ended = True
            return ""
        import asyncio  # here, because most commands need none of it

        loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
        ready = asyncio.Event()
        try:
            loop.add_reader(descriptor, ready.set)
        except PermissionError:  # a file, which is always ready
            ready.set()
            return await self._line(ready, waits=False)
        try:
            return await self._line(ready, waits=True)
        finally:
            loop.remove_reader(descriptor)

    async def _line(self, ready: asyncio.Event, *, waits: bool) -> str:
        while b"\n" not in self._unread and len(self._unread) < MAX_LINE_BYTES:
            await ready.wait()
            data = os.read(sys.stdin.fileno(), MAX_LINE_BYTES)
            if waits:
                ready.clear()
            if not data:
                self.has_ended = True
                break
            StandardInput._unread += data
        line, _, StandardInput._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")


# ── commands that the user may type ──────────────────────────────────────────────────────────────

PROGRAM_VARIABLE: Final = "_RESTANTE_PROGRAM"
"""The variable in which the script `run` has how it was called: there may be no `restante` in the PATH. Its name
begins unlike those of settings, because these are checked, which takes time."""

_PLAIN_IN_DOUBLE_QUOTES: Final = re.compile(r"[^\"$`\\!\x00-\x1f\x7f]*")
"""Texts that a shell leaves as they are between double quotes (POSIX, Shell Command Language, 2.2.3). Some shells
replace an exclamation mark, too."""


def command_line(*arguments: object) -> str:
    """Return a command of this program, as a shell reads it."""
    return " ".join(
        [_quoted(os.environ.get(PROGRAM_VARIABLE) or "restante"), *(_quoted(str(argument)) for argument in arguments)]
    )


def _quoted(argument: str) -> str:
    """Return an argument of a command. SQL has single quotes: it is readable between double ones."""
    return (
        f'"{argument}"' if "'" in argument and _PLAIN_IN_DOUBLE_QUOTES.fullmatch(argument) else shlex.quote(argument)
    )
