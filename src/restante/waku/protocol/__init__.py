"""Packets of Waku v1, the conversation with one peer, and which envelopes and requests are accepted. Pure."""
