"""The folder of extracts, on this machine or at a URL: which files it has, what they say, and how one is added.

A file appears under its name when it is complete. On this machine, and on HDFS, it is a draft with a hidden name
until then; an object store shows an object when its upload has ended.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs as file_systems

from restante.common.atomic_file import flush, give_name
from restante.common.errors import InUse, Misuse, StoreError, plain
from restante.common.lock_file import lock_file
from restante.common.texts import cleaned, redacted_url
from restante.pipeline.sources.extract_files import Damaged, ExtractFile, ExtractInfo, parse_path, read_footer
from restante.pipeline.sources.source import SourceError

DRAFT: Final = ".draft.parquet"
"""The name of the draft, in the folder of its source: of those that killed runs leave, there is one at most."""

LOCK: Final = ".lock"
"""The name of the file in the folder of a source that is locked while its extracts are written."""

OBJECT_STORES: Final = frozenset({"abfs", "gcs", "s3"})
"""The types of Arrow's file systems in which an object exists once it was uploaded."""


class ExtractFolder:
    """An open folder of extracts, of all sources."""

    def __init__(self, target: str, scratch: Path) -> None:
        """Open a folder, or what a URL names. `scratch` is for files that are uploaded. Raises Misuse, StoreError."""
        self._scratch = scratch
        self._local: Path | None = None
        if "://" in target:
            self._text = redacted_url(target).partition("?")[0]  # options may be secrets, too
            try:
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

    def path_text(self, extract: ExtractFile) -> str:
        """Return the path of an extract for people."""
        return self._below(extract.path)

    def _below(self, path: str) -> str:
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
            raise self._failure("write", self._below(source), error) from error
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
            raise self._failure("list", self._below(source), error) from error
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
                return read_footer(file, extract, self.path_text(extract)).info
        except Damaged:
            return None
        except (OSError, pa.ArrowException) as error:
            raise self._failure("read", self.path_text(extract), error) from error

    def draft(self, source: str) -> Path:
        """Return where to write the next extract of a source, before it is added."""
        return self._scratch / DRAFT if self._local is None else self._local / source / DRAFT

    def add(self, draft: Path, extract: ExtractFile) -> None:
        """Rename a complete draft to its extract. Raises StoreError, or SourceError if the name is taken."""
        try:
            if self._local is None:
                self._upload(draft, f"{self._base}/{extract.path}")
                draft.unlink()
                return
            file = self._local / extract.path
            file.parent.mkdir(parents=True, exist_ok=True)
            flush(draft)
            give_name(draft, file)
            draft.unlink(missing_ok=True)
            flush(file.parent)
        except FileExistsError:
            raise SourceError(
                f"source {extract.source}: {self.path_text(extract)} exists already: if it is damaged, remove it;"
                " else another process has just written it"
            ) from None
        except (OSError, pa.ArrowException) as error:
            raise self._failure("write", self.path_text(extract), error) from error

    def _upload(self, draft: Path, path: str) -> None:
        """Upload a file. If that fails, the store has no file, or on HDFS an unfinished one with a hidden name."""
        if self._fs.get_file_info(path).type != file_systems.FileType.NotFound:
            raise FileExistsError
        renamed = self._fs.type_name not in OBJECT_STORES
        folder = path.rpartition("/")[0]
        target = f"{folder}/{DRAFT}" if renamed else path
        if renamed:
            self._fs.create_dir(folder)
        # In one call: an Arrow stream that is closed between two has uploaded an object of what it was given.
        with pa.memory_map(str(draft)) as content, self._fs.open_output_stream(target) as upload:
            upload.write(content.read_buffer())
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
