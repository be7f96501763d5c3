"""Run a command, and print what it took: one line of JSON, `client.CommandUsage`.

    python client_command.py COMMAND [ARGUMENT ...]

The output of the command is shown only if it fails. This process is the command's parent because it is small: what a
process has of memory when it starts a program counts for that program's peak (getrusage(2): `ru_maxrss` is kept when
a program is executed).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time


def main(command: list[str]) -> int:
    with tempfile.TemporaryFile() as output:
        actions = [(os.POSIX_SPAWN_DUP2, output.fileno(), 1), (os.POSIX_SPAWN_DUP2, output.fileno(), 2)]
        started = time.monotonic()
        process = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
        _, status, used = os.wait4(process, 0)
        usage = {"started": started, "ended": time.monotonic(), "cpu": used.ru_utime + used.ru_stime}
        code = os.waitstatus_to_exitcode(status)
        if code:
            output.seek(0)
            sys.stderr.write(output.read().decode(errors="replace"))
    print(json.dumps({**usage, "peak": used.ru_maxrss * 1024}))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
