"""Extracts of servers' databases, as their hosts write them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from restante.common.errors import RestanteError
from restante.pipeline.extract import extract
from restante.pipeline.sources.extract_files import INFO_KEY, ExtractFile, ExtractFolder, ExtractInfo, parse_path
from support.pipeline.servers import DAY


def files_of(folder: Path, source: str = "*", table: str = "*") -> list[ExtractFile]:
    """Return the extracts in a folder, in order."""
    paths = sorted(folder.glob(f"{source}/{table}/*/*/*.parquet"), key=lambda path: (path.parts[-3], path.name))
    return [file for path in paths if (file := parse_path(path.relative_to(folder).as_posix()))]


def info_of(path: Path) -> ExtractInfo:
    return msgspec.json.decode(pq.read_metadata(path).metadata[INFO_KEY], type=ExtractInfo)


def write_extracts(spec: str, folder: Path, scratch: Path, day: str = DAY, *, hour: int | None = None) -> list[Path]:
    """Write what is new at a server behind the extracts in the folder, and return the new files.

    Each call is in the next hour, or in one that is named. The files are moved into the folder of a day.
    """
    before = files_of(folder)
    scratch.mkdir(exist_ok=True)
    hours = scratch / "hours"
    if hour is None:
        hour = hours.stat().st_size if hours.exists() else 0
        hours.write_bytes(bytes(hour + 1))
    now = datetime.combine(date.fromisoformat(DAY), time(), UTC).timestamp() + 3600 * hour
    for result in extract([spec], ExtractFolder(str(folder)), scratch, now, print):
        if isinstance(result, RestanteError):
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
