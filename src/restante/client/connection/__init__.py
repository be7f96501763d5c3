"""Connections of a wormhole to its server, one after the other, and the work that the server demands."""
