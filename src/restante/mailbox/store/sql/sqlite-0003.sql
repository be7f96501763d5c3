-- Schema 3: sides that were shown another side's message, and never added one.

-- How many of them gave up their place.
ALTER TABLE mailboxes ADD COLUMN visitors INTEGER NOT NULL DEFAULT 0;

-- Those, and the ones that were there when it ended. NULL: not counted, because the row was imported, or is from before.
ALTER TABLE usage_mailboxes ADD COLUMN visitors INTEGER;
