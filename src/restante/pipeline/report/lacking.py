"""Which tables a lake lacks when a report is made of it, and what the report says about that. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from restante.pipeline.report.changes import activity, counts, failures
from restante.pipeline.report.changes.measure import Compared, Measure
from restante.pipeline.report.model import Section

COMPARED_BY: Final[Mapping[Compared, Measure]] = {
    Compared.FAILURES_OF_SERVER: failures.SERVERS_MEASURE,
    Compared.FAILURES_OF_VERSION: failures.VERSIONS_MEASURE,
    Compared.SILENT_HOURS: activity.SILENT_HOURS_MEASURE,
    Compared.NO_ROWS: activity.STOPPED_MEASURE,
    Compared.MISSING: counts.MISSING_MEASURE,
    Compared.GUESSES: counts.SUSPECTS_MEASURE,
    Compared.ONE_SIDE: counts.CLAIMS_MEASURE,
}
"""What each measure compares."""

BEING_WRITTEN: Final = (
    "Another run is writing to the lake, so the tables may be from different moments. Make the report again when that"
    " run is over."
)


class LakeState(NamedTuple):
    """What a lake lacks. The default is a lake that has all tables."""

    unbuilt: Collection[str] = ()
    """Tables that the lake does not have, although it has rows to build them from."""
    without_rows: Mapping[str, str] = {}
    """Tables that the lake does not have, because it has no rows to build them from → words for their sources."""
    is_written: bool = False
    """Whether another run was writing to it while the tables were opened."""


EVERYTHING_THERE: Final = LakeState()


def state_remarks(state: LakeState, *, has_records: bool) -> list[str]:
    """Return sentences for the top of a report."""
    sentences = [BEING_WRITTEN] if state.is_written else []
    if state.unbuilt:
        sentences.append(
            f"The lake has no {_tables(state.unbuilt)}. Run `restante pipeline build`, which makes"
            f" {_them(state.unbuilt)} from the rows of the lake."
        )
        unjudged = [
            name for name, measure in COMPARED_BY.items() if not set(state.unbuilt).isdisjoint(measure.tables)
        ]
        if unjudged and has_records:
            sentences.append(
                f"Without {_them(state.unbuilt)}, the report cannot say whether these changed: {_joined(unjudged)}."
            )
    return sentences


def without_tables(section: Section, tables: Collection[str], state: LakeState) -> Section:
    """Return a section as it is if the lake has its tables; otherwise one that says which it lacks.

    If one of them is not built, no figure is shown: a count of 0 would be wrong.
    """
    unbuilt = [name for name in tables if name in state.unbuilt]
    if unbuilt:
        nothing = f"The lake has no {_tables(unbuilt)}. `restante pipeline build` makes {_them(unbuilt)}."
    elif all(name in state.without_rows for name in tables):
        sources = _joined(dict.fromkeys(state.without_rows[name] for name in tables), "or")
        nothing = f"The lake has no {_tables(tables)}, because it has no rows of {sources}."
    else:
        return section
    return replace(section, figures=(), facts=(), nothing=nothing)


def _tables(names: Collection[str]) -> str:
    return f"table{'' if len(names) == 1 else 's'} {_joined(names)}"


def _them(names: Collection[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _joined(names: Collection[str], conjunction: str = "and") -> str:
    *others, last_name = names
    return f"{', '.join(others)} {conjunction} {last_name}" if others else str(last_name)
