"""The options of the Java in which Spark runs on this machine: its garbage collector and its compilers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

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


def java_options(settings: str, environment: Mapping[str, str], *, small_jobs: bool = False) -> str:
    """Return the options of a local session's Java that go before the ones that are `given`."""
    options = " ".join([settings, *(environment.get(name, "") for name in JAVA_OPTIONS_VARIABLES)])
    collector, compiler = (
        (SMALL_JOBS_COLLECTOR_OPTION, SMALL_JOBS_COMPILER_OPTIONS)
        if small_jobs
        else (COLLECTOR_OPTION, COMPILER_OPTIONS)
    )
    return compiler if re.search(r"-XX:\+Use\w+GC\b", options) else f"{collector} {compiler}"
