"""What runs: sockets with TLS, the commit loop, the admin port's pages, and signals. The rules are in core."""
