"""RLPx and devp2p. These modules take bytes and return events. Pure."""
