"""The documents, and the blocks of them that tests execute.

A fenced block that is executed has a name after its language: ```sh serve. Which test executes it stands in EXECUTED.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

EXECUTED: Final[Mapping[str, Mapping[str, str]]] = {
    "README.md": {
        "demo": "test_docs.py",
        **dict.fromkeys(("serve", "send", "receive"), "test_docs.py"),
        **dict.fromkeys(("waku serve", "waku"), "test_docs.py"),
        "pipeline": "test_docs.py",
    },
    "docs/client/guide.md": dict.fromkeys(
        ("serve", "send", "receive", "send files", "receive files", "files", "chat", "events", "contact", "journal"),
        "client/test_guide.py",
    ),
    "docs/timing/guide.md": dict.fromkeys(("send", "receive", "render", "compare"), "timing/test_guide.py"),
    "docs/waku/guide.md": dict.fromkeys(("serve", "post", "request", "live"), "test_docs.py"),
    "docs/mailbox/operating.md": {
        **dict.fromkeys(("serve", "backup", "daily", "restore", "results", "import", "export"), "test_docs.py"),
        **dict.fromkeys(("nginx", "haproxy", "proxy", "caddy"), "support/mailbox/reverse_proxies.py"),
    },
    "docs/monitoring.md": {"health": "test_health.py"},
    "docs/waku/operating.md": dict.fromkeys(
        ("serve", "post", "vacuum", "check", "backup", "export", "import"), "test_docs.py"
    ),
    "docs/pipeline/operating.md": {
        "demo": "pipeline/test_demo.py",
        **dict.fromkeys(
            ("first lake", "select", "describe", "query", "delta", "polars", "files", "compact", "vacuum"),
            "pipeline/test_commands.py",
        ),
        **dict.fromkeys(("gaps", "close"), "pipeline/test_closing_gaps.py"),
        **dict.fromkeys(("master", "worker", "connect"), "support/pipeline/clusters.py"),
        **dict.fromkeys(("cluster", "remote"), "pipeline/test_masters.py"),
    },
    "docs/waku/from-status-go.md": dict.fromkeys(
        ("key", "first pass", "last pass", "postgresql"), "waku/test_from_status_go.py"
    ),
    "examples/address-book/README.md": dict.fromkeys(("serve", "invite", "accept", "exchange"), "test_docs.py"),
    "docs/waku/history.md": dict.fromkeys(("requests", "program"), "waku/test_history_guide.py"),
}
"""Document → block → the test file that executes it."""

DOCTESTED: Final = "docs/waku/library.md"
"""Its blocks are executed by doctest, all of them (waku/test_guide.py)."""

_BLOCK: Final = re.compile(r"^```(sh|python|sql|nginx|haproxy|caddy)\b ?(.*)\n((?:.*\n)*?)```$", re.MULTILINE)


class Document:
    """A document of the project, by its path."""

    def __init__(self, path: str) -> None:
        self.path = ROOT / path
        self.text = self.path.read_text()
        self.blocks: dict[str, str] = {}
        """The executed blocks, by name."""
        for language, name, block in _BLOCK.findall(self.text):
            if block.startswith(">>> ") and path == DOCTESTED:
                continue
            assert name, f"{path}: this block of {language} has no name, so nothing executes it:\n{block}"
            assert name not in self.blocks, f"{path}: two blocks are called {name}"
            self.blocks[name] = block

    def lines(self, name: str) -> list[str]:
        """Return the lines of a block, each of which is a command."""
        return self.blocks[name].splitlines()

    def commands(self, name: str, *patterns: str) -> list[str]:
        """Return the line of a block that each pattern matches. Each line is matched by one pattern."""
        lines = self.lines(name)
        found = [line for pattern in patterns for line in lines if re.search(pattern, line)]
        assert sorted(found) == sorted(lines), f"{name}: each of {patterns} must match one of {lines}"
        return found
