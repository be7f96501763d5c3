"""The data dictionary, docs/pipeline/tables.md, from the schemas.

To write it anew: PYTHONPATH=src:tests .venv/bin/python -m support.pipeline.dictionary
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from restante.pipeline.schemas import CLEAN_TABLES, Column, Table
from restante.pipeline.tables import BUILT_TABLES
from support.documents import ROOT

PATH: Final = ROOT / "docs" / "pipeline" / "tables.md"

HEAD: Final = """\
# Tables of the lake

Every table that [the pipeline](operating.md) makes, with the type, unit and meaning of each column. This page is
generated from the schemas in `src/restante/pipeline`:

<!-- not run: it writes this page, which tests/pipeline/test_dictionary.py compares. -->
    PYTHONPATH=src:tests .venv/bin/python -m support.pipeline.dictionary

The same texts are the comments of the columns in Delta tables and in the views that `restante pipeline sql` prints.

Types are Spark's. A timestamp is a moment in UTC, to the microsecond. If a column may be NULL, its meaning says what
NULL means.

A Delta table keeps the comments of the version of Restante that made it. Views have those of the version that prints
them.
"""

PHASES: Final = """\
Phases of a command that a client sent. A message of the other side has `network in` only:

| phase | from | to |
|---|---|---|
| `network out` | the client sent it | the server received it |
| `server` | the server received it | the server sent the answer |
| `queue` | the server received it | the commit of its batch began. Or, if it changed nothing: the answer was sent |
| `commit` | the commit of its batch began | its change was on disk |
| `queue and commit` | the server received it | its change was on disk. Only from older traces, in place of the two |
| `answer` | its change was on disk | the server sent the answer |
| `network in` | the server sent the answer, or a message of the other side | the client received it |
| `round trip` | the client sent it | the client received the answer, by its own clock |

Every command has a row of `network out`, `server`, `network in` and `round trip`, with `us` NULL if a time is not
known. The other four need the command's line in the trace.

Phases of other events of a client: `human` (it waited for its user), `crypto` (it computed), `transit connect` (it
connected to the other side, or to a relay) and `transfer` (it received a file, or sent one and waited until the
receiver had confirmed it).

[The specification](../timing/specification.md) says which answer and which line belong to a command, and how the
offset and its error are computed. `restante timing` follows it, too.
"""


def dictionary() -> str:
    """Return the page."""
    ingested = [section(table) for table in CLEAN_TABLES.values()]
    built = [section(table) for table in BUILT_TABLES.values()]
    return "\n".join([HEAD, "## What `ingest` writes\n", *ingested, "## What `build` makes\n", *built])


def section(table: Table) -> str:
    """Return the section of a table."""
    partitions = "month" if table.by_month else ", ".join(f"`{name}`" for name in table.partitions)
    lines = [
        f"### {table.name}\n",
        f"One row per {table.grain}. Partitioned by {partitions}.\n",
        *rows(table.columns),
        "",
    ]
    return "\n".join([*lines, PHASES] if table.name == "timing" else lines)


def rows(columns: Iterable[Column]) -> list[str]:
    """Return the rows that describe columns."""
    found = ["| column | type | NULL | unit | meaning |", "|---|---|---|---|---|"]
    for each in columns:
        assert "|" not in each.comment
        null = "yes" if each.null else ""
        found.append(f"| `{each.name}` | {each.type} | {null} | {each.unit} | {each.meaning} |")
    return found


if __name__ == "__main__":
    PATH.write_text(dictionary())
