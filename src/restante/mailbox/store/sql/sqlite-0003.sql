-- Schema 3: visitors, the sides that were sent another side's message and never added one.

-- Number of visitors that have given up their place.
ALTER TABLE mailboxes ADD COLUMN visitors INTEGER NOT NULL DEFAULT 0;

-- Those, and the visitors that were members when the mailbox ended. NULL: not counted, because the row was imported
-- or is older than schema 3.
ALTER TABLE usage_mailboxes ADD COLUMN visitors INTEGER;
