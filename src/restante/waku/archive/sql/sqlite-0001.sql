-- The archive of envelopes, schema 1. Times are whole seconds since 1970; a topic is its four bytes as a signed
-- big-endian integer. docs/decisions/archive-schema.md has the figures behind it.

-- One row, always.
CREATE TABLE totals (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    next_arrival INTEGER NOT NULL,  -- of the next envelope that is saved; no number is given twice
    envelopes    INTEGER NOT NULL,  -- rows of envelopes
    bytes        INTEGER NOT NULL   -- and the bytes of their raw
) STRICT;
INSERT INTO totals VALUES (1, 1, 0, 0);

-- One row per envelope. An id is sent << 31 | the first 31 bits of the hash; where that is taken by an envelope with
-- another hash, the next lower one that is free. So the rows are in the order of time, and the same envelope finds
-- itself. The hash is not stored: it is the keccak of raw.
CREATE TABLE envelopes (
    id      INTEGER PRIMARY KEY,
    topic   INTEGER NOT NULL,
    arrival INTEGER NOT NULL,
    raw     BLOB NOT NULL           -- its RLP, exactly
) STRICT;

-- Each entry ends with the id: the envelopes of a topic in the order of time.
CREATE INDEX envelopes_topic ON envelopes (topic);

-- One row per topic that an envelope has.
CREATE TABLE topics (
    topic INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,         -- its envelopes
    first INTEGER NOT NULL,         -- sent, of the oldest
    last  INTEGER NOT NULL          -- and of the newest
) STRICT;

-- One row per envelope, in the order of commits: for who reads on where he stopped.
CREATE TABLE arrivals (
    arrival INTEGER PRIMARY KEY,
    id      INTEGER NOT NULL,
    arrived INTEGER NOT NULL        -- wall time
) STRICT;
