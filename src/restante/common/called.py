"""Commands as the user may type them: how the program was called, and the quoting of a shell."""

from __future__ import annotations

import os
import re
import shlex
from typing import Final

PROGRAM_VARIABLE: Final = "_RESTANTE_PROGRAM"
"""The variable in which the script `run` says how it was called: there may be no `restante` in the PATH. Its name
begins unlike those of settings, because these are checked, which takes time."""

_KEPT_IN_DOUBLE_QUOTES: Final = re.compile(r"[^\"$`\\!\x00-\x1f\x7f]*")
"""Texts that a shell leaves as they are between double quotes (POSIX, Shell Command Language, 2.2.3). Some shells
replace an exclamation mark, too."""


def command_line(*words: object) -> str:
    """Return a command of this program, as a shell reads it."""
    return " ".join(
        [_quoted(os.environ.get(PROGRAM_VARIABLE) or "restante"), *(_quoted(str(each)) for each in words)]
    )


def _quoted(word: str) -> str:
    """Return a word of a command. SQL has single quotes: it is readable between double ones."""
    return f'"{word}"' if "'" in word and _KEPT_IN_DOUBLE_QUOTES.fullmatch(word) else shlex.quote(word)
