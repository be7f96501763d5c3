"""The schemas of the usage records of mailbox servers and transit relays, and the checks that a database has one.

Sources: ours, restante/mailbox/store/sql and restante/relay/store/sql; magic-wormhole-mailbox-server 0.8.0,
db-schemas/usage-v1.sql and -v2.sql; magic-wormhole-transit-relay 0.5.0, db-schemas/usage-v1.sql.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from restante.pipeline.clean import rules
from restante.pipeline.clean.rules import ORIGIN_RULE, OWN_RULES, RULES, Faulty
from restante.pipeline.schemas import CLIENT_VERSIONS, LIVE, MAILBOXES, NAMEPLATES, RELAY_TRANSFERS, Table
from restante.pipeline.sources.databases import Selects, UsageDatabase
from restante.pipeline.sources.source import SourceError

MAILBOX_FILE: Final = "restante.sqlite"
RELAY_FILE: Final = "relay.sqlite"
"""The databases' names in the data directories of our mailbox server (restante.mailbox.store.schema) and of our relay
(restante.relay.store.schema)."""

MAILBOX_APPLICATION_ID: Final = 0x52657374
RELAY_APPLICATION_ID: Final = 0x52737452
"""SQLite's application ids of these files (in the same modules)."""

ADDRESS_ID: Final = "address_id"
"""The column of a bind with the keyed hash of the client's address. It is compared with those of other binds, and
never leaves the copy of new rows (restante.pipeline.sources.usage). That of a transfer is not read."""


class Dialect(NamedTuple):
    """The SQL that a kind of database needs."""

    entries: str
    """Selects the names and the types (table, view, …) of the tables."""
    columns: str
    """Selects the names of the columns of a table."""
    size: str
    """Selects the bytes of the database."""
    assigned: str
    """Selects the last id that our server has assigned in a table, NULL or nothing if it has assigned none."""
    certain: bool
    """Whether rows with all ids up to that are stored, or were."""
    joined: str
    """Selects when the first side of a nameplate or mailbox joined; NULL if all have left."""


SQLITE: Final = Dialect(
    entries="SELECT name, type FROM pragma_table_list WHERE schema = 'main'",
    columns="SELECT name FROM pragma_table_xinfo(?)",
    size="SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    assigned="SELECT max(seq) FROM sqlite_sequence WHERE name = '{}'",
    certain=True,
    joined="SELECT min(json_extract(side.value, '$.added'))"
    " FROM json_each(CASE WHEN json_valid(sides) THEN sides ELSE '[]' END) AS side WHERE side.type = 'object'",
)
POSTGRES: Final = Dialect(
    entries="SELECT relname, CASE relkind WHEN 'r' THEN 'table' ELSE 'view' END FROM pg_class"
    " WHERE relnamespace = to_regnamespace('restante') AND relkind IN ('r', 'v')",
    columns="SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped",
    size="SELECT CAST(sum(pg_table_size(oid)) AS bigint) FROM pg_class"
    " WHERE relnamespace = to_regnamespace('restante') AND relkind = 'r'",
    assigned="SELECT last_value FROM {}_id_seq WHERE is_called",
    certain=False,
    joined="SELECT min(CAST(side ->> 'added' AS double precision))"
    " FROM json_array_elements(CAST(sides AS json)) AS side",
)


