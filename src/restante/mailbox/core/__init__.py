"""The rules of mailboxes, without sockets, SQL, clocks or an event loop."""
