"""What servers and clients leave behind, as rows for the lake; a module per kind."""
