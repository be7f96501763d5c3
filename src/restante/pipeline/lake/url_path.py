"""Paths at a URL, with the methods of pathlib that the lake and extracts use.

`deltalake` reads and writes the objects, with the credentials and the stores of its commits.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from restante.common.errors import Misuse, StoreError, plain
from restante.common.texts import cleaned, redacted_url

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileInfo, FileSystem

_QUERY: Final = re.compile(r"(://[^\s?\"]*)\?[^\s\"]*")
"""The query of a URL, which may have a signature."""

_ANSWER: Final = re.compile(r"<Error>.*<Code>([^<]*)</Code>.*<Message>([^<]*)</Message>.*", re.DOTALL)
"""What S3 answers."""

_BRANCH: Final = re.compile(r"\x1b\[[0-9;]*m|↳")
"""What `deltalake` draws before a line of its errors."""

OUTPUT_BYTES: Final = 1 << 20
"""Bytes that are gathered before they are given to `deltalake`, which takes no Arrow buffers (1.6.6): those of one
call of `write_bytes`."""

SCHEMES: Final = ("s3", "s3a", "gs", "abfss", "hdfs")
"""The schemes of URLs that can be used: those that `deltalake` and a connector of Hadoop know."""

UNUSABLE: Final = re.compile(r"[*?\[\]{}\\%=\x00-\x1f\x7f]")
"""Characters that the path of a lake may not contain: Spark and DuckDB read some as patterns and = as a partition,
and deltalake decodes %XX."""

NO_BUCKET: Final = "NoSuchBucket"
"""What S3 answers if a bucket does not exist (Amazon S3 API Reference, "Error responses")."""


class FileStat(NamedTuple):
    """The size and age of a file, as os.stat_result has them."""

    st_size: int
    """In bytes."""
    st_mtime: float
    """When it was written, in seconds since 1970."""


class UrlPath:
    """A path below a URL."""

    def __init__(self, url: str, below: str | PurePath = "", *, parent: UrlPath | None = None) -> None:
        """Return the path `below` a URL. `parent` is another path below the same URL. Raises OSError."""
        self._url: Final = url
        self._below: Final = PurePosixPath(below)
        self._key: Final = str(self._below) if self._below.parts else ""
        self._text: Final = f"{url}/{self._key}" if self._key else url
        self._stat: FileStat | None = None
        self._files: Final[FileSystem] = _file_system(url) if parent is None else parent._files

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"UrlPath({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UrlPath) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __lt__(self, other: UrlPath) -> bool:
        return self._text < other._text

    def __truediv__(self, below: str | PurePath) -> UrlPath:
        return UrlPath(self._url, self._below / below, parent=self)

    @property
    def name(self) -> str:
        """Return the last part."""
        return self._below.name

    def relative_to(self, other: UrlPath) -> PurePosixPath:
        """Return the path below another one. Raises ValueError if it is not below it."""
        return self._below.relative_to(other._below)

    def exists(self) -> bool:
        """Return whether there is a file, or one below it. Raises OSError."""
        from pyarrow.fs import FileType

        with _plain_errors():
            return self._files.get_file_info(self._key).type is not FileType.NotFound

    def stat(self) -> FileStat:
        """Return the size and age, which a listing also tells. Raises OSError."""
        if self._stat is None:
            with _plain_errors():
                self._stat = _stat(self._files.get_file_info(self._key))
        return self._stat

    def names(self, *, folders: bool = False) -> list[str]:
        """Return the names of what is directly below, or only of `folders`. Raises OSError."""
        infos = [info for info in self._list(recursive=False) if not (folders and info.is_file)]
        return sorted({PurePosixPath(info.path).name for info in infos})

    def iterdir(self) -> Iterator[UrlPath]:
        """Yield the files directly below. Raises OSError."""
        return self._listed_files(recursive=False)

    def files(self) -> Iterator[UrlPath]:
        """Yield all files below. Raises OSError."""
        return self._listed_files(recursive=True)

    def _listed_files(self, *, recursive: bool) -> Iterator[UrlPath]:
        for info in self._list(recursive=recursive):
            if info.is_file and info.size:  # Hadoop's connectors put an object without bytes in place of a folder
                file = UrlPath(self._url, info.path, parent=self)
                file._stat = _stat(info)
                yield file

    def _list(self, *, recursive: bool) -> list[FileInfo]:
        from pyarrow.fs import FileSelector

        with _plain_errors():
            selector = FileSelector(self._key, allow_not_found=True, recursive=recursive)
            infos: list[FileInfo] = self._files.get_file_info(selector)
        return infos

    def open_input(self) -> pa.NativeFile:
        """Open the file to read. Raises OSError."""
        with _plain_errors():
            return self._files.open_input_file(self._key)

    def open_output(self) -> pa.NativeFile:
        """Open the file to write. It appears when it is closed. Raises OSError."""
        with _plain_errors():
            return self._files.open_output_stream(self._key, compression=None, buffer_size=OUTPUT_BYTES)

    def read_bytes(self) -> bytes:
        """Return the content. Raises OSError."""
        with self.open_input() as file, _plain_errors():
            content: bytes = file.read()
        return content

    def write_bytes(self, content: bytes) -> None:
        """Write the file. Raises OSError."""
        with _plain_errors(), self.open_output() as file:
            file.write(content)

    def unlink(self) -> None:
        """Remove the file. Raises OSError."""
        with _plain_errors():
            self._files.delete_file(self._key)

    def remove_all(self) -> None:
        """Remove all files below, and the folders of HDFS, which has some. Raises OSError."""
        for file in list(self.files()):
            file.unlink()
        if self._url.startswith("hdfs:"):
            folders = sorted((info.path for info in self._list(recursive=True)), reverse=True)
            for folder in (*folders, self._key):
                UrlPath(self._url, folder, parent=self).unlink()


LakePath = Path | UrlPath
"""A path of a lake in a folder, or at a URL."""


def url_path(url: str, option: str) -> UrlPath:
    """Return the path of a URL that an option names.

    Raises Misuse if it is none that can be used, StoreError if its store cannot be. Their texts name no secret.
    """
    scheme, _, rest = url.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    shown = redacted_url(url).partition("?")[0]
    if scheme not in SCHEMES:
        raise Misuse(f"{option} {shown}: name a folder, or a URL with {', '.join(f'{s}://' for s in SCHEMES)}")
    if "?" in url or "#" in url or (at and (scheme != "abfss" or ":" in user)):
        raise Misuse(f"{option} {shown}: leave out what is no part of a path; credentials go into the environment")
    if character := UNUSABLE.search(rest):
        raise Misuse(f"{option} {shown}: other programs misread {character[0]!r} in a URL: rename the folder")
    try:
        return UrlPath(url.rstrip("/"))
    except OSError as error:
        raise StoreError(f"cannot use {shown}: {plain(error)} ({option} names another)") from error


def path_below(path: LakePath, folder: LakePath) -> PurePath:
    """Return a path relative to a folder. Raises ValueError if it is not below it."""
    assert type(path) is type(folder)
    return path.relative_to(folder)  # type: ignore[arg-type]


def spark_path(path: LakePath) -> str:
    """Return how Spark names a path: Hadoop's connector calls s3 s3a."""
    return re.sub("^s3://", "s3a://", str(path))


def error_text(error: Exception) -> str:
    """Return the first and last line of an error of `deltalake`, whose text is a tree, without queries of URLs."""
    text = _ANSWER.sub(r"\1: \2", _QUERY.sub(r"\1", _BRANCH.sub("", str(error))))
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return cleaned(": ".join(dict.fromkeys((lines[0], lines[-1]))))


def _file_system(url: str) -> FileSystem:
    from deltalake.exceptions import DeltaError
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    try:
        return PyFileSystem(DeltaStorageHandler(url))
    except (DeltaError, OSError, ValueError) as error:
        raise OSError(error_text(error)) from None


def _stat(info: FileInfo) -> FileStat:
    return FileStat(info.size or 0, info.mtime_ns / 1e9 if info.mtime_ns else 0.0)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise errors of `deltalake` as OSErrors in one line, without what may be secret."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(error_text(error)) from None
    except (DeltaError, OSError, ValueError) as error:
        text = error_text(error)
        raise (FileNotFoundError if NO_BUCKET in text else OSError)(text) from None
