"""Options that commands of the pipeline share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
