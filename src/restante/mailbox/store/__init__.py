"""The store: SQLite stores the changes that the rules return. Rules do no I/O, and the store makes no decisions."""
