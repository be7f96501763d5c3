"""The transit relay's protocol: the request of a connection, its answers, and refusals."""
