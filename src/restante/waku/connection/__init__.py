"""A connection to one peer, accepted or dialled: how fast it is read, and what its address may use."""
