"""The running relay: sockets, the clock, the admin port."""
