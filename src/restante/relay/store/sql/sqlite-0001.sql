-- The transit relay's database, schema 1. Wall times are seconds since 1970; days and months are those of UTC.

-- Usage records: one row per pair, and one per connection that ended without a partner. No id is used twice, so that
-- a reader can continue where it stopped.
CREATE TABLE transfers (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    origin       TEXT NOT NULL DEFAULT '', -- '' in this relay's own rows, else the name of the imported file
    started      REAL NOT NULL,            -- when the first side connected; down to a multiple of --blur-usage
    waiting_time REAL,                     -- seconds until the second side came; NULL: none came
    total_time   REAL NOT NULL,            -- seconds until the pair or the connection ended
    total_bytes  INTEGER NOT NULL,         -- of both directions; rounded up with --blur-usage
    result       TEXT NOT NULL,            -- happy, lonely, redundant, errory, impatient, empty
    address_id   TEXT,                     -- a keyed hash of the first side's address; NULL: not known
    blur_time    REAL                      -- the --blur-usage then; 0: none. NULL: not known, as in imported rows
) STRICT;

-- For --keep-usage, which deletes the oldest records, and for what happened lately.
CREATE INDEX transfers_started ON transfers (started);

-- One row, which every save rewrites: the state of the relay.
CREATE TABLE current (
    one              INTEGER PRIMARY KEY CHECK (one = 1),
    rebooted         REAL NOT NULL,    -- when the relay started
    updated          REAL NOT NULL,    -- when this row was written
    connected        INTEGER NOT NULL, -- connections that have a partner
    waiting          INTEGER NOT NULL, -- tokens for which a connection waits
    incomplete_bytes INTEGER NOT NULL  -- bytes that the current pairs have relayed so far
) STRICT;

-- One row: what was relayed on the current day and in the current month, which survives a restart.
CREATE TABLE traffic (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    day         INTEGER NOT NULL, -- days since 1970-01-01
    day_bytes   INTEGER NOT NULL,
    month       TEXT NOT NULL,    -- like 2026-11
    month_bytes INTEGER NOT NULL,
    day_key     BLOB NOT NULL     -- the key of the address ids of this day. The first save of another day replaces
                                  -- it, and backups do not have it
) STRICT;

-- One row per address whose pairs relayed bytes on this day.
CREATE TABLE address_bytes (
    address_id TEXT PRIMARY KEY,
    bytes      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per imported file, so that no file is imported twice.
CREATE TABLE imports (
    digest TEXT PRIMARY KEY,      -- SHA-256 of the rows that were read, in hexadecimal
    kind   TEXT NOT NULL,         -- usage
    name   TEXT NOT NULL,         -- the file's name; usage records from it have this origin
    at     REAL NOT NULL          -- wall time of the import
) STRICT, WITHOUT ROWID;
