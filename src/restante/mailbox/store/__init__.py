"""The store: SQLite keeps what the rules decided. A store never decides, and a rule never keeps."""
