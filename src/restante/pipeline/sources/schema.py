"""The schemas of the mailbox servers' usage records, and the checks that a database has one of them.

Sources: ours, restante/mailbox/store/sql; magic-wormhole-mailbox-server 0.8.0, db-schemas/usage-v1.sql and -v2.sql.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Final, NamedTuple

from restante.pipeline.clean import rules
from restante.pipeline.clean.rules import OWN_RULES, RULES, Faulty
from restante.pipeline.schemas import CLIENT_VERSIONS
from restante.pipeline.sources.source import Say, SourceError

MAILBOX_FILE: Final = "restante.sqlite"
"""The database's name in our mailbox server's data directory (restante.mailbox.store.schema)."""

MAILBOX_APPLICATION_ID: Final = 0x52657374
"""SQLite's application id of that file (restante.mailbox.store.schema)."""


ADDRESS_ID: Final = "address_id"
"""The column of a bind with the keyed hash of the client's address. It is compared with those of other binds, and
never leaves the copy (restante.pipeline.sources.usage_scan)."""


class Shape(NamedTuple):
    """How one kind of server stores its usage records."""

    kind: str
    newest: int
    """The newest known version of its schema; later ones are rejected."""
    version: str
    """The SQL that returns the schema's version."""
    prefix: str
    """Prefix of its tables' names."""
    since: Mapping[str, int]
    """Tables, columns of OWN_RULES and ADDRESS_ID, if they were added later → the version that added them."""
    own: bool
    """Whether it is our server. Its rows have an id that is never reused, and an origin. The reference server's rows
    have only a rowid."""
    others: frozenset[str]
    """Columns that are known, and never read."""

    def table(self, table: str) -> str:
        """Return the database's name of a table."""
        return self.prefix + table

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the columns that a row has in every version, except for its id. Digests are computed from these."""
        ruled = tuple(rule.source for rule in RULES[table])
        return ("origin", *ruled) if self.own else ruled

    def own_columns(self, table: str, version: int) -> tuple[str | None, ...]:
        """Return the columns of OWN_RULES in a version of the schema, with None for those that it lacks."""
        names = (rule.source for rule in OWN_RULES[table])
        return tuple(name if self.own and version >= self.since[name] else None for name in names)

    def address_columns(self, table: str, version: int) -> tuple[str, ...]:
        """Return ADDRESS_ID for the table of binds, or () if this version of the schema lacks it."""
        has_column = self.own and table == CLIENT_VERSIONS.name and version >= self.since[ADDRESS_ID]
        return (ADDRESS_ID,) if has_column else ()


OUR_SHAPE: Final = Shape(
    kind="mailbox server's database",
    newest=6,
    version="PRAGMA user_version",
    prefix="usage_",
    since={rules.VISITORS_RULE.source: 3, rules.BLUR_RULE.source: 4, ADDRESS_ID: 2},
    own=True,
    others=frozenset({"id", "side"}),
)
REFERENCE_SHAPE: Final = Shape(
    kind="reference server's usage database",
    newest=2,
    version="SELECT version FROM version",
    prefix="",
    since={CLIENT_VERSIONS.name: 2},
    own=False,
    others=frozenset({"side"}),
)


def entries(database: sqlite3.Connection) -> dict[str, str]:
    """Return the types of the database's entries (table, view, virtual or shadow) by name."""
    return dict(database.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main'"))


def version(database: sqlite3.Connection, shape: Shape, name: str) -> int:
    """Return the version of the schema; `name` is the source's. Raises SourceError."""
    rows = database.execute(shape.version).fetchall()
    if len(rows) != 1 or not isinstance(rows[0][0], int) or rows[0][0] < 1:
        raise SourceError(f"source {name}: it does not say which version its schema has: name another file")
    version: int = rows[0][0]
    if version > shape.newest:
        raise SourceError(
            f"source {name}: it has schema {version}, this program knows up to {shape.newest}: use a newer restante"
        )
    return version


def id_column(database: sqlite3.Connection, shape: Shape, version: int, table: str, name: str, say: Say) -> str:
    """Check a table's columns, and return the name of its id column. Raises SourceError."""
    sql_name = shape.table(table)
    kind = entries(database).get(sql_name)
    if kind != "table":
        raise SourceError(f"source {name}: {sql_name} is {f'a {kind}' if kind else 'missing'}, and should be a table")
    present = [row[0] for row in database.execute("SELECT name FROM pragma_table_xinfo(?)", (sql_name,))]
    added = (*filter(None, shape.own_columns(table, version)), *shape.address_columns(table, version))
    expected = (*shape.columns(table), *added)
    for column in (*expected, "id") if shape.own else expected:
        if column not in present:
            raise SourceError(f"source {name}: table {sql_name} has no column {column}")
    # A column of that name would hide the rowid (sqlite.org/rowidtable.html).
    free = [word for word in ("rowid", "oid", "_rowid_") if word not in map(str.lower, present)]
    if not free and not shape.own:
        raise SourceError(
            f"source {name}: table {sql_name} has columns named rowid, oid and _rowid_, which hide the ids of its"
            " rows"
        )
    for column in present:
        if column not in expected and column not in shape.others:
            say(f"source {name}: column {sql_name}.{printable_name(column)} is not known and is left out")
    return "id" if shape.own else free[0]


def blur_us(database: sqlite3.Connection, shape: Shape, name: str, limits: rules.TimeLimits) -> int | None:
    """Return the server's setting at its last prune: what it floors times to, in microseconds.

    None means that it does not floor them, or has not recorded the setting yet. Raises SourceError.
    """
    sql_name = shape.table("current")
    if entries(database).get(sql_name) != "table":
        raise SourceError(f"source {name}: there is no table {sql_name}, which says how times are rounded")
    rows = database.execute(f"SELECT blur_time FROM {sql_name}").fetchall()  # noqa: S608
    blur = rows[-1][0] if rows else None
    try:
        return (rules.clean_duration(blur, limits) if blur else 0) or None
    except Faulty:
        raise SourceError(
            f"source {name}: blur_time in the table {sql_name} is not a number of seconds: correct it"
        ) from None


def printable_name(name: str) -> str:
    """Return a name that a client chose, escaped for a terminal."""
    return ascii(name[:64])[1:-1]
