"""An archive of Java's classes, from which a later Java maps them into its memory (class data sharing).

Without it, Java reads, parses and verifies thousands of classes from Spark's jars at every start
(docs/decisions/small-jobs.md). Java itself writes it when it ends (JEP 350), and ignores one that does not fit: of
another Java, or of jars that have changed since.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from restante.pipeline.spark import java
from restante.pipeline.spark.java import cache_folder

ARCHIVE_PREFIX: Final = "classes-"

ARCHIVE_PROPERTY: Final = "restante.classArchive"
"""The property of a Java that makes an archive: its path."""

UNFIT_JAVA: Final = 21
"""The version of Java that refuses an archive of Spark's classes (21.0.8: "shared class paths mismatch"). 17 and 25
take it."""

_CONFIGURATION_FOLDERS: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables that name folders of Java's class path (4.3.0: AbstractCommandBuilder.buildClassPath)."""


def archive_path(home: Path, spark: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the archive for a Java (its JAVA_HOME) and a Spark (its SPARK_HOME).

    The name begins with a digest of the two paths. The rest changes when the Java or the jars are replaced.
    """
    release, jars = home / "release", spark / "jars"
    version = release.read_text(errors="replace") if release.exists() else ""
    changed = jars.stat().st_mtime_ns if jars.exists() else 0
    name = f"{ARCHIVE_PREFIX}{_digest(str(home), str(spark))}-{_digest(version, str(changed))}.jsa"
    return cache_folder(environ) / name


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def our_archive() -> Path | None:
    """Return the path of the archive for our sessions; None if the cache folder cannot be read, or is not known.

    Also None if the operator's configuration is in the class path: Java makes no archive of one with a folder that
    has files ("Cannot have non-empty directory in paths").
    """
    from pyspark.find_spark_home import _find_spark_home

    if any(os.environ.get(name) for name in _CONFIGURATION_FOLDERS):
        return None
    try:
        archive = archive_path(java.find_home(), Path(_find_spark_home()))
    except (OSError, RuntimeError):  # RuntimeError: of Path.home
        return None  # a run does not need the archive
    # Spark parses a string of options, and has a syntax of its own for these two characters.
    return None if re.search(r'["\\]', str(archive)) else archive


def is_whole(archive: Path) -> bool:
    """Return whether an archive exists. Java writes its first bytes last."""
    try:
        with archive.open("rb") as file:
            return any(file.read(4))
    except OSError:
        return False


def archive_option(archive: Path, home: Path, *, make: bool) -> str:
    """Return the options with which Java uses the archive or, if there is none, makes it when it ends (`make`).

    Archives of the same Java and Spark as they were before are removed then. If one cannot be made, return "".
    """
    if is_whole(archive):
        return f'"-XX:SharedArchiveFile={archive}"'
    # The archive adds to one of Java's own classes, which the wheel's Java has not.
    has_base = (home / "lib" / "server" / "classes.jsa").exists()
    if not make or not has_base or java.major_version(home) == UNFIT_JAVA:
        return ""
    try:
        archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in archive.parent.glob(f"{archive.name.rpartition('-')[0]}-*"):
            old.unlink()
    except OSError:
        return ""
    is_writable = os.access(archive.parent, os.W_OK | os.X_OK)
    options = f'"-XX:ArchiveClassesAtExit={archive}" "-D{ARCHIVE_PROPERTY}={archive}" -Xlog:cds*=error'
    return options if is_writable else ""
