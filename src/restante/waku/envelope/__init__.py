"""Envelopes: their encoding, keys, payloads and proof of work. Pure."""
