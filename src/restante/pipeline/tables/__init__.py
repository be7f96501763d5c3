"""The tables that are built from the ingested ones: each is a function of DataFrames, beside its schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from restante.pipeline.schemas import CLEAN_TABLES, Table
from restante.pipeline.tables import envelopes, hours, outcomes, timing, versions
from restante.pipeline.tables.build import Build

BUILDS: Final[dict[str, Build]] = {
    build.table.name: build
    for build in (*outcomes.BUILDS, *hours.BUILDS, *versions.BUILDS, *timing.BUILDS, *envelopes.BUILDS)
}
"""By name, each after its inputs."""

TABLES: Final[Mapping[str, Table]] = {**CLEAN_TABLES, **{name: build.table for name, build in BUILDS.items()}}
"""All tables of a lake, in the order in which they are made."""
