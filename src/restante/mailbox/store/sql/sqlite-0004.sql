-- Schema 4: each usage record has the blur of its times.

-- Seconds of which `started` or `connect_time` is a multiple, rounded down. 0: it was not rounded. NULL: not known, because
-- the row was imported, or is from before. (usage_current.blur_time is the setting at the last prune; NULL there: no blur.)
ALTER TABLE usage_nameplates ADD COLUMN blur_time REAL;
ALTER TABLE usage_mailboxes ADD COLUMN blur_time REAL;
ALTER TABLE usage_client_versions ADD COLUMN blur_time REAL;
