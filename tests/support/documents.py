"""The documents, and the blocks of them that tests execute (docs/testing.md, "Tests of the documents")."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

DOCUMENTS: Final = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "bench").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
)


def files_of_the_project(*folders: str) -> list[str]:
    """Return what git knows or would take in; of an archive that was unpacked, what is not hidden."""
    if (ROOT / ".git").exists():
        command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", *folders)
        names = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
        return [name for name in names if (ROOT / name).is_file()]
    paths = [path.relative_to(ROOT) for folder in folders or (".",) for path in (ROOT / folder).rglob("*")]
    visible = [path for path in paths if not any(part.startswith((".", "__pycache__")) for part in path.parts)]
    return [str(path) for path in visible if (ROOT / path).is_file()]


_NAMED: Final = re.compile(r"^```\w+ (.+)\n((?:.*\n)*?)```$", re.MULTILINE)


class Document:
    def __init__(self, path: str) -> None:
        self.path = ROOT / path
        self.text = self.path.read_text()
        named = _NAMED.findall(self.text)
        self.blocks: dict[str, str] = dict(named)
        assert len(self.blocks) == len(named), f"{path}: two blocks have one name"

    def lines(self, name: str) -> list[str]:
        """Return the lines of a block, each of which is a command."""
        return self.blocks[name].splitlines()

    def commands(self, name: str, *patterns: str) -> list[str]:
        """Return the line of a block that each pattern matches. Each line is matched by one pattern."""
        lines = self.lines(name)
        matched = [line for pattern in patterns for line in lines if re.search(pattern, line)]
        assert sorted(matched) == sorted(lines), f"{name}: each of {patterns} must match one of {lines}"
        return matched
