-- An archive of schema 2, with a row of every kind; arrival 1 was pruned. Frozen: never edit it. Whatever the schema
-- becomes, a database that looks like this must open with all of its rows (test_schema.py).
PRAGMA application_id = 1383298113;
PRAGMA user_version = 2;
BEGIN TRANSACTION;
CREATE TABLE arrivals (
    arrival INTEGER PRIMARY KEY,
    id      INTEGER NOT NULL,
    arrived INTEGER NOT NULL        -- wall time
) STRICT;
INSERT INTO "arrivals" VALUES(2,3650722213035983351,1700000100);
INSERT INTO "arrivals" VALUES(3,3650722210015815587,1700000200);
CREATE TABLE envelopes (
    id      INTEGER PRIMARY KEY,
    topic   INTEGER NOT NULL,
    arrival INTEGER NOT NULL,
    raw     BLOB NOT NULL           -- its RLP, exactly
) STRICT;
INSERT INTO "envelopes" VALUES(3650722210015815587,16909060,3,X'D5846553F13532840102030488000000000000000380');
INSERT INTO "envelopes" VALUES(3650722213035983351,-1122868,2,X'D5846553F1373284FFEEDDCC88000000000000000280');
CREATE TABLE topics (
    topic INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,         -- its envelopes
    first INTEGER NOT NULL,         -- sent, of the oldest
    last  INTEGER NOT NULL          -- and of the newest
, place0 INTEGER GENERATED ALWAYS AS ((topic >> 24 & 255) + (topic & 1) * 256), place1 INTEGER GENERATED ALWAYS AS ((topic >> 16 & 255) + (topic & 2) * 128), place2 INTEGER GENERATED ALWAYS AS ((topic >> 8 & 255) + (topic & 4) * 64), places INTEGER GENERATED ALWAYS AS (
    CASE place0 >> 3 WHEN place2 >> 3 THEN place2 WHEN place1 >> 3 THEN place1 ELSE place0 END * 262144
    + CASE place1 >> 3 WHEN place2 >> 3 THEN place2 ELSE place1 END * 512
    + place2
)) STRICT;
INSERT INTO "topics" VALUES(-1122868,1,1700000005,1700000005);
INSERT INTO "topics" VALUES(16909060,1,1700000003,1700000003);
CREATE TABLE totals (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    next_arrival INTEGER NOT NULL,  -- of the next envelope that is saved; no number is given twice
    envelopes    INTEGER NOT NULL,  -- rows of envelopes
    bytes        INTEGER NOT NULL   -- and the bytes of their raw
) STRICT;
INSERT INTO "totals" VALUES(1,4,2,44);
CREATE INDEX envelopes_topic ON envelopes (topic);
CREATE INDEX topics_places ON topics (places);
COMMIT;
