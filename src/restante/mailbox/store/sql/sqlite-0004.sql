-- Schema 4: each usage record has the --blur-usage with which it was written.

-- `started` or `connect_time` was rounded down to a multiple of this many seconds. 0: it was not rounded. NULL: not
-- known, because the row was imported or is older than schema 4. (usage_current.blur_time is the setting at the last
-- prune; there NULL means none.)
ALTER TABLE usage_nameplates ADD COLUMN blur_time REAL;
ALTER TABLE usage_mailboxes ADD COLUMN blur_time REAL;
ALTER TABLE usage_client_versions ADD COLUMN blur_time REAL;
