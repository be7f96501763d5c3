"""Pages of archived envelopes, and the plans that find them."""
