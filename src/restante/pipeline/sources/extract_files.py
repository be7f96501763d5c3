"""The files of extracts: rows of a server's database, cleaned on its host, for a run on another machine.

    SOURCE/TABLE/GENERATION/DAY/FIRST-LAST.parquet

A file has the rows of a table of the lake whose ids at the source are from FIRST to LAST. Its columns are those that
any source returns (restante.pipeline.sources.rows), and its metadata is an `ExtractInfo`. The next file of a
generation begins behind LAST. GENERATION is the time at which it began: a database that took the place of another
begins one, and so does a host that has no extracts, or has lost them. What is live has no ids: each file of it is
complete, FIRST and LAST are its number, and the last one counts. All files of a source say where its database was
read to, so its host stores nothing.

A file appears under its name when it is complete. On this machine, and on HDFS, it is a draft with a hidden name
until then; an object store shows an object when its upload has ended.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as file_systems

from restante.common.atomic_file import flush, give_name
from restante.common.errors import InUse, Misuse, StoreError, plain
from restante.common.lock_file import lock_file
from restante.common.texts import cleaned, redacted_url
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

DRAFT: Final = ".draft.parquet"
"""The name of the draft, in the folder of its source: of those that killed runs leave, there is one at most."""

LOCK: Final = ".lock"
"""The name of the file in the folder of a source that is locked while its extracts are written."""

GCS_SECONDS: Final = 60
"""Seconds for which a request to gs:// is repeated, also if there are no credentials. Without this limit pyarrow
repeated it for minutes (30 November 2026)."""

OBJECT_STORES: Final = frozenset({"abfs", "gcs", "s3"})
"""The types of Arrow's file systems in which an object exists once it was uploaded."""

SECONDS_PER_HOUR: Final = 3600
"""A source is written at most once in an hour of UTC."""

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
    match = _PATH.fullmatch(path)
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


