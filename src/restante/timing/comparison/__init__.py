"""What got slower or faster between two groups of runs."""
