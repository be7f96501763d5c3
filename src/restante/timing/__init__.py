"""Where the time of a transfer went: reads clients' timing logs and a server's trace, on one timeline."""
