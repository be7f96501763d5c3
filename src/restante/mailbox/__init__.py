"""The mailbox server: protocol, rules, store and sockets, and import from the reference server (docs/design.md)."""
