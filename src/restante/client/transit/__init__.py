"""Transit version 1: a connection from one side of a wormhole to the other, which no mailbox server sees."""
