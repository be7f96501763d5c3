"""Packets of Waku v1, and the conversation with one peer."""
