"""The archive. It stores the envelopes that it is given.

The node decides which ones. sqlite.py has the engine and its contract.
"""
