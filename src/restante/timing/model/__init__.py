"""The events of both clients and the server on one timeline. docs/timing/specification.md has the rules. Pure."""
