"""Codes that people type: how they are read, and asked for on a terminal, where the Tab key completes them."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import Final

from restante.client.protocol.code import CodeError, completions, is_nameplate, nameplate_of, word_list
from restante.common.errors import Misuse, RestanteError

QUESTION: Final = "Wormhole code: "

WORD_QUESTION: Final = "This code has one word, and most have two. Second word (Enter if there is none): "

MINUS_SIGN: Final = "\u2212"
"""The only one of the characters that are read as hyphens that Unicode does not count as a dash."""


def hyphenated(text: str) -> str:
    """Return a code, or its beginning, with hyphens in place of what editors, chats and telephones make of them.

    These are all dashes (category Pd of Unicode), like the en dash, the em dash and the non-breaking hyphen, and the
    minus sign. Underscores are replaced only if the text then has no hyphen: words that people choose may have them.
    """
    text = "".join("-" if unicodedata.category(char) == "Pd" or char == MINUS_SIGN else char for char in text)
    return text if "-" in text else text.replace("_", "-")


def own_code(code: str) -> str:
    """Return a code that a person typed. Raises CodeError if the text is not a code, or a word is missing at its end.

    White space around it is removed, and dashes are read as hyphens. If all its words are those of new codes but for
    capitals, which telephones write on their own, and underscores between them, it is in lower case with hyphens: new
    codes have neither.
    """
    code = hyphenated(code.strip())
    nameplate_of(code)
    if code.endswith("-"):
        raise CodeError("the code ends with a hyphen: its last word is missing")
    new_code = code.lower().replace("_", "-")
    words = new_code.split("-")[1:]
    return new_code if all(word in word_list(position) for position, word in enumerate(words)) else code


def one_word_code(text: str) -> str | None:
    """Return the code that a person typed, if it has one word, which new codes have there. None: it has not."""
    code = hyphenated(text.strip()).removesuffix("-")
    nameplate, _, word = code.partition("-")
    return code if is_nameplate(nameplate) and word.lower() in word_list(0) else None


def ask_for_second_word(code: str) -> str:
    """Return a code of one word with the second word that the user types, or as it is: `--code-length 1` makes such.

    Raises Misuse if standard input ends.
    """
    answer = _read_line(WORD_QUESTION, Completer(lambda: (), 2, f"{code}-"))
    if answer is None:
        raise Misuse("the second word of the code was not entered")
    return f"{code}-{answer.strip()}" if answer.strip() else code


class Completer:
    """What readline calls. The server is asked once for the nameplates in use, at the first Tab before a hyphen."""

    def __init__(self, nameplates: Callable[[], Sequence[str]], word_count: int, head: str = "") -> None:
        """Complete codes of so many words. `head` is the beginning of the code, before what is typed."""
        self._fetch_nameplates, self._word_count, self._head = nameplates, word_count, head
        self._nameplates: Sequence[str] | None = None
        self._codes: Sequence[str] = ()

    def complete(self, text: str, number: int) -> str | None:
        """Return the completion of this number, or None if there are no more (readline, `set_completer`)."""
        if number == 0:
            prefix = hyphenated(self._head + text).replace("_", "-")
            codes = completions(prefix, self._nameplates_for(prefix), self._word_count)
            self._codes = [code.removeprefix(self._head) for code in codes]
        return self._codes[number] if number < len(self._codes) else None

    def _nameplates_for(self, text: str) -> Sequence[str]:
        if "-" in text:
            return ()
        if self._nameplates is None:
            try:
                self._nameplates = self._fetch_nameplates()
            except (RestanteError, TimeoutError):
                self._nameplates = ()  # the transfer fails with the same error, which is shown then
        return self._nameplates


def prompt_for_code(nameplates: Callable[[], Sequence[str]], word_count: int) -> str:
    """Return the code that the user typed. `nameplates` fetches those of the server. Raises Misuse."""
    text = _read_line(QUESTION, Completer(nameplates, word_count)) or ""
    code = one_word_code(text)
    return text if code is None or word_count == 1 else ask_for_second_word(code)


def _read_line(question: str, completer: Completer) -> str | None:
    """Return the line that the user typed. None: standard input has ended."""
    if not sys.stdout.isatty():  # input() would write the question to standard output
        print(question, end="", file=sys.stderr, flush=True)
        return sys.stdin.readline() or None
    try:
        import readline
    except ImportError:  # a Python that was built without readline
        return input(question)
    readline.set_completer(completer.complete)
    readline.set_completer_delims("")
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    try:
        return input(question)
    except EOFError:
        print()
        return None
    except KeyboardInterrupt:
        print()
        raise
    finally:
        readline.set_completer(None)
