"""The clean tables → the tables that reports are made of: which days are due, and how they are built."""
