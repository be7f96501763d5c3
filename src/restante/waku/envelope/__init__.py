"""Envelopes: encoding, keys, payloads, proof of work."""
