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

from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.sources.source import SOURCE_NAME

EXTRACT_FORMAT: Final = 1
"""The format of the files. A greater number means a later version of Restante."""

INFO_KEY: Final = b"restante.extract"
"""The key of the `ExtractInfo`, as JSON, in the metadata of a Parquet file."""

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
    kind: str
    """What its source is, for the operator (Source.kind)."""
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
    return extract if 0 < extract.first <= extract.last < 1 << 63 else None


def new_generation(now: float, before: str = "") -> str:
    """Return the name of a generation that begins now, in seconds since 1970, and after another one."""
    begun = datetime.fromtimestamp(int(now), UTC)
    if before:  # the clock may have been set back
        begun = max(begun, _begun(before) + timedelta(seconds=1))
    return begun.strftime(_GENERATION_FORMAT)


def _begun(generation: str) -> datetime:
    """Return when a generation began. Raises ValueError if there is no such time."""
    return datetime.strptime(generation, _GENERATION_FORMAT).replace(tzinfo=UTC)
