"""The mailbox server: protocol, core, store, reference import and server (docs/design.md)."""
