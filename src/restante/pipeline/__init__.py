"""What the servers leave behind, in tables: from their databases and files, on Spark (docs/pipeline/operating.md)."""

from __future__ import annotations

from os import PathLike
from pathlib import Path


def files(lake: str | PathLike[str], table: str) -> list[Path]:
    """List the Parquet files of a table of a lake as it is now, for any program that reads such files.

    The partition columns (day, source, …) are not in the files but in their paths. A file stays until it is replaced
    and `restante pipeline vacuum` has run. Raises Misuse where there is no such lake or table, StoreError where the
    lake is damaged.
    """
    from restante.pipeline import views

    return views.files(Path(lake), table)
