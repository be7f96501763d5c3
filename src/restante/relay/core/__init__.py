"""The rules of the transit relay: who waits, who is paired, what is refused, and what is recorded."""
