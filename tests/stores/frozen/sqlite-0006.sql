-- A database of schema 6, with a row of every kind. Frozen: never edit it. Whatever the schema becomes, a database
-- that looks like this must open with all of its rows (test_schema.py).
PRAGMA application_id = 1382380404;
PRAGMA user_version = 6;
BEGIN TRANSACTION;
CREATE TABLE imports (
    digest TEXT PRIMARY KEY,        -- SHA-256 of the rows that were read, hexadecimal
    kind   TEXT NOT NULL,           -- channel, usage
    name   TEXT NOT NULL,           -- the file's name; usage rows that came from it have it as their origin
    at     REAL NOT NULL            -- wall time of the import
) STRICT, WITHOUT ROWID;
INSERT INTO "imports" VALUES('9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f','usage','usage.sqlite',1690000000.25);
CREATE TABLE mailboxes (
    key           INTEGER PRIMARY KEY,
    app_id        TEXT NOT NULL,
    mailbox_id    TEXT NOT NULL,
    for_nameplate INTEGER NOT NULL, -- 1: a claim made it; 0: an open did
    crowded       INTEGER NOT NULL, -- 1: a third side was turned away
    touched       REAL NOT NULL,    -- service time of the last activity; saved once a minute
    sides         TEXT NOT NULL     -- its members, at most two, in order of arrival, as JSON:
                                    -- [{"side", "added": wall time, "opened": false once closed, "mood"}]
, visitors INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO "mailboxes" VALUES(1,'x','box1',1,0,10.0,'[{"side":"a","added":1700000000.5,"opened":true,"mood":null}]',0);
INSERT INTO "mailboxes" VALUES(3,'x','box2',1,1,13.25,'[{"side":"a","added":1700000001.5,"opened":true,"mood":null},{"side":"b","added":1700000003.75,"opened":true,"mood":null}]',0);
INSERT INTO "mailboxes" VALUES(5,'x','m''é',0,0,18.25,'[{"side":"é","added":1700000008.75,"opened":true,"mood":null}]',0);
INSERT INTO "mailboxes" VALUES(6,'x','half',0,0,18.25,'[{"side":"a","added":1700000008.75,"opened":true,"mood":null},{"side":"b","added":1700000008.75,"opened":false,"mood":"errory"}]',2);
INSERT INTO "mailboxes" VALUES(8,'y','box3',1,0,78.25,'[{"side":"gone","added":1700000068.75,"opened":true,"mood":null}]',0);
CREATE TABLE "messages" (
    mailbox   INTEGER NOT NULL REFERENCES mailboxes (key),
    sequence  INTEGER PRIMARY KEY,  -- the order in which messages came; clocks have no say
    side      TEXT NOT NULL,
    phase     TEXT NOT NULL,
    body      TEXT NOT NULL,
    msg_id    TEXT NOT NULL,
    server_rx REAL NOT NULL         -- wall time at which it came
) STRICT;
INSERT INTO "messages" VALUES(3,1,'a','"pake"','"61"','"id1"',1700000003.75);
INSERT INTO "messages" VALUES(3,2,'b','{"n": 123456789012345678901234567890}','12.50','null',1700000003.75);
INSERT INTO "messages" VALUES(5,3,'é','"0"','"\u00e9 é"','null',1700000008.75);
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
INSERT INTO "nameplates" VALUES(2,'x','1','box1',0,'[{"side":"a","added":1700000000.5,"claimed":true,"allocated":true}]');
INSERT INTO "nameplates" VALUES(4,'x','4','box2',1,'[{"side":"a","added":1700000001.5,"claimed":false,"allocated":false},{"side":"b","added":1700000003.75,"claimed":true,"allocated":false}]');
CREATE TABLE service (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    seconds REAL NOT NULL,          -- how long the service has run, all told; idleness is counted in this
    saved   REAL NOT NULL,          -- wall time of the last commit
    pruned  REAL                    -- wall time at which the last prune ended
) STRICT;
INSERT INTO "service" VALUES(1,78.25,1700000068.75,1700000068.75);
CREATE TABLE usage_client_versions (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    origin         TEXT NOT NULL DEFAULT '',
    app_id         TEXT NOT NULL,
    side           TEXT NOT NULL,
    connect_time   REAL NOT NULL,
    implementation TEXT,
    version        TEXT
, address_id TEXT, blur_time REAL) STRICT;
INSERT INTO "usage_client_versions" VALUES(1,'','x','a',1700000000.5,'python','0.24.0',NULL,0.0);
INSERT INTO "usage_client_versions" VALUES(2,'','x','b',1700000000.5,'python','0.24.0',NULL,0.0);
INSERT INTO "usage_client_versions" VALUES(3,'','y','gone',1700000000.5,'python','0.24.0','Zm9v',0.0);
CREATE TABLE usage_current (
    one                   INTEGER PRIMARY KEY CHECK (one = 1),
    rebooted              REAL NOT NULL,    -- when the server started
    updated               REAL NOT NULL,    -- when this row was written
    blur_time             REAL,             -- NULL: no blur
    connections_websocket INTEGER NOT NULL  -- connections that have a mailbox open
) STRICT;
INSERT INTO "usage_current" VALUES(1,1699999000.0,1700000068.0,60.0,2);
CREATE TABLE usage_mailboxes (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    origin        TEXT NOT NULL DEFAULT '',
    app_id        TEXT NOT NULL,
    for_nameplate INTEGER NOT NULL,
    started       REAL NOT NULL,    -- when the first side joined
    waiting_time  REAL,             -- seconds until the second side; NULL: there was none
    total_time    REAL NOT NULL,    -- seconds until it ended
    result        TEXT NOT NULL     -- happy, lonely, errory, scary, pruney, crowded
, visitors INTEGER, blur_time REAL) STRICT;
INSERT INTO "usage_mailboxes" VALUES(1,'','y',0,1700000008.75,NULL,60.0,'lonely',1,0.0);
INSERT INTO "usage_mailboxes" VALUES(6,'usage.sqlite','x',1,1600000000.0,12.5,100.25,'happy',NULL,NULL);
CREATE TABLE usage_nameplates (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    origin       TEXT NOT NULL DEFAULT '',
    app_id       TEXT NOT NULL,
    started      REAL NOT NULL,     -- when the first side claimed it
    waiting_time REAL,              -- seconds until the second side; NULL: there was none
    total_time   REAL NOT NULL,     -- seconds until it ended
    result       TEXT NOT NULL      -- happy, lonely, pruney, crowded
, blur_time REAL) STRICT;
INSERT INTO "usage_nameplates" VALUES(1,'','y',1700000068.75,NULL,0.0,'lonely',0.0);
CREATE INDEX usage_nameplates_started ON usage_nameplates (started);
CREATE INDEX usage_mailboxes_started ON usage_mailboxes (started);
CREATE INDEX usage_client_versions_connect_time ON usage_client_versions (connect_time);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('usage_client_versions',9);
INSERT INTO "sqlite_sequence" VALUES('usage_mailboxes',9);
INSERT INTO "sqlite_sequence" VALUES('usage_nameplates',9);
COMMIT;
