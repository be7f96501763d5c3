"""`restante pipeline tables`: the tables of a lake, and what each is made from."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final

import typer

app = typer.Typer()

WIDTH: Final = 80
"""Columns of a drawing: those of a terminal that nobody made larger."""

ANY_SOURCE: Final = "any source"
"""Where rows of the quarantine come from."""

REPORT: Final = "report"

Lineage = Mapping[str, Sequence[str]]
"""Table, or REPORT → what it is made from, each after its inputs. A clean table is made from a source."""


@app.command()
def tables(
    graph: Annotated[
        bool,
        typer.Option(
            "--graph", help="Draw what each table is made from, from the sources to the tables that reports read."
        ),
    ] = False,
) -> None:
    """List the tables of a lake, in the order in which they are made. It reads no lake."""
    from restante.pipeline.tables import TABLES

    listed = (f"{table.name}: one row per {table.grain}" for table in TABLES.values())
    for line in _drawn_lines(_lineage()) if graph else listed:
        print(line)


def _lineage() -> Lineage:
    from restante.pipeline.report.making import TABLES_READ
    from restante.pipeline.schemas import CLEAN_TABLES, SOURCES
    from restante.pipeline.tables import BUILDS
    from restante.pipeline.tables.sources import BUILD

    clean = {name: (SOURCES.get(name, ANY_SOURCE),) for name in CLEAN_TABLES}
    return {**clean, **{build.table.name: build.inputs for build in (*BUILDS.values(), BUILD)}, REPORT: TABLES_READ}


def _drawn_lines(lineage: Lineage) -> Iterator[str]:
    """Yield a tree of each source. A table is below the input that is made last, and names its others."""
    order = list(lineage)
    children: dict[str, list[str]] = {}
    last_input: dict[str, str] = {}
    for name, inputs in lineage.items():
        if name != REPORT:
            last_input[name] = max(inputs, key=lambda input_: order.index(input_) if input_ in lineage else -1)
            children.setdefault(last_input[name], []).append(name)

    def below(name: str, indent: str) -> Iterator[str]:
        tables = children.get(name, [])
        for table in tables:
            is_last = table == tables[-1]
            deeper = indent + ("   " if is_last else "│  ")
            others = [input_ for input_ in lineage[table] if input_ != last_input[table]]
            text = " + ".join([table, ", ".join(others)] if others else [table])
            text += f" → {REPORT}" if table in lineage[REPORT] else ""
            after = deeper + ("│    " if table in children else "     ")
            yield from textwrap.wrap(
                text, WIDTH, initial_indent=indent + ("└─ " if is_last else "├─ "), subsequent_indent=after
            )
            yield from below(table, deeper)

    for source in children:
        if source not in lineage:
            yield source
            yield from below(source, "")
    yield ""
    yield f"A table is below one of its inputs, + the others. → {REPORT}: reports read it."
