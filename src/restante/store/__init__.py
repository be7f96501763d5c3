"""What the stores of all parts share: a locked data directory, and an SQLite database that grows by migrations."""
