"""The lake: a folder with the pipeline's tables. One run at a time writes to it.

    LAKE/lake.json    the lake's format
    LAKE/lock         locked by the run that writes
    LAKE/<table>/     one Delta table each

Readers take no lock and write nothing. At a URL there is no lock: of two runs that commit to a table at the same
time, the second one ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from deltalake.exceptions import DeltaError

from restante.common.atomic_file import draft_of, flush
from restante.common.errors import InUse, Misuse, RestanteError, StoreError, plain
from restante.common.lock_file import is_locked, lock_directory
from restante.pipeline.lake import delta_log, delta_table
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.lake.url_path import UNUSABLE, LakePath, UrlPath, url_path
from restante.pipeline.schemas import Table
from restante.pipeline.spark.errors import error_chain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAKE_FILE: Final = "lake.json"
LOCK_FILE: Final = "lock"
PROBE: Final = f"{LAKE_FILE}.probe"
"""How the names begin of folders that are made to try what a store does."""

LAKE_FORMAT: Final = 6
"""The format of the lake's folder. A greater number means a later version of Restante. No other can be read."""

URL_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""How a URL begins as a Path, which merges slashes (RFC 3986, section 3.1)."""

UNSAFE_RENAME: Final = "AWS_S3_ALLOW_UNSAFE_RENAME"
"""The variable with which `deltalake` commits to a bucket without a condition."""

_REFUSED: Final = re.compile(
    r"\b(?:ExpiredToken|InvalidAccessKeyId|InvalidToken|SignatureDoesNotMatch|AccessDenied|AuthenticationFailed"
    r"|AuthorizationFailure|AuthorizationPermissionMismatch|(?:401 Unauthorized|403 Forbidden)|Status Code: 40[13])\b"
)
"""What answers of S3, Azure and others, `deltalake` and Hadoop's connectors say of credentials that are refused."""


class CredentialsRefused(StoreError):  # noqa: N818 - as Misuse
    """The store of a lake's URL refused the credentials. What was committed before stays."""


class _Settings(msgspec.Struct, frozen=True):
    format: int


class Lake:
    """An open lake."""

    def __init__(self, path: LakePath, *, write: bool) -> None:
        self.path: Final = path
        self._run: Final = uuid.uuid4().hex if write else None

    @staticmethod
    @contextmanager
    def open(address: Path | str, *, write: bool, make: bool = False) -> Iterator[Lake]:
        """Open a lake, for one writer at a time or any number of readers. `make` creates a missing one.

        `address` is a folder or, with ://, a URL. If there is no lake, a reader with `make` gets an empty one, and
        nothing is created. Raises Misuse if there is no lake, the address is something else, or commits to the store
        are not safe; InUse if another run is writing to it; StoreError if the lake is damaged or cannot be written.
        CredentialsRefused takes the place of any error, also within the `with` block, that was caused by refused
        credentials.
        """
        path = lake_path(address)
        try:
            with contextlib.ExitStack() as stack:
                try:
                    exists = (path / LAKE_FILE).exists()
                    if not exists:
                        _check_new_path(path, make=make)
                except OSError as error:
                    raise StoreError(f"cannot read the lake {path}: {plain(error)} (--lake names another)") from error
                if write:
                    if isinstance(path, UrlPath):
                        _check_commits(path)
                    else:
                        stack.enter_context(_locked(path))
                    if not (path / LAKE_FILE).exists():
                        _write_settings(path)
                if exists or write:
                    _check_settings(path)
                yield Lake(path, write=write)
        except RestanteError as error:
            if isinstance(path, UrlPath) and (refusal := _refusal(error)):
                raise CredentialsRefused(
                    f"the store of {path} refused the credentials ({refusal}): they have expired, are wrong, or do"
                    f" not allow this: set others, and run this again"
                ) from error
            raise

    def table(self, table: Table, executors: Callable[[], SparkSession] | None = None) -> LakeTable:
        """Return a table as it is now, with or without a commit. The rest is as in LakeTable."""
        return LakeTable(self.path / table.name, table, run=self._run, executors=executors)

    def is_written_by_another(self) -> bool:
        """Return whether another run writes to the lake now, as far as this machine knows. It takes no lock."""
        if self._run is not None or isinstance(self.path, UrlPath):
            return False
        return any(map(is_locked, (self.path, self.path / LOCK_FILE)))

    def tables(self) -> list[str]:
        """Return the names of the tables that exist."""
        if isinstance(self.path, UrlPath):
            folders = self.path.names(folders=True)
            return [name for name in folders if (self.path / name / delta_log.LOG_FOLDER).exists()]
        return sorted(log.parent.name for log in self.path.glob(f"*/{delta_log.LOG_FOLDER}"))


