"""Journal Mode: wormholes that outlive the process, and the file in which they are."""
