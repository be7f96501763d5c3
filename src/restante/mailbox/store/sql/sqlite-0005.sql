-- Schema 5: `sequence` alone is the key of messages.

-- Before, the key was mailbox and sequence, and the rows themselves were in the index (WITHOUT ROWID). To compare a
-- key, SQLite read the whole neighbouring row (btree.c, sqlite3BtreeIndexMoveto): next to messages of 2 MiB each
-- insert took a millisecond.
CREATE TABLE messages_5 (
    mailbox   INTEGER NOT NULL REFERENCES mailboxes (key),
    sequence  INTEGER PRIMARY KEY,  -- the order in which messages were received, whatever the clock says
    side      TEXT NOT NULL,
    phase     TEXT NOT NULL,
    body      TEXT NOT NULL,
    msg_id    TEXT NOT NULL,
    server_rx REAL NOT NULL         -- wall time at which it was received
) STRICT;
INSERT INTO messages_5 SELECT * FROM messages ORDER BY sequence;
DROP TABLE messages;
ALTER TABLE messages_5 RENAME TO messages;

-- To delete the messages of a mailbox that ends.
CREATE INDEX messages_mailbox ON messages (mailbox);
