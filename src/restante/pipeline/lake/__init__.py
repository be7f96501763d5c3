"""The lake: Delta tables, their log and their files."""
