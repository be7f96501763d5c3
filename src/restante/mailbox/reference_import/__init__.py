"""Imports the databases of the reference server (magic-wormhole-mailbox-server), and exports usage records to one."""
