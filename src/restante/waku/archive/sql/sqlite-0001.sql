-- The archive of envelopes, schema 1. Times are whole seconds since 1970. A topic is its four bytes as a signed
-- big-endian integer. docs/decisions/archive-schema.md has the measurements.

-- Always one row.
CREATE TABLE totals (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    next_arrival INTEGER NOT NULL,  -- arrival of the next envelope that is saved; no number is used twice
    envelopes    INTEGER NOT NULL,  -- number of rows of envelopes
    bytes        INTEGER NOT NULL   -- bytes of their raw
) STRICT;
INSERT INTO totals VALUES (1, 1, 0, 0);

-- One row per envelope. Its id is sent << 31 | the first 31 bits of the hash. If an envelope with another hash has
-- that id, it is the next lower free one. So the rows are in the order of time, and a repeated envelope is found by
-- its id. The hash is not stored: it is the keccak of raw.
CREATE TABLE envelopes (
    id      INTEGER PRIMARY KEY,
    topic   INTEGER NOT NULL,
    arrival INTEGER NOT NULL,
    raw     BLOB NOT NULL           -- its exact RLP
) STRICT;

-- Each entry ends with the id, so it has the envelopes of a topic in the order of time.
CREATE INDEX envelopes_topic ON envelopes (topic);

-- One row per topic of a stored envelope.
CREATE TABLE topics (
    topic INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,         -- number of its envelopes
    first INTEGER NOT NULL,         -- when the oldest was sent
    last  INTEGER NOT NULL          -- when the newest was sent
) STRICT;

-- One row per envelope, in the order of commits, so that a reader can continue where it stopped.
CREATE TABLE arrivals (
    arrival INTEGER PRIMARY KEY,
    id      INTEGER NOT NULL,
    arrived INTEGER NOT NULL        -- wall time at which it was saved
) STRICT;
