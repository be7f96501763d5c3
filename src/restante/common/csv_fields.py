"""Fields of CSV (RFC 4180) that no spreadsheet takes for a formula. Pure."""

from __future__ import annotations

import re
from typing import Final

FORMULA: Final = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""How a text begins that a spreadsheet takes for a formula (OWASP, "CSV Injection"); the last four are full-width."""

END_OF_LINE: Final = "\r\n"

_QUOTED: Final = re.compile(r'[",\r\n]')
"""What a field has to be quoted for (RFC 4180, section 2)."""


def field(value: str | None, *, is_text: bool) -> str:
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
