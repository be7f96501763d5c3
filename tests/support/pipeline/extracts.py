"""Extracts of servers' databases, as their hosts write them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from restante.pipeline.schemas import LIVE, Table
from restante.pipeline.sources.extract_files import EXTRACT_FORMAT, INFO_KEY, ExtractFile, ExtractInfo, parse_path
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.sources.rows import number_rejected, numbered_schema
from restante.pipeline.sources.source import OpenedSource, Span
from restante.pipeline.sources.tasks import Task
from support.pipeline.servers import CONTEXT, DAY


def files_of(folder: Path, source: str = "*", table: str = "*") -> list[ExtractFile]:
    """Return the extracts in a folder, in order."""
    paths = sorted(folder.glob(f"{source}/{table}/*/*/*.parquet"), key=lambda path: (path.parts[-3], path.name))
    return [file for path in paths if (file := parse_path(path.relative_to(folder).as_posix()))]


def info_of(path: Path) -> ExtractInfo:
    return msgspec.json.decode(pq.read_metadata(path).metadata[INFO_KEY], type=ExtractInfo)


def write_extracts(spec: str, folder: Path, scratch: Path, day: str = DAY) -> list[Path]:
    """Write what is new at a server behind the extracts in the folder; return the new files."""
    source, paths = recognise(spec), []
    with source.opened(scratch, lambda _: None, CONTEXT) as opened:
        for table in opened.tables:
            last = next(reversed(files_of(folder, source.name, table.name)), None)
            marks = {"": info_of(folder / last.path).mark} if last else {}
            if span := opened.find_new(table.name, marks):
                new = last is None or bool(span.reason)
                file = ExtractFile(
                    source.name,
                    table.name,
                    (last.generation if last else 0) + new,
                    CONTEXT.first_day.fromisoformat(day),
                    1 if last is None or new else last.last + 1,
                    span.marks[""].last,
                )
                if table is LIVE:
                    number = last.last + 1 if last else 1
                    file = file._replace(first=number, last=number)
                rows = rows_of(opened, span, table)
                info = ExtractInfo(
                    format=EXTRACT_FORMAT,
                    kind=source.kind,
                    written=CONTEXT.now,
                    first_day=CONTEXT.first_day,
                    rows=rows.num_rows,
                    rejected=rows.num_rows - rows["fault"].null_count,
                    missed=span.missed,
                    mark=span.marks[""],
                )
                paths.append(write_file(folder, file, rows, info))
    return paths


def rows_of(opened: OpenedSource, span: Span, table: Table) -> pa.Table:
    def read(_spark: None, _table: Table, tasks: Sequence[Task]) -> pa.Table:
        batches = chain.from_iterable(task.batches() for task in tasks)
        return pa.Table.from_batches(number_rejected(batches), numbered_schema(table))

    with patch("restante.pipeline.sources.tasks.frame", read):
        rows: Any = opened.read(None, span)  # type: ignore[arg-type]
    return rows


def write_file(folder: Path, file: ExtractFile, rows: pa.Table, info: ExtractInfo) -> Path:
    path = folder / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = rows.schema.with_metadata({INFO_KEY: msgspec.json.encode(info)})
    pq.write_table(rows.cast(schema), path)
    return path
