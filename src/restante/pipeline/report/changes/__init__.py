"""What changed since the period before: queries of the lake, and the rule that their rows are judged by. Pure."""
