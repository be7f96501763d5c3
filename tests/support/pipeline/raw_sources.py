"""The sources of a demo as relations of DuckDB, without any code of the pipeline.

The databases are read through Python's sqlite3, from copies. Envelopes are decoded here. Timing logs and traces are
read by DuckDB's own JSON reader. `ended`, `binds`, `archived`, `events` and `lines` are the sources' rows. The other
relations are computed from them in SQL, by docs/pipeline/tables.md and docs/timing/specification.md.

Times and durations are whole microseconds. A day is a UTC day.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa

SQLITE_FILES = ("", "-wal")
"""What is copied of a database. Its other file, -shm, is made again by whoever reads it."""

MACROS = """
-- A time or a duration of a usage record. A value halfway between two microseconds becomes the even one.
CREATE MACRO micros(seconds) AS round_even(seconds * 1e6, 0)::BIGINT;
-- A time of a timing log or a trace (specification.md, "Input").
CREATE MACRO stamp(seconds) AS CASE WHEN abs(seconds) < 1e11 THEN floor(seconds * 1e6 + 0.5)::BIGINT END;
CREATE MACRO day_of(us) AS make_timestamp(us)::DATE;
CREATE MACRO hour_of(us) AS hour(make_timestamp(us));
"""

USAGE = """
CREATE TABLE ended AS
SELECT *, day_of(started) AS day, hour_of(started) AS hour FROM (
    SELECT source, kind, app_id, micros(started) AS started, micros(waiting_time) AS waiting_us,
        micros(total_time) AS total_us, result
    FROM raw_ended
);
CREATE TABLE binds AS
SELECT *, day_of(bound) AS day, hour_of(bound) AS hour
FROM (SELECT source, app_id, micros(connect_time) AS bound, implementation, version FROM raw_binds);

-- The version of a mailbox is the only one that bound in the two seconds before (tables.md, "versions").
CREATE TABLE attributed AS
SELECT source, day, app_id, result,
    CASE count(DISTINCT who) WHEN 0 THEN 'unbound' WHEN 1 THEN 'version' ELSE 'mixed' END AS attribution,
    CASE count(DISTINCT who) WHEN 1 THEN any_value(who).implementation END AS implementation,
    CASE count(DISTINCT who) WHEN 1 THEN any_value(who).version END AS version
FROM (
    SELECT m.*, CASE WHEN b.bound IS NOT NULL THEN
        {'implementation': b.implementation, 'version': b.version} END AS who
    FROM (SELECT row_number() OVER () AS number, * FROM ended WHERE kind <> 'nameplate') AS m
    LEFT JOIN binds AS b
    ON b.source = m.source AND b.app_id = m.app_id AND b.bound BETWEEN m.started - 2_000_000 AND m.started
)
GROUP BY number, source, day, app_id, result;
"""

ENVELOPES = """
CREATE TABLE archived AS
SELECT *, day_of(sent) AS day, hour_of(sent) AS hour
FROM (SELECT source, digest, topic, sent * 1_000_000 AS sent, size FROM raw_archived);
CREATE TABLE envelopes AS SELECT DISTINCT digest, topic, sent, size, day, hour FROM archived;

-- Each Mailserver with each envelope that was sent on its first day or later, whether it has it or not.
CREATE TABLE holdings AS
SELECT m.source, e.*, h.digest IS NOT NULL AS there, n.holders
FROM envelopes AS e
JOIN (SELECT source, min(day) AS first FROM archived GROUP BY source) AS m ON e.day >= m.first
JOIN (SELECT digest, count(DISTINCT source) AS holders FROM archived GROUP BY digest) AS n ON n.digest = e.digest
LEFT JOIN (SELECT DISTINCT source, digest FROM archived) AS h ON h.digest = e.digest AND h.source = m.source;
"""

EVENTS = """
CREATE TABLE events AS
SELECT row_number() OVER () AS number, filename AS file, name, stamp("start") AS began, stamp(stop) AS stopped,
    details->>'waiting' AS waiting, frame->>'type' AS command, frame->>'id' AS command_id,
    frame->>'side' = details->>'_side' AS own,
    (frame->>'server_rx')::DOUBLE AS server_rx, (frame->>'server_tx')::DOUBLE AS server_tx,
    day_of(stamp("start")) AS day
FROM (
    SELECT *, CASE name WHEN 'ws_send' THEN details WHEN 'ws_receive' THEN details->'message' END AS frame
    FROM read_json($logs, format = 'array', filename = true,
        columns = {name: 'VARCHAR', "start": 'DOUBLE', stop: 'DOUBLE', details: 'JSON'})
);
"""

LINES = """
CREATE TABLE lines AS
SELECT id AS command_id, server_rx, commit_began, "commit", server_tx
FROM read_json($trace, format = 'newline_delimited', columns = {id: 'VARCHAR', server_rx: 'DOUBLE',
    commit_began: 'DOUBLE', "commit": 'DOUBLE', server_tx: 'DOUBLE'});