def _refusal(error: RestanteError) -> str:
    """Return how a store refused credentials, if that caused the error; else ""."""
    texts = [text for link in error_chain(error) for text in _REFUSED.findall(str(link))]
    return texts[-1] if texts else ""


def lake_path(address: Path | str) -> LakePath:
    """Return the path of a lake. Raises Misuse if there can be none, StoreError if the store cannot be used."""
    if isinstance(address, str) and "://" in address:
        return url_path(address, "--lake")
    if URL_PATH.match(str(address)):
        raise Misuse(
            f"--lake {address}: write a URL with two slashes, like s3://BUCKET/PATH, or the path of a folder"
        )
    path = Path(os.path.abspath(address))  # noqa: PTH100 - links stay: on other machines they may differ
    if character := UNUSABLE.search(str(path)):
        raise Misuse(
            f"the path of a lake must not contain {character[0]!r}, which other programs misread: {path};"
            " name another folder (--lake)"
        )
    return path


def _check_commits(path: UrlPath) -> None:
    """Raise Misuse if two runs could make the same version of a table, StoreError if nothing can be written."""
    if os.environ.get(UNSAFE_RENAME):
        raise Misuse(
            f"{UNSAFE_RENAME} is set, with which one run may overwrite what another has committed: unset it; the"
            " store must support conditional puts (If-None-Match)"
        )
    try:
        conditional = delta_table.has_conditional_puts(path, PROBE)
    except (DeltaError, OSError) as error:
        raise StoreError(f"cannot write to the lake {path}: {delta_table.error_message(error)}") from error
    if not conditional:
        raise Misuse(
            f"the store of {path} writes over an object although it is asked not to (If-None-Match), so a run may"
            " overwrite what another has committed: use a store with conditional puts, or a folder"
        )


def _check_new_path(path: LakePath, *, make: bool) -> None:
    """Raise Misuse unless a lake may be made at the path: `make` is set, and no other file is there."""
    if not isinstance(path, UrlPath):
        for folder in (path, *path.parents):
            if (folder / delta_log.LOG_FOLDER).exists():
                raise Misuse(
                    f"{folder} is a Delta table, not a lake: name the folder with the tables, or a new one (--lake)"
                )
        if file := next((entry for entry in (path, *path.parents) if entry.exists() and not entry.is_dir()), None):
            raise Misuse(f"{file} is not a folder: name the folder of the lake, or a new one (--lake)")
    if not make:
        raise Misuse(f"there is no lake in {path}: `restante pipeline run` creates one (--lake names another)")
    if isinstance(path, UrlPath):
        names = path.names()
    else:
        names = [entry.name for entry in path.iterdir()] if path.exists() else []
    own = (LOCK_FILE, LAKE_FILE)
    others = [name for name in names if name not in own and not name.startswith(f"{LAKE_FILE}.")]
    if others and LAKE_FILE not in names:  # it is there if another run has just made the lake
        raise Misuse(f"{path} contains other files, such as {min(others)}: name a new or an empty folder (--lake)")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = lock_directory(path, LOCK_FILE, 0o666)
    except BlockingIOError as error:
        raise InUse(
            f"another run is writing to the lake {path}: wait until it is done, or stop it, and start this again"
        ) from error
    except OSError as error:
        raise StoreError(f"cannot write to the lake {path}: {plain(error)} (--lake names another)") from error
    with lock:
        yield


def _write_settings(path: LakePath) -> None:
    """Write the lake's file atomically."""
    content = msgspec.json.encode(_Settings(LAKE_FORMAT))
    try:
        if isinstance(path, UrlPath):
            (path / LAKE_FILE).write_bytes(content)
            return
        with draft_of(path / LAKE_FILE, mode=0o644) as draft:  # executors and readers may be other users
            draft.write_bytes(content)
        flush(path.parent)
    except OSError as error:
        raise StoreError(f"cannot write to the lake {path}: {plain(error)}") from error


def _check_settings(path: LakePath) -> None:
    """Raise Misuse if another version of Restante made the lake, StoreError if its file is damaged."""
    try:
        raw = (path / LAKE_FILE).read_bytes()
        number = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get("format")
        if number is not None and msgspec.json.decode(number, type=int) > LAKE_FORMAT:
            raise Misuse(f"the lake {path} was made by a newer version of Restante: use that version, or a newer one")
        settings = msgspec.json.decode(raw, type=_Settings)
    except OSError as error:
        raise StoreError(f"cannot read the lake {path}: {plain(error)}") from error
    except msgspec.DecodeError as error:
        raise StoreError(
            f"the lake {path} is damaged: its {LAKE_FILE} is not valid: restore it from a backup"
        ) from error
    if settings.format < LAKE_FORMAT:
        raise Misuse(
            f"the lake {path} was made by an older version of Restante: name a new folder with --lake, and run ingest"
            " and build again; keep this one if a source has deleted rows since, because the new lake lacks them"
        )
