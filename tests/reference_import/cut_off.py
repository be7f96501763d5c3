"""The reference server, killed by SIGKILL while it writes. python -m reference_import.cut_off HOW RELAY

journal    in the middle of a transaction, some of which is in the file already: it has to be taken back
wal        after a commit that is in the -wal alone: it has to be added
"""

import os
import signal
import sys

from wormhole_mailbox_server.database import create_or_upgrade_channel_db
from wormhole_mailbox_server.server import make_server


def main(how: str, relay: str) -> None:
    database = create_or_upgrade_channel_db(relay)
    if how == "wal":
        database.execute("PRAGMA journal_mode = WAL")
        make_server(database).get_app("x").open_mailbox("late", "a", 1000)
    else:
        database.execute("PRAGMA cache_size = 1")  # so that pages are written before there is a COMMIT
        database.execute("DELETE FROM messages")
        database.executemany(
            "INSERT INTO messages VALUES ('x', 'm', 'a', ?, ?, 2000, NULL)",
            ((f"half-{number}", "b" * 1000) for number in range(100)),
        )
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