"""

EXCHANGES = """
CREATE TABLE exchanges AS
WITH commands AS (  -- an id that several commands of a log have on one day is ambiguous
    SELECT number, file, day, began AS t0,
        CASE count(*) OVER (PARTITION BY file, command_id, day) WHEN 1 THEN command_id END AS command_id
    FROM events WHERE name = 'ws_send'
), replies AS (
    SELECT file, command_id, command = 'message' AS echo, began AS t3, server_rx, server_tx
    FROM events WHERE name = 'ws_receive' AND (command = 'ack' OR command = 'message' AND own)
), answered AS (
    SELECT c.number, c.file, c.day, c.t0, c.command_id, min(r.server_rx) FILTER (r.echo) AS echoed,
        first({'t3': r.t3, 'tx': r.server_tx} ORDER BY r.echo, r.t3, r.server_tx NULLS FIRST) AS answer
    FROM commands AS c LEFT JOIN replies AS r
    ON r.file = c.file AND r.command_id = c.command_id AND r.t3 BETWEEN c.t0 AND c.t0 + 86_400_000_000
    GROUP BY ALL
), traced AS (
    SELECT a.*, first(CASE WHEN l.server_rx IS NOT NULL THEN
            {'rx': l.server_rx, 'began': l.commit_began, 'done': l."commit", 'tx': l.server_tx} END
        ORDER BY l.server_rx, l.commit_began NULLS FIRST, l."commit" NULLS FIRST, l.server_tx NULLS FIRST) AS line
    FROM answered AS a LEFT JOIN lines AS l
    ON l.command_id = a.command_id AND abs(l.server_rx * 1e6 - a.t0) <= 86_400_000_000
    AND CASE WHEN echoed IS NULL THEN abs(l.server_tx - answer.tx) < 1.5e-6 ELSE l.server_rx = echoed END
    GROUP BY ALL
)
SELECT number, file, day, t0, stamp(coalesce(echoed, line.rx)) AS rx, stamp(answer.tx) AS tx, answer.t3 AS t3,
    line IS NOT NULL AS traced, stamp(line.rx) AS came, stamp(line.began) AS began, stamp(line.done) AS done,
    stamp(line.tx) AS said
FROM traced;

CREATE TABLE offsets AS
SELECT file, day, -floor((max(lower) + min(upper)) / 2.0)::BIGINT AS ahead
FROM (
    SELECT file, day, tx - t3 AS lower, coalesce(rx, tx) - t0 AS upper FROM exchanges WHERE tx - t3 IS NOT NULL
    UNION ALL
    SELECT file, day, stamp(server_tx) - began, NULL FROM events WHERE name = 'ws_receive' AND server_tx IS NOT NULL
)
GROUP BY ALL HAVING min(upper) IS NOT NULL;

CREATE TABLE phases AS
WITH e AS (SELECT * FROM exchanges LEFT JOIN offsets USING (file, day)),
v AS (SELECT * FROM events LEFT JOIN offsets USING (file, day))
SELECT day, 'network out' AS phase, rx - t0 + ahead AS us FROM e
UNION ALL SELECT day, 'server', tx - rx FROM e
UNION ALL SELECT day, 'network in', t3 - tx - ahead FROM e
UNION ALL SELECT day, 'round trip', t3 - t0 FROM e
UNION ALL SELECT day, 'queue', said - came FROM e WHERE traced AND done IS NULL
UNION ALL SELECT day, 'queue', began - came FROM e WHERE began IS NOT NULL AND done IS NOT NULL
UNION ALL SELECT day, 'commit', done - began FROM e WHERE began IS NOT NULL AND done IS NOT NULL
UNION ALL SELECT day, 'queue and commit', done - came FROM e WHERE began IS NULL AND done IS NOT NULL
UNION ALL SELECT day, 'answer', said - done FROM e WHERE done IS NOT NULL
UNION ALL SELECT day, 'network in', began - stamp(server_tx) - ahead FROM v
    WHERE name = 'ws_receive' AND command = 'message' AND NOT own
UNION ALL SELECT day, CASE waiting WHEN 'user' THEN 'human' ELSE 'crypto' END, stopped - began FROM v
    WHERE waiting IN ('user', 'crypto')
UNION ALL SELECT day, CASE name WHEN 'transit connect' THEN name ELSE 'transfer' END, stopped - began FROM v
    WHERE (waiting NOT IN ('user', 'crypto') OR waiting IS NULL)
    AND name IN ('transit connect', 'tx file', 'get ack', 'rx file');
