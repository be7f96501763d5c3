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

PREFIX: Final = "classes-"

SUFFIX: Final = ".jsa"

CLASSES_FILE: Final = "classes"
"""The file in a run's folder in which its Java lists the classes that it loads."""

_GENERATED: Final = re.compile(rb"@lambda-form-invoker |java/lang/invoke/BoundMethodHandle\$Species_")
"""Lines of that file that an archive leaves out: classes that Java generates, and that have no file. If a program
observes classes as they are loaded (a profiler, Flight Recorder), Java 17 crashes when it loads them from an archive,
in KlassFactory::check_shared_class_file_load_hook."""

NEEDED_BYTES: Final = 300 << 20
"""Free space without which no archive is begun. It takes 200 MB; Java does not say that a disk is full."""

MAKING_TIMEOUT: Final = 600.0
"""Seconds after which Java is killed while it makes an archive. It needs half a minute of CPU time."""


def place(home: Path, spark: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the archive for a Java (its JAVA_HOME) and a Spark (its SPARK_HOME) is, or would be.

    The name begins with a digest of the two paths. The rest changes when the Java or the jars are replaced.
    """
    release, jars = home / "release", spark / "jars"
    version = release.read_text(errors="replace") if release.exists() else ""
    changed = jars.stat().st_mtime_ns if jars.exists() else 0
    return (
        cache_folder(environ) / f"{PREFIX}{_digest(str(home), str(spark))}-{_digest(version, str(changed))}{SUFFIX}"
    )


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def ours() -> Path:
    """Return where the archive for the Java and the Spark of our sessions is, or would be."""
    from pyspark.find_spark_home import _find_spark_home

    return place(java.find_home(), Path(_find_spark_home()))


def session_option(folder: Path | None) -> str:
    """Return `option` for our sessions; "" if the cache folder cannot be read, or is not known: no run needs it."""
    try:
        return option(ours(), folder)
    except (OSError, RuntimeError):  # RuntimeError: of Path.home
        return ""


def option(archive: Path, folder: Path | None) -> str:
    """Return the option with which Java uses the archive, if there is one.

    If there is no archive, but one can be written, the options make Java list its classes in `folder`, for `make`.
    """
    if re.search(r'["\\]', f"{archive}{folder}"):
        return ""  # Spark takes a string of options apart, and has a syntax of its own for these two
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


def make(archive: Path, home: Path, class_path: str, classes: Path) -> bool:
    """Make the archive of the classes that a file names, with the class path of the Java that loaded them.

    Return whether it was made: not if another process is making one, or has made it. Archives of the same Java and
    Spark as they were before are removed. Raises StoreError if it fails.
    """
    try:
        archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = lock_file(archive.parent / f"{PREFIX}lock")
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreError(f"cannot write {archive}: {plain(error)} (XDG_CACHE_HOME)") from error
    draft = archive.with_name(f"{archive.name}.draft")
    try:
        if archive.exists():
            return False
        if shutil.disk_usage(archive.parent).free < NEEDED_BYTES:
            raise StoreError(f"{archive.parent} has no room for it, {NEEDED_BYTES >> 20} MiB (XDG_CACHE_HOME)")
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
        os.close(held)
    return True


def _dump(draft: Path, home: Path, class_path: str, classes: Path) -> None:
    """Write the archive with Java (the java command's manual, "Application Class Data Sharing")."""
    lines = classes.read_bytes().splitlines(keepends=True)
    classes.write_bytes(b"".join(line for line in lines if not _GENERATED.match(line)))
    command = [str(home / "bin" / "java"), "-Xshare:dump", "-Xlog:disable", "-Xlog:all=error:stderr"]
    command += [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={draft}", "-cp", class_path]
    try:
        java = subprocess.run(  # noqa: S603 - our Java
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=MAKING_TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise StoreError(f"Java did not finish within {MAKING_TIMEOUT:g} s") from error
    if java.returncode:
        last = [line for line in java.stdout.decode(errors="replace").splitlines() if line.strip()][-1:]
        raise StoreError(f"Java ended with {java.returncode}: {''.join(last) or 'it said nothing'}")
