"""Messages and stamps as they are on the wire; no state."""
