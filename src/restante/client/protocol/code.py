"""Codes: `7-purple-sausages` is the nameplate 7 and the password, of which the nameplate is a part."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from restante.client.arguments import is_integer, is_text
from restante.client.defaults import DEFAULT_WORDS, MAX_WORDS
from restante.client.protocol.wordlist import THREE_SYLLABLES, TWO_SYLLABLES
from restante.common.errors import Misuse

MAX_NAMEPLATE_DIGITS: Final = 40
"""Digits of a code's number. The reference server takes no more (mailbox server 0.8.0: server.py:11)."""

_NAMEPLATE: Final = re.compile(rf"[0-9]{{1,{MAX_NAMEPLATE_DIGITS}}}")


class CodeError(Misuse, ValueError):
    """A text is no code. The text of the error says what to do."""


def nameplate_of(code: str) -> str:
    """Return the nameplate of a code.

    Raises:
        CodeError: the text does not begin with a number and a hyphen, has nothing after them, has a space in it, or
            cannot be encoded in UTF-8; or it is not a text.

    """
    if not is_text(code):
        raise CodeError("a code is a text in UTF-8, and this one is not")
    nameplate, hyphen, password = code.partition("-")
    if any(char.isspace() for char in code):
        raise CodeError("a code has no spaces: write it with hyphens, like 7-purple-sausages")
    if not is_nameplate(nameplate):
        raise CodeError("a code begins with a number and a hyphen, like 7-purple-sausages")
    if not hyphen or not password:
        raise CodeError("a code has words after its number, like 7-purple-sausages")
    return nameplate


def is_nameplate(text: str) -> bool:
    """Return whether a text can be the number of a code."""
    return _NAMEPLATE.fullmatch(text) is not None


def password_of(code: str) -> bytes:
    """Return what SPAKE2 gets: the whole code, normalised (magic-wormhole: util.py, `to_bytes`)."""
    return unicodedata.normalize("NFC", code).encode()


def random_words(random: bytes) -> str:
    """Return a word for each of some random bytes, joined with hyphens."""
    return "-".join(word_list(position)[byte] for position, byte in enumerate(random))


def check_word_count(length: int) -> None:
    """Raise Misuse if no code has so many words."""
    if not is_integer(length, 1, MAX_WORDS):
        raise Misuse(f"a code has 1 to {MAX_WORDS} words, not {length!r}")


def check_completable(prefix: str, length: int) -> None:
    """Raise Misuse if the beginning of a code is not a text, or no code has so many words."""
    if not isinstance(prefix, str):
        raise Misuse(f"the beginning of a code is a text, not {prefix!r}")
    check_word_count(length)


def completions(prefix: str, nameplates: Iterable[str], length: int = DEFAULT_WORDS) -> Sequence[str]:
    """Return what an incomplete code may become next, for the Tab key: first numbers, then one word after the other.

    With the nameplates 4 and 42, `4` may become `4-` or `42-`. Then `42-gu` may become `42-guitarist-`, and
    `42-guitarist-un` may become `42-guitarist-unicorn`: no hyphen follows the last word. The result is sorted, and
    empty if nothing fits.

    Args:
        prefix: what a user has typed.
        nameplates: those in use, as `BaseWormhole.nameplates` returns them.
        length: words of the code, 1 to `MAX_WORDS`.

    Raises:
        Misuse: the beginning is not a text, or the number of words is outside these bounds.

    """
    check_completable(prefix, length)
    nameplate, hyphen, typed = prefix.partition("-")
    if not hyphen:
        return sorted(
            (f"{number}-" for number in nameplates if number.startswith(prefix)), key=lambda code: (len(code), code)
        )
    *chosen_words, last_word = typed.split("-")
    if len(chosen_words) >= length:
        return []
    end = "-" if len(chosen_words) + 1 < length else ""
    head = "-".join((nameplate, *chosen_words, ""))
    return sorted(head + word + end for word in word_list(len(chosen_words)) if word.startswith(last_word.lower()))


def word_list(position: int) -> Sequence[str]:
    """Return the 256 words of which a code has one at a position. The number of each is the byte for which it stands.

    These are the PGP word lists, which every `wormhole` client uses (magic-wormhole: _wordlist.py), in lower case.

    Args:
        position: 0 for the first word after the number. Words have three syllables at even positions, two at odd
            ones.

    """
    return TWO_SYLLABLES if position % 2 else THREE_SYLLABLES
