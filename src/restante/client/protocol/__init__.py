"""What wormhole clients say to one another: keys, codes, URIs. No state and no I/O."""
