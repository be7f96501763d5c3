"""What changed since the days before: queries of the lake, and the rule that their rows are judged by. Pure."""
