"""Texts of strangers, as they may be shown: nothing in them steers a terminal or turns the order of a line. Pure."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

SHOWN: Final = frozenset("\n\t\u200c\u200d")
"""Characters that are no letters and are shown as they are: ends of lines, tabs, and what joins letters and emoji."""


def unsuitable(text: str) -> str:
    """Return why a text cannot be shown to users of clients, which may not escape it; "" if it can."""
    for char in text:
        if char not in "\n\t" and (kind := unicodedata.category(char)) in {"Cc", "Cs"}:
            fault = "a control character; only line breaks and tabs are allowed"
            return f"U+{ord(char):04X} is {fault if kind == 'Cc' else 'half a character; write UTF-8'}"
    return ""


def visible(text: str) -> str:
    """Return a text with each control character as an escape, so that it cannot steer a terminal."""
    return "".join(
        char if char.isprintable() or char in SHOWN else char.encode("unicode_escape").decode() for char in text
    )


def in_one_line(text: str, max_characters: int | None = None) -> str:
    """Return a text in one line that steers no terminal. A longer one than the maximum is cut, and ends with …."""
    line = text if max_characters is None or len(text) <= max_characters else text[: max_characters - 1] + "…"
    return line if line.isprintable() else visible(line).replace("\n", "\\n").replace("\t", "\\t")


MAX_SENTENCE: Final = 400
"""Characters of a sentence of a server or a peer that an error shows."""


def cleaned(text: str) -> str:
    """Return a sentence of a server or a peer for the text of an error: in one line, and not too long."""
    return in_one_line(" ".join(text.split()), MAX_SENTENCE)


LOGIN: Final = re.compile(r"\A((?>(?:[^:/?#@]*:?//)?)).*@", re.DOTALL)
"""A URL up to its last @, also if the login has characters that no URL has, or there is no scheme."""


def redacted_url(url: str) -> str:
    """Return a URL for people: in one line, and without its user, which may be a token, and its password."""
    return in_one_line(LOGIN.sub(r"\1***@", url))


# ── numbers with their nouns: 1 row, 2,000 rows ──────────────────────────────────────────────────


def counted(number: int, noun: str) -> str:
    """Return the number and the noun. The noun is given in the singular and takes -s in the plural."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


# ── fields of CSV (RFC 4180) that no spreadsheet takes for a formula ─────────────────────────────

FORMULA: Final = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""How a text begins that a spreadsheet takes for a formula (OWASP, "CSV Injection"); the last four are full-width."""

END_OF_LINE: Final = "\r\n"

_QUOTED: Final = re.compile(r'[",\r\n]')
"""What a field has to be quoted for (RFC 4180, section 2)."""


def csv_field(value: str | None, *, is_text: bool) -> str:
    """Return a value as a field. NULL is empty, and an empty text is "".

    A text that a spreadsheet would take for a formula begins with an apostrophe: clients choose texts.
    """
    if value is None:
        return ""
    if is_text and value.startswith(FORMULA):
        value = f"'{value}"
    if not value or _QUOTED.search(value):
        return '"' + value.replace('"', '""') + '"'
    return value
