"""A fleet for the first try of the pipeline: what its servers and clients left behind, made in virtual time.

The rules and stores of the mailbox server and of the relay, the Waku archive, the client's timing log and the
server's trace are the real ones. What people and networks do is drawn from a seed. `generate.make_demo` makes a
whole fleet; `usage.simulate_server` makes the days of one mailbox server, for those who need the usage records of
many seeds.
"""
