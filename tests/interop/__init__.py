"""Real clients, reverse proxies and a Prometheus, with servers in processes of their own."""
