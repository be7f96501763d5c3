"""The files of extracts: rows of a server's database, cleaned on its host, for a run on another machine.

    SOURCE/TABLE/GENERATION/DAY/FIRST-LAST.parquet

A file has the rows of a table of the lake whose ids at the source are from FIRST to LAST. Its columns are those that
any source returns (restante.pipeline.sources.rows), and its metadata is an `ExtractInfo`. The next file of a
generation begins behind LAST. GENERATION is the time at which it began: a database that took the place of another
begins one, and so does a host that has no extracts, or has lost them. What is live has no ids: each file of it is
complete, FIRST and LAST are its number, and the last one counts. All files of a source say where its database was
read to, so its host stores nothing.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import CLEAN_TABLES, LIVE
from restante.pipeline.sources.source import SOURCE_NAME, SourceError

EXTRACT_FORMAT: Final = 1
"""The format of the files. A greater number means a later version of Restante."""

INFO_KEY: Final = b"restante.extract"
"""The key of the `ExtractInfo`, as JSON, in the metadata of a Parquet file."""

MAX_ID: Final = (1 << 63) - 1
"""The greatest id that the name of a file can have."""

MAX_FOOTER_BYTES: Final = 1 << 20
"""Bytes at the end of a file that are read for its metadata. An extract's has some ten kB."""

MAX_INFO_BYTES: Final = 16 << 10
"""Maximum bytes of an `ExtractInfo`. One has a kB. Its mark becomes part of the lake's log."""

SECONDS_PER_HOUR: Final = 3600
"""A source is written at most once in an hour of UTC."""

MAX_PATH_CHARACTERS: Final = 200
"""Maximum characters of a path below the folder of all extracts."""

GENERATION: Final = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
"""How a generation is named: by its first second in UTC (ISO 8601, basic format)."""

_GENERATION_FORMAT: Final = "%Y%m%dT%H%M%SZ"

_PATH: Final = re.compile(
    rf"(?P<source>{SOURCE_NAME.pattern})/(?P<table>[a-z_]+)/(?P<generation>{GENERATION.pattern})/(?P<day>\d{{4}}-\d\d-\d\d)"
    r"/(?P<first>\d{19})-(?P<last>\d{19})\.parquet",
    re.ASCII,
)


class ExtractInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an extract says about itself."""

    format: int
    written: float
    """When it was written, in seconds since 1970, by the clock of its host."""
    first_day: date
    """Rows that claim to be older have a fault. It must be the lake's first day."""
    rows: int
    """Its rows, with and without a fault."""
    rejected: int
    """Its rows with a fault."""
    missed: int
    """Ids from FIRST to LAST that were assigned and had no row any more."""
    mark: Mark
    """Where reading the database stood afterwards."""
    before: str
    """Digest of the row before FIRST (Mark.last_digest), or "": it is not known, or had gone."""
    replaced: bool
    """Whether its generation began because the database is another one than that of the generation before. False: the
    host had no extracts."""
    complete: bool = True
    """Whether its run had nothing else to write of its source. False: there are later files, or the run failed."""


class _Format(msgspec.Struct):
    format: int


class Damaged(Exception):  # noqa: N818 - it is a file
    """A file is no extract, or is not complete. The text follows its path."""


class Footer(NamedTuple):
    """What is read at the end of a file."""

    info: ExtractInfo
    metadata: pq.FileMetaData
    schema: pa.Schema


class ExtractFile(NamedTuple):
    """The path of an extract."""

    source: str
    table: str
    generation: str
    day: date
    """The UTC day on which it was written."""
    first: int
    last: int
    """The ids that it covers; both ends are included."""

    @property
    def path(self) -> str:
        """Return the path below the folder of all extracts, with `/` between the names."""
        ids = f"{self.first:019}-{self.last:019}"
        return f"{self.source}/{self.table}/{self.generation}/{self.day.isoformat()}/{ids}.parquet"


def parse_path(path: str) -> ExtractFile | None:
    """Return the extract that a path below the folder of all extracts names, or None if it is no extract's."""
    match = _PATH.fullmatch(path) if len(path) <= MAX_PATH_CHARACTERS else None
    if match is None or match["table"] not in CLEAN_TABLES:
        return None
    try:
        day = date.fromisoformat(match["day"])
        _begun(match["generation"])
    except ValueError:
        return None
    extract = ExtractFile(
        match["source"], match["table"], match["generation"], day, int(match["first"]), int(match["last"])
    )
    return extract if 0 < extract.first <= extract.last <= MAX_ID else None


def read_footer(file: pa.NativeFile, extract: ExtractFile, path: str) -> Footer:
    """Return what an extract says about itself. `path` is for people.

    Raises Damaged, SourceError if it has a later format, and OSError if it cannot be read.
    """
    file.seek(max(0, file.size() - MAX_FOOTER_BYTES))
    tail = file.read()
    try:
        metadata = pq.read_metadata(pa.BufferReader(tail))
        schema = metadata.schema.to_arrow_schema()
        raw = (metadata.metadata or {}).get(INFO_KEY, b"")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise Damaged("is not complete") from error
    try:
        if msgspec.json.decode(raw, type=_Format).format > EXTRACT_FORMAT:
            raise SourceError(
                f"source {extract.source}: {path} is of a later version of Restante: use that version here, too"
            )
        info = msgspec.json.decode(raw, type=ExtractInfo)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged("is no extract") from error
    ids = (info.mark.last, info.mark.first, *info.mark.recent)
    if len(raw) > MAX_INFO_BYTES or not all(0 <= row_id <= MAX_ID for row_id in ids):
        raise Damaged("is no extract")
    if extract.table != LIVE.name and info.mark.last != extract.last:
        raise Damaged("is no extract of that name")
    return Footer(info, metadata, schema)


def new_generation(now: float, before: str = "") -> str:
    """Return the name of a generation that begins now, in seconds since 1970, and after another one."""
    begun = datetime.fromtimestamp(int(now), UTC)
    if before:  # the clock may have been set back
        begun = max(begun, _begun(before) + timedelta(seconds=1))
    return begun.strftime(_GENERATION_FORMAT)


def _begun(generation: str) -> datetime:
    """Return when a generation began. Raises ValueError if there is no such time."""
    return datetime.strptime(generation, _GENERATION_FORMAT).replace(tzinfo=UTC)