class Shape(NamedTuple):
    """How one kind of server stores its usage records."""

    kind: str
    feeds: tuple[Table, ...]
    """The tables of the lake that it feeds, in the order in which they are committed."""
    names: Mapping[str, str]
    """Table of the lake → its name in the database."""
    newest: int
    """The newest known version of its schema; later ones are rejected."""
    version: str
    """The SQL that returns the schema's version."""
    current: str
    """The table with the server's settings, such as the rounding of times; "" if there is none. Prunes rewrite it."""
    since: Mapping[str, int]
    """Tables, columns of OWN_RULES and ADDRESS_ID, if older versions lack them → the version that added them."""
    imports: Shape | None
    """The shape of the files that rows may have been imported from, if it is our server. Its rows have an id that is
    never reused, and an origin. The reference servers' rows have only a rowid."""
    sql: Dialect = SQLITE

    @property
    def own(self) -> bool:
        """Return whether it is our server."""
        return self.imports is not None

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the columns that a row has in every version, except for its id. Digests are computed from these."""
        ruled = tuple(rule.source for rule in RULES[table])
        return (ORIGIN_RULE.source, *ruled) if self.own else ruled

    def selected(self, table: str, version: int) -> dict[str, str]:
        """Return the columns of a copied row, except for its id, each with the SQL that selects it.

        That is its name, or a constant if this version of the schema lacks it.
        """
        added = [rule.source for rule in OWN_RULES[table]] + [ADDRESS_ID] * (table == CLIENT_VERSIONS.name)
        return (
            {ORIGIN_RULE.source: ORIGIN_RULE.source if self.own else "''"}
            | {rule.source: rule.source for rule in RULES[table]}
            | {name: name if self.own and version >= self.since.get(name, 0) else "NULL" for name in added}
        )


_USAGE_TABLES: Final = (NAMEPLATES, MAILBOXES, CLIENT_VERSIONS)

_OF_MAILBOX_SERVERS: Final = (LIVE, *_USAGE_TABLES)
"""What is live is committed before the usage records. So if a run is killed between the two, a nameplate that has
ended since the last run is in neither table for now, and never in both."""

REFERENCE_SHAPE: Final = Shape(
    kind="reference server's usage database",
    feeds=_OF_MAILBOX_SERVERS,
    names={table.name: table.name for table in _USAGE_TABLES},
    newest=2,
    version="SELECT version FROM version",
    current="current",
    since={CLIENT_VERSIONS.name: 2},
    imports=None,
)
OUR_SHAPE: Final = Shape(
    kind="mailbox server's database",
    feeds=_OF_MAILBOX_SERVERS,
    names={table.name: f"usage_{table.name}" for table in _USAGE_TABLES},
    newest=6,
    version="PRAGMA user_version",
    current="usage_current",
    since={rules.VISITORS_RULE.source: 3, rules.BLUR_RULE.source: 4, ADDRESS_ID: 2, "imports": 2},
    imports=REFERENCE_SHAPE,
)
POSTGRES_SHAPE: Final = OUR_SHAPE._replace(
    newest=1,
    version="SELECT version FROM restante.schema",
    since={rules.VISITORS_RULE.source: 1, rules.BLUR_RULE.source: 1, ADDRESS_ID: 1},
    sql=POSTGRES,
)
REFERENCE_RELAY_SHAPE: Final = Shape(
    kind="reference relay's usage database",
    feeds=(RELAY_TRANSFERS,),
    names={RELAY_TRANSFERS.name: "usage"},
    newest=1,
    version="SELECT version FROM version",
    current="",
    since={},
    imports=None,
)
OUR_RELAY_SHAPE: Final = Shape(
    kind="transit relay's database",
    feeds=(RELAY_TRANSFERS,),
    names={RELAY_TRANSFERS.name: "transfers"},
    newest=1,
    version="PRAGMA user_version",
    current="",
    since={},
    imports=REFERENCE_RELAY_SHAPE,
)


def entries(database: Selects, sql: Dialect = SQLITE) -> dict[str, str]:
    """Return the types of the database's tables (table, view, virtual or shadow) by name."""
    return dict(database.execute(sql.entries))


def version(database: UsageDatabase, shape: Shape, name: str) -> int:
    """Return the version of the schema; `name` is the source's. Raises SourceError."""
    rows = list(database.execute(shape.version))
    if len(rows) != 1 or not isinstance(rows[0][0], int) or rows[0][0] < 1:
        raise SourceError(f"source {name}: it does not say which version its schema has: name another file")
    version: int = rows[0][0]
    if version > shape.newest:
        raise SourceError(
            f"source {name}: it has schema {version}, this program knows up to {shape.newest}: use a newer restante"
        )
    return version


def id_column(database: UsageDatabase, shape: Shape, version: int, table: str, name: str) -> str:
    """Check a table's columns, and return the name of its id column. Raises SourceError."""
    sql_name = shape.names[table]
    kind = entries(database, shape.sql).get(sql_name)
    if kind != "table":
        raise SourceError(f"source {name}: {sql_name} is {f'a {kind}' if kind else 'missing'}, and should be a table")
    present = [column for (column,) in database.execute(shape.sql.columns, (sql_name,))]
    expected = [column for column, selected in shape.selected(table, version).items() if column == selected]
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
    return "id" if shape.own else free[0]


def blur_us(database: UsageDatabase, shape: Shape, name: str, limits: rules.TimeLimits) -> int | None:
    """Return the server's setting at its last prune: what it floors times to, in microseconds.

    None means that it does not floor them, has not recorded the setting yet, or never does. Raises SourceError.
    """
    sql_name = shape.current
    if not sql_name:
        return None
    if entries(database, shape.sql).get(sql_name) != "table":
        raise SourceError(f"source {name}: there is no table {sql_name}, which says how times are rounded")
    rows = list(database.execute(f"SELECT blur_time FROM {sql_name}"))  # noqa: S608
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
