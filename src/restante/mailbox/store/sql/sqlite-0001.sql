-- The mailbox server's database, schema 1. All of it is read into memory at start; while the server runs it
-- reads nothing from here, so what is live has no index but the keys. Wall times are seconds since 1970.
-- REFERENCES tells the reader; foreign_keys is off, since a batch's statements are not in the order it would want.

-- One row, always.
CREATE TABLE service (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    seconds REAL NOT NULL,          -- how long the service has run, all told; idleness is counted in this. Saved
                                    -- with a commit, but not twice a second
    saved   REAL NOT NULL,          -- wall time at which that was
    pruned  REAL                    -- wall time at which the last prune ended
) STRICT;
INSERT INTO service VALUES (1, 0.0, 0.0, NULL);

-- One row per live mailbox.
CREATE TABLE mailboxes (
    key           INTEGER PRIMARY KEY,
    app_id        TEXT NOT NULL,
    mailbox_id    TEXT NOT NULL,
    for_nameplate INTEGER NOT NULL, -- 1: a claim made it; 0: an open did
    crowded       INTEGER NOT NULL, -- 1: a third side was turned away
    touched       REAL NOT NULL,    -- service time of the last activity; saved once a minute
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
    sides      TEXT NOT NULL        -- its members, likewise:
                                    -- [{"side", "added", "claimed": false once released, "allocated": true
                                    --   until the claim of whom it was allocated to has come}]
) STRICT;

-- One row per message of a live mailbox. phase, body and msg_id are JSON texts, as the client sent them.
CREATE TABLE messages (
    mailbox   INTEGER NOT NULL REFERENCES mailboxes (key),
    sequence  INTEGER NOT NULL,     -- the order in which messages came; clocks have no say
    side      TEXT NOT NULL,
    phase     TEXT NOT NULL,
    body      TEXT NOT NULL,
    msg_id    TEXT NOT NULL,
    server_rx REAL NOT NULL,        -- wall time at which it came
    PRIMARY KEY (mailbox, sequence)
) STRICT, WITHOUT ROWID;

-- Usage records. An id is never given twice, so that a reader can go on where it stopped. origin is '' for our
-- own rows, else the name of the file they were imported from. Times are floored to the blur where there is one.

-- One row per nameplate that has ended.
CREATE TABLE usage_nameplates (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    origin       TEXT NOT NULL DEFAULT '',
    app_id       TEXT NOT NULL,
    started      REAL NOT NULL,     -- when the first side claimed it
    waiting_time REAL,              -- seconds until the second side; NULL: there was none
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
    waiting_time  REAL,             -- seconds until the second side; NULL: there was none
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

-- One row, rewritten by every prune: the server as it is.
CREATE TABLE usage_current (
    one                   INTEGER PRIMARY KEY CHECK (one = 1),
    rebooted              REAL NOT NULL,    -- when the server started
    updated               REAL NOT NULL,    -- when this row was written
    blur_time             REAL,             -- NULL: no blur
    connections_websocket INTEGER NOT NULL  -- connections that have a mailbox open
) STRICT;

-- For --keep-usage, which drops the oldest.
CREATE INDEX usage_nameplates_started ON usage_nameplates (started);
CREATE INDEX usage_mailboxes_started ON usage_mailboxes (started);
CREATE INDEX usage_client_versions_connect_time ON usage_client_versions (connect_time);
