-- Schema 2: imports from other servers, and names of client addresses.

-- One row per imported file, so that no file is imported twice.
CREATE TABLE imports (
    digest TEXT PRIMARY KEY,        -- SHA-256 of the rows that were read, in hexadecimal
    kind   TEXT NOT NULL,           -- channel, usage
    name   TEXT NOT NULL,           -- the file's name; usage records from it have this origin
    at     REAL NOT NULL            -- wall time of the import
) STRICT, WITHOUT ROWID;

-- A keyed hash of the client's address, whose key is new each day (UTC). The key is never stored, and without it the
-- hash reveals nothing. NULL: the address is not known.
ALTER TABLE usage_client_versions ADD COLUMN address_id TEXT;
