"""The wire format: messages in both directions, refusals, and hashcash stamps. No state."""
