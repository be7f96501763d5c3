"""The kit of the transit relay's tests: conversations as scripts, and the worlds in which they are held."""
