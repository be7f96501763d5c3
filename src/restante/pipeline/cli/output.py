"""What the commands that read the lake without Spark share: their end by a signal, and their standard output."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from restante.common.errors import StoreError, plain


@contextmanager
def ending_on_signals() -> Iterator[list[Path]]:
    """End the process at once on SIGINT or SIGTERM. Yield a list for the folders that are removed then."""
    from restante.common.signals import ending_at_once

    places: list[Path] = []

    def stopped() -> None:
        for each in places:
            shutil.rmtree(each, ignore_errors=True)
        os.write(2, b"restante: stopped\n")

    with ending_at_once(stopped):
        yield places


def write_output_lines(lines: Iterable[str], what: str) -> None:
    """Write lines to standard output, in UTF-8 whatever the locale is. Each has its end. Raises StoreError.

    `what` is the word for them in an error.
    """
    if sys.stdout is None:
        raise StoreError(f"cannot write the {what}: standard output is closed")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        for line in lines:
            sys.stdout.write(line)
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # nobody reads the rest; typer ends the process without a word
    except OSError as error:
        raise StoreError(f"cannot write the {what}: {plain(error)}") from error
