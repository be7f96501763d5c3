"""Reads the databases and files of servers and clients as rows for the lake; one module per kind of source."""
