"""The tables of the data dictionary, docs/pipeline/tables.md, from the schemas. All else is written on the page.

To write them anew: PYTHONPATH=src:tests .venv/bin/python -m support.pipeline.dictionary
"""

from __future__ import annotations

import re
from typing import Final

from restante.pipeline.schemas import Table
from restante.pipeline.tables import TABLES
from support.documents import ROOT

PATH: Final = ROOT / "docs" / "pipeline" / "tables.md"

SECTION: Final = re.compile(r"^### (\w+)\n\n(One row per .*\n\n(?:\|.*\n)+)?", re.MULTILINE)
"""The heading of a table and what is generated below it."""


def dictionary(page: str) -> str:
    """Return the page as it should be: below the heading of each table its grain, partitions and columns."""
    return SECTION.sub(lambda found: _section(TABLES[found[1]]), page)


def _section(table: Table) -> str:
    partitions = "month" if table.by_month else ", ".join(f"`{name}`" for name in table.partitions)
    lines = [
        f"### {table.name}\n",
        f"One row per {table.grain}. Partitioned by {partitions}.\n",
        "| column | type | NULL | unit | meaning |",
        "|---|---|---|---|---|",
    ]
    for column in table.columns:
        assert "|" not in column.comment
        null = "yes" if column.null else ""
        lines.append(f"| `{column.name}` | {column.type} | {null} | {column.unit} | {column.meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(dictionary(PATH.read_text()))