"""


class RawSources:
    """A connection to DuckDB with the relations above."""

    def __init__(self, tables: duckdb.DuckDBPyConnection) -> None:
        self._tables = tables
        extent = " UNION ALL ".join(f"SELECT day FROM {name}" for name in ("ended", "binds", "archived", "events"))
        [(self.first, self.last)] = self.rows(f"SELECT min(day), max(day) FROM ({extent})")

    def rows(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query. A parameter that the SQL does not name is left out."""
        return self._tables.execute(sql, {key: it for key, it in parameters.items() if f"${key}" in sql}).fetchall()

    def has(self, day: date) -> bool:
        """Return whether a day is between the first and the last day of all sources."""
        return bool(self.first <= day <= self.last)


@contextmanager
def opened(sources: Path) -> Iterator[RawSources]:
    """Yield the sources in the folder `sources` of a demo."""
    with duckdb.connect(config={"threads": 1}) as tables:
        tables.execute(MACROS)
        ended, binds = _usage(sources)
        _register(tables, "raw_ended", ended)
        _register(tables, "raw_binds", binds)
        tables.execute(USAGE)
        _register(tables, "raw_archived", _archived(sources))
        tables.execute(ENVELOPES)
        tables.execute(EVENTS, {"logs": str(sources / "*" / "logs" / "*.json")})
        tables.execute(LINES, {"trace": str(sources / "*" / "trace.jsonl")})
        tables.execute(EXCHANGES)
        yield RawSources(tables)


def _register(tables: duckdb.DuckDBPyConnection, name: str, rows: list[dict[str, Any]]) -> None:
    tables.register(name, pa.Table.from_pylist(rows))


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a copy of a database, so that nothing in its folder changes."""
    with TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        for end in SQLITE_FILES:
            if Path(f"{path}{end}").exists():
                shutil.copyfile(f"{path}{end}", f"{copy}{end}")
        with closing(sqlite3.connect(copy)) as database:
            database.row_factory = sqlite3.Row
            yield database


def _usage(sources: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what ended at all mailbox servers, and who bound."""
    ended: list[dict[str, Any]] = []
    binds: list[dict[str, Any]] = []
    kinds = {"usage_nameplates": "'nameplate'", "usage_mailboxes": "iif(for_nameplate, 'claimed', 'opened')"}
    for path in sorted(sources.glob("*/data/restante.sqlite")):
        with _database(path) as database:
            source = {"source": path.parent.parent.name}
            for table in ("nameplates", "mailboxes"):  # a demo ends when everything in it has ended
                assert database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0
            for table in (*kinds, "usage_client_versions"):  # and its servers do not round times
                assert database.execute(f"SELECT count(*) FROM {table} WHERE blur_time > 0").fetchone()[0] == 0
            for table, kind in kinds.items():
                sql = f"SELECT {kind} AS kind, app_id, started, waiting_time, total_time, result FROM {table}"
                ended += [source | dict(row) for row in database.execute(sql)]
            sql = "SELECT app_id, connect_time, implementation, version FROM usage_client_versions"
            binds += [source | dict(row) for row in database.execute(sql)]
    return ended, binds


def _archived(sources: Path) -> list[dict[str, Any]]:
    """Return the envelopes of all Mailservers."""
    found: list[dict[str, Any]] = []
    for path in sorted(sources.glob("*/archive.sqlite")):
        with _database(path) as database:
            found += [
                {"source": path.parent.name, **_envelope(raw)}
                for (raw,) in database.execute("SELECT raw FROM envelopes")
            ]
    return found


def _envelope(raw: bytes) -> dict[str, Any]:
    """Return what the report needs of an envelope: an RLP list of expiry, TTL, topic, data and nonce."""
    [fields] = _items(raw)
    assert isinstance(fields, list)
    expiry, ttl, topic, _data, _nonce = fields
    sent = int.from_bytes(expiry) - int.from_bytes(ttl)
    return {"digest": hashlib.sha256(raw).digest(), "topic": f"0x{topic.hex()}", "sent": sent, "size": len(raw)}


def _items(encoded: bytes) -> list[Any]:
    """Return the items of RLP: bytes and lists (Ethereum's Yellow Paper, appendix B)."""
    found: list[Any] = []
    at = 0
    while at < len(encoded):
        head = encoded[at]
        if head < 0x80:
            found.append(encoded[at : at + 1])
            at += 1
            continue
        is_list = head >= 0xC0
        size, at = head - (0xC0 if is_list else 0x80), at + 1
        if size > 55:
            digits = size - 55
            size, at = int.from_bytes(encoded[at : at + digits]), at + digits
        content = encoded[at : at + size]
        assert len(content) == size
        found.append(_items(content) if is_list else content)
        at += size
    return found
