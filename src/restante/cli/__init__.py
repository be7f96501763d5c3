"""The command `restante`, and what the command lines of several parts share."""
