"""The tables that are built from what was ingested: each a function of DataFrames, with its schema beside it."""

from __future__ import annotations

from typing import Final

from restante.pipeline.tables import outcomes
from restante.pipeline.tables.build import Build

BUILDS: Final[dict[str, Build]] = {build.table.name: build for build in (*outcomes.BUILDS,)}
"""By name, each after those that it is made of."""
