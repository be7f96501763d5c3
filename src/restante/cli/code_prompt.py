"""Ask for a code on a terminal. The Tab key completes it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from restante.client import completions
from restante.common.errors import RestanteError

QUESTION = "Wormhole code: "


class Completer:
    """What readline calls. The server is asked once for the nameplates in use, at the first Tab before a hyphen."""

    def __init__(self, nameplates: Callable[[], Sequence[str]], words: int) -> None:
        self._fetch_nameplates, self._words = nameplates, words
        self._nameplates: Sequence[str] | None = None
        self._found: Sequence[str] = ()

    def complete(self, typed: str, number: int) -> str | None:
        """Return the completion of this number, or None if there are no more (readline, `set_completer`)."""
        if number == 0:
            self._found = completions(typed, self._known(typed), self._words)
        return self._found[number] if number < len(self._found) else None

    def _known(self, typed: str) -> Sequence[str]:
        if "-" in typed:
            return ()
        if self._nameplates is None:
            try:
                self._nameplates = self._fetch_nameplates()
            except (RestanteError, TimeoutError):
                self._nameplates = ()  # the transfer fails with the same error, which is shown then
        return self._nameplates


def prompt_for_code(nameplates: Callable[[], Sequence[str]], words: int) -> str:
    """Return the line that the user typed. `nameplates` fetches those of the server."""
    if not sys.stdout.isatty():  # input() would write the question to standard output
        print(QUESTION, end="", file=sys.stderr, flush=True)
        return sys.stdin.readline()
    try:
        import readline
    except ImportError:  # a Python that was built without readline
        return input(QUESTION)
    readline.set_completer(Completer(nameplates, words).complete)
    readline.set_completer_delims("")
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    try:
        return input(QUESTION)
    except EOFError:
        print()
        return ""
    except KeyboardInterrupt:
        print()
        raise
    finally:
        readline.set_completer(None)
