"""Taking over from the reference server (magic-wormhole-mailbox-server), and giving back: its databases ↔ ours."""
