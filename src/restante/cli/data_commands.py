"""What the commands of both servers for a data directory share: their options, and how they print results."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from restante.cli.serve_options import data_path

if TYPE_CHECKING:
    from restante.common.backups import BackupContents

Advance = Callable[[int], None]


def data_option(variable: str, text: str = "Data directory.") -> Any:
    """Return the option --data, which an environment variable may set."""
    return typer.Option(metavar="DIR", envvar=variable, parser=data_path, help=text)


NEW_DIRECTORY = "Data directory; it must be new or empty."


def print_copy(task: str, copy: Callable[[Advance], BackupContents], *, json: bool) -> None:
    """Make a copy of a database while its progress is shown, and print what it has."""
    from restante.common.backups import render_contents
    from restante.common.progress import progress
    from restante.common.signals import cleaning_up

    os.umask(0o077)  # as in `serve`
    with cleaning_up(), progress(task) as advance:
        contents = copy(advance)
    print(to_json(contents) if json else render_contents(contents))


def to_json(result: object) -> str:
    """Return a result as JSON."""
    return msgspec.json.encode(result).decode()


def count_table(groups: Mapping[str, Mapping[str, int]]) -> str:
    """Return counts as a table with three columns: what was done, the kind of row, the count."""
    rows = [
        (action, kind.replace("_", " "), count) for action, counts in groups.items() for kind, count in counts.items()
    ]
    width = max(len(kind) for _, kind, _ in rows)
    digits = max(len(str(count)) for _, _, count in rows)
    return "\n".join(f"{action:<9} {kind:<{width}}  {count:>{digits}}" for action, kind, count in rows)
