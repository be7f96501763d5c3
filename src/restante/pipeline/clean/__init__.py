"""Converts a row of a source to a row of the lake, or to a fault, which is the reason in quarantine. Pure."""
