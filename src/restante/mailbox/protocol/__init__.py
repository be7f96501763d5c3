"""The wire format: messages and hashcash stamps. No state."""
