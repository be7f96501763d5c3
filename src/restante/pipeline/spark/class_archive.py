"""An archive of Java's classes, from which a later Java maps them into its memory (class data sharing).

Without it, Java reads, parses and verifies thousands of classes from Spark's jars at every start
(docs/decisions/small-jobs.md). Java itself checks that an archive fits: it ignores one of
another Java, or of jars that have changed since.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from restante.common.atomic_file import flush
from restante.common.errors import StoreError, plain
from restante.common.lock_file import lock_file
from restante.pipeline.spark import java
from restante.pipeline.spark.java import cache_folder

ARCHIVE_PREFIX: Final = "classes-"

ARCHIVE_SUFFIX: Final = ".jsa"

CLASSES_FILE: Final = "classes"
"""The file in a run's folder in which its Java lists the classes that it loads."""

_GENERATED: Final = re.compile(rb"@lambda-form-invoker |java/lang/invoke/BoundMethodHandle\$Species_")
"""Lines of that file that an archive leaves out: classes that Java generates, and that have no file. If a program
observes classes as they are loaded (a profiler, Flight Recorder), Java 17 crashes when it loads them from an archive,
in KlassFactory::check_shared_class_file_load_hook."""

_CONFIGURATION_FOLDERS: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables that name folders of Java's class path (4.3.0: AbstractCommandBuilder.buildClassPath)."""

MIN_FREE_BYTES: Final = 300 << 20
"""Free space without which no archive is begun. It takes 200 MB; Java does not say that a disk is full."""

DUMP_TIMEOUT: Final = 600.0
"""Seconds after which Java is killed while it makes an archive. It needs half a minute of CPU time."""


def archive_path(home: Path, spark: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the archive for a Java (its JAVA_HOME) and a Spark (its SPARK_HOME).

    The name begins with a digest of the two paths. The rest changes when the Java or the jars are replaced.
    """
    release, jars = home / "release", spark / "jars"
    version = release.read_text(errors="replace") if release.exists() else ""
    changed = jars.stat().st_mtime_ns if jars.exists() else 0
    return (
        cache_folder(environ)
        / f"{ARCHIVE_PREFIX}{_digest(str(home), str(spark))}-{_digest(version, str(changed))}{ARCHIVE_SUFFIX}"
    )


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def our_archive() -> Path:
    """Return the path of the archive for the Java and the Spark of our sessions."""
    from pyspark.find_spark_home import _find_spark_home

    return archive_path(java.find_home(), Path(_find_spark_home()))


def session_archive_option(folder: Path | None) -> str:
    """Return archive_option for our sessions; "" if the cache folder cannot be read, or is not known.

    Also "" if the operator's configuration is in the class path: Java makes no archive of one with a folder that has
    files ("Cannot have non-empty directory in paths").
    """
    if any(os.environ.get(name) for name in _CONFIGURATION_FOLDERS):
        return ""
    try:
        return archive_option(our_archive(), folder)
    except (OSError, RuntimeError):  # RuntimeError: of Path.home
        return ""  # a run does not need the archive


def archive_option(archive: Path, folder: Path | None) -> str:
    """Return the option with which Java uses the archive, if there is one.

    If there is no archive, but one can be written, the option makes Java list its classes in `folder`, for
    make_archive.
    """
    if re.search(r'["\\]', f"{archive}{folder}"):
        return ""  # Spark parses a string of options, and has a syntax of its own for these two
    if archive.exists():
        return f'"-XX:SharedArchiveFile={archive}"'
    if folder is None or not _can_be_written(archive):
        return ""
    return f'"-XX:DumpLoadedClassList={folder / CLASSES_FILE}"'


def _can_be_written(path: Path) -> bool:
    """Return whether a file could be written, as far as permissions tell; its folder may be missing."""
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def make_archive(archive: Path, home: Path, class_path: str, classes: Path) -> bool:
    """Make the archive of the classes that a file names, with the class path of the Java that loaded them.

    Return whether it was made: not if another process is making one, or has made it. Archives of the same Java and
    Spark as they were before are removed. Raises StoreError if it fails.
    """
    try:
        archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = lock_file(archive.parent / f"{ARCHIVE_PREFIX}lock")
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreError(f"cannot write {archive}: {plain(error)} (XDG_CACHE_HOME)") from error
    draft = archive.with_name(f"{archive.name}.draft")
    try:
        if archive.exists():
            return False
        if shutil.disk_usage(archive.parent).free < MIN_FREE_BYTES:
            raise StoreError(f"{archive.parent} has no room for it, {MIN_FREE_BYTES >> 20} MiB (XDG_CACHE_HOME)")
        same = archive.name.rpartition("-")[0]
        for old in archive.parent.glob(f"{same}-*"):  # also the draft of a process that was killed
            old.unlink()
        _dump(draft, home, class_path, classes)
        flush(draft)
        draft.rename(archive)
    except OSError as error:
        raise StoreError(f"cannot write {archive}: {plain(error)} (XDG_CACHE_HOME)") from error
    finally:
        draft.unlink(missing_ok=True)
        os.close(lock)
    return True


def _dump(draft: Path, home: Path, class_path: str, classes: Path) -> None:
    """Write the archive with Java (the java command's manual, "Application Class Data Sharing")."""
    lines = classes.read_bytes().splitlines(keepends=True)
    classes.write_bytes(b"".join(line for line in lines if not _GENERATED.match(line)))
    command = [str(home / "bin" / "java"), "-Xshare:dump", "-Xlog:disable", "-Xlog:all=error:stderr"]
    command += [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={draft}", "-cp", class_path]
    try:
        process = subprocess.run(  # noqa: S603 - our Java
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=DUMP_TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise StoreError(f"Java did not finish within {DUMP_TIMEOUT:g} s") from error
    if process.returncode:
        output = reversed(process.stdout.decode(errors="replace").splitlines())
        last_line = next((line for line in output if line.strip()), "")
        raise StoreError(f"Java ended with {process.returncode}: {last_line or 'it said nothing'}")
