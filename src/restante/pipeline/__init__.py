"""Ingests the servers' databases and files with Spark and builds tables of them (docs/pipeline/operating.md)."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from restante.common.errors import Misuse


def files(lake: str | PathLike[str], table: str) -> list[Path]:
    """Return the current Parquet files of a table of a lake, for any program that reads Parquet.

    The columns of tables that are partitioned by month are all in the files. Those by which other tables are
    partitioned (day, source, …) are in the files' paths, not in the files. A file stays until it is replaced and
    `restante pipeline vacuum` has run. Raises Misuse if there is no such lake or table, or the lake is at a URL;
    StoreError if the lake is damaged.
    """
    from restante.pipeline.lake.data_files import existing_files
    from restante.pipeline.lake.lake import Lake
    from restante.pipeline.tables import TABLES

    if "://" in str(lake):
        raise Misuse(f"{lake} is a URL: read its tables with deltalake, as DeltaTable('{lake}/{table}')")
    if table not in TABLES:
        raise Misuse(f"there is no table {table!r}: there are {', '.join(sorted(TABLES))}")
    with Lake.open(Path(lake), write=False) as opened:
        return [Path(str(file.path)) for file in existing_files(opened.table(TABLES[table]).files())]
