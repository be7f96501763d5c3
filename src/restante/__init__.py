"""Restante holds end-to-end encrypted messages until the other side comes."""

__version__ = "0.1.0.dev0"
