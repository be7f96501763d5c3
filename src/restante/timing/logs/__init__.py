"""What is read of timing logs and traces."""
