"""The events of both clients and the server on one timeline."""
