"""How Spark runs here: in this process, and in that of a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from support import processes

SMALL_JOBS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Of Java, where jobs are many and small: what a second compiler would gain it would never give back."""

ENVIRONMENT: Final = processes.environment(JAVA_TOOL_OPTIONS=SMALL_JOBS)
"""Of commands that are run in a process of their own."""

SOON_READY: Final = (
    f"{SMALL_JOBS} -XX:MetaspaceSize=256m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Of Java that also does not verify the classes of Spark's jars: that takes an eighth of the time until the first
result."""

SETTINGS: Final = {"spark.sql.shuffle.partitions": "4", "spark.driver.extraJavaOptions": SOON_READY}

INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""In a quick run Spark interprets its queries: to compile one costs more than its rows here."""


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command in its own process. Spark also reads settings from Java's properties."""
    return ENVIRONMENT | {"JAVA_TOOL_OPTIONS": " ".join([SOON_READY, *(f"-D{k}={v}" for k, v in settings.items())])}
