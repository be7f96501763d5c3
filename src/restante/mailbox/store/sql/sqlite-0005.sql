-- Schema 5: messages are found by a number of their own.

-- Before, the key of a row was its mailbox and sequence, and the rows themselves were the nodes of that index (WITHOUT
-- ROWID). To compare a key SQLite read the whole row beside it (btree.c, sqlite3BtreeIndexMoveto): beside messages of 2 MiB
-- each insert took a millisecond.
CREATE TABLE messages_5 (
    mailbox   INTEGER NOT NULL REFERENCES mailboxes (key),
    sequence  INTEGER PRIMARY KEY,  -- the order in which messages came; clocks have no say
    side      TEXT NOT NULL,
    phase     TEXT NOT NULL,
    body      TEXT NOT NULL,
    msg_id    TEXT NOT NULL,
    server_rx REAL NOT NULL         -- wall time at which it came
) STRICT;
INSERT INTO messages_5 SELECT * FROM messages ORDER BY sequence;
DROP TABLE messages;
ALTER TABLE messages_5 RENAME TO messages;

-- To drop those of a mailbox that ends.
CREATE INDEX messages_mailbox ON messages (mailbox);
