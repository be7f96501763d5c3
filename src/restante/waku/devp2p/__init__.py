"""RLPx and devp2p, as bytes in and events out."""
