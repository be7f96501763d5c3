"""Options that commands of the pipeline share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from restante.common.errors import Misuse

LakeDir = Annotated[
    Path,
    typer.Option(
        "--lake",
        metavar="DIR",
        envvar="RESTANTE_LAKE",
        readable=False,  # opening the lake checks this, in one sentence
        help="Folder of the lake, in which the tables are.",
    ),
]
DEFAULT_LAKE = Path("restante-lake")

MIN_MEMORY_MIB: Final = 512
"""Memory with which Spark starts: it refuses less than 450 MiB, and Java keeps some of it for itself."""


def _memory(size: str) -> str:
    """Return a size of memory as Java reads it. Raises Misuse."""
    found = re.fullmatch(r"(\d{1,9})([mg])", size, re.ASCII | re.IGNORECASE)
    if found is None:
        raise Misuse(f"--memory: '{size}' is not a size like 512m or 4g")
    if int(found[1]) * (1 if found[2].lower() == "m" else 1024) < MIN_MEMORY_MIB:
        raise Misuse(f"--memory: '{size}' is less than {MIN_MEMORY_MIB}m, without which Spark does not start")
    return size


Memory = Annotated[
    str,
    typer.Option(
        metavar="SIZE", callback=_memory, help="Memory of Spark's Java process on this machine, like 512m or 4g."
    ),
]
DEFAULT_MEMORY = "1g"
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show Spark's own log messages.")]
