"""What the programs that tests start inherit: little."""

import os
from pathlib import Path


def environment(bytecode: Path, ours: str) -> dict[str, str]:
    """Our environment without settings of the program itself (they begin with OURS).

    Where Python may not write bytecode beside its sources, each of a hundred processes would compile Twisted anew,
    which is half of its life. So they share what they compile, in the folder BYTECODE.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ours) and name != "PYTHONDONTWRITEBYTECODE"
    }
    return kept | {"PYTHONPYCACHEPREFIX": str(bytecode), "PYTHONUNBUFFERED": "1"}
