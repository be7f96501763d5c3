"""What an operator sees: logs, and the admin port."""
