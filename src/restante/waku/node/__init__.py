"""The Mailserver: it accepts, archives, relays, and answers history requests."""
