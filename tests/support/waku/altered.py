"""The Waku node with one thing altered: python -m support.waku.altered HOW ARGS... for restante ARGS..."""

import sys
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from restante.cli.main import main
from restante.waku.connection import peer_connection
from restante.waku.devp2p import session

WAYS: Final[dict[str, list[Any]]] = {
    "no-timeouts": [
        patch.object(peer_connection, "WRITE_STALL_TIMEOUT", 1e6),
        patch.object(session, "SessionLimits", partial(session.SessionLimits, silence=1e6)),
    ]
}

if __name__ == "__main__":
    for change in WAYS[sys.argv.pop(1)]:
        change.start()
    main()
