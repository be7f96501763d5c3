-- Schema 2: what was taken over from other servers, and how many different addresses came.

-- One row per file that was imported, so that none is imported twice.
CREATE TABLE imports (
    digest TEXT PRIMARY KEY,        -- SHA-256 of the rows that were read, hexadecimal
    kind   TEXT NOT NULL,           -- channel, usage
    name   TEXT NOT NULL,           -- the file's name; usage rows that came from it have it as their origin
    at     REAL NOT NULL            -- wall time of the import
) STRICT, WITHOUT ROWID;

-- Stands for the client's address for one day (UTC), and is nothing to anybody who has not the key, which is never
-- stored. NULL: not known.
ALTER TABLE usage_client_versions ADD COLUMN address_id TEXT;
