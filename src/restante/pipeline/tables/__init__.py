"""The tables that are built from the ingested ones: each is a function of DataFrames, beside its schema.

docs/pipeline/add-a-table.md adds one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from restante.pipeline.schemas import CLEAN_TABLES, Table
from restante.pipeline.tables import (
    addresses,
    busy_hours,
    deliveries,
    envelopes,
    failures,
    gaps,
    guesses,
    lateness,
    outcomes,
    pressure,
    relay,
    sources,
    timing,
    transfers,
    versions,
)
from restante.pipeline.tables.build import Build

BUILDS: Final[dict[str, Build]] = {
    build.table.name: build
    for build in (
        *outcomes.BUILDS,
        *pressure.BUILDS,
        *busy_hours.BUILDS,
        *failures.BUILDS,
        *guesses.BUILDS,
        *versions.BUILDS,
        *addresses.BUILDS,
        *relay.BUILDS,
        *timing.BUILDS,
        *deliveries.BUILDS,
        *transfers.BUILDS,
        *envelopes.BUILDS,
        *gaps.BUILDS,
        *lateness.BUILDS,
    )
}
"""By name, each after its inputs. They are built day by day."""

BUILT_TABLES: Final[Mapping[str, Table]] = {
    **{name: build.table for name, build in BUILDS.items()},
    sources.SOURCES_TABLE.name: sources.SOURCES_TABLE,
}
"""All tables that `build` makes. `sources` is not built day by day (restante.pipeline.build.sources)."""

TABLES: Final[Mapping[str, Table]] = {**CLEAN_TABLES, **BUILT_TABLES}
"""All tables of a lake, in the order in which they are made."""


def clean_inputs(name: str) -> list[str]:
    """Return the clean tables from which a table is made, also by way of other built tables."""
    if name in CLEAN_TABLES:
        return [name]
    inputs = BUILDS.get(name, sources.BUILD).inputs
    return list(dict.fromkeys(clean for input_name in inputs for clean in clean_inputs(input_name)))
