-- The mailbox server's database, schema 1. The server reads all live data into memory at start and reads none of it
-- while it runs, so the tables of live data have no indexes but the keys. Wall times are seconds since 1970.
-- REFERENCES only documents: foreign_keys is off, because the statements of a batch are not in the order that it
-- needs.

-- Always one row.
CREATE TABLE service (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    seconds REAL NOT NULL,          -- seconds that the service has run in total, in which idleness is measured;
                                    -- saved with commits, at most once a second
    saved   REAL NOT NULL,          -- wall time at which `seconds` was saved
    pruned  REAL                    -- wall time at which the last prune ended
) STRICT;
INSERT INTO service VALUES (1, 0.0, 0.0, NULL);

-- One row per live mailbox.
CREATE TABLE mailboxes (
    key           INTEGER PRIMARY KEY,
    app_id        TEXT NOT NULL,
    mailbox_id    TEXT NOT NULL,
    for_nameplate INTEGER NOT NULL, -- 1: a claim created it; 0: an open did
    crowded       INTEGER NOT NULL, -- 1: a third side was refused
    touched       REAL NOT NULL,    -- service time at which it was last used; saved once a minute
    sides         TEXT NOT NULL     -- its members, at most two, in order of arrival, as JSON:
                                    -- [{"side", "added": wall time, "opened": false once closed, "mood"}]
) STRICT;

-- One row per live nameplate.
CREATE TABLE nameplates (
    key        INTEGER PRIMARY KEY,
    app_id     TEXT NOT NULL,
    name       TEXT NOT NULL,
    mailbox_id TEXT NOT NULL,       -- of the same app
    crowded    INTEGER NOT NULL,
    sides      TEXT NOT NULL        -- its members, in the same form:
                                    -- [{"side", "added", "claimed": false once released, "allocated": true
                                    --   until the side to which it was allocated claims it}]
) STRICT;

-- One row per message of a live mailbox. phase, body and msg_id are JSON texts, as the client sent them.
CREATE TABLE messages (
    mailbox   INTEGER NOT NULL REFERENCES mailboxes (key),
    sequence  INTEGER NOT NULL,     -- the order in which messages were received, whatever the clock says
    side      TEXT NOT NULL,
    phase     TEXT NOT NULL,
    body      TEXT NOT NULL,
    msg_id    TEXT NOT NULL,
    server_rx REAL NOT NULL,        -- wall time at which it was received
    PRIMARY KEY (mailbox, sequence)
) STRICT, WITHOUT ROWID;

-- Usage records. No id is used twice, so that a reader can continue where it stopped. origin is '' in this server's
-- own rows, else the name of the file from which they were imported. Times are rounded down to a multiple of
-- --blur-usage.

-- One row per nameplate that has ended.
CREATE TABLE usage_nameplates (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    origin       TEXT NOT NULL DEFAULT '',
    app_id       TEXT NOT NULL,
    started      REAL NOT NULL,     -- when the first side claimed it
    waiting_time REAL,              -- seconds until the second side came; NULL: none came
    total_time   REAL NOT NULL,     -- seconds until it ended
    result       TEXT NOT NULL      -- happy, lonely, pruney, crowded
) STRICT;

-- One row per mailbox that has ended.
CREATE TABLE usage_mailboxes (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    origin        TEXT NOT NULL DEFAULT '',
    app_id        TEXT NOT NULL,
    for_nameplate INTEGER NOT NULL,
    started       REAL NOT NULL,    -- when the first side joined
    waiting_time  REAL,             -- seconds until the second side came; NULL: none came
    total_time    REAL NOT NULL,    -- seconds until it ended
    result        TEXT NOT NULL     -- happy, lonely, errory, scary, pruney, crowded
) STRICT;

-- One row per bind.
CREATE TABLE usage_client_versions (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    origin         TEXT NOT NULL DEFAULT '',
    app_id         TEXT NOT NULL,
    side           TEXT NOT NULL,
    connect_time   REAL NOT NULL,
    implementation TEXT,
    version        TEXT
) STRICT;

-- One row, which every prune rewrites: the state of the server.
CREATE TABLE usage_current (
    one                   INTEGER PRIMARY KEY CHECK (one = 1),
    rebooted              REAL NOT NULL,    -- when the server started
    updated               REAL NOT NULL,    -- when this row was written
    blur_time             REAL,             -- --blur-usage; NULL: none
    connections_websocket INTEGER NOT NULL  -- connections that have a mailbox open
) STRICT;

-- For --keep-usage, which deletes the oldest records.
CREATE INDEX usage_nameplates_started ON usage_nameplates (started);
CREATE INDEX usage_mailboxes_started ON usage_mailboxes (started);
CREATE INDEX usage_client_versions_connect_time ON usage_client_versions (connect_time);
