"""`restante send` and `restante receive`."""
