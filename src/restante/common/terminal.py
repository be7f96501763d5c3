"""What may be written to a stream besides plain lines: colours, and lines that are rewritten."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Final, TextIO

from restante.common.errors import RestanteError
from restante.common.texts import visible

DUMB: Final = {"dumb", "unknown"}
"""Values of TERM of terminals that know no escape sequences (man 7 term)."""


def can_rewrite(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that can go back in a line, for progress bars."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") not in DUMB


def has_colours(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal with colours, and its user wants them (no-color.org)."""
    return can_rewrite(stream) and not os.environ.get("NO_COLOR")


# ── What is read from a terminal, and what may be shown on one ────────────────────────────────────


MAX_EXCERPT_CHARACTERS: Final = 2000
"""Characters of a server's or peer's words that are shown: about a screen. A server may send megabytes."""

MAX_LINE_BYTES: Final = 4096
"""Bytes of an answer. A terminal's line is no longer (man 3 termios)."""


def excerpt(text: str) -> str:
    """Return the beginning of a text that others wrote, as `visible` shows it."""
    return visible(text if len(text) <= MAX_EXCERPT_CHARACTERS else text[:MAX_EXCERPT_CHARACTERS] + " …")


def say(words: str, end: str = "\n") -> None:
    """Show words on standard error. If it cannot be written, nobody reads them, and the transfer goes on."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(words, end=end, file=sys.stderr, flush=True)  # noqa: T201 - for the user of a command


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
        if standard_input.ended and not answer:
            return None
        if answer in {"no", "n", ""}:
            return False


class Declined(RestanteError):  # noqa: N818 - it is what the user decided
    """The user answered no."""


class StandardInput:
    """Lines of standard input. Waiting for one can be cancelled, and does not keep the process from its end."""

    _unread = b""  # of all instances, as there is one standard input
    ended = False
    """Whether it has ended, or is closed."""

    async def line(self) -> str:
        """Return the next line without its end. It is empty at the end of the input, and if that is closed."""
        if sys.stdin is None:
            self.ended = True
            return ""
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
            some = os.read(sys.stdin.fileno(), MAX_LINE_BYTES)
            if waits:
                ready.clear()
            if not some:
                self.ended = True
                break
            StandardInput._unread += some
        line, _, StandardInput._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")
