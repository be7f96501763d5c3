"""The command line: a module per part, which is imported when its command runs."""
