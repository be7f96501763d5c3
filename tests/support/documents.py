"""The documents, and the blocks of them that tests execute.

A fenced block that is executed has a name after its language: ```sh serve. Which test executes it stands in EXECUTED.
A block of commands that no test executes has a comment before it, `<!-- not run: REASON -->`. NOT_RUN counts those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

DOCUMENTS: Final = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "bench").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
)
"""All documents of the project."""

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
    "docs/install.md": {
        "shell files": "test_shell_files.py",
        **dict.fromkeys(("upgrade", "upgrade for one user"), "test_packages.py"),
    },
    "docs/mailbox/first-server.md": {
        "install": "test_packages.py",
        **dict.fromkeys(("serve", "send", "receive", "check"), "test_first_server.py"),
        **dict.fromkeys(("caddy", "proxy", "certificate"), "test_first_server.py"),
        **dict.fromkeys(("profile", "team sends", "team receives"), "test_first_server.py"),
        **dict.fromkeys(("relay", "relay profile"), "test_first_server.py"),
    },
    "docs/mailbox/operating.md": {
        **dict.fromkeys(("tls", "proxy headers"), "test_docs.py"),
        **dict.fromkeys(("serve", "backup", "daily", "restore", "results", "import", "export"), "test_docs.py"),
        **dict.fromkeys(("upgrade", "go back", "often", "crontab"), "test_docs.py"),
        "install": "test_packages.py",
        **dict.fromkeys(("socket", "socket service"), "test_systemd.py"),
        **dict.fromkeys(("nginx", "haproxy", "proxy", "caddy"), "support/mailbox/reverse_proxies.py"),
    },
    "docs/monitoring.md": {"health": "test_health.py"},
    "docs/waku/operating.md": dict.fromkeys(
        ("serve", "post", "vacuum", "check", "backup", "restore", "export", "import"), "test_docs.py"
    ),
    "docs/pipeline/operating.md": {
        "demo": "pipeline/test_demo.py",
        **dict.fromkeys(
            ("first lake", "select", "describe", "query", "delta", "polars", "files", "compact", "vacuum"),
            "pipeline/test_commands.py",
        ),
        "reports": "pipeline/test_report_reading.py",
        **dict.fromkeys(("gaps", "close"), "pipeline/test_closing_gaps.py"),
        **dict.fromkeys(("master", "worker", "connect"), "support/pipeline/clusters.py"),
        **dict.fromkeys(("cluster", "remote"), "pipeline/test_masters.py"),
    },
    "docs/waku/from-status-go.md": dict.fromkeys(
        ("key", "nodekey", "first pass", "last pass", "trial", "probe", "postgresql"), "waku/test_from_status_go.py"
    ),
    "examples/address-book/README.md": dict.fromkeys(("serve", "invite", "accept", "exchange"), "test_docs.py"),
    "docs/waku/history.md": dict.fromkeys(("requests", "program"), "waku/test_history_guide.py"),
}
"""Document → block → the test file that executes it."""

DOCTESTED: Final = "docs/waku/library.md"
"""Its blocks are executed by doctest, all of them (waku/test_guide.py)."""

NOT_RUN: Final[Mapping[str, int]] = {
    "CONTRIBUTING.md": 1,
    "bench/README.md": 16,
    "docs/client/guide.md": 1,
    "docs/install.md": 6,
    "docs/mailbox/first-server.md": 10,
    "docs/mailbox/operating.md": 6,
    "docs/monitoring.md": 2,
    "docs/pipeline/operating.md": 1,
    "docs/pipeline/tables.md": 1,
    "docs/releasing.md": 2,
    "docs/testing.md": 7,
    "docs/waku/from-status-go.md": 1,
    "docs/waku/library.md": 1,
}
"""Document → how many blocks of commands it has that no test executes. Each has its reason in the document."""

STEP_BY_STEP: Final = ("docs/mailbox/first-server.md", "docs/waku/from-status-go.md")
"""Guides whose readers execute one command after the other. All their commands are in blocks, none in a sentence."""

NO_COMMANDS: Final = (
    "a frame's text ── parse ──▶ message",
    "src/restante/",
    "async with Journal(",
    '"permission-required": ',
    '{"type": "submit-permissions"',
    "HEALTHCHECK ",
    "[restante_*]",
    "3356 passed in ",
    "server's clock ",
    "bytes ─rlpx→ frames",
)
"""How each indented block begins that has no commands."""

_EXECUTABLE: Final = ("sh", "python", "sql", "nginx", "haproxy", "caddy", "ini", "cron")
"""Languages of fenced blocks that are executed."""

_DATA: Final = ("", "toml", "json")
"""Languages of fenced blocks that have no commands."""

_FENCE: Final = re.compile(r"^```(\w*) ?(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
_INDENTED: Final = re.compile(r"(?:(?<=\n\n)|(?<=-->\n))(?:(?: {4}.*| *)\n)* {4}.*\n")
_MARK: Final = re.compile(r"<!-- not run: ([^>]+?)\s*-->\n*$")


_PROGRAM: Final = re.compile(
    r"^(?:\$ )?(?:sudo )?(?:\w+=\S+ )*(?:\S*/)?"
    r"(?:run|restante|wormhole|python3|pip|pipx|uv|curl|cp|mv|systemctl|docker) (?! )",
    re.MULTILINE,
)
"""How a line begins that is a command, in a block that should have none."""


_INLINE: Final = re.compile(
    r"`((?:sudo )?(?:(?:\S*/)?(?:apt|apt-get|pip|pipx|uv|cargo) (?:tool )?install|systemctl (?!status)|chmod"
    r"|restante (?:\w+ )*(?:--\w+ |[A-Z]{3,}))\s*[^`]*)`"
)
"""A command in a sentence that installs something, changes a file or a service, or has an option with a value."""


def inline_commands(text: str) -> list[str]:
    """Return the commands of a document that are in its sentences and tables, not in blocks of code."""
    return [" ".join(found.split()) for found in _INLINE.findall(_INDENTED.sub("", _FENCE.sub("", text)))]


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code of a document."""

    language: str
    """The empty string if it has none, or if the block is indented."""
    name: str
    text: str
    fenced: bool
    reason: str | None
    """Why no test executes it, if the document says so."""

    @property
    def commands(self) -> bool:
        """Whether it has commands or code that somebody may execute."""
        if self.fenced:
            return self.language not in _DATA
        return not self.text.startswith(NO_COMMANDS)


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced and the indented blocks of a document."""

    def reason(start: int) -> str | None:
        mark = _MARK.search(text[:start])
        return " ".join(mark[1].split()) if mark else None

    for found in _FENCE.finditer(text):
        yield Block(found[1], found[2], found[3], fenced=True, reason=reason(found.start()))
    without = _FENCE.sub(lambda found: "`" * len(found[0]), text)
    for found in _INDENTED.finditer(without):
        lines = "\n".join(line[4:] for line in found[0].strip("\n").split("\n"))
        yield Block("", "", lines, fenced=False, reason=reason(found.start()))


class Document:
    """A document of the project, by its path."""

    def __init__(self, path: str) -> None:
        self.path = ROOT / path
        self.text = self.path.read_text()
        self.blocks: dict[str, str] = {}
        """The executed blocks, by name."""
        self.not_run: list[str] = []
        """Why blocks are not executed, for each of those."""
        for block in blocks(self.text):
            language, name = block.language, block.name
            if path == DOCTESTED and block.text.startswith(">>> "):
                continue
            assert language in (*_EXECUTABLE, *_DATA), f"{path}: nothing executes blocks of {language}"
            if block.reason:
                assert not name, f"{path}: {name} is said not to be executed"
                self.not_run.append(block.reason)
            elif block.commands:
                assert name, f"{path}: nothing executes this block, and it does not say why:\n{block.text}"
                assert name not in self.blocks, f"{path}: two blocks are called {name}"
                self.blocks[name] = block.text
            else:
                assert not _PROGRAM.search(block.text), f"{path}: is this a block of commands?\n{block.text}"

    def lines(self, name: str) -> list[str]:
        """Return the lines of a block, each of which is a command."""
        return self.blocks[name].splitlines()

    def commands(self, name: str, *patterns: str) -> list[str]:
        """Return the line of a block that each pattern matches. Each line is matched by one pattern."""
        lines = self.lines(name)
        found = [line for pattern in patterns for line in lines if re.search(pattern, line)]
        assert sorted(found) == sorted(lines), f"{name}: each of {patterns} must match one of {lines}"
        return found
