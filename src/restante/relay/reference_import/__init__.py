"""Imports the usage database of the reference relay (magic-wormhole-transit-relay), and exports records to one."""
