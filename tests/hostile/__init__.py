"""Whatever anybody sends, a healthy pair beside it notices nothing, and the server is afterwards as it was before.

`siege.py` has the server, a process of its own, and what is asked of it at the end; `pair.py` the two who must not
notice. Attackers write raw bytes (raw_socket.py). No wait here is by the clock: each is for an event, and bounded.
"""