def read_footer(
    file: pa.NativeFile, extract: ExtractFile, path: str
) -> tuple[ExtractInfo, pq.FileMetaData, pa.Schema]:
    """Return what an extract says about itself, and what Parquet says. `path` is for people.

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
    return info, metadata, schema


def new_generation(now: float, before: str = "") -> str:
    """Return the name of a generation that begins now, in seconds since 1970, and after another one."""
    begun = datetime.fromtimestamp(int(now), UTC)
    if before:  # the clock may have been set back
        begun = max(begun, _begun(before) + timedelta(seconds=1))
    return begun.strftime(_GENERATION_FORMAT)


def _begun(generation: str) -> datetime:
    """Return when a generation began. Raises ValueError if there is no such time."""
    return datetime.strptime(generation, _GENERATION_FORMAT).replace(tzinfo=UTC)


class ExtractFolder:
    """An open folder of extracts, of all sources."""

    def __init__(self, target: str) -> None:
        """Open a folder, or what a URL names. Raises Misuse, StoreError."""
        self._local: Path | None = None
        if "://" in target:
            self._text = redacted_url(target).partition("?")[0]  # options may be secrets, too
            try:
                if target.startswith("gs://") and "retry_limit_seconds=" not in target:
                    target += f"{'&' if '?' in target else '?'}retry_limit_seconds={GCS_SECONDS}"
                self._fs, base = file_systems.FileSystem.from_uri(target)
                if not base:
                    raise pa.ArrowInvalid
            except (OSError, pa.ArrowException, ValueError, NotImplementedError) as error:
                if isinstance(error, pa.ArrowInvalid):
                    raise Misuse(
                        f"{self._text} is no URL of a folder: write s3://BUCKET/…, gs://BUCKET/…,"
                        " abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/…, hdfs://HOST:PORT/… or a path"
                    ) from None  # its text has the URL
                raise self._failure("use", self._text, error) from None
        else:
            self._fs, base, self._text = file_systems.LocalFileSystem(), os.path.abspath(target), target  # noqa: PTH100 - links stay
        self._base = base.rstrip("/")
        if self._fs.type_name == "local":
            self._local = Path(base)
            try:
                self._local.mkdir(exist_ok=True)
            except FileNotFoundError:
                raise Misuse(f"there is no folder {self._local.parent} to make {self._local.name} in") from None
            except (FileExistsError, NotADirectoryError):
                raise Misuse(f"{self._text} is no folder: name another one") from None
            except OSError as error:
                raise self._failure("make", self._text, error) from error

    def path_text(self, path: str) -> str:
        """Return a path below the folder for people."""
        return self._text + "/" * (not self._text.endswith("/")) + path

    @contextlib.contextmanager
    def locked(self, source: str) -> Iterator[None]:
        """Lock the extracts of a source on this machine, and remove what a killed run left. Raises InUse, StoreError.

        At a URL nothing is locked: of two extracts of one name, the second is refused or has the same rows.
        """
        if self._local is None:
            yield
            return
        folder = self._local / source
        try:
            folder.mkdir(exist_ok=True)
            descriptor = lock_file(folder / LOCK, 0o644)  # so that whoever may copy the folder may copy this, too
        except BlockingIOError:
            raise InUse(f"another process is writing the extracts of {source} in {self._text}: let it end") from None
        except OSError as error:
            raise self._failure("write", self.path_text(source), error) from error
        try:
            (folder / DRAFT).unlink(missing_ok=True)
            yield
        finally:
            (folder / DRAFT).unlink(missing_ok=True)
            os.close(descriptor)

    def files(self, source: str) -> list[ExtractFile]:
        """Return the extracts of a source, by table, generation and ids. Other files are left out. Raises StoreError.

        Names do not show whether an extract can be read.
        """
        try:
            paths = list(self._paths(source))
        except (OSError, pa.ArrowException) as error:
            raise self._failure("list", self.path_text(source), error) from error
        return sorted(
            (extract for extract in map(parse_path, paths) if extract is not None),
            key=lambda extract: (extract.table, extract.generation, extract.last, extract.first, extract.day),
        )

    def _paths(self, source: str) -> Iterator[str]:
        if self._local is None:
            selector = file_systems.FileSelector(f"{self._base}/{source}", allow_not_found=True, recursive=True)
            base = f"{self._base}/".lstrip("/")  # some file systems return paths without the first slash
            for info in self._fs.get_file_info(selector):
                yield info.path.lstrip("/").removeprefix(base)
            return
        # Not by Arrow, which stops at a name that is not UTF-8.
        for folder, _, names in os.walk(self._local / source, onerror=_raise):
            for name in names:
                yield os.path.relpath(os.path.join(folder, name), self._local)  # noqa: PTH118 - one text for each

    def info(self, extract: ExtractFile) -> ExtractInfo | None:
        """Return what an extract says about itself, or None if it is damaged.

        Raises StoreError if it cannot be read, SourceError if it has a later format.
        """
        path = f"{self._base}/{extract.path}"
        try:
            if self._fs.get_file_info(path).type != file_systems.FileType.File:  # to open a named pipe takes forever
                return None
            with self._fs.open_input_file(path) as file:
                return read_footer(file, extract, self.path_text(extract.path))[0]
        except Damaged:
            return None
        except (OSError, pa.ArrowException) as error:
            raise self._failure("read", self.path_text(extract.path), error) from error

    def add(self, content: pa.Buffer, extract: ExtractFile) -> None:
        """Write a file. Raises StoreError, or SourceError if the name is taken."""
        try:
            if self._local is None:
                self._upload(content, f"{self._base}/{extract.path}")
                return
            draft, file = self._local / extract.source / DRAFT, self._local / extract.path
            file.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(content)
            flush(draft)
            give_name(draft, file)
            draft.unlink(missing_ok=True)
            flush(file.parent)
        except FileExistsError:
            raise SourceError(
                f"source {extract.source}: {self.path_text(extract.path)} exists already: if it is damaged, remove"
                " it; else another process has just written it"
            ) from None
        except (OSError, pa.ArrowException) as error:
            raise self._failure("write", self.path_text(extract.path), error) from error

    def _upload(self, content: pa.Buffer, path: str) -> None:
        """Upload a file. If that fails, the store has no file, or on HDFS an unfinished one with a hidden name."""
        if self._fs.get_file_info(path).type != file_systems.FileType.NotFound:
            raise FileExistsError
        renamed = self._fs.type_name not in OBJECT_STORES
        folder = path.rpartition("/")[0]
        target = f"{folder}/{DRAFT}" if renamed else path
        if renamed:
            self._fs.create_dir(folder)
        # In one call: an Arrow stream that is closed between two has uploaded an object of what it was given.
        with self._fs.open_output_stream(target) as upload:
            upload.write(content)
        if renamed:
            self._fs.move(target, path)

    def _failure(self, action: str, path: str, error: Exception) -> StoreError:
        reason = cleaned(plain(error) if isinstance(error, OSError) else str(error))
        advice = (
            "check its permissions and its disk"
            if self._local is not None
            else "check the URL, whether you may list, read and write there, and the credentials that pyarrow finds"
        )
        return StoreError(f"cannot {action} {path} ({reason}): {advice}")


def _raise(error: OSError) -> None:
    """Raise what os.walk would ignore, except that a folder does not exist."""
    if not isinstance(error, FileNotFoundError):
        raise error
