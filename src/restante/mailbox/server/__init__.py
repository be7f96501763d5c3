"""The mailbox server: sockets, the commit loop, signals."""
