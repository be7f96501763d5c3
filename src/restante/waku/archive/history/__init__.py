"""Pages of archived envelopes, and the ways to find them."""
