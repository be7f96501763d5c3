"""The requester: it fetches history, subscribes to topics and posts envelopes."""
