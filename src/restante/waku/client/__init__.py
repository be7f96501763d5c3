"""The requester: it fetches history, subscribes and posts."""
