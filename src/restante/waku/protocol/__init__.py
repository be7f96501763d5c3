"""Packets of Waku v1, and one peer's conversation."""
