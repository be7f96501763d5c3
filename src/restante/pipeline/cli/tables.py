"""`restante pipeline tables`: the tables of a lake, and what each is made from."""

from __future__ import annotations

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
    from rich.text import Text
    from rich.tree import Tree

    from restante.pipeline.cli.output import rendered_lines

    order = list(lineage)
    trees: dict[str, Tree] = {}
    for name, inputs in lineage.items():
        if name == REPORT:
            continue
        last_input = max(inputs, key=lambda input_: order.index(input_) if input_ in lineage else -1)
        others = ", ".join(input_ for input_ in inputs if input_ != last_input)
        text = f"{name} + {others}" if others else name
        above = trees.setdefault(last_input, Tree(last_input))
        trees[name] = above.add(Text(f"{text} → {REPORT}" if name in lineage[REPORT] else text))
    for name, tree in trees.items():
        if name not in lineage:
            yield from rendered_lines(tree, WIDTH)
    yield ""
    yield f"A table is below one of its inputs, + the others. → {REPORT}: reports read it."
