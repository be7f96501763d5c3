"""The Mailserver: it accepts envelopes, archives and relays them, and answers history requests."""
