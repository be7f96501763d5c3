"""The relay's store: usage records, and counts that survive a restart, in SQLite."""
