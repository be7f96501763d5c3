"""Real `wormhole` clients against a mailbox server that is killed at chosen points of the conversation."""
