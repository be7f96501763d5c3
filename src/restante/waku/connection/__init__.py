"""One connection to a peer, accepted or dialed."""
