"""Extracts of servers' databases, as their hosts write them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from restante.pipeline.extract import extract, recognise
from restante.pipeline.sources.extract_files import INFO_KEY, ExtractFile, ExtractInfo, parse_path
from restante.pipeline.sources.extract_folder import ExtractFolder
from restante.pipeline.sources.source import SourceError
from support.pipeline.servers import CONTEXT, DAY


def files_of(folder: Path, source: str = "*", table: str = "*") -> list[ExtractFile]:
    """Return the extracts in a folder, in order."""
    paths = sorted(folder.glob(f"{source}/{table}/*/*/*.parquet"), key=lambda path: (path.parts[-3], path.name))
    return [file for path in paths if (file := parse_path(path.relative_to(folder).as_posix()))]


def info_of(path: Path) -> ExtractInfo:
    return msgspec.json.decode(pq.read_metadata(path).metadata[INFO_KEY], type=ExtractInfo)


def write_extracts(spec: str, folder: Path, scratch: Path, day: str = DAY) -> list[Path]:
    """Write what is new at a server behind the extracts in the folder, each time an hour later; return the new files.

    They are moved into the folder of a day.
    """
    source, before = recognise(spec), files_of(folder)
    hour = len([file for file in before if file.source == source.name])
    now = datetime.combine(date.fromisoformat(DAY), time(), UTC).timestamp() + 3600 * hour
    scratch.mkdir(exist_ok=True)
    for result in extract([source], ExtractFolder(str(folder), scratch), scratch, now, print, CONTEXT.first_day):
        if isinstance(result, SourceError):
            raise result
    paths = []
    for file in files_of(folder):
        if file not in before:
            paths.append(folder / file._replace(day=date.fromisoformat(day)).path)
            paths[-1].parent.mkdir(exist_ok=True)
            (folder / file.path).rename(paths[-1])
    return paths


def write_file(folder: Path, file: ExtractFile, rows: pa.Table, info: ExtractInfo) -> Path:
    path = folder / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = rows.schema.with_metadata({INFO_KEY: msgspec.json.encode(info)})
    pq.write_table(rows.cast(schema), path)
    return path
