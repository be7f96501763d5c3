"""Names of files that a peer chose: which of them may be used, and how errors quote them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final
from unicodedata import category, normalize

from restante.client.errors import UnsafeNameError
from restante.common.texts import in_one_line

MAX_NAME_BYTES: Final = 255
"""The longest name in UTF-8 (NAME_MAX of Linux's file systems)."""

MAX_QUOTED: Final = 80
"""How many characters of a name an error shows. More would hide the sentence around it."""

UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, line breaks, and what reorders the text behind it (UAX #9, sections 2.1 and 2.2).

The marks and joiners of Arabic, Hebrew, Persian and emoji (U+200C to U+200F, U+061C) reorder nothing else and pass.
"""

BLANKS: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that are drawn as nothing (Unicode 15: fillers of Hangul, the empty pattern of Braille)."""

DEVICES: Final = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\xb9\xb2\xb3]) *(\..*)?", re.IGNORECASE | re.DOTALL
)
"""Names that mean a device on Windows, with any extension (Microsoft, "Naming Files, Paths, and Namespaces")."""

NOT_ON_WINDOWS: Final = re.compile(r'[\\<>:"|?*]|[. ]\Z')
"""What a name on Windows does not have (the same page)."""


def file_name(offered: str) -> str:
    """Return the name under which an offered file or directory may be stored on this system. Raises UnsafeNameError.

    No shipped client sends a name with a separator: Python, Rust and Go send the last part of a path
    (cmd_send.py:305 of 0.24, cli/src/main.rs:751 of 0.8.1, cmd/send.go:170 of 1.0.8). Such a name is an attack, and
    to cut it down, as Python does, would only store the file of an attack under another name.
    """
    if "/" in offered:
        raise UnsafeNameError(f"the offered name {quoted(offered)} is a path and not the name of a file")
    if fault := name_fault(offered) or visibility_fault(offered):
        raise UnsafeNameError(f"the offered name {quoted(offered)} {fault}")
    return offered


def offered_name_fault(name: str) -> str:
    """Return why a name of what is sent is not one that a receiver may store, or nothing."""
    return "has a slash" if "/" in name else name_fault(name) or visibility_fault(name)


def name_fault(name: str) -> str:
    r"""Return why a name without separators is unsafe, or nothing.

    A backslash and the name of a device are ordinary here (`dev-disk-by\x2dlabel.swap` of systemd, `aux.c` of Linux).
    """
    if not name:
        return "is empty"
    if name in {".", ".."}:
        return "means a directory"
    if UNSAFE.search(name):
        return "has control characters"
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    return f"is longer than {MAX_NAME_BYTES} bytes" if length > MAX_NAME_BYTES else ""


def visibility_fault(name: str) -> str:
    """Return why a user would not see a name in a question or a list, or nothing. In a directory such names pass."""
    blank = all(char.isspace() or char in BLANKS or category(char) == "Cf" for char in name)
    return "has no visible character" if blank else ""


def unportable_names(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the names in one directory that other systems cannot store, and the reason of each."""
    names_by_spelling: dict[str, str] = {}
    for name in names:
        twin = names_by_spelling.setdefault(normalize("NFC", name).casefold(), name)
        if twin != name:
            difference = "only in upper and lower case, or in how its letters are encoded"
            yield name, f"differs from {quoted(twin)} {difference}"
        elif DEVICES.fullmatch(name):
            yield name, "means a device on Windows"
        elif NOT_ON_WINDOWS.search(name):
            yield name, "has a character that no name on Windows has, or ends with a dot or a space"


def quoted(name: str) -> str:
    """Return a peer's name for an error's text: in quotes, unprintable characters as escapes, and not too long."""
    return quoted_path(name if len(name) <= MAX_QUOTED else f"{name[:MAX_QUOTED]}…")


def quoted_path(path: str) -> str:
    """Return one of our own paths for an error's text: the same, at any length."""
    return f"'{in_one_line(path)}'"
