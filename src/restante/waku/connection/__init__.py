"""A connection to one peer, accepted or dialled."""
